"""A run's vocabulary as the files that `transformers.AutoTokenizer` reads.

    write_tokenizer("exported", load_vocabulary("runs/quickstart"))
    transformers.AutoTokenizer.from_pretrained("exported").tokenize("def<extra_id_0>")

It gives the ids of `Vocabulary.tokenizer` for any text, and knows every special id by the name that
`special_names` has for it. Of segmentations that a unigram model finds equally likely, as of long
runs of spaces, it may take another: there sums are float64, in SentencePiece float32.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...settings.run_directory import TOKENIZER
from .factories import Vocabulary
from .special_tokens import special_names
from .tokenization import Tokenizer

# What is compared before a file is written: spaces and line ends, bytes, ▁, scripts, special names.
PROBES = (
    "",
    " ",
    "def f(x):\n        return x + 1\n",
    "  two spaces,\ttabs\r\n\n\n and an end   ",
    "▁ and ▁▁a▁ in a text",
    "Größe, naïve, Ελλάδα, 日本語 𝔘𝔫𝔦 🤖👩‍👩‍👧 e\u0301 \u00a0 \u200b \x00\x7f",
    "<0x41> <unk>",
)
SPACE = "▁"  # as SentencePiece writes it
NEVER = -1000.0  # a log probability below that of any spelling of such a name


def write_tokenizer(
    directory: str,
    vocabulary: Vocabulary,
    before: Sequence[int] = (),
    after: Sequence[int] = (),
) -> None:
    """Writes tokenizer.json, and tokenizer_config.json where there is none.

    The tokenizer adds the ids `before` and `after` a text. Raises ValueError as `tokenizer_json`,
    and writes nothing then.
    """
    made = tokenizer_json(vocabulary)
    if before or after:
        made.post_processor = _framing(made, before, after)
    names = special_names(vocabulary.tokenizer, vocabulary.ids)
    ids = vocabulary.ids
    roles = {"pad": ids.pad, "eos": ids.eos, "mask": ids.mask, "cls": ids.cls, "sep": ids.sep}
    config: dict[str, Any] = {f"{key}_token": names[i] for key, i in roles.items() if i is not None}
    if ids.bos in before or ids.bos in after:
        config["bos_token"] = made.id_to_token(ids.bos)
    config |= {
        "additional_special_tokens": [names[i] for i in names if i not in roles.values()],
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,  # decoding gives back the text
    }
    made.save(os.path.join(directory, TOKENIZER))
    file = Path(directory, "tokenizer_config.json")
    if not file.exists():
        text = json.dumps(config, indent=2, ensure_ascii=False, sort_keys=True)
        file.write_text(text, encoding="utf-8")


def tokenizer_json(vocabulary: Vocabulary):
    """The vocabulary as a `tokenizers.Tokenizer`, its special tokens with the same ids.

    Raises ValueError, with the reason, for a tokenizer that has no equal there, such as a
    SentencePiece model that changes text before it reads it.
    """
    import tokenizers

    own = vocabulary.tokenizer
    if own.kind == "hugging_face":
        made = tokenizers.Tokenizer.from_file(str(own.path))
    elif own.kind == "bytes":
        pieces = ["<pad>", "</s>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
        made = _of_pieces({piece: i for i, piece in enumerate(pieces)}, [])
    else:
        assert own.path is not None  # a SentencePiece model is a file
        made = _of_sentencepiece(own.path)
    names = {i: name for name, i in own.named.items()}
    names |= special_names(own, vocabulary.ids)
    # An id is what comes next: in their order, each place taken.
    above = range(made.get_vocab_size(), vocabulary.ids.size)
    below = sorted(i for i in names if i not in above)
    tokens = [names.get(i, f"<id_{i}>") for i in (*below, *above)]
    made.add_special_tokens([tokenizers.AddedToken(t, normalized=False) for t in tokens])
    _check(own, made, {names[i]: i for i in names})
    return made


def _framing(made, before: Sequence[int], after: Sequence[int]):
    from tokenizers import processors

    names = {i: made.id_to_token(i) for i in (*before, *after)}
    return processors.TemplateProcessing(
        single=[*(names[i] for i in before), "$A", *(names[i] for i in after)],
        special_tokens=[(name, i) for i, name in names.items()],
    )


def _of_sentencepiece(path: str):
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
        raise ValueError(
            f"{path} changes text before it reads it, or has no bytes for what it does not know"
        )
    # Keep spaces as they are, so that ▁ in a text does not match a piece and becomes bytes.
    pieces = [p.piece.replace(SPACE, " ") for p in model.pieces]
    ordinary = [p.type == p.NORMAL for p in model.pieces]
    if trained.model_type == trained.UNIGRAM:
        scores = [p.score if is_text else NEVER for p, is_text in zip(model.pieces, ordinary)]
        scored = list(zip(pieces, scores))
        return _decoding_bytes(
            tokenizers.models.Unigram(scored, unk_id=trained.unk_id, byte_fallback=True)
        )
    if trained.model_type != trained.BPE:
        raise ValueError(f"{path} is neither a unigram model nor one of byte pairs")
    ids = {piece: i for i, piece in enumerate(pieces)}
    # SentencePiece merges any two whose piece there is, that which scores best first.
    merges = [
        (-model.pieces[i].score, (piece[:at], piece[at:]))
        for piece, i in ids.items()
        if ordinary[i]
        for at in range(1, len(piece))
        if piece[:at] in ids and piece[at:] in ids
    ]
    return _of_pieces(ids, [pair for _, pair in sorted(merges)])


def _of_pieces(ids: dict[str, int], merges: list[tuple[str, str]]):
    from tokenizers.models import BPE

    return _decoding_bytes(BPE(ids, merges, unk_token="<unk>", byte_fallback=True))


def _decoding_bytes(model):
    from tokenizers import Tokenizer, decoders

    made = Tokenizer(model)
    made.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return made


def _check(own: Tokenizer, made, names: dict[str, int]) -> None:
    """Raises ValueError where ids are not the same."""
    for name, i in names.items():
        if made.token_to_id(name) != i:
            raise ValueError(f"{name} would be {made.token_to_id(name)}, and is {i}")
    if own.kind == "hugging_face":  # it is the same
        return
    for text in PROBES:
        expected = own.encode_batch([text])[0].tolist()
        made.encode_special_tokens = True
        got = made.encode(text, add_special_tokens=False).ids
        made.encode_special_tokens = False
        if got != expected:
            raise ValueError(f"{text!r} would be {got}, and is {expected}")
