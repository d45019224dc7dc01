"""Building a feature out of runs: stretches copied from the row, and single special tokens.

Every rearrangement of text (a span cut out, a prefix split off, a middle moved to the end) is a
list of runs. A run says: from this slot of the output on, copy what stands from this place of the
source on. One short scatter and a running maximum tell each slot which run it belongs to; the
rest is gathers. Nothing here loops over tokens or draws randomness.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax


class Documents(NamedTuple):
    """Where the documents of a row stand; absent ones have length 0."""

    start: jnp.ndarray  # i32[D] place of the first token
    length: jnp.ndarray  # i32[D]


def documents(segments_L, count: int) -> Documents:
    """The first `count` documents of a row, from its segments 1, 2, …; 0 is padding.

    >>> documents(jnp.array([1, 1, 1, 2, 2, 0]), 3)
    Documents(start=Array([0, 3, 5], dtype=int32), length=Array([3, 2, 0], dtype=int32))
    """
    numbers_D1 = 1 + jnp.arange(count, dtype=jnp.int32)[:, None]
    length_D = jnp.sum(segments_L[None] == numbers_D1, axis=1, dtype=jnp.int32)
    return Documents(jnp.cumsum(length_D) - length_D, length_D)


def of_document(values_D, segments):
    """values_D of each slot's own document; arbitrary where there is none."""
    return values_D[jnp.maximum(segments - 1, 0)]


def document_bits(key, count: int, shape: tuple = ()):
    """u32[count, *shape]: random bits of each document of a row, which depend on its number alone."""
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(count))
    return jax.vmap(lambda key: jax.random.bits(key, shape, jnp.uint32))(keys)


def sentence_ends(ends_V, tokens, segments):
    """bool[N]: the tokens that end a sentence; of several in a row, as in "wait ...", the last.

    Args:
      ends_V: bool[V], the ids that may.
    """
    ends = ends_V[tokens] & (segments > 0)
    return ends & ~(jnp.roll(ends, -1) & (jnp.roll(segments, -1) == segments))


class Runs(NamedTuple):
    """Runs of one output, per document, in the order in which they are written."""

    slot: jnp.ndarray  # i32[D, R] first slot, counted from the document's own first slot
    source: jnp.ndarray  # i32[D, R] place in the source of what stands there
    keep: jnp.ndarray  # bool[D, R] False: there is no such run


def single(slot_D, source_D, keep_D) -> Runs:
    """One run in each document, from i32[D] or ints."""
    shape = keep_D.shape + (1,)

    def place(x):
        return jnp.broadcast_to(jnp.asarray(x, jnp.int32), keep_D.shape).reshape(shape)

    return Runs(place(slot_D), place(source_D), keep_D.reshape(shape))


def interleave(*runs: Runs) -> Runs:
    """Runs a0 b0 a1 b1 … from runs a0 a1 … and b0 b1 …"""
    return Runs(*(jnp.stack(x, -1).reshape(x[0].shape[0], -1) for x in zip(*runs)))


def concatenate(*runs: Runs) -> Runs:
    """All runs of the first, then all of the second, …"""
    return Runs(*(jnp.concatenate(x, -1) for x in zip(*runs)))


def splice(source, runs: Runs, length_D, size: int):
    """Writes the runs of all documents one after another into `size` slots.

    Args:
      source: i32[N] what runs copy from: a row's tokens, then special tokens (`with_specials`).
      runs: i32[D, R]; within a document their slots do not decrease, and of runs with the same
        slot the last one counts.
      length_D: i32[D] slots that each document takes.
      size: slots of the output; what does not fit is lost, so plan lengths first.

    Returns:
      tokens i32[size], segments i32[size]: 0 after the last document.
    """
    end_D = jnp.cumsum(length_D)
    D, R = runs.slot.shape
    slot = jnp.where(runs.keep, runs.slot + (end_D - length_D)[:, None], size).reshape(-1)
    slot = jnp.append(slot, end_D[-1])  # one more run, of padding
    number = jnp.arange(D * R + 1, dtype=jnp.int32)
    owner = jnp.zeros(size, jnp.int32).at[slot].max(number, mode="drop")
    owner = lax.cummax(owner)
    shift = jnp.append(runs.source.reshape(-1), 0) - slot
    segment = jnp.append(jnp.repeat(1 + jnp.arange(D, dtype=jnp.int32), R), 0)
    segments = segment[owner]
    tokens = jnp.asarray(source)[jnp.arange(size, dtype=jnp.int32) + shift[owner]]
    return jnp.where(segments > 0, tokens, 0), segments


def with_specials(tokens_L, *specials):
    """The row's tokens followed by special tokens, and the place where each special begins.

    >>> with_specials(jnp.array([7, 8]), jnp.array([99, 98]), 1)
    (Array([ 7,  8, 99, 98,  1], dtype=int32), (2, 4))
    """
    pieces = [tokens_L] + [jnp.atleast_1d(jnp.asarray(s, jnp.int32)) for s in specials]
    begins, at = [], 0
    for piece in pieces:
        begins.append(at)
        at += piece.size
    return jnp.concatenate(pieces), tuple(begins[1:])
