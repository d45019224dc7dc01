"""Random selection of a document's tokens: single tokens, whole words, or spans of them.

Units (tokens, words, or spans of them) are taken in random order as long as they fit in the
document's quota. The number of chosen tokens is therefore known in advance.

Sources: Devlin et al. 2019 (BERT) and its published code for the quota, and for skipping words that
exceed it; Joshi et al. 2020 (SpanBERT), whose published code cuts the last span, and Lan et al.
2020 (ALBERT) for the lengths of spans.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..constraints import Count, PositiveShare, checked
from .arithmetic import (
    bernoulli,
    count_at_most,
    fixed24,
    is_text,
    isqrt,
    ratio,
    round_ratio,
    running_sum,
    uniform24,
)
from .contract import Array
from .random_order import random_order
from .splicing import by_document, document_ranges, is_of_each
from .token_ids import TokenIds

# Maximum number of units taken after the first unit that did not fit. More could fit only after a
# unit of 18 tokens or more. In an unbounded loop, devices would wait for each other.
MAX_UNITS_AFTER_SKIP = 16


@checked
def geometric_lengths(p: PositiveShare = 0.2, longest: Count = 10) -> tuple[float, ...]:
    """Returns SpanBERT's probabilities of span lengths: geometric, up to `longest` (mean 3.8).

    A span ends with probability `p` after each token.

    >>> [round(x, 3) for x in geometric_lengths(0.5, 3)]
    [0.571, 0.286, 0.143]
    """
    return _normalized([p * (1 - p) ** k for k in range(longest)])


@checked
def inverse_lengths(longest: Count = 3) -> tuple[float, ...]:
    """Returns ALBERT's probabilities of n-gram lengths, proportional to 1 / n.

    >>> [round(x, 3) for x in inverse_lengths(3)]
    [0.545, 0.273, 0.182]
    """
    return _normalized([1 / n for n in range(1, longest + 1)])


def _normalized(weights) -> tuple[float, ...]:
    return tuple(w / sum(weights) for w in weights)


class Selection(NamedTuple):
    """The settings of a selection, as arrays that a kernel can trace."""

    text: Any  # i32[2] [first, last): the ids that may be chosen
    rate: Any  # i32[2] share of a document's tokens: numerator and denominator
    max_chosen: Any  # i32[] maximum number of chosen tokens in a document
    # i32[] 24-bit probability of every unit, or i32[L] of the unit that starts in each slot. None:
    # an exact number of tokens
    probability: Any
    word_starts: Any  # bool[V] ids that begin a word; None if units ignore words
    # i32[2, N] cumulative distributions of the lengths of spans and of first spans (`_span_starts`)
    span_cdfs: Any


def selection_of(
    ids: TokenIds,
    rate: float = 0.15,
    selection: str = "exact",
    whole_words: bool = False,
    span_lengths: Sequence[float] | None = None,
    max_predictions: int | None = None,
) -> Selection:
    """Returns the settings of a selection, as described in `masked_lm`."""
    exact_rate = ratio(rate, "rate")
    return Selection(
        text=np.array(ids.text, np.int32),
        rate=np.array(exact_rate.as_integer_ratio(), np.int32),
        max_chosen=np.int32(2**31 - 1 if max_predictions is None else max_predictions),
        probability=None if selection == "exact" else np.int32(fixed24(rate)),
        word_starts=ids.flags("word_starts") if whole_words else None,
        span_cdfs=None if span_lengths is None else _span_cdfs(span_lengths),
    )


def _span_cdfs(span_lengths: Sequence[float]):
    """Returns i32[2, N]: cumulative 24-bit probabilities of the lengths 1 … N (`_span_starts`)."""
    p = np.array(span_lengths, np.float64)
    if p.ndim != 1 or not p.size or not (p >= 0).all() or abs(p.sum() - 1) > 1e-6:
        raise ValueError(
            "span_lengths must be the probabilities of spans of 1, 2, … tokens, which sum to 1, "
            f"got {span_lengths}: use `geometric_lengths()` or `inverse_lengths()`."
        )
    if p.size > _MAX_SPAN_LENGTH:
        raise ValueError(
            f"Got {p.size:,} probabilities as span_lengths, expected at most {_MAX_SPAN_LENGTH}, "
            "one for each length up to the longest span: reduce `longest`."
        )
    at_least = np.cumsum(p[::-1])[::-1]  # a randomly cut span has at least one token left
    cdfs = np.cumsum([p / p.sum(), at_least / at_least.sum()], axis=1)
    return np.round(cdfs * 2**24).astype(np.int32)


def with_chances(
    chances: Array, tokens: Array, segments: Array, count: int, selection: Selection
) -> Selection:
    """Makes the probabilities of a selection proportional to the tokens' chances.

    Their mean over a document is the selection's probability, except that they are limited to 1.

    Args:
      chances: i32[L] (`Row.chances`).
      tokens, segments: i32[L].
      count: maximum number of documents in the row.
      selection: selection with one probability for all units.
    """
    mean_D = _mean_of_each(chances, _eligible(tokens, segments, selection), segments, count)
    times = chances.astype(jnp.float32) / jnp.maximum(by_document(mean_D, segments), 1)
    probability = jnp.minimum(jnp.round(selection.probability * times), 2**24)
    return selection._replace(probability=probability.astype(jnp.int32))


def rates_by_chances(
    chances: Array, counts: Array, segments: Array, rates_D: Array, power: Array
) -> Array:
    """Returns i32[L]: a rate for each token, whose mean over a document is the document's rate.

    A token has the weight w = ((c - least) / (greatest - least)) ** power, from its chance c and
    the least and greatest chance of its document. If the mean m of the weights is above the rate r,
    the token's rate is w r / m. If m is below r, it is 1 - (1 - w) (1 - r) / (1 - m).

    Args:
      chances: i32[L] (`Row.chances`).
      counts: bool[L], the tokens that belong to the mean.
      segments: i32[L].
      rates_D: i32[D] 24-bit integers.
      power: f32[].
    """
    document = jnp.maximum(segments - 1, 0)
    own_DxL = is_of_each(segments, rates_D.size) & counts[None]
    least = jnp.min(jnp.where(own_DxL, chances[None], 2**16), axis=1)[document]
    greatest = jnp.max(jnp.where(own_DxL, chances[None], 0), axis=1)[document]
    share = (chances - least).astype(jnp.float32) / jnp.maximum(greatest - least, 1)
    weight = jnp.round(_ONE * jnp.clip(share, 0, 1) ** power).astype(jnp.int32)
    mean_D = _mean_of_each(weight, counts, segments, rates_D.size)
    kept_D = 2**24 - rates_D  # the mean probability that a token is not chosen
    down = rates_D.astype(jnp.float32) / jnp.maximum(mean_D, 1)
    up = kept_D.astype(jnp.float32) / jnp.maximum(_ONE - mean_D, 1)
    lowered = jnp.round(weight * down[document]).astype(jnp.int32)
    raised = 2**24 - jnp.round((_ONE - weight) * up[document]).astype(jnp.int32)
    is_lowered = mean_D * (2.0**24 / _ONE) > rates_D
    return jnp.where(is_lowered[document], lowered, raised)


_ONE = 2**16 - 1  # a weight of 1, in 16 bits


def _mean_of_each(x_L, counts, segments, count: int):
    """Returns f32[D]: the mean of 16-bit integers over each document's tokens that count."""
    # High and low bits are summed separately, since a sum of 16-bit numbers may exceed 32 bits.
    x_L = jnp.where(counts, x_L, 0)
    high_D, low_D = (_sum_of_each(x, segments, count) for x in (x_L >> 8, x_L & 255))
    total_D = high_D.astype(jnp.float32) * 256 + low_D.astype(jnp.float32)
    return total_D / jnp.maximum(_sum_of_each(counts, segments, count), 1)


def _eligible(tokens, segments, selection: Selection):
    return is_text(tokens, selection.text) & (segments > 0)


_MAX_SPAN_LENGTH = 256  # in tokens; sums of random lengths then stay exact in the longest rows


def quota(n, selection: Selection, xp=jnp):
    """Returns the number of a document's n eligible tokens to choose, or a bound on it.

    An exact selection chooses max(1, round(rate n)) tokens, but at most `max_chosen`. With a
    probability for each unit, the bound is the mean plus six standard deviations of a Poisson
    distribution, and units beyond it are not chosen.

    >>> int(quota(512, selection_of(ids, rate=0.15), np))
    77
    """
    share = n * selection.rate[0]
    whole = selection.rate[1]
    if selection.probability is None:
        number = xp.maximum(round_ratio(share, whole), 1)
    else:
        mean = -(-share // whole)
        longest = 1 if selection.span_cdfs is None else selection.span_cdfs.shape[1]
        number = mean + 6 * (isqrt(mean * longest, xp) + 1)
    return xp.minimum(xp.minimum(number, selection.max_chosen), n)


def choose(
    key,
    tokens: Array,
    segments: Array,
    count: int,
    selection: Selection,
    hidden: Array | None = None,
) -> tuple[Array, Array]:
    """Chooses tokens of every document of a row.

    Args:
      tokens, segments: i32[L].
      hidden: bool[L] the tokens to choose; each run of them is a unit. If None, the choice is
        random.
      count: D, maximum number of documents in the row.

    Returns:
      chosen bool[L]: whether each token is chosen; only text tokens are. Each document has `quota`
        chosen tokens, to which its last span is cut. Whole words may add up to fewer tokens. If no
        word fits, the beginning of a word is chosen.
      unit i32[L]: the slot where each token's unit starts.
    """
    eligible = _eligible(tokens, segments, selection)
    if hidden is not None:
        chosen = hidden & eligible
        slot = jnp.arange(tokens.size, dtype=jnp.int32)
        opens = chosen & ~(_shifted(chosen) & (segments == _shifted(segments)))
        return chosen, lax.cummax(jnp.where(opens, slot, 0))
    quota_D = quota(_sum_of_each(eligible, segments, count), selection)
    order_key, span_key = jax.random.split(key)
    bits = jax.random.bits(order_key, tokens.shape, jnp.uint32)
    start = _unit_starts(span_key, tokens, segments, count, eligible, selection)
    candidate = (
        start if selection.probability is None else start & bernoulli(bits, selection.probability)
    )
    if selection.word_starts is None and selection.span_cdfs is None:
        slot = jnp.arange(tokens.size, dtype=jnp.int32)
        return random_tokens(bits, candidate, segments, quota_D), slot
    trims = selection.span_cdfs is not None
    return _take_units(bits, candidate, start, eligible, segments, quota_D, trims)


def _unit_starts(key, tokens, segments, count, eligible, selection):
    """Returns bool[L]: the slots where units of eligible tokens start."""
    continues = _shifted(eligible) & (segments == _shifted(segments))
    start = eligible
    if selection.word_starts is not None:
        start &= jnp.asarray(selection.word_starts)[tokens] | ~continues
    if selection.span_cdfs is not None:
        start &= _span_starts(key, start, segments, count, selection.span_cdfs) | ~continues
    return start


def _shifted(x_L):
    return jnp.concatenate([jnp.zeros_like(x_L[:1]), x_L[:-1]])


def _span_starts(key, start, segments, count, cdfs):
    """Returns bool[L]: the slots where spans start, each of 1 … N tokens or words.

    `start` marks the starts of the tokens or words. Spans have independent lengths. The
    document's start cuts its first span at random, so that every slot of a document is equally
    likely to start a span. The first span has k or more tokens or words with a probability
    proportional to the mean of max(length - k + 1, 0).
    """
    L = start.size
    document_L = jnp.maximum(segments - 1, 0)
    document_start = document_ranges(segments, count).start[document_L]
    units_D = _sum_of_each(start, segments, count)
    end_D = jnp.cumsum(units_D)
    # The random number in a document's k-th slot determines the length of its k-th span.
    draw = uniform24(key, L)
    opens = jnp.arange(L, dtype=jnp.int32) == document_start
    length = jnp.where(opens, _drawn_length(draw, cdfs[1]), _drawn_length(draw, cdfs[0]))
    # Units are counted over the row. Each document drops spans that start after its last unit.
    next_span = (end_D - units_D)[document_L] + _sum_so_far(length, document_start)
    inside = next_span < end_D[document_L]
    starts_span = jnp.zeros(L, bool).at[jnp.where(inside, next_span, L)].set(True, mode="drop")
    return starts_span[jnp.maximum(running_sum(start) - 1, 0)]


def _drawn_length(draw, cdf):
    """Returns lengths 1 … N with the cumulative distribution i32[N], from 24 random bits."""
    return 1 + count_at_most(cdf[:-1], draw)


def random_tokens(bits: Array, candidate: Array, segments: Array, quota_D: Array) -> Array:
    """Returns bool[L]: `quota_D` random candidates of each document, the first by their bits.

    Args:
      bits: u32[L] of random bits.
      candidate: bool[L], the tokens that may be chosen.
      segments: i32[L].
      quota_D: i32[D], number of tokens to choose in each document. If a document has fewer
        candidates, all of them are chosen.
    """
    rank = _random_ranks(bits, candidate, segments, quota_D.size)
    candidates_D = _sum_of_each(candidate, segments, quota_D.size)
    end_D = jnp.cumsum(candidates_D)
    last_D = end_D - candidates_D + jnp.minimum(quota_D, candidates_D) - 1
    last = by_document(jnp.sort(rank)[last_D], segments)
    # The first tokens with equal bits at the last rank are taken until the quota is full.
    ahead = candidate & (rank < last)
    tied = candidate & (rank == last)
    remaining_D = quota_D - _sum_of_each(ahead, segments, quota_D.size)
    total = running_sum(tied)
    start_D = document_ranges(segments, quota_D.size).start
    so_far = total - by_document((total - tied)[start_D], segments)
    return ahead | (tied & (so_far <= by_document(remaining_D, segments)))


def _take_units(bits, candidate, start, eligible, segments, quota_D, trims: bool):
    """Returns (chosen bool[L], unit i32[L]): units in random order, up to the quota.

    If `trims` is True, the first unit that does not fit is cut. Otherwise all units that do not fit
    are skipped.
    """
    L = start.size
    D = quota_D.size
    slot = jnp.arange(L, dtype=jnp.int32)
    document_L = jnp.maximum(segments - 1, 0)
    unit = lax.cummax(jnp.where(start, slot, 0))
    edge = jnp.append((start | ~eligible)[1:], True)
    size = 1 + lax.cummin(jnp.where(edge, slot, L), reverse=True) - slot
    if not trims:  # if no unit fits, one unit is truncated anyway
        sizes_DL = jnp.where(is_of_each(segments, D) & candidate[None], size[None], L)
        smallest_D = jnp.min(sizes_DL, axis=1)
        size = jnp.minimum(size, jnp.where(smallest_D > quota_D, quota_D, L)[document_L])

    shuffled = random_order(bits, jnp.where(candidate, segments - 1, D), D + 1)
    candidates_D = _sum_of_each(candidate, segments, D)
    first_D = jnp.cumsum(candidates_D) - candidates_D
    drawn = jnp.where(candidate, segments, 0)[shuffled]  # document of each unit, in random order
    sizes = jnp.where(candidate, size, 0)[shuffled]
    drawn_document = jnp.maximum(drawn - 1, 0)
    total = _sum_so_far(sizes, first_D[drawn_document])  # tokens of the document up to each unit
    if trims:
        remaining = jnp.maximum(quota_D[drawn_document] - (total - sizes), 0)
        taken_sizes = jnp.where(drawn > 0, jnp.minimum(sizes, remaining), 0)
    else:
        fits = (drawn > 0) & (total <= quota_D[drawn_document])
        taken_sizes = sizes * _more_that_fit(fits, sizes, drawn, quota_D)
    taken_size = jnp.zeros(L, jnp.int32).at[shuffled].set(taken_sizes)
    return eligible & (slot - unit < taken_size[unit]), unit


def _more_that_fit(taken: Array, sizes: Array, drawn: Array, quota_D):
    """Returns bool[L]: `taken`, and later units that still fit.

    Args:
      taken: bool[L], units before the first unit that does not fit.
      sizes, drawn: i32[L] number of tokens and document of each unit, in random order.
    """
    L = taken.size
    D = quota_D.size
    slot = jnp.arange(L, dtype=jnp.int32)

    def take_next(_, state):
        """Takes each document's next unit that fits and is not taken yet."""
        taken, remaining_D = state
        fits_DL = is_of_each(drawn, D) & ~taken[None] & (sizes[None] <= remaining_D[:, None])
        next_D = jnp.min(jnp.where(fits_DL, slot[None], L), axis=1)
        remaining_D -= jnp.where(next_D < L, sizes[next_D], 0)
        return taken.at[next_D].set(True, mode="drop"), remaining_D

    # A skipped unit exceeds the remaining quota, so it will not fit later either.
    remaining_D = quota_D - _sum_of_each(taken * sizes, drawn, D)
    return lax.fori_loop(0, MAX_UNITS_AFTER_SKIP, take_next, (taken, remaining_D))[0]


def _random_ranks(bits, candidate, segments, count: int):
    """Returns u32[L] to sort by document and then by random bits; other slots come last.

    Document and bits are in one number, since sorting one operand is fastest.
    """
    high = 8 if count < 256 else 16
    document = (segments - 1).astype(jnp.uint32) << (32 - high)
    return jnp.where(candidate, document | (bits >> high), jnp.uint32(2**32 - 1))


def _sum_of_each(x_L, segments, count: int):
    """Returns i32[D]: the sum over each document's slots."""
    return jnp.sum(jnp.where(is_of_each(segments, count), x_L[None], 0), axis=1, dtype=jnp.int32)


def _sum_so_far(x_L, first_L):
    """Returns i32[L]: the sum from slot first_L up to each slot."""
    total = running_sum(x_L)
    return total - (total - x_L)[first_L]
