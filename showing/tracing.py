"""Text ids that say where they stood, so that every token of every feature can be followed.

An objective is a function of the vocabulary's ids, and of no more. Given a larger vocabulary, with
one text id for each pair of an ordinary id and a place in the row, it corrupts a row as it always
does, and what comes out tells exactly which tokens were copied, from where, and which were made up.
Nothing is guessed by comparing texts, and it works for objectives that nobody here has seen.
"""

from typing import NamedTuple

import numpy as np

from pretrax.objectives import TokenIds, bitmap, check_token_ids

NOWHERE = -1  # the place of a token that is no text of the row


class Tracing(NamedTuple):
    """A vocabulary `ids` in which the text of `plain` stands once for each of so many places."""

    plain: TokenIds
    places: int
    ids: TokenIds

    def write(self, tokens, places) -> np.ndarray:
        """i32[...]: the traced ids of plain tokens that stand at these places."""
        tokens, places = np.broadcast_arrays(tokens, places)
        first, last = self.plain.text
        is_text = (tokens >= first) & (tokens < last)
        moved = np.where(tokens >= last, tokens + _shift(self.plain, self.places), tokens)
        return np.where(is_text, tokens + places * (last - first), moved).astype(np.int32)

    def read(self, traced) -> tuple[np.ndarray, np.ndarray]:
        """(plain tokens, places) of traced ids; the place is `NOWHERE` for special tokens."""
        traced = np.asarray(traced)
        first, last = self.ids.text
        kinds = self.plain.text[1] - self.plain.text[0]
        is_text = (traced >= first) & (traced < last)
        tokens = np.where(is_text, first + (traced - first) % kinds, traced)
        tokens = np.where(traced >= last, traced - _shift(self.plain, self.places), tokens)
        return tokens, np.where(is_text, (traced - first) // kinds, NOWHERE)


def trace(ids: TokenIds, places: int) -> Tracing:
    """The tracing of `ids` with this many places.

    >>> one = trace(TokenIds(size=12, text=(2, 10), mask=10, cls=11), places=3)
    >>> one.ids.size, one.ids.text, one.ids.mask
    (28, (2, 26), 26)
    >>> one.read(one.write([5, 5, 10], [0, 2, 2]))
    (array([ 5,  5, 10]), array([ 0,  2, -1]))

    Raises ValueError when the ids would not fit 31 bits: show shorter rows.
    """
    if ids.size * places >= 2**31:
        raise ValueError(
            f"Rows of {places // 2} tokens of a vocabulary of {ids.size} cannot be followed token "
            "by token: lower --length."
        )
    first, last = ids.text
    shift = _shift(ids, places)

    def moved(i):
        return i if i is None or i < last else i + shift

    def repeated(name: str) -> bytes:
        if not getattr(ids, name):
            return b""
        flags = ids.flags(name)
        return bitmap(
            np.concatenate([flags[:first], np.tile(flags[first:last], places), flags[last:]])
        )

    traced = TokenIds(
        size=ids.size + shift,
        text=(first, last + shift),
        **{name: moved(getattr(ids, name)) for name in ("pad", "eos", "bos", "mask", "cls", "sep")},
        sentinels=tuple(map(moved, ids.sentinels)),
        modes=tuple((name, moved(i)) for name, i in ids.modes),
        fim=tuple(map(moved, ids.fim)),
        word_starts=repeated("word_starts"),
        sentence_ends=repeated("sentence_ends"),
    )
    return Tracing(ids, places, check_token_ids(traced))


def _shift(plain: TokenIds, places: int) -> int:
    """How far special ids above the text move up."""
    return (places - 1) * (plain.text[1] - plain.text[0])
