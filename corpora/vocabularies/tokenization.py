"""Tokenizers without TensorFlow, which convert ordinary text to ids and back.

Names of special tokens in a document (`</s>`, `<extra_id_0>`, `[MASK]`) are encoded as ordinary
text.
"""

import functools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ...settings.system_errors import in_words
from .letters import OVERLAPPING, LetterCoder, reads_letters

T5_EXTRA_IDS = 100  # Number of sentinels that SeqIO appends to T5's SentencePiece model
BATCH_CHARACTERS = 1 << 22  # Number of characters that are tokenized together
# Largest number of unused ids below the largest id. Published tokenizers have a few thousand. A
# damaged or hostile tokenizer may have an id near 2^31, and a loop over its ids would never end.
_MAX_UNUSED = 1 << 20

# Names that tokenizers give to our special tokens. If we append a token, it gets the first name.
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


class Tokenizer(NamedTuple):
    """Conversion of text without special tokens to ids and back."""

    kind: str  # "sentencepiece", "bytes", "hugging_face" or "overlapping_k_mers"
    path: str | None  # path to the tokenizer's file, if it has one
    size: int  # number of ids, from 0 to size - 1
    encode_batch: Callable[[Sequence[str]], list[np.ndarray]]  # never returns a special id
    decode: Callable[[Sequence[int]], str]  # takes only ordinary ids
    piece: Callable[[int], bytes]  # the text of an id in UTF-8, with the space between words
    named: dict[str, int]  # the ids of the special tokens by name
    blocked: tuple[int, ...]  # the ids that are not text
    pad: int | None
    eos: int | None
    spaced: bool = False  # whether decoding drops the space before the first word
    extra_ids: int = 0  # number of sentinels above the ids of the file, as in SeqIO's vocabularies
    swallowing: frozenset[str] = frozenset()  # special tokens that remove the white space before
    unknown: int | None = None  # the id of unknown text, if there is one
    words: Callable[[str], list[str]] | None = None  # splits a text, if each id is a whole word
    # Text -> its ids and the characters [start, end) of each id, without regard to special tokens.
    locate: Callable[[str], tuple[ArrayLike, ArrayLike]] | None = None
    marks_starts: bool = True  # whether pieces that start a word differ from other pieces

    def surface(self, i: int) -> str:
        """Returns the text of an id; a part of a character is "\ufffd"."""
        return self.piece(i).decode("utf-8", "replace")


def batches(
    documents: Iterable, size: Callable[[Any], int] = len, characters: int = BATCH_CHARACTERS
) -> Iterator[list]:
    """Yields lists of documents with about `characters` characters; `size` counts a document's."""
    batch = []
    length = 0
    for document in documents:
        batch.append(document)
        length += size(document)
        if length >= characters:
            yield batch
            batch = []
            length = 0
    if batch:
        yield batch


def located(tokenizer: Tokenizer, text: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids of a text, and the characters [start, end) of each id: i32[n], i32[n, 2].

    The ids are those of `encode_batch`, unless the text has the name of a special token. Such a
    text is halved until its parts have ids whose characters are known.

    Raises ValueError for a tokenizer that does not say where its ids are.
    """
    if tokenizer.locate is None:
        raise ValueError(
            f"The {tokenizer.kind} tokenizer does not say which characters its ids stand for, "
            "which weights of characters need: install sentencepiece 0.2.3 or later, or give the "
            "weights of tokens in a token store."
        )
    (ids,) = tokenizer.encode_batch([text])
    located_ids, spans = tokenizer.locate(text)
    if np.array_equal(ids, located_ids):
        return ids, np.asarray(spans, np.int32).reshape(-1, 2)
    if len(text) < 2:
        return ids, np.tile(np.array([[0, len(text)]], np.int32), (ids.size, 1))
    middle = len(text) // 2
    first, first_spans = located(tokenizer, text[:middle])
    second, second_spans = located(tokenizer, text[middle:])
    return np.append(first, second), np.concatenate([first_spans, second_spans + middle])


def open_tokenizer(name: str) -> Tokenizer:
    """Opens "bytes", a SentencePiece `.model` file, or a Hugging Face `tokenizer.json` file.

    Raises FileNotFoundError if the file does not exist, and ValueError for another type of file.
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
    """Opens a SentencePiece model.

    As in SeqIO, `extra_ids` sentinels are added above the model's pieces, in descending order. For
    example, T5's model has 32,000 pieces, so `<extra_id_0>` is 32099 and `<extra_id_99>` is 32000.
    The default is 100, or 0 if the model has its own sentinels (mT5, umT5).

    Raises ValueError if the file is not a SentencePiece model.
    """
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2

    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.Load(path)
    except (OSError, RuntimeError) as error:
        raise ValueError(f"{path} is not a SentencePiece model ({in_words(error)}).") from error
    size = processor.GetPieceSize()
    proto: Any = sentencepiece_model_pb2  # its classes are made at run time
    model = proto.ModelProto.FromString(processor.serialized_model_proto())
    named, blocked, produced = _special_pieces(model.pieces)
    if extra_ids is None:
        extra_ids = 0 if "<extra_id_0>" in named else T5_EXTRA_IDS
    byte_fallback = processor.PieceToId("<0x00>") != processor.unk_id()
    if byte_fallback:  # No text is unknown.
        blocked.append(processor.unk_id())
    underline = [processor.PieceToId(f"<0x{b:02X}>") for b in "▁".encode()] if byte_fallback else []

    def encode_with_underlines(text: str) -> list[int]:
        # SentencePiece writes a space as ▁, and would read ▁ as a space. Encode ▁ as bytes instead.
        parts = [processor.Encode(part) for part in text.split("▁")]
        return parts[0] + [x for p in parts[1:] for x in underline + p]

    encode_one = encode_with_underlines if underline else processor.Encode
    encode_as_text = _encoder_of_names(encode_one, produced)
    special = frozenset(produced.values())

    def encode_batch(texts: Sequence[str]) -> list[np.ndarray]:
        rows = processor.Encode(list(texts), num_threads=_cores())
        for i, text in enumerate(texts):
            if not special.isdisjoint(rows[i]):
                rows[i] = encode_as_text(text)
            elif underline and "▁" in text:
                rows[i] = encode_with_underlines(text)
        return [np.asarray(row, np.int32) for row in rows]

    def locate(text: str) -> tuple[list[int], list[tuple[int, int]]]:
        pieces = processor.EncodeAsProto(text).pieces
        characters = _character_of_byte(text)
        spans = [(characters[piece.begin], characters[piece.end]) for piece in pieces]
        return [piece.id for piece in pieces], spans

    tokenizer = Tokenizer(
        "sentencepiece",
        path,
        size,
        encode_batch,
        lambda ids: processor.Decode([int(i) for i in ids]),
        lambda i: _bytes_of_piece(processor.IdToPiece(i)) if i < size else b"",
        named,
        tuple(blocked),
        pad=processor.pad_id() if processor.pad_id() >= 0 else None,
        eos=processor.eos_id() if processor.eos_id() >= 0 else None,
        spaced=processor.Decode(processor.Encode(" a")) == "a",
        unknown=None if byte_fallback else processor.unk_id(),
        locate=locate if hasattr(processor, "EncodeAsProto") else None,  # from version 0.2.3 on
        marks_starts=not model.trainer_spec.treat_whitespace_as_suffix,
    )
    return with_extra_ids(tokenizer, extra_ids)


def _special_pieces(pieces: Iterable[Any]) -> tuple[dict[str, int], list[int], dict[str, int]]:
    """Returns the special tokens of a SentencePiece model.

    They are the ids by name, all ids, and the ids that SentencePiece produces for a name in a text.
    """
    named: dict[str, int] = {}
    blocked: list[int] = []
    produced: dict[str, int] = {}
    for i, piece in enumerate(pieces):
        name = piece.piece.lstrip("▁")
        control = piece.type in (piece.CONTROL, piece.UNUSED)
        if control or (piece.type == piece.USER_DEFINED and _is_known(name)):
            named.setdefault(name, i)
            blocked.append(i)
            if not control:
                produced[name] = i
    return named, blocked, produced


def byte_tokenizer() -> Tokenizer:
    """Returns ByT5's tokenizer: pad is 0, eos is 1, unk is 2, and byte b is 3 + b.

    Our sentinels are appended above the bytes, whereas ByT5's checkpoints reuse the last byte ids.
    """
    return Tokenizer(
        "bytes",
        None,
        259,
        lambda texts: [
            np.frombuffer(text.encode("utf-8"), np.uint8).astype(np.int32) + 3 for text in texts
        ],
        lambda ids: bytes(int(i) - 3 for i in ids if 3 <= i < 259).decode("utf-8", "replace"),
        lambda i: bytes([i - 3]) if 3 <= i < 259 else b"",
        {},
        (0, 1, 2),
        pad=0,
        eos=1,
        locate=_locate_bytes,
    )


def _locate_bytes(text: str) -> tuple[list[int], list[tuple[int, int]]]:
    characters = _character_of_byte(text)[:-1]
    return [byte + 3 for byte in text.encode("utf-8")], [(i, i + 1) for i in characters]


def _character_of_byte(text: str) -> list[int]:
    """Returns the number of the character of each byte in UTF-8, and the number of characters.

    >>> _character_of_byte("aé")
    [0, 1, 1, 2]
    """
    each = [i for i, character in enumerate(text) for _ in character.encode("utf-8")]
    return [*each, len(text)]


def with_extra_ids(tokenizer: Tokenizer, extra_ids: int) -> Tokenizer:
    """Adds SeqIO's sentinels above a tokenizer's ids, in descending order.

    They replace sentinels that the tokenizer already has, since SeqIO counts them from the end.
    """
    size = tokenizer.size + extra_ids
    names = {f"<extra_id_{i}>": size - 1 - i for i in range(extra_ids)}
    return tokenizer._replace(
        size=size, named=tokenizer.named | names, extra_ids=tokenizer.extra_ids + extra_ids
    )


def hugging_face_tokenizer(path: str, *, overlapping: bool = False) -> Tokenizer:
    """Opens a Hugging Face `tokenizer.json` with a BPE, WordPiece, unigram or whole-word model.

    Its padding, truncation and post-processor are ignored, since objectives add special tokens.
    `overlapping` is whether it has k-mers that start at each letter (`letters.LetterCoder`).

    Raises ValueError if the file is not a tokenizer.json.
    """
    import tokenizers

    try:
        tokenizer = tokenizers.Tokenizer.from_file(path)
    except Exception as error:  # The library raises Exception itself.
        raise ValueError(f"{path} is not a Hugging Face tokenizer.json ({error}).") from error
    made = tokenizer_of(tokenizer, path)
    if not (isinstance(tokenizer.model, tokenizers.models.WordLevel) and reads_letters(tokenizer)):
        return made
    pieces = {piece: i for piece, i in tokenizer.get_vocab().items() if piece not in made.named}
    coder = LetterCoder(
        pieces,
        tokenizer.get_vocab()[tokenizer.model.unk_token],
        lambda text: tokenizer.encode(text, add_special_tokens=False).ids,
        overlapping=overlapping,
    )
    return made._replace(
        kind=OVERLAPPING if overlapping else made.kind,
        encode_batch=coder.encode_batch,
        decode=coder.decode,
        piece=coder.piece,
        locate=coder.locate,
        spaced=False,
        words=None,
    )


def tokenizer_of(tokenizer, path: str | None = None) -> Tokenizer:
    """Returns the `Tokenizer` of a `tokenizers.Tokenizer`, whose settings are changed in place.

    `path` is its file, if it has one.

    Raises ValueError for a tokenizer without tokens, or with far too large ids (see `_size_of`).
    """
    import tokenizers

    size = _size_of(tokenizer.get_vocab(), path or "The tokenizer")
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.encode_special_tokens = True  # so that "[MASK]" in a document is text
    added = tokenizer.get_added_tokens_decoder()
    named = {t.content: i for i, t in added.items() if t.special or _is_known(t.content)}
    named |= {name: i for name, i in tokenizer.get_vocab().items() if _is_known(name)}
    pad, eos = (
        next((named[name] for name in KNOWN_NAMES[key] if name in named), None)
        for key in ("pad", "eos")
    )
    unknown = tokenizer.token_to_id(getattr(tokenizer.model, "unk_token", None) or "<unk>")
    special = frozenset(named.values()) - {unknown}
    names = re.compile("|".join(map(re.escape, named)))
    # Some models produce special ids for the names, for example unigram models with such pieces.
    encode_as_text = _encoder_of_names(
        lambda text: tokenizer.encode(text, add_special_tokens=False).ids, named, unknown
    )

    def encode_batch(texts: Sequence[str]) -> list[np.ndarray]:
        rows = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        ids = [row.ids for row in rows]
        for i, text in enumerate(texts):
            if (named and names.search(text)) or not special.isdisjoint(ids[i]):
                ids[i] = encode_as_text(text)
        return [np.asarray(row, np.int32) for row in ids]

    def locate(text: str) -> tuple[list[int], list[tuple[int, int]]]:
        row = tokenizer.encode(text, add_special_tokens=False)
        return row.ids, row.offsets

    whole_words = isinstance(tokenizer.model, tokenizers.models.WordLevel)
    bytewise = _is_byte_level(tokenizer)
    if bytewise and tokenizer.decoder is None:
        tokenizer.decoder = tokenizers.decoders.ByteLevel()
    bytes_of_ordinary = _spelling(tokenizer)

    def bytes_of(i: int) -> bytes:
        piece = tokenizer.id_to_token(i)
        if piece is None:
            return b""
        return piece.encode("utf-8") if i in added else bytes_of_ordinary(piece)

    return Tokenizer(
        "hugging_face",
        path,
        size,
        encode_batch,
        lambda ids: tokenizer.decode([int(i) for i in ids], skip_special_tokens=False),
        bytes_of,
        named,
        tuple(sorted(set(named.values()))),
        pad,
        eos,
        spaced=not bytewise,
        swallowing=frozenset(t.content for t in added.values() if t.special and t.lstrip),
        unknown=unknown,
        words=functools.partial(words_of, tokenizer) if whole_words else None,
        locate=locate,
        marks_starts=not getattr(tokenizer.model, "end_of_word_suffix", None),
    )


def _spelling(tokenizer) -> Callable[[str], bytes]:
    """Returns a function from a piece of the tokenizer's model to the text that it stands for.

    A piece marks the words of its text in one of three ways: by a character for the space before a
    word (▁ or Ġ), by a prefix for pieces that continue a word (## in BERT), or by a suffix for
    pieces that end a word (</w> in CLIP). With a suffix, the space follows the word.
    """
    import tokenizers

    model = tokenizer.model
    continues = getattr(model, "continuing_subword_prefix", None) or ""
    ends = getattr(model, "end_of_word_suffix", None) or ""
    by_word = isinstance(model, (tokenizers.models.WordPiece, tokenizers.models.WordLevel))
    spaces = [part["replacement"] for part in _parts(tokenizer) if part["type"] == "Metaspace"]
    spell: Callable[[str], bytes]
    if _is_byte_level(tokenizer):
        spell = _bytes_of_byte_level_piece
    elif by_word or continues:
        spell = str.encode
    else:
        spell = functools.partial(_bytes_of_piece, space=spaces[0] if spaces else "▁")

    def bytes_of_piece(piece: str) -> bytes:
        if ends:
            is_end = piece.endswith(ends)
            return spell(piece.removesuffix(ends)) + b" " * is_end
        if continues and piece.startswith(continues):
            return spell(piece.removeprefix(continues))
        return b" " * bool(by_word or continues) + spell(piece)

    return bytes_of_piece


def _is_byte_level(tokenizer) -> bool:
    """Returns whether each character of a piece stands for a byte, as in GPT-2."""
    return any(part["type"] == "ByteLevel" for part in _parts(tokenizer))


def _parts(tokenizer) -> list[dict[str, Any]]:
    """Returns the settings of the normalizer, pre-tokenizer and decoder, and of their parts."""
    parts: list[dict[str, Any]] = []
    components = tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder
    unread = [json.loads(each.__getstate__()) for each in components if each is not None]
    while unread:
        part = unread.pop(0)
        parts.append(part)
        for name in ("normalizers", "pretokenizers", "decoders"):
            unread += part.get(name, [])
    return parts


def _encoder_of_names(
    encode: Callable[[str], list[int]], named: Mapping[str, int], unknown: int | None = None
) -> Callable[[str], list[int]]:
    """Returns a version of `encode` that reads names of special tokens as text.

    Each name is encoded in two parts. A normalizer may also turn other characters into a name, such
    as "＜/s＞" into "</s>". A text that still gets a special id is halved until no part gets one.
    """
    special = frozenset(named.values()) - {unknown}
    within = re.compile("|".join(f"(?<={re.escape(n[0])})(?={re.escape(n[1:])})" for n in named))

    def halved(text: str) -> list[int]:
        ids = encode(text)
        if len(text) < 2 or special.isdisjoint(ids):
            return ids
        middle = len(text) // 2
        return halved(text[:middle]) + halved(text[middle:])

    return lambda text: [i for part in within.split(text) for i in halved(part)]


def _size_of(vocabulary: Mapping[str, int], name: str) -> int:
    """Returns the number of ids of a vocabulary, from 0 to its largest id.

    Raises ValueError for a vocabulary with more than `_MAX_UNUSED` unused ids, or without tokens.
    """
    if not vocabulary:
        raise ValueError(f"{name} has no tokens, expected a trained tokenizer.")
    token, largest = max(vocabulary.items(), key=lambda item: item[1])
    unused = largest + 1 - len(vocabulary)
    if unused > _MAX_UNUSED:
        raise ValueError(
            f"{name} gives the token {token!r} the id {largest}, but has only "
            f"{len(vocabulary):,} tokens, expected at most {_MAX_UNUSED:,} unused ids, since a "
            "model has an embedding for each id: number the tokens from 0."
        )
    return largest + 1


def words_of(tokenizer, text: str) -> list[str]:
    """Returns the words into which a `tokenizers.Tokenizer` splits a text.

    >>> from pretrax.corpora.vocabularies.word_training import word_tokenizer
    >>> words_of(word_tokenizer([]), "add(a, b)")
    ['add', '(', 'a', ',', 'b', ')']
    """
    if tokenizer.normalizer:
        text = tokenizer.normalizer.normalize_str(text)
    if tokenizer.pre_tokenizer is None:
        return [text]
    return [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]


def _is_known(name: str) -> bool:
    return bool(re.fullmatch(r"<extra_id_\d+>", name)) or any(
        name in names for names in (*KNOWN_NAMES.values(), *FIM_NAMES)
    )


def _bytes_of_piece(piece: str, space: str = "▁") -> bytes:
    """Returns the UTF-8 text of a SentencePiece piece.

    ▁ is a space, <0x0A> is a line break, and <0xA0> is a part of a character. A tokenizer.json may
    have another character for a space.

    >>> _bytes_of_piece("▁été"), _bytes_of_piece("<0xA0>")
    (b' \xc3\xa9t\xc3\xa9', b'\xa0')
    """
    byte = re.fullmatch(r"<0x([0-9A-F]{2})>", piece)
    return bytes.fromhex(byte[1]) if byte else piece.replace(space, " ").encode("utf-8")


def _bytes_of_byte_level_piece(piece: str) -> bytes:
    """Returns the bytes that the characters of a byte-level BPE piece stand for.

    A piece with any other character stands for itself.

    >>> _bytes_of_byte_level_piece("ĠÃ©"), _bytes_of_byte_level_piece("Ã")
    (b' \xc3\xa9', b'\xc3')
    """
    known = _byte_of_character()
    if not known.keys() >= set(piece):
        return piece.encode("utf-8")
    return bytes(known[character] for character in piece)


@functools.cache
def _byte_of_character() -> dict[str, int]:
    """Returns the byte that each character of a byte-level vocabulary stands for.

    Printable bytes stand for themselves, in Latin-1. The others have the characters from U+0100 on,
    in order (Radford et al. 2019, GPT-2).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + n): byte for n, byte in enumerate(others)
    }


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
