"""Attention patterns as matrices: which query attends to which key, as textbooks print them.

Models take one interval of keys for each query instead (`objectives.layouts`), in memory that grows
with the length and not with its square; `attention_mask` gives the matrix of these intervals.
"""

import jax
import jax.numpy as jnp

from ..constraints import Natural, checked
from .contract import Array


def attention_mask(intervals: Array, keys: int) -> Array:
    """Returns bool[..., Q, K]: whether each query attends to each key.

    >>> attention_mask(np.array([[0, 0, 2, 2], [1, 2, 3, 4]]), 4).astype(int)  # two documents
    Array([[1, 0, 0, 0],
           [1, 1, 0, 0],
           [0, 0, 1, 0],
           [0, 0, 1, 1]], dtype=int32)

    Args:
      intervals: i32[..., 2, Q] the first key of each query, and the one after its last: the columns
        `decoder_key_intervals`, `encoder_key_intervals` and `cross_key_intervals` of a batch.
      keys: K.
    """
    first, end = (jnp.asarray(intervals)[..., i, :, None] for i in (0, 1))
    key = jax.lax.broadcasted_iota(jnp.int32, (*first.shape[:-1], keys), first.ndim - 1)
    return (first <= key) & (key < end)


@checked
def causal_mask(length: Natural) -> Array:
    """Returns bool[length, length]: each token attends to itself and to those before it.

    >>> causal_mask(3).astype(int)
    Array([[1, 0, 0],
           [1, 1, 0],
           [1, 1, 1]], dtype=int32)
    """
    return prefix_mask(0, length)


@checked
def prefix_mask(prefix: Natural, targets: Natural) -> Array:
    """Returns bool[N, N] of N = prefix + targets: the prefix attends to all of itself, and each
    target to the prefix, to itself and to the targets before it (Raffel et al. 2020, figure 4).

    >>> prefix_mask(3, 2).astype(int)
    Array([[1, 1, 1, 0, 0],
           [1, 1, 1, 0, 0],
           [1, 1, 1, 0, 0],
           [1, 1, 1, 1, 0],
           [1, 1, 1, 1, 1]], dtype=int32)

    A decoder that is trained on `prefix_lm` has the same pattern with two special tokens more:
    end-of-sequence closes the prefix, and the first target is predicted from `ids.bos`, so that p
    tokens of prefix and t targets take `prefix_mask(p + 1, t + 1)`, of which the last target is
    end-of-sequence.
    """
    slots = prefix + targets
    end = jnp.maximum(jnp.arange(slots) + 1, prefix)
    return attention_mask(jnp.stack([jnp.zeros_like(end), end]), slots)
