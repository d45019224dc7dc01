"""How many tokens and spans span corruption hides in a document, and where.

The law is T5's (`random_spans_noise_mask`): the number of noise tokens and of spans follow from
the length alone; the noise tokens are split into that many spans, and the others into that many
stretches between them, each split being uniform over all the ways to do it. A document starts
with text and ends with noise.

Source: Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
Transformer", section 3.3.4, and its published code.
"""

import jax.numpy as jnp
from jax import lax

from objectives.arithmetic import below, round_ratio


def noise_counts(n, density, mean_span_length, xp=jnp):
    """(noise tokens, spans) of a document of n tokens.

    Args:
      n: int or i32[...].
      density, mean_span_length: (numerator, denominator) pairs, traced or not.
      xp: numpy on the host, jax.numpy in a kernel; the results are equal.

    A document of one token keeps it. Where more spans are asked for than there are tokens to part
    them, as many are made as fit. (T5's code crashes there.)

    >>> [int(x) for x in noise_counts(568, (3, 20), (3, 1), np)]
    [85, 28]
    """
    noise = xp.clip(round_ratio(n * density[0], density[1]), 1, xp.maximum(n - 1, 1))
    spans = round_ratio(noise * mean_span_length[1], mean_span_length[0])
    spans = xp.clip(spans, 1, xp.maximum(xp.minimum(noise, n - noise), 1))
    return xp.where(n > 1, noise, 0), xp.where(n > 1, spans, 0)


def span_starts(bits, total, parts):
    """Cuts `total` tokens into `parts` parts of at least one token, all ways equally likely.

    Floyd's algorithm draws the parts - 1 inner cuts without repetition: it needs one number a
    cut, not one a token, which is what makes span corruption fast.

    Args:
      bits: u32[size - 1] random bits, of which the first parts - 1 are used.
      total, parts: i32[], 1 <= parts <= total, and parts <= size.

    Returns:
      i32[size]: where each part starts, ascending, the first at 0; `total` after the last part.
    """
    first = jnp.zeros(1, jnp.int32)
    if not bits.size:
        return first
    cut = jnp.arange(bits.size, dtype=jnp.int32)
    highest = total - parts + 1 + cut  # the i-th cut is drawn from 1 … highest[i]
    drawn = 1 + below(bits, highest)

    def choose(i, chosen):
        taken = jnp.any(chosen == drawn[i])
        return chosen.at[i].set(jnp.where(taken, highest[i], drawn[i]))

    chosen = lax.fori_loop(0, bits.size, choose, jnp.zeros_like(cut))
    chosen = jnp.sort(jnp.where(cut < parts - 1, chosen, total))
    return jnp.concatenate([first, chosen])
