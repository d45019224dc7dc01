"""Numbers of noise tokens and spans in a document, and the distributions of span lengths.

Span corruption follows Raffel et al. 2020 (T5), section 3.3.4, and its published code
(`random_spans_noise_mask`): the numbers of noise tokens and of spans depend only on the length. The
noise tokens are split into spans, and the other tokens into the text between the spans. All ways to
split them are equally likely.

Text infilling follows Lewis et al. 2020 (BART), section 2.2: lengths are drawn from a Poisson
distribution until enough tokens are covered.
"""

from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Annotated

import jax.numpy as jnp
from annotated_types import Interval
from jax import lax

from .arithmetic import count_at_most, isqrt, randint, ratio, round_ratio
from .contract import Array

_MAX_SPAN_LENGTH = 63  # longest Poisson span; with a mean of 20, one span in 10**13 would be longer


def noise_counts(n, density, mean_span_length, xp=jnp):
    """Returns the numbers of noise tokens and spans in a document of n tokens.

    A document of one token has no noise. If there are too few other tokens to separate the
    spans, the number of spans is the largest that fits. (T5's code crashes in this case.)

    >>> [int(x) for x in noise_counts(568, (3, 20), (3, 1), np)]
    [85, 28]
    """
    noise = xp.clip(round_ratio(n * density[0], density[1]), 1, xp.maximum(n - 1, 1))
    spans = round_ratio(noise * mean_span_length[1], mean_span_length[0])
    spans = xp.clip(spans, 1, xp.maximum(xp.minimum(noise, n - noise), 1))
    return xp.where(n > 1, noise, 0), xp.where(n > 1, spans, 0)


def span_starts(bits: Array, total: Array, parts: Array) -> Array:
    """Splits `total` tokens into `parts` non-empty parts, with all ways equally likely.

    Floyd's algorithm draws the parts - 1 cuts without repetition. It needs one random number per
    cut instead of one per token, which makes span corruption fast.

    Args:
      bits: u32[size - 1] random bits, of which the first parts - 1 are used.
      total, parts: i32[], 1 <= parts <= total, and parts <= size.

    Returns:
      i32[size]: the starts of the parts in ascending order, from 0; then `total`.
    """
    if not bits.size:
        return jnp.zeros(1, jnp.int32)
    cut = jnp.arange(bits.size, dtype=jnp.int32)
    highest = total - parts + 1 + cut  # the i-th cut is drawn from 1 … highest[i]
    drawn = 1 + randint(bits, highest)

    def choose(i, chosen):
        taken = jnp.any(chosen == drawn[i])
        return chosen.at[i].set(jnp.where(taken, highest[i], drawn[i]))

    chosen = lax.fori_loop(0, bits.size, choose, jnp.zeros_like(cut))
    chosen = jnp.sort(jnp.where(cut < parts - 1, chosen, total))
    return jnp.pad(chosen, (1, 0))


def infilling_counts(n, density, mean_span_length, xp=jnp):
    """Returns the number of noise tokens and the maximum number of spans for text infilling.

    There is at most one span between two remaining tokens. More spans than the bound would only be
    needed in one document of e**18. This is because k spans cover a Poisson number of tokens with
    mean k * mean, which is six standard deviations below its mean with a probability below e**-18.

    >>> [int(x) for x in infilling_counts(512, (3, 10), (3, 1), np)]
    [154, 84]
    """
    hidden = round_ratio(n * density[0], density[1])
    # mean - 6 sqrt(mean) = hidden, solved for the mean and rounded up
    mean = hidden + 24 + 6 * isqrt(hidden + 9, xp)
    spans = -(-mean * mean_span_length[1] // mean_span_length[0])
    return hidden, xp.where(hidden > 0, xp.minimum(spans, n - hidden + 1), 0)


MeanOfPoisson = Annotated[float, Interval(ge=1, le=20)]


def mean_fits(mean_span_length: float, density: Fraction) -> Fraction:
    """Returns the mean of a Poisson distribution of span lengths as a fraction.

    Raises ValueError if too few tokens would remain between the spans.
    """
    mean = ratio(mean_span_length, "mean_span_length")
    if density / mean > 1 - density:
        raise ValueError(
            f"A noise_density of {float(density):g} with a mean_span_length of {float(mean):g} "
            "gives more spans than there are tokens to separate them: decrease noise_density, or "
            "increase mean_span_length."
        )
    return mean


def poisson_table(mean: Fraction) -> tuple[int, ...]:
    """Returns the probabilities that a Poisson number is at most 0, 1, … 62, as 24-bit integers.

    >>> [round(p / 2**24, 3) for p in poisson_table(Fraction(3))[:4]]
    [0.05, 0.199, 0.423, 0.647]
    """
    with localcontext() as context:
        context.prec = 50
        decimal = Decimal(mean.numerator) / mean.denominator
        term = total = (-decimal).exp()
        table = []
        for k in range(_MAX_SPAN_LENGTH):
            table.append(round(total * 2**24))
            term = term * decimal / (k + 1)
            total += term
    return tuple(table)


def poisson_lengths(bits, table):
    """Returns i32[...]: Poisson numbers up to 63, drawn by a `poisson_table` from uint32 bits."""
    return count_at_most(table, (bits >> 8).astype(jnp.int32))
