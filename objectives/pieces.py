"""Rearranged documents as lists of pieces: stretches of the row and special tokens, end to end.

Where runs say the slot at which each begins (`objectives.splicing`), pieces say how long each is.
All arrays are i32[D, R]: R pieces of each of D documents, in the order in which they are written.
"""

from typing import NamedTuple

import jax.numpy as jnp

from pretrax.objectives.splicing import Documents, Runs, splice


class Pieces(NamedTuple):
    """What documents are written from."""

    source: jnp.ndarray  # i32[D, R] place of the piece's first token in the source
    length: jnp.ndarray  # i32[D, R] 0: there is no such piece


def pieces(source, length) -> Pieces:
    """Pieces from arrays [D, R], [D, 1] or ints."""
    return Pieces(*jnp.broadcast_arrays(*(jnp.asarray(x, jnp.int32) for x in (source, length))))


def interleaved(*parts: Pieces) -> Pieces:
    """Pieces a0 b0 a1 b1 … from pieces a0 a1 … and b0 b1 …"""
    return Pieces(*(jnp.stack(x, -1).reshape(x[0].shape[0], -1) for x in zip(*parts)))


def joined(*parts: Pieces) -> Pieces:
    """All pieces of the first, then all of the second, …"""
    return Pieces(*(jnp.concatenate(x, -1) for x in zip(*parts)))


def with_markers(document: Documents, begin, end, markers: Pieces) -> Pieces:
    """Documents whose spans are each replaced by a marker.

    With text `a b c d e f`, spans b c and f, markers X and Y: `a X d e Y`.

    Args:
      begin, end: i32[D, S] spans in order of the text, counted from their document's first token;
        where there is none, both are the document's length.
      markers: [D, S], of length 0 where there is no span.
    """
    text_from = jnp.pad(end, ((0, 0), (1, 0)))
    text_to = jnp.concatenate([begin, document.length[:, None]], axis=1)
    source, length = document.start[:, None] + text_from, text_to - text_from
    before = Pieces(source[:, :-1], length[:, :-1])
    return joined(interleaved(before, markers), Pieces(source[:, -1:], length[:, -1:]))


def write(source, documents: Pieces, size: int):
    """Writes documents one after another: tokens i32[size], segments i32[size] (`splice`).

    With `source` i32[N] = 0 … N-1 the tokens tell where each slot was copied from.
    """
    end = jnp.cumsum(documents.length, axis=1)
    runs = Runs(end - documents.length, documents.source, documents.length > 0)
    return splice(source, runs, end[:, -1], size)
