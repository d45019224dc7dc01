"""`TokenIds`: the ids of text and of special tokens, as objectives read and write them."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

MAX_IDS = 2**31 - 1  # ids are int32


class TokenTexts:
    """The texts of ids, read from the vocabulary when needed.

    Texts do not affect the equality of two `TokenIds`.

    Args:
      read: function that returns the text of each id, or its UTF-8 bytes, since a token of a
        byte-level vocabulary may be a part of a character.
    """

    def __init__(self, read: Callable[[], Sequence[str | bytes]] | None = None):
        self._read = read

    def __call__(self) -> list[str]:
        """Returns the text of each id (`TokenIds.texts`).

        Raises ValueError if the texts are not known.
        """
        return [x if isinstance(x, str) else x.decode("utf-8", "replace") for x in self._entries()]

    def as_bytes(self) -> list[bytes]:
        """Returns the bytes of each id (`TokenIds.token_bytes`).

        Raises ValueError if the texts are not known.
        """
        return [x.encode("utf-8") if isinstance(x, str) else x for x in self._entries()]

    def _entries(self) -> list[str | bytes]:
        if self._read is None:
            raise ValueError(
                "The objective needs the texts of tokens, but these token ids have no texts: use "
                "the ids of a vocabulary (`corpora.vocabularies`), or "
                "`ids._replace(texts=TokenTexts(lambda: [...]))` with a text for each id."
            )
        return list(self._read())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokenTexts)

    def __hash__(self) -> int:
        return hash(TokenTexts)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'…' if self._read else ''})"

    def __reduce__(self):
        return _known_texts, (None if self._read is None else self._entries(),)


def _known_texts(texts: Sequence[str | bytes] | None) -> TokenTexts:
    return TokenTexts(None if texts is None else lambda: texts)


class TokenIds(NamedTuple):
    """The token ids that an objective reads and writes; `corpora.vocabularies` provides them.

        TokenIds(size=32128, text=(3, 32000), sentinels=tuple(range(32099, 31999, -1)))

    `None` and `()` mean that the vocabulary has no such token. Every `TokenIds` passes
    `check_token_ids`, so that no special id can be mistaken for text.

    Attributes:
      size: Number of ids: 0 … size - 1.
      text: First text id, and one past the last text id. Corruption hides or replaces only text
        ids.
      pad: Id of padding.
      eos: Id of end-of-sequence.
      bos: Id that the decoder reads first (T5: the id of padding).
      mask: Id of [MASK].
      cls: Id of [CLS], which opens a text or a pair of texts.
      sep: Id of [SEP], which ends a text and separates two texts.
      sentinels: Ids that stand for hidden spans, in order of use: T5's <extra_id_0>, <extra_id_1>,
        and so on.
      modes: UL2's mode tokens as pairs of a name and an id: (("R", 32100), …).
      fim: Three ids of fill-in-the-middle: prefix, suffix and middle.
      word_starts: Bits of the ids: bit i is set if a word begins with id i (`bitmap`).
      sentence_ends: Bits of the ids: bit i is set if a sentence ends with id i (`bitmap`).
      digits: Pairs of an id and its digit 0 … 9, for each text token that is a digit, with or
        without a space before it.
      texts: Function that returns a list of `size` strings. The entry of a text id is its text,
        such as " the" with the space before it. All other entries are "".
    """

    size: int
    text: tuple[int, int]
    pad: int = 0
    eos: int = 1
    bos: int = 0
    mask: int | None = None
    cls: int | None = None
    sep: int | None = None
    sentinels: tuple[int, ...] = ()
    modes: tuple[tuple[str, int], ...] = ()
    fim: tuple[int, ...] = ()
    word_starts: bytes = b""
    sentence_ends: bytes = b""
    digits: tuple[tuple[int, int], ...] = ()
    texts: TokenTexts = TokenTexts()

    def mode(self, name: str) -> int:
        """Returns the id of the mode token `name`; raises ValueError if there is none."""
        known = dict(self.modes)
        if name not in known:
            raise ValueError(
                f"The objective needs the mode token {name!r}, but the vocabulary has "
                f"{sorted(known) or 'none'}: add the token to the vocabulary's special tokens, "
                "or set the objective's mode to None."
            )
        return known[name]

    def mode_tokens(self, name: str | None) -> tuple[int, ...]:
        """Returns the mode token as a tuple, or () if `name` is None.

        Raises ValueError if there is no such mode token.
        """
        return () if name is None else (self.mode(name),)

    def special(self, name: str) -> int:
        """Returns the id of "mask", "cls" or "sep"; raises ValueError if there is none."""
        token = getattr(self, name)
        if token is None:
            raise ValueError(
                f"The objective needs the special token {name!r}, but the vocabulary has none: "
                f"add {name!r} to the vocabulary's specials, or give its id as TokenIds({name}=…)."
            )
        return token

    def flags(self, name: str) -> np.ndarray:
        """Returns "word_starts" or "sentence_ends" as bool[size].

        Raises ValueError if the vocabulary has none.
        """
        packed = getattr(self, name)
        if not packed:
            raise ValueError(
                f"The objective needs the {name} of the vocabulary, but it has none: make the ids "
                "with `corpora.vocabularies.special_tokens.token_ids`, or leave out the setting."
            )
        return np.unpackbits(np.frombuffer(packed, np.uint8), count=self.size).astype(bool)

    def token_bytes(self) -> list[bytes]:
        """Returns the UTF-8 bytes of the text of each id; b"" for ids that are not text.

        `texts()` decodes these bytes. A part of a character is not valid UTF-8, so its text has
        "\ufffd" in place of the bytes.

        Raises ValueError if the texts are not known, or if their number is not `size`.
        """
        pieces = self.texts.as_bytes()
        if len(pieces) != self.size:
            raise ValueError(
                f"Got {len(pieces)} texts of tokens for {self.size} ids, expected a text for each "
                'id: let `texts` return "" for ids that are not text.'
            )
        first, last = self.text
        return [piece if first <= i < last else b"" for i, piece in enumerate(pieces)]


def bitmap(flags) -> bytes:
    """Returns bool[size] packed into bytes, for `TokenIds`."""
    return np.packbits(np.asarray(flags, bool)).tobytes()


def specimen_ids(size: int) -> TokenIds:
    """Returns token ids with everything that an objective may need, for checks.

    The first 60% of ids are text. Every second text id begins a word, every third begins with a
    capital letter, and every eighth ends a sentence.

    Raises ValueError for fewer than 50 ids, which are too few for text and sentinels.
    """
    if size < 50:
        raise ValueError(f"Got a vocabulary of {size} ids, expected 50 or more.")
    all_ids = np.arange(size)
    text = size * 6 // 10
    return check_token_ids(
        TokenIds(
            size=size,
            text=(2, text),
            mask=text,
            cls=text + 1,
            sep=text + 2,
            modes=(("R", text + 3), ("S", text + 4), ("X", text + 5)),
            fim=(text + 6, text + 7, text + 8),
            sentinels=tuple(range(size - 1, text + 8, -1)),
            digits=tuple((2 + value, value) for value in range(10)),
            word_starts=bitmap(all_ids % 2 == 0),
            sentence_ends=bitmap(all_ids % 8 == 0),
            texts=TokenTexts(
                lambda: [_specimen_text(i) if 2 <= i < text else "" for i in range(size)]
            ),
        )
    )


def _specimen_text(i: int) -> str:
    """
    >>> [_specimen_text(i) for i in (5, 12, 13, 16)]
    ['3', ' A12', 'a13', ' a16.']
    """
    word = str(i - 2) if i < 12 else f"{'a' if i % 3 else 'A'}{i}"
    return " " * (i % 2 == 0) + word + "." * (i % 8 == 0)


def check_token_ids(ids: TokenIds) -> TokenIds:
    """Returns `ids` if its special ids are distinct, in range and not text.

    Start, end, separator and padding may share an id, as in published vocabularies: RoBERTa's </s>
    ends a text and also separates two texts, and GPT-2 has one id for start, end and padding.

    Raises ValueError for ids that break these rules.
    """
    if isinstance(ids.modes, Mapping):
        raise ValueError(
            f"Got the modes {dict(ids.modes)}, expected pairs: use {tuple(ids.modes.items())}."
        )
    if ids.size > MAX_IDS:
        raise ValueError(
            f"Got a vocabulary of {ids.size} ids, expected at most {MAX_IDS}, the largest int32."
        )
    first, last = ids.text
    if not 0 <= first < last <= ids.size:
        raise ValueError(
            f"Text ids must be a non-empty range inside 0…{ids.size}, got [{first}, {last})."
        )
    marks = {"pad", "eos", "cls", "sep", "bos"}
    special_ids = {name: getattr(ids, name) for name in ("pad", "eos", "mask", "cls", "sep", "bos")}
    special_ids |= {f"sentinel {i}": x for i, x in enumerate(ids.sentinels)}
    special_ids |= {f"mode {name}": x for name, x in ids.modes}
    special_ids |= {f"fim {i}": x for i, x in enumerate(ids.fim)}
    owner: dict[int, str] = {}
    for name, x in special_ids.items():
        if x is None:
            continue
        if not 0 <= x < ids.size:
            raise ValueError(
                f"The {name} id is {x}, but ids must be in 0…{ids.size - 1}: "
                "make the vocabulary larger or choose another id."
            )
        if first <= x < last:
            raise ValueError(
                f"The {name} id is {x}, inside the text range [{first}, {last}), so it could not "
                "be distinguished from text: choose an id outside of this range."
            )
        if x in owner and not {owner[x], name} <= marks:
            raise ValueError(
                f"The {owner[x]} id and the {name} id are both {x}: use a different id for each."
            )
        owner.setdefault(x, name)
    for i, value in ids.digits:
        if not first <= i < last or value not in range(10):
            raise ValueError(
                f"Got the digit {value} with the id {i}, expected digits 0 … 9 with text ids, "
                f"{first} … {last - 1}."
            )
    for name in ("word_starts", "sentence_ends"):
        got = len(getattr(ids, name))
        expected = (ids.size + 7) // 8
        if got not in (0, expected):
            raise ValueError(
                f"{name} must be {expected} bytes for {ids.size} ids, got {got}: make it with "
                "`objectives.bitmap`."
            )
    return ids
