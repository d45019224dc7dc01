"""Choosing the next token from logits.

Letters: B rows, V ids.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from ...constraints import Count, NonNegative, Positive, PositiveShare, Share, check_fields
from ...objectives.contract import Array

NEVER = -1e30  # logit of an excluded id, finite so that a row of excluded ids is not nan


@dataclasses.dataclass(frozen=True)
class Sampling:
    """Sampling settings, applied in the order of the fields.

        Sampling(temperature=0.8, top_p=0.95)

    Temperature 0, the default, always takes the most likely token. Of the other settings, only the
    repetition penalty then has an effect.

    Raises:
      ValueError: A value is out of range, or a filter is set with temperature 0.
    """

    # Lowers the logits of ids that the row already has (Keskar et al. 2019). 1 turns it off.
    repetition_penalty: Positive = 1.0
    temperature: NonNegative = 0.0  # divides the logits
    top_k: Count | None = None  # keeps the k most likely ids
    top_p: PositiveShare | None = None  # keeps the fewest ids with this total probability (nucleus)
    min_p: Share | None = None  # keeps ids with at least this share of the top probability

    def __post_init__(self):
        check_fields(self)
        if not self.temperature and (self.top_k, self.top_p, self.min_p) != (None, None, None):
            raise ValueError(
                "Got top_k, top_p or min_p with temperature=0, which always takes the most likely "
                "token: set a temperature above 0, such as 1."
            )


GREEDY = Sampling()


def choose(keys_B: Array, logits_BxV: Array, sampling: Sampling, seen_BxV: Array | None = None):
    """Samples a token for each row, i32[B], with the row's random key.

    Args:
      seen_BxV: bool, the ids that each row already has. None: no repetition penalty.
    """
    if not sampling.temperature:
        return most_likely(penalized(logits_BxV, seen_BxV, sampling))
    adjusted_BxV = adjusted(logits_BxV, sampling, seen_BxV)
    return jax.vmap(jax.random.categorical)(keys_B, adjusted_BxV).astype(jnp.int32)


def numbered_keys(seed: int, numbers: Sequence[int]):
    """Returns a random key for each number, from the number and the seed alone."""
    fold = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
    return fold(jax.random.key(seed), np.array(numbers, np.uint32))


def most_likely(logits_BxV):
    """Returns the id of the largest logit, i32[B]; in a tie, the lowest id."""
    # XLA for CPU does not vectorize argmax, which takes three times as long.
    top_Bx1 = logits_BxV.max(-1, keepdims=True)
    last = logits_BxV.shape[-1] - 1
    ids_BxV = jax.lax.broadcasted_iota(jnp.int32, logits_BxV.shape, logits_BxV.ndim - 1)
    return jnp.where(logits_BxV == top_Bx1, ids_BxV, last).min(-1)


def adjusted(logits_BxV, sampling: Sampling, seen_BxV=None):
    """Returns the logits, f32[B, V], that `choose` samples from. Excluded ids have `NEVER`.

    adjusted(jnp.log(jnp.array([[0.5, 0.3, 0.2]])), Sampling(temperature=1, top_p=0.6))
    # [[log 0.5, log 0.3, NEVER]]
    """
    logits_BxV = penalized(logits_BxV, seen_BxV, sampling)
    if not sampling.temperature:
        ids_V = jnp.arange(logits_BxV.shape[-1])[None]
        return jnp.where(ids_V == most_likely(logits_BxV)[:, None], 0.0, NEVER)
    logits_BxV = logits_BxV / sampling.temperature
    if sampling.top_k is not None:
        k = min(sampling.top_k, logits_BxV.shape[-1])
        kth_Bx1 = jax.lax.top_k(logits_BxV, k)[0][:, -1:]
        logits_BxV = jnp.where(logits_BxV < kth_Bx1, NEVER, logits_BxV)
    if sampling.top_p is not None:
        logits_BxV = jnp.where(_outside_nucleus(logits_BxV, sampling.top_p), NEVER, logits_BxV)
    if sampling.min_p is not None:
        p_BxV = jax.nn.softmax(logits_BxV, -1)
        unlikely = p_BxV < sampling.min_p * p_BxV.max(-1, keepdims=True)
        logits_BxV = jnp.where(unlikely, NEVER, logits_BxV)
    return logits_BxV


def penalized(logits_BxV, seen_BxV, sampling: Sampling):
    """Returns the logits after the repetition penalty.

    Positive logits of seen ids are divided by the penalty, and negative logits multiplied.
    """
    if seen_BxV is None or sampling.repetition_penalty == 1:
        return logits_BxV
    penalty = sampling.repetition_penalty
    lower = jnp.where(logits_BxV > 0, logits_BxV / penalty, logits_BxV * penalty)
    return jnp.where(seen_BxV, lower, logits_BxV)


def _outside_nucleus(logits_BxV, top_p):
    """Returns bool[B, V]: whether an id is outside the nucleus.

    The nucleus is the smallest set of the most likely ids whose probability reaches `top_p`.
    """
    order_BxV = jnp.argsort(-logits_BxV, -1)
    p_BxV = jax.nn.softmax(jnp.take_along_axis(logits_BxV, order_BxV, -1), -1)
    before_BxV = jnp.cumsum(p_BxV, -1) - p_BxV
    rank_BxV = jnp.argsort(order_BxV, -1)
    return jnp.take_along_axis(before_BxV >= top_p, rank_BxV, -1)
