"""Choosing the next token from logits.

    sampling = Sampling(temperature=0.8, top_p=0.95)
    tokens_B = choose(keys_B, logits_BxV, sampling)

Letters: B rows, V ids.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from ...constraints import Count, NonNegative, Positive, PositiveShare, Share, check_fields

_NEVER = -1e30  # finite, so that a row with every id masked gives no nan


@dataclasses.dataclass(frozen=True)
class Sampling:
    """Settings of the distribution that a token is drawn from, applied in the order of the fields.

        Sampling(temperature=0.8, top_p=0.95)

    Temperature 0, the default, takes the most likely token, and only the penalty has an effect.

    Raises ValueError for values out of range, and for filters with temperature 0.
    """

    repetition_penalty: Positive = 1.0  # lowers ids that the row holds (Keskar et al. 2019); 1: off
    temperature: NonNegative = 0.0  # logits are divided by it
    top_k: Count | None = None  # keeps the k most likely ids
    top_p: PositiveShare | None = None  # keeps the fewest ids that reach this probability (nucleus)
    min_p: Share | None = None  # keeps ids of at least this share of the top probability

    def __post_init__(self):
        check_fields(self)
        if not self.temperature and (self.top_k, self.top_p, self.min_p) != (None, None, None):
            raise ValueError(
                "Got top_k, top_p or min_p with temperature=0, which takes the most likely token: "
                "set a temperature above 0, such as 1."
            )


GREEDY = Sampling()


def choose(keys_B, logits_BxV, sampling: Sampling, seen_BxV=None):
    """Returns a token for each row, i32[B], drawn with the row's own key.

    `seen_BxV`: ids that each row holds, for the repetition penalty; None: no penalty.
    """
    if not sampling.temperature:
        return most_likely(penalized(logits_BxV, seen_BxV, sampling))
    adjusted_BxV = adjusted(logits_BxV, sampling, seen_BxV)
    return jax.vmap(jax.random.categorical)(keys_B, adjusted_BxV).astype(jnp.int32)


def numbered_keys(seed: int, numbers: Sequence[int]):
    """Returns a random key for each number, so that a draw depends on nothing beside it."""
    fold = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
    return fold(jax.random.key(seed), np.array(numbers, np.uint32))


def most_likely(logits_BxV):
    """Returns the id of the largest logit, i32[B]; of equal ones the lowest id."""
    # XLA for CPU takes three times as long over argmax, which it does not vectorize.
    top_Bx1 = logits_BxV.max(-1, keepdims=True)
    last = logits_BxV.shape[-1] - 1
    ids_BxV = jax.lax.broadcasted_iota(jnp.int32, logits_BxV.shape, logits_BxV.ndim - 1)
    return jnp.where(logits_BxV == top_Bx1, ids_BxV, last).min(-1)


def adjusted(logits_BxV, sampling: Sampling, seen_BxV=None):
    """Returns the logits, f32[B, V], of the distribution that `choose` draws from.

    Ids that are filtered out have -1e30.

    adjusted(jnp.log(jnp.array([[.5, .3, .2]])), Sampling(temperature=1, top_p=.6))
    # [[log .5, log .3, -1e30]]
    """
    logits_BxV = penalized(logits_BxV, seen_BxV, sampling)
    if not sampling.temperature:
        ids_V = jnp.arange(logits_BxV.shape[-1])[None]
        return jnp.where(ids_V == most_likely(logits_BxV)[:, None], 0.0, _NEVER)
    logits_BxV = logits_BxV / sampling.temperature
    if sampling.top_k is not None:
        k = min(sampling.top_k, logits_BxV.shape[-1])
        kth_Bx1 = jax.lax.top_k(logits_BxV, k)[0][:, -1:]
        logits_BxV = jnp.where(logits_BxV < kth_Bx1, _NEVER, logits_BxV)
    if sampling.top_p is not None:
        logits_BxV = jnp.where(_outside(logits_BxV, sampling.top_p), _NEVER, logits_BxV)
    if sampling.min_p is not None:
        p_BxV = jax.nn.softmax(logits_BxV, -1)
        unlikely = p_BxV < sampling.min_p * p_BxV.max(-1, keepdims=True)
        logits_BxV = jnp.where(unlikely, _NEVER, logits_BxV)
    return logits_BxV


def penalized(logits_BxV, seen_BxV, sampling: Sampling):
    """Returns the logits, those of seen ids divided, or if negative multiplied, by the penalty."""
    if seen_BxV is None or sampling.repetition_penalty == 1:
        return logits_BxV
    penalty = sampling.repetition_penalty
    lower = jnp.where(logits_BxV > 0, logits_BxV / penalty, logits_BxV * penalty)
    return jnp.where(seen_BxV, lower, logits_BxV)


def _outside(logits_BxV, top_p):
    """Returns bool[B, V]: ids outside the nucleus, the fewest most likely that reach `top_p`."""
    order_BxV = jnp.argsort(-logits_BxV, -1)
    p_BxV = jax.nn.softmax(jnp.take_along_axis(logits_BxV, order_BxV, -1), -1)
    before_BxV = jnp.cumsum(p_BxV, -1) - p_BxV
    rank_BxV = jnp.argsort(order_BxV, -1)
    return jnp.take_along_axis(before_BxV >= top_p, rank_BxV, -1)
