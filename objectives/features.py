"""Builds the columns of common streams from tokens and segments.

Segment ids number the documents of a row from 1; 0 is padding. Labels are compact: unused slots
with weight 0 come last. The weight of a target or label is 1, or the weight of its token
(`objectives.token_weights`), and never depends on its id. Pool k belongs to segment k + 1 and has a
weight of 0 or 1. `objectives.streams` and `objectives.layouts` define the streams.
"""

import jax.numpy as jnp

from .arithmetic import product24, running_sum
from .contract import Array
from .splicing import by_document, document_ranges
from .streams import STREAMS


def sequence_pair(inputs, targets, weights: Array | None = None) -> dict:
    """Returns features of (tokens, segments) of inputs and of targets, as `target_sequence`."""
    return input_sequence(inputs) | target_sequence(targets, weights)


def input_sequence(inputs) -> dict:
    """Returns features of (tokens, segments) of inputs."""
    return {"inputs": inputs[0], "inputs_segments": inputs[1]}


def target_sequence(targets, weights: Array | None = None) -> dict:
    """Returns features of (tokens, segments) of targets without inputs.

    Every target counts once, or has its weight in `weights` i32[T].
    """
    tokens, segments = targets
    counts = (segments > 0).astype(jnp.int32)
    return {
        "targets": tokens,
        "targets_segments": segments,
        "targets_weights": counts if weights is None else counts * weights,
    }


def labels_in_place(
    tokens: Array, chosen: Array, shift: int, size: int, weights: Array | None = None
) -> dict:
    """Returns the chosen tokens of a row as labels, each predicted at its own slot.

    Args:
      tokens: i32[I].
      chosen: bool[I].
      shift: offset of the slots. With -1, each token is predicted one slot before it.
      size: K, number of slots for labels. Chosen tokens beyond it are dropped, so plan lengths
        first.
      weights: i32[I] weight of each token. If None, every label counts once.

    >>> labels_in_place(jnp.array([7, 8, 9]), jnp.array([False, True, True]), 0, 3)["labels"]
    Array([8, 9, 0], dtype=int32)
    """
    slot = jnp.where(chosen, running_sum(chosen) - 1, size)
    input_slot = jnp.arange(tokens.size, dtype=jnp.int32)
    source = jnp.zeros(size, jnp.int32).at[slot].set(input_slot, mode="drop")
    weight = (jnp.arange(size) < jnp.sum(chosen)).astype(jnp.int32)
    return {
        "labels": weight * tokens[source],
        "labels_slots": weight * (source + shift),
        "labels_weights": weight if weights is None else weight * weights[source],
    }


def orders_in_line(segments: Array, count: int, ahead: int | Array = 0) -> dict:
    """Returns features of tokens in their usual order, with attention to some tokens ahead.

    Each token attends to all tokens before it, and to the nearest tokens after it.

    Args:
      segments: i32[I], segments of `count` documents.
      ahead: share of the document's later tokens to attend to, as a 24-bit integer.

    >>> orders_in_line(jnp.array([1, 1, 1, 1, 1]), 1, 2**23)["inputs_ends"]
    Array([3, 3, 4, 4, 5], dtype=int32)
    """
    document = document_ranges(segments, count)
    slot = jnp.arange(segments.size, dtype=jnp.int32)
    first, length = (by_document(x, segments) for x in document)
    end = slot + 1 + product24(ahead, jnp.maximum(first + length - 1 - slot, 0))
    columns = zip(STREAMS["orders"].columns, (slot - first, first, end))
    return {name: jnp.where(segments > 0, x, 0) for name, x in columns}


def pool_columns(slots, labels, counts, size: int) -> dict:
    """Returns features of pools i32[n] in `size` slots; `counts` bool[n] marks pools that count."""
    columns = slots, jnp.where(counts, labels, 0), counts.astype(jnp.int32)
    return {name: pad_or_truncate(x, size) for name, x in zip(STREAMS["pools"].columns, columns)}


def no_pools(size: int) -> dict:
    """Returns pools with weight 0, which only declare a document's number of segments."""
    empty = jnp.zeros(0, jnp.int32)
    return pool_columns(empty, empty, empty, size)


def pad_or_truncate(x, size: int):
    """Returns x i32[n] padded or truncated at the end to `size` slots."""
    return jnp.pad(x, (0, max(size - x.size, 0)))[:size]
