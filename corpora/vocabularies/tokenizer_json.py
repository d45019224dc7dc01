"""Writes a run's vocabulary as the files that `transformers.AutoTokenizer` reads.

    write_tokenizer("exported", load_vocabulary("runs/quickstart"))
    transformers.AutoTokenizer.from_pretrained("exported").tokenize("def<extra_id_0>")

The written tokenizer gives the same ids as `Vocabulary.tokenizer`, and has every special id under
its name in `special_names`. There is one exception. If a unigram model has several equally likely
segmentations, for example for long runs of spaces, the result may differ. `tokenizers` computes
with float64, whereas SentencePiece computes with float32.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...settings.run_directory import TOKENIZER
from .factories import Vocabulary
from .letters import OVERLAPPING
from .special_tokens import special_names
from .tokenization import Tokenizer

# Texts for which the ids of both tokenizers are compared before a file is written.
PROBES = (
    "",
    " ",
    "def f(x):\n        return x + 1\n",
    "  two spaces,\ttabs\r\n\n\n and an end   ",
    "▁ and ▁▁a▁ in a text",
    "Größe, naïve, Ελλάδα, 日本語 𝔘𝔫𝔦 🤖👩‍👩‍👧 e\u0301 \u00a0 \u200b \x00\x7f",
    "<0x41> <unk>",
)
SPACE = "▁"  # SentencePiece's character for a space
NEVER = -1000.0  # Log probability of special pieces, below that of any other spelling


def write_tokenizer(
    directory: str,
    vocabulary: Vocabulary,
    before: Sequence[int] = (),
    after: Sequence[int] = (),
) -> None:
    """Writes tokenizer.json, and tokenizer_config.json if it does not exist.

    The tokenizer adds the ids `before` and `after` a text.

    Raises ValueError, and writes nothing, if `tokenizer_json` cannot convert the vocabulary.
    """
    tokenizer = tokenizer_json(vocabulary)
    if before or after:
        tokenizer.post_processor = _framing(tokenizer, before, after)
    names = special_names(vocabulary.tokenizer, vocabulary.ids)
    ids = vocabulary.ids
    roles = {"pad": ids.pad, "eos": ids.eos, "mask": ids.mask, "cls": ids.cls, "sep": ids.sep}
    config: dict[str, Any] = {f"{key}_token": names[i] for key, i in roles.items() if i is not None}
    if ids.bos in before or ids.bos in after:
        config["bos_token"] = tokenizer.id_to_token(ids.bos)
    config |= {
        "additional_special_tokens": [names[i] for i in names if i not in roles.values()],
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,  # so that decoding restores the text
    }
    tokenizer.save(os.path.join(directory, TOKENIZER))
    file = Path(directory, "tokenizer_config.json")
    if not file.exists():
        text = json.dumps(config, indent=2, ensure_ascii=False, sort_keys=True)
        file.write_text(text, encoding="utf-8")


def tokenizer_json(vocabulary: Vocabulary):
    """Returns the vocabulary as a `tokenizers.Tokenizer` with the same special ids.

    Raises ValueError, with the reason, if `tokenizers` has no equivalent, for example for a
    SentencePiece model that normalizes text.
    """
    import tokenizers

    source = vocabulary.tokenizer
    if source.kind == "hugging_face":
        tokenizer = tokenizers.Tokenizer.from_file(str(source.path))
    elif source.kind == OVERLAPPING:
        raise ValueError(f"{source.path} has overlapping k-mers, which `tokenizers` cannot split")
    elif source.kind == "bytes":
        pieces = ["<pad>", "</s>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
        tokenizer = _bpe_model({piece: i for i, piece in enumerate(pieces)}, [])
    else:
        assert source.path is not None  # a SentencePiece model is a file
        tokenizer = _sentencepiece_model(source.path)
    names = {i: name for name, i in source.named.items()}
    names |= special_names(source, vocabulary.ids)
    # Added tokens get consecutive ids, so every id above the vocabulary needs a token, in order.
    above = range(tokenizer.get_vocab_size(), vocabulary.ids.size)
    below = sorted(i for i in names if i not in above)
    tokens = [names.get(i, f"<id_{i}>") for i in (*below, *above)]
    tokenizer.add_special_tokens([tokenizers.AddedToken(t, normalized=False) for t in tokens])
    _check(source, tokenizer, {names[i]: i for i in names})
    return tokenizer


def _framing(tokenizer, before: Sequence[int], after: Sequence[int]):
    from tokenizers import processors

    names = {i: tokenizer.id_to_token(i) for i in (*before, *after)}
    return processors.TemplateProcessing(
        single=[*(names[i] for i in before), "$A", *(names[i] for i in after)],
        special_tokens=[(name, i) for i, name in names.items()],
    )


def _sentencepiece_model(path: str):
    import tokenizers
    from sentencepiece import sentencepiece_model_pb2

    with open(path, "rb") as file:
        proto: Any = sentencepiece_model_pb2  # its classes are made at run time
        model = proto.ModelProto.FromString(file.read())
    normal = model.normalizer_spec
    trained = model.trainer_spec
    if (
        normal.precompiled_charsmap
        or normal.add_dummy_prefix
        or normal.remove_extra_whitespaces
        or not trained.byte_fallback
        or trained.treat_whitespace_as_suffix
        or any(p.type == p.USER_DEFINED for p in model.pieces)
    ):
        raise ValueError(f"{path} normalizes text, or has no byte pieces for unknown characters")
    # Pieces with spaces do not match a ▁ in a text, so that it becomes bytes, as in SentencePiece.
    pieces = [p.piece.replace(SPACE, " ") for p in model.pieces]
    ordinary = [p.type == p.NORMAL for p in model.pieces]
    if trained.model_type == trained.UNIGRAM:
        scores = [p.score if is_text else NEVER for p, is_text in zip(model.pieces, ordinary)]
        scored = list(zip(pieces, scores))
        return _with_byte_decoder(
            tokenizers.models.Unigram(scored, unk_id=trained.unk_id, byte_fallback=True)
        )
    if trained.model_type != trained.BPE:
        raise ValueError(f"{path} is neither a unigram model nor a BPE model")
    ids = {piece: i for i, piece in enumerate(pieces)}
    # SentencePiece merges any two pieces that form another piece, beginning with the best score.
    merges = [
        (-model.pieces[i].score, (piece[:at], piece[at:]))
        for piece, i in ids.items()
        if ordinary[i]
        for at in range(1, len(piece))
        if piece[:at] in ids and piece[at:] in ids
    ]
    return _bpe_model(ids, [pair for _, pair in sorted(merges)])


def _bpe_model(ids: dict[str, int], merges: list[tuple[str, str]]):
    from tokenizers.models import BPE

    return _with_byte_decoder(BPE(ids, merges, unk_token="<unk>", byte_fallback=True))


def _with_byte_decoder(model):
    from tokenizers import Tokenizer, decoders

    tokenizer = Tokenizer(model)
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def _check(source: Tokenizer, tokenizer, names: dict[str, int]) -> None:
    for name, i in names.items():
        if tokenizer.token_to_id(name) != i:
            raise ValueError(
                f"{name} would have the id {tokenizer.token_to_id(name)} instead of {i}"
            )
    if source.kind == "hugging_face":  # It was read from the same file.
        return
    for text in PROBES:
        expected = source.encode_batch([text])[0].tolist()
        tokenizer.encode_special_tokens = True
        got = tokenizer.encode(text, add_special_tokens=False).ids
        tokenizer.encode_special_tokens = False
        if got != expected:
            raise ValueError(f"{text!r} would have the ids {got} instead of {expected}")
