"""Tracing: text ids that encode their slot, so that every token of every feature can be followed.

Given a larger vocabulary, with one text id for each pair of a text id and a slot of the row, an
objective corrupts a row as always, and its features show exactly which tokens were copied, from
which slot, and which were not. No texts are compared, so it works for any objective.
"""

from typing import NamedTuple

import numpy as np

from ..objectives import TokenIds, bitmap, check_token_ids

NOWHERE = -1  # the slot of a token that is not copied from the row


class Tracing(NamedTuple):
    """A vocabulary `ids` that has each text id of `plain` once for every slot."""

    plain: TokenIds
    slots: int
    ids: TokenIds

    def write(self, tokens, slots) -> np.ndarray:
        """Returns i32[...]: the traced ids of plain tokens at these slots."""
        tokens, slots = np.broadcast_arrays(tokens, slots)
        first, last = self.plain.text
        is_text = (tokens >= first) & (tokens < last)
        moved = np.where(tokens >= last, tokens + self.ids.size - self.plain.size, tokens)
        return np.where(is_text, tokens + slots * (last - first), moved).astype(np.int32)

    def read(self, traced) -> tuple[np.ndarray, np.ndarray]:
        """Returns (plain tokens, slots) of traced ids; the slot of a special token is `NOWHERE`."""
        traced = np.asarray(traced)
        first, last = self.ids.text
        kinds = self.plain.text[1] - self.plain.text[0]
        is_text = (traced >= first) & (traced < last)
        tokens = self.ids.without_copies(traced)
        tokens = np.where(traced >= last, traced - self.ids.size + self.plain.size, tokens)
        return tokens, np.where(is_text, (traced - first) // kinds, NOWHERE)


def trace(ids: TokenIds, slots: int) -> Tracing:
    """Returns the tracing of `ids` for rows of this many slots.

    >>> one = trace(TokenIds(size=12, text=(2, 10), mask=10, cls=11), slots=3)
    >>> one.ids.size, one.ids.text, one.ids.mask
    (28, (2, 26), 26)
    >>> [found.tolist() for found in one.read(one.write([5, 5, 10], [0, 2, 2]))]
    [[5, 5, 10], [0, 2, -1]]

    Raises ValueError when the ids would exceed 31 bits: show shorter rows.
    """
    if ids.size * slots >= 2**31:
        raise ValueError(
            f"Rows of {slots // 2} tokens of a vocabulary of {ids.size} cannot be followed token "
            "by token: lower --length."
        )
    first, last = ids.text
    shift = (slots - 1) * (last - first)  # by which special ids above the text range move up

    def moved(i):
        return i if i is None or i < last else i + shift

    def repeated(name: str) -> bytes:
        if not getattr(ids, name):
            return b""
        before, text, after = np.split(ids.flags(name), [first, last])
        return bitmap(np.concatenate([before, np.tile(text, slots), after]))

    traced = TokenIds(
        size=ids.size + shift,
        text=(first, last + shift),
        **{name: moved(getattr(ids, name)) for name in ("pad", "eos", "bos", "mask", "cls", "sep")},
        sentinels=tuple(map(moved, ids.sentinels)),
        modes=tuple((name, moved(i)) for name, i in ids.modes),
        fim=tuple(map(moved, ids.fim)),
        word_starts=repeated("word_starts"),
        sentence_ends=repeated("sentence_ends"),
        digits=ids.digits,
        copies=slots,
    )
    return Tracing(ids, slots, check_token_ids(traced))
