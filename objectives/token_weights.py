"""Weights of the tokens of a text in the loss: from a row to the targets and labels.

A row has token weights in thousandths (`Row.weights`). An objective with the fact `token_weights`
arranges them like the tokens, as weights of its targets and labels. A special token among the
targets, such as end-of-sequence, has the weight of the text token before it, or after it at the
beginning of a document. It counts once if its document has no text among the targets.
"""

from collections.abc import Mapping

import jax.numpy as jnp
from jax import lax

from .contract import WEIGHT_UNIT, Array, Row
from .splicing import Pieces, framed_column, splice


def spliced_weights(row: Row, source: Array, pieces: Pieces, size: int) -> Array | None:
    """Returns i32[size]: the weights of the slots of a `splice`, or None for a row without weights.

    Args:
      row: the row.
      source: i32[N], the row's tokens and then special tokens (`with_specials`).
      pieces: the pieces of the result.
      size: number of slots of the result.
    """
    if row.weights is None:
        return None
    specials = jnp.full(source.size - row.tokens.size, -1, jnp.int32)
    weights, segments = splice(jnp.concatenate([row.weights, specials]), pieces, size)
    return with_special_weights(weights, segments)


def with_special_weights(weights: Array, segments: Array) -> Array:
    """Returns i32[N]: weights in which special tokens, -1, have the weight of a text token.

    >>> weights = jnp.array([-1, 5, 7, -1, -1, 2, -1, 0])
    >>> with_special_weights(weights, jnp.array([1, 1, 1, 1, 2, 2, 3, 0])).tolist()
    [5, 5, 7, 7, 2, 2, 1000, 0]
    """
    slot = jnp.arange(weights.size, dtype=jnp.int32)
    is_text = (weights >= 0) & (segments > 0)
    before = lax.cummax(jnp.where(is_text, slot, -1))
    after = lax.cummin(jnp.where(is_text, slot, weights.size - 1), reverse=True)
    follows = (before >= 0) & (segments[jnp.maximum(before, 0)] == segments)
    source = jnp.where(follows, before, after)
    has_text = is_text[source] & (segments[source] == segments)
    return jnp.where(segments > 0, jnp.where(has_text, weights[source], WEIGHT_UNIT), 0)


def framed_weights(row: Row, present_D: Array, frame, size: int) -> Array | None:
    """Returns i32[size]: weights arranged like `framed` text, or None for a row without weights.

    Slots of special tokens have 0.
    """
    if row.weights is None:
        return None
    return framed_column(row.weights, row.segments, present_D, frame, size)


def in_units(batch: Mapping[str, Array]) -> dict[str, Array]:
    """Returns a model's batch with loss weights f32[B, K] that are divided by `WEIGHT_UNIT`."""
    return {
        name: x.astype(jnp.float32) / WEIGHT_UNIT if name.endswith("_loss_weights") else x
        for name, x in batch.items()
    }
