"""Vocabularies without TensorFlow: text to ids and back, and the special ids, from one place.

`Tokenizer` is text alone: whatever a document says (`</s>`, `<extra_id_0>`, `[MASK]`), its ids are
ordinary ones. `token_ids` adds the special ids, and `codec` shows both as text. SeqIO's view of the
same vocabularies is in `tasks.seqio_vocabularies`.
"""

import itertools
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pretrax.objectives import TokenIds, bitmap, check_token_ids
from pretrax.training.data import Codec
from pretrax.training.run_directory import (
    CLASSES,
    SENTENCEPIECE_MODEL,
    TOKENIZER,
    VOCABULARY,
    read_json,
    write_bytes,
    write_json,
)
from pretrax.training.token_ids import ids_from_json, ids_to_json

DEFAULT_SPECIALS = ("R", "S", "X", "mask", "cls", "sep", "fim")
T5_EXTRA_IDS = 100  # what SeqIO appends to T5's own sentencepiece model

# What tokenizers call the token that we call by the key; the first name is the one we append.
KNOWN_NAMES = {
    "pad": ("<pad>", "[PAD]", "<|pad|>", "<|padding|>"),
    "eos": ("</s>", "<eos>", "<|endoftext|>", "<|end_of_text|>", "<|im_end|>"),
    "mask": ("<mask>", "[MASK]", "<|mask|>"),
    "cls": ("[CLS]", "<cls>"),
    "sep": ("[SEP]", "<sep>"),
    "R": ("[R]", "[NLU]"),
    "S": ("[S]", "[S2S]"),
    "X": ("[X]", "[NLG]"),
}
FIM_NAMES = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
)

SENTENCE_ENDS = tuple(".!?\n。！？")
SENTENCE_CLOSERS = " \t\r\"'”’»)]}」』）"


class Tokenizer(NamedTuple):
    """Text to ids and back, special tokens apart."""

    kind: str  # "sentencepiece", "bytes" or "hugging_face"
    path: str | None  # its file
    size: int  # its own ids are 0 … size-1
    encode_batch: Callable[[Sequence[str]], list[np.ndarray]]  # never gives a special id
    decode: Callable[[Sequence[int]], str]  # ordinary ids alone
    surface: Callable[[int], str]  # how an id reads within a text, with the space before a word
    named: dict[str, int]  # the special tokens that it names
    blocked: tuple[int, ...]  # its ids that are no text
    pad: int | None
    eos: int | None
    spaced: bool = False  # decoding drops the space before a first word
    extra_ids: int = 0  # sentinels named above a SentencePiece model's own pieces
    swallowing: frozenset[str] = frozenset()  # names that take the white space before them


def open_tokenizer(name: str) -> Tokenizer:
    """The tokenizer `name`: "bytes", a SentencePiece `.model`, or a Hugging Face `tokenizer.json`.

    Raises:
        ValueError, FileNotFoundError: what was got and what is expected.
    """
    if name == "bytes":
        return byte_tokenizer()
    if not os.path.isfile(name):
        raise FileNotFoundError(
            f"No vocabulary at {name!r}: expected 'bytes', a SentencePiece '.model' file, "
            "or a Hugging Face 'tokenizer.json'."
        )
    return hugging_face_tokenizer(name) if name.endswith(".json") else sentencepiece_tokenizer(name)


def sentencepiece_tokenizer(path: str, *, extra_ids: int | None = None) -> Tokenizer:
    """A SentencePiece model.

    As in SeqIO, `extra_ids` sentinels are named above the model's own pieces, descending: T5's
    model has 32000 pieces, `<extra_id_0>` is 32099 and `<extra_id_99>` 32000. By default 100, or 0
    where the model names its sentinels itself (mT5, umT5).
    """
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2

    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.Load(path)
    except (OSError, RuntimeError) as error:
        raise ValueError(f"{path} is no SentencePiece model ({error}).") from error
    own = processor.GetPieceSize()
    named, blocked = {}, []
    model = sentencepiece_model_pb2.ModelProto.FromString(processor.serialized_model_proto())
    for i, piece in enumerate(model.pieces):
        name = piece.piece.lstrip("▁")
        control = piece.type in (piece.CONTROL, piece.UNUSED)
        if control or (piece.type == piece.USER_DEFINED and _is_known(name)):
            named.setdefault(name, i)
            blocked.append(i)
    if extra_ids is None:
        extra_ids = 0 if "<extra_id_0>" in named else T5_EXTRA_IDS
    named |= {f"<extra_id_{i}>": own + extra_ids - 1 - i for i in range(extra_ids)}
    byte_fallback = processor.PieceToId("<0x00>") != processor.unk_id()
    if byte_fallback:  # then nothing is ever unknown
        blocked.append(processor.unk_id())
    underline = [processor.PieceToId(f"<0x{b:02X}>") for b in "▁".encode()] if byte_fallback else []

    def encode_batch(texts: Sequence[str]) -> list[np.ndarray]:
        rows = processor.Encode(list(texts), num_threads=_cores())
        if underline:
            # SentencePiece writes a space as ▁ and so reads ▁ as a space: give it as bytes.
            for i, text in enumerate(texts):
                if "▁" in text:
                    parts = [processor.Encode(part) for part in text.split("▁")]
                    rows[i] = parts[0] + [x for p in parts[1:] for x in underline + p]
        return [np.asarray(row, np.int32) for row in rows]

    return Tokenizer(
        "sentencepiece",
        path,
        own + extra_ids,
        encode_batch,
        lambda ids: processor.Decode([int(i) for i in ids]),
        lambda i: _surface_of_piece(processor.IdToPiece(i)) if i < own else "",
        named,
        tuple(blocked),
        pad=processor.pad_id() if processor.pad_id() >= 0 else None,
        eos=processor.eos_id() if processor.eos_id() >= 0 else None,
        spaced=processor.Decode(processor.Encode(" a")) == "a",
        extra_ids=extra_ids,
    )


def byte_tokenizer() -> Tokenizer:
    """ByT5's bytes: pad 0, eos 1, unk 2, then byte b is 3 + b.

    Sentinels are appended above; ByT5's own checkpoints reuse the last byte ids instead.
    """
    return Tokenizer(
        "bytes",
        None,
        259,
        lambda texts: [
            np.frombuffer(text.encode("utf-8"), np.uint8).astype(np.int32) + 3 for text in texts
        ],
        lambda ids: bytes(int(i) - 3 for i in ids if 3 <= i < 259).decode("utf-8", "replace"),
        lambda i: chr(i - 3) if 3 <= i < 131 else "",
        {},
        (0, 1, 2),
        pad=0,
        eos=1,
    )


def hugging_face_tokenizer(path: str) -> Tokenizer:
    """A Hugging Face `tokenizer.json`: BPE, WordPiece or unigram.

    Its padding, truncation and post-processor ([CLS] … [SEP]) are left out: objectives add special
    tokens themselves.
    """
    import tokenizers

    try:
        tokenizer = tokenizers.Tokenizer.from_file(path)
    except Exception as error:  # the library raises a bare Exception
        raise ValueError(f"{path} is no Hugging Face tokenizer.json ({error}).") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.encode_special_tokens = True  # "[MASK]" in a document is text
    added = tokenizer.get_added_tokens_decoder()
    named = {t.content: i for i, t in added.items() if t.special or _is_known(t.content)}
    named |= {name: i for name, i in tokenizer.get_vocab().items() if _is_known(name)}
    size = max(tokenizer.get_vocab().values()) + 1
    pad = next((named[n] for n in KNOWN_NAMES["pad"] if n in named), None)
    eos = next((named[n] for n in KNOWN_NAMES["eos"] if n in named), None)

    literal = re.compile("|".join(f"(?<={re.escape(n[0])})(?={re.escape(n[1:])})" for n in named))

    def encode_batch(texts: Sequence[str]) -> list[np.ndarray]:
        rows = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        ids = [row.ids for row in rows]
        for i, text in enumerate(texts):
            if named and literal.search(text):
                # A unigram model finds special tokens among its pieces: break their names in two.
                parts = tokenizer.encode_batch(literal.split(text), add_special_tokens=False)
                ids[i] = [x for part in parts for x in part.ids]
        return [np.asarray(row, np.int32) for row in ids]

    word_pieces = isinstance(tokenizer.model, tokenizers.models.WordPiece)
    bytewise = isinstance(tokenizer.decoder, tokenizers.decoders.ByteLevel)

    def surface(i: int) -> str:
        piece = tokenizer.id_to_token(i) or ""
        if word_pieces:
            return piece.removeprefix("##") if piece.startswith("##") else " " + piece
        return tokenizer.decode([i]) if bytewise else _surface_of_piece(piece)

    return Tokenizer(
        "hugging_face",
        path,
        size,
        encode_batch,
        lambda ids: tokenizer.decode([int(i) for i in ids], skip_special_tokens=False),
        surface,
        named,
        tuple(sorted(set(named.values()))),
        pad,
        eos,
        spaced=not bytewise,
        swallowing=frozenset(t.content for t in added.values() if t.special and t.lstrip),
    )


def token_ids(
    tokenizer: Tokenizer,
    *,
    sentinels: int = 128,
    specials: Sequence[str] = DEFAULT_SPECIALS,
) -> TokenIds:
    """The special ids of `tokenizer`: by name where it names them, else appended above its own ids.

        token_ids(sentencepiece_tokenizer("t5.model"), sentinels=100)
        -> TokenIds(size=32109, text=(2, 32000), pad=0, eos=1, sentinels=(32099, …, 32000),
                    modes=(("R", 32100), ("S", 32101), ("X", 32102)), mask=32103, …)

    With 128 sentinels (UL2's (3, .5) denoiser needs 128 at 512 inputs, T5 has 100) the last 28 are
    appended: 32100 … 32127. A tokenizer that names none gets them descending, as SeqIO does.
    `size` counts ids alone: rows that a model adds to round its embedding are no ids.

    Args:
        tokenizer: what `open_tokenizer` gives.
        sentinels: how many, in order of use.
        specials: which others are wanted: "mask", "cls", "sep", "fim" (three ids), and the names
            of mode tokens ("R", "S", "X", or any other, which is then called `[NAME]`).

    Raises:
        ValueError: two special tokens share an id, or too little text is left.
    """
    taken = _Appender(tokenizer.size)
    pad = tokenizer.pad if tokenizer.pad is not None else taken.append()
    eos = tokenizer.eos if tokenizer.eos is not None else taken.append()
    named_sentinels = _named_sentinels(tokenizer.named)[:sentinels]
    if named_sentinels:
        extra = [taken.append() for _ in range(sentinels - len(named_sentinels))]
        sentinel_ids = (*named_sentinels, *extra)
    else:
        sentinel_ids = tuple(reversed([taken.append() for _ in range(sentinels)]))

    def resolve(key: str) -> int:
        names = KNOWN_NAMES.get(key, (f"[{key}]", key))
        found = [tokenizer.named[name] for name in names if name in tokenizer.named]
        return found[0] if found else taken.append()

    single = {"mask", "cls", "sep"}
    modes = tuple((key, resolve(key)) for key in specials if key not in single | {"fim"})
    singles = {key: resolve(key) for key in specials if key in single}
    fim: tuple[int, ...] = ()
    if "fim" in specials:
        known = [names for names in FIM_NAMES if all(n in tokenizer.named for n in names)]
        fim = (
            tuple(tokenizer.named[n] for n in known[0])
            if known
            else (taken.append(), taken.append(), taken.append())
        )
    blocked = {pad, eos, *sentinel_ids, *fim, *singles.values(), *(i for _, i in modes)}
    blocked |= set(tokenizer.blocked) | set(tokenizer.named.values())
    return check_token_ids(
        TokenIds(
            size=taken.size,
            text=_text_range(tokenizer, blocked),
            pad=pad,
            eos=eos,
            bos=pad,
            sentinels=sentinel_ids,
            modes=modes,
            fim=fim,
            **_word_and_sentence_flags(tokenizer, blocked, taken.size),
            **singles,
        )
    )


def published_ids(
    tokenizer: Tokenizer,
    directory: str | os.PathLike,
    config: Mapping[str, Any],
    sentinels: int | None = None,
    specials: Sequence[str] = (),
) -> TokenIds:
    """The special ids of a published model: those that its files name, and nothing appended.

    Args:
        tokenizer: of the directory.
        directory: of `transformers`: tokenizer_config.json and special_tokens_map.json say which
            token pads, starts, ends, masks, classifies and separates.
        config: its config.json, which says the same by ids, and with what a decoder starts.
        sentinels: more of them than the tokenizer names are appended; None: those that it names.
        specials: others to have, as in `token_ids`; those that it does not name are appended.

    Raises:
        ValueError: as `token_ids`.
    """
    roles = _roles(tokenizer, directory, config)
    eos = roles.get("eos", roles.get("sep", tokenizer.eos))
    tokenizer = tokenizer._replace(pad=roles.get("pad", tokenizer.pad), eos=eos)
    if tokenizer.pad is None:  # padding is told by segments: any id that is no text will do
        tokenizer = tokenizer._replace(pad=eos)
    fim = [] if not any(n[0] in tokenizer.named for n in FIM_NAMES) else ["fim"]
    own = [
        name
        for name in (*KNOWN_NAMES, "fim")
        if name in fim or any(n in tokenizer.named for n in KNOWN_NAMES.get(name, ()))
    ]
    wanted = dict.fromkeys([n for n in own if n not in ("pad", "eos")] + list(specials))
    count = len(_named_sentinels(tokenizer.named)) if sentinels is None else sentinels
    ids = token_ids(tokenizer, sentinels=count, specials=list(wanted))
    start = config.get("decoder_start_token_id", roles.get("bos"))
    found = {key: roles[key] for key in ("mask", "cls", "sep") if key in roles}
    return check_token_ids(ids._replace(bos=ids.pad if start is None else start, **found))


def _roles(tokenizer: Tokenizer, directory, config: Mapping[str, Any]) -> dict[str, int]:
    """What the files of a published model say is its token for padding, ending and so on."""
    names: dict[str, Any] = {}
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        path = os.path.join(directory, file)
        if os.path.exists(path):
            names |= read_json(path)
    roles = {}
    for key in ("pad", "eos", "bos", "mask", "cls", "sep"):
        name = names.get(f"{key}_token")
        name = name.get("content") if isinstance(name, dict) else name
        found = tokenizer.named.get(name, config.get(f"{key}_token_id"))
        found = found[0] if isinstance(found, list) else found  # LLaMA 3 ends in several ways
        if found is not None:
            roles[key] = found
    return roles


def _word_and_sentence_flags(tokenizer: Tokenizer, blocked: set[int], size: int) -> dict:
    """Where words start and sentences end, as far as an id tells by itself.

    A word starts with the space before it; a sentence ends with a full stop, a question or
    exclamation mark, or a line break, and what closes it: quotes and brackets in the same id.
    """
    starts, ends = np.zeros((2, size), bool)
    for i in range(tokenizer.size):
        surface = "" if i in blocked else tokenizer.surface(i)
        starts[i] = surface[:1].isspace()
        ends[i] = surface.rstrip(SENTENCE_CLOSERS).endswith(SENTENCE_ENDS)
    return {"word_starts": bitmap(starts), "sentence_ends": bitmap(ends)}


def _surface_of_piece(piece: str) -> str:
    """A SentencePiece piece as text: ▁ is a space, <0x0A> a line break, <0xA0> part of a character."""
    byte = re.fullmatch(r"<0x([0-9A-F]{2})>", piece)
    return bytes.fromhex(byte[1]).decode("utf-8", "replace") if byte else piece.replace("▁", " ")


def codec(tokenizer: Tokenizer, ids: TokenIds) -> Codec:
    """Text with special tokens written by name, both ways.

        codec.decode([262, 4219, 1]) -> "def<extra_id_0></s>"
        codec.encode("def<extra_id_0></s>") -> [262, 4219, 1]

    Encoding a *document* is `tokenizer.encode_batch`, to which a name is ordinary text.
    """
    names = special_names(tokenizer, ids)
    by_name = {name: i for i, name in names.items()}
    pieces = (
        (r"\s*" if name in tokenizer.swallowing else "") + re.escape(name)  # RoBERTa's <mask>
        for name in sorted(by_name, key=len)[::-1]
    )
    pattern = re.compile(f"({'|'.join(pieces)})")

    def encode(text: str) -> list[int]:
        out: list[int] = []
        for part in pattern.split(text):
            if part.lstrip() in by_name:
                out.append(by_name[part.lstrip()])
            elif part:
                out.extend(tokenizer.encode_batch([part])[0].tolist())
        return out

    def decode(tokens: Sequence[int]) -> str:
        out, run = [], []

        def close_run():
            if run:
                text = tokenizer.decode(run)
                lead = " " if tokenizer.spaced and out and not text.startswith(" ") else ""
                out.append(lead + text)
                run.clear()

        for i in map(int, tokens):
            if i in names or i >= tokenizer.size:
                close_run()
                out.append(names.get(i, f"<id_{i}>"))
            else:
                run.append(i)
        close_run()
        return "".join(out)

    return Codec(encode, decode)


def special_names(tokenizer: Tokenizer, ids: TokenIds) -> dict[int, str]:
    """What each special id is written as: the tokenizer's own name, else ours."""
    singles = {"pad": ids.pad, "eos": ids.eos, "mask": ids.mask, "cls": ids.cls, "sep": ids.sep}
    names = {i: KNOWN_NAMES[key][0] for key, i in singles.items() if i is not None}
    names |= {i: KNOWN_NAMES.get(name, (f"[{name}]",))[0] for name, i in ids.modes}
    names |= {i: f"<extra_id_{k}>" for k, i in enumerate(ids.sentinels)}
    names |= dict(zip(ids.fim, FIM_NAMES[0], strict=False))
    own = {i: name for name, i in tokenizer.named.items()}
    return {i: own.get(i, name) for i, name in names.items()}


def save_vocabulary(
    run_dir: str, tokenizer: Tokenizer, ids: TokenIds, about: dict[str, Any]
) -> None:
    """Keeps the vocabulary in `run_dir`, so that it explains itself.

    `vocabulary.json` says what it is and its special ids; the tokenizer's own file lies beside it
    as `vocabulary.model` or `tokenizer.json`.
    """
    file = {"sentencepiece": SENTENCEPIECE_MODEL, "hugging_face": TOKENIZER}.get(tokenizer.kind)
    if file and os.path.abspath(tokenizer.path) != os.path.abspath(os.path.join(run_dir, file)):
        with open(tokenizer.path, "rb") as source:
            write_bytes(os.path.join(run_dir, file), source.read())
    values = {
        "kind": tokenizer.kind,
        "file": file,
        "extra_ids": tokenizer.extra_ids,
        "about": about,
        "ids": ids_to_json(ids),
        "names": {name: i for i, name in sorted(special_names(tokenizer, ids).items())},
    }
    write_json(os.path.join(run_dir, VOCABULARY), values)


class Vocabulary(NamedTuple):
    """A run's vocabulary."""

    tokenizer: Tokenizer
    ids: TokenIds
    about: dict[str, Any]  # the settings it was made with

    @property
    def codec(self) -> Codec:
        return codec(self.tokenizer, self.ids)


def load_vocabulary(run_dir: str) -> Vocabulary:
    """The vocabulary that a run keeps in its directory.

    Raises:
        FileNotFoundError: the directory holds none.
    """
    file = os.path.join(run_dir, VOCABULARY)
    if not os.path.exists(file):
        raise FileNotFoundError(
            f"{file} does not exist: expected a run directory, in which a run that reads text "
            "keeps its vocabulary. A model imported without a tokenizer gets one by convert.py "
            "--tokenizer=FILE."
        )
    values = read_json(file)
    if values["kind"] == "sentencepiece":
        path = os.path.join(run_dir, values["file"])
        tokenizer = sentencepiece_tokenizer(path, extra_ids=values["extra_ids"])
    else:
        tokenizer = open_tokenizer(
            os.path.join(run_dir, values["file"]) if values["file"] else values["kind"]
        )
    return Vocabulary(tokenizer, ids_from_json(values["ids"]), values["about"])


def save_classes(run_dir: str, classes: Sequence[str]) -> None:
    """Keeps the names of a run's classes, in order, as `classes.json`.

    Raises:
        ValueError: a name that comes twice, or the directory holds others.
    """
    names = list(classes)
    if len(set(names)) < len(names):
        raise ValueError(f"Got classes of which one comes twice: {', '.join(names)}.")
    kept = load_classes(run_dir)
    if kept and kept != names:
        raise ValueError(
            f"{run_dir} holds the classes {', '.join(kept)}, got {', '.join(names)}: start a new "
            "run directory."
        )
    write_json(os.path.join(run_dir, CLASSES), names)


def load_classes(run_dir: str) -> list[str]:
    """The names of a run's classes; none where it has none."""
    file = os.path.join(run_dir, CLASSES)
    return read_json(file) if os.path.exists(file) else []


class _Appender:
    """Hands out the ids above a tokenizer's own."""

    def __init__(self, size: int):
        self.size = size

    def append(self) -> int:
        self.size += 1
        return self.size - 1


def _is_known(name: str) -> bool:
    return bool(re.fullmatch(r"<extra_id_\d+>", name)) or any(
        name in names for names in (*KNOWN_NAMES.values(), *FIM_NAMES)
    )


def _named_sentinels(named: dict[str, int]) -> list[int]:
    found = []
    while f"<extra_id_{len(found)}>" in named:
        found.append(named[f"<extra_id_{len(found)}>"])
    return found


def _text_range(tokenizer: Tokenizer, blocked: Iterable[int]) -> tuple[int, int]:
    """The longest run of ids that holds no special one.

    Special ids may lie anywhere: BERT's [MASK] is 103 of 30522, so text is [104, 30522).
    """
    walls = sorted({-1, tokenizer.size, *(i for i in blocked if i < tokenizer.size)})
    length, first = max((b - a - 1, a + 1) for a, b in itertools.pairwise(walls))
    ordinary = tokenizer.size - (len(walls) - 2)
    if length < ordinary / 2:
        raise ValueError(
            f"The special tokens of {tokenizer.path or tokenizer.kind} lie scattered among its "
            f"{tokenizer.size} ids: the longest range without one is "
            f"[{first}, {first + length}), expected at least half of the {ordinary} others. Use a tokenizer "
            "whose special tokens stand together at the start or at the end."
        )
    return first, first + length


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
