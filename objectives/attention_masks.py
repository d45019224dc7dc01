"""Attention patterns as matrices, which show which query attends to which key.

Models use one interval of keys for each query instead (`objectives.layouts`), so that memory grows
linearly with the length and not quadratically. `attention_mask` converts intervals to a matrix.
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
      intervals: i32[..., 2, Q] the first key of each query, and the key after its last: the columns
        `decoder_key_intervals`, `encoder_key_intervals` and `cross_key_intervals` of a batch.
      keys: K, number of keys.
    """
    first, end = (jnp.asarray(intervals)[..., i, :, None] for i in (0, 1))
    key = jax.lax.broadcasted_iota(jnp.int32, (*first.shape[:-1], keys), first.ndim - 1)
    return (first <= key) & (key < end)


@checked
def causal_mask(length: Natural) -> Array:
    """Returns bool[length, length]: each token attends to itself and to earlier tokens.

    >>> causal_mask(3).astype(int)
    Array([[1, 0, 0],
           [1, 1, 0],
           [1, 1, 1]], dtype=int32)
    """
    return prefix_mask(0, length)


@checked
def prefix_mask(prefix: Natural, targets: Natural) -> Array:
    """Returns the attention matrix of a prefix language model, bool[N, N] for N = prefix + targets.

    The prefix attends to the whole prefix. Each target attends to the prefix, to itself and to
    earlier targets (Raffel et al. 2020, figure 4).

    >>> prefix_mask(3, 2).astype(int)
    Array([[1, 1, 1, 0, 0],
           [1, 1, 1, 0, 0],
           [1, 1, 1, 0, 0],
           [1, 1, 1, 1, 0],
           [1, 1, 1, 1, 1]], dtype=int32)

    A decoder that is trained on `prefix_lm` has the same pattern with two more special tokens:
    end-of-sequence closes the prefix, and also the targets. For a prefix of p tokens and t target
    tokens, the pattern is `prefix_mask(p + 1, t + 1)`.
    """
    slots = prefix + targets
    end = jnp.maximum(jnp.arange(slots) + 1, prefix)
    return attention_mask(jnp.stack([jnp.zeros_like(end), end]), slots)
