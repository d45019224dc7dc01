"""Denoising objectives: hide spans of the text, predict what was hidden.

Sources: Raffel et al. 2020 (T5) for span corruption, Tay et al. 2022 (UL2) for the mode tokens.
"""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from objectives.arithmetic import below, ratio, traced
from objectives.contract import Objective, TokenIds
from objectives.features import sequence_pair
from objectives.losses import token_loss
from objectives.span_lengths import noise_counts, span_starts
from objectives.splicing import (
    Runs,
    concatenate,
    documents,
    interleave,
    single,
    splice,
    with_specials,
)


def span_corruption(
    ids: TokenIds,
    noise_density: float = 0.15,
    mean_span_length: float | tuple[int, int] = 3.0,
    mode: str | None = None,
) -> Objective:
    """T5's span corruption: each hidden span becomes one sentinel, targets tell the spans.

    With text `a b c d e f`, noise on `b c` and `f`, sentinels X and Y, and end-of-sequence /:

        inputs    a X d e Y /
        targets   X b c Y f /

    Args:
      ids: needs `sentinels`, as many as `lengths` says, and the `mode` token if one is given.
      noise_density: share of tokens hidden, in (0, 1).
      mean_span_length: in tokens, above or equal to 1. A pair (low, high) draws one whole number
        uniformly for each document; lengths are then those of the worst draw.
      mode: name of a mode token put before each document's inputs (UL2's paradigm token).

    Features: inputs, inputs_segments i32[I]; targets, targets_segments, targets_weights i32[T].
    End-of-sequence closes inputs and targets of every document, and counts in `lengths`.

    >>> span_corruption(ids).lengths(568)
    {'inputs': 512, 'targets': 114, 'sentinels': 28}

    Raises ValueError for a density or length out of range, or a mode the vocabulary has not.
    """
    density = ratio(noise_density, "noise_density", 0, 1)
    low, high = _span_range(mean_span_length)
    head = () if mode is None else (ids.mode(mode),)

    def lengths(n: int) -> dict[str, int]:
        # Fewer tokens a span mean more spans: the shortest mean is the worst draw.
        noise, spans = (
            int(x) for x in noise_counts(n, density.as_integer_ratio(), low.as_integer_ratio(), np)
        )
        return {
            "inputs": len(head) + n - noise + spans + 1,
            "targets": noise + spans + 1,
            "sentinels": spans,
        }

    specials = jnp.array([*ids.sentinels], jnp.int32), jnp.array([ids.eos, *head], jnp.int32)
    return Objective(
        lengths=lengths,
        corrupt=Partial(_corrupt_spans, traced(density, low, high), specials),
        loss=token_loss,
    )


def _span_range(mean_span_length) -> tuple[Fraction, Fraction]:
    pair = mean_span_length if isinstance(mean_span_length, (tuple, list)) else None
    if pair is None:
        mean = ratio(mean_span_length, "mean_span_length", 0, 10**6)
        pair = (mean, mean)
    elif len(pair) != 2 or any(int(x) != x for x in pair) or not pair[0] <= pair[1]:
        raise ValueError(
            "mean_span_length must be a number, or a pair (low, high) of whole numbers with "
            f"low <= high, got {mean_span_length}."
        )
    low, high = (Fraction(x) for x in pair)
    if low < 1:
        raise ValueError(f"mean_span_length must be at least 1 token, got {mean_span_length}.")
    return low, high


def _corrupt_spans(numbers, specials, key, row, partner, lengths):
    """Span corruption of every document of a row at once; see `span_corruption`."""
    sentinels, closing = specials
    modes = closing.size - 1  # 0 or 1 mode tokens before the inputs
    S = max(lengths["sentinels"], 1)
    document = documents(row.segments, lengths.get("documents", 1))
    noise, spans, noise_start, text_start = jax.vmap(_draw_spans, (None, 0, 0, None, None))(
        key, jnp.arange(document.length.size), document.length, numbers, S
    )
    source, (sentinel_at, eos_at) = with_specials(row.tokens, sentinels, closing)

    # Stretch k of text ends where stretch k + 1 starts; noise span k follows it.
    k = jnp.arange(S, dtype=jnp.int32)[None]
    text = document.length - noise
    text_end = jnp.concatenate([text_start[:, 1:], text[:, None]], axis=1)
    present, span = document.length > 0, k < spans[:, None]
    text_from = document.start[:, None] + text_start + noise_start
    noise_from = document.start[:, None] + text_end + noise_start
    sentinel = jnp.broadcast_to(sentinel_at + k, span.shape)

    inputs = concatenate(
        single(0, eos_at + 1, present & (modes > 0)),
        interleave(
            Runs(modes + text_start + k, text_from, span | ((k == 0) & present[:, None])),
            Runs(modes + text_end + k, sentinel, span),
        ),
        single(modes + text + spans, eos_at, present),
    )
    targets = concatenate(
        interleave(
            Runs(noise_start + k, sentinel, span),
            Runs(noise_start + k + 1, noise_from, span),
        ),
        single(noise + spans, eos_at, present),
    )
    inputs_slots = jnp.where(present, modes + text + spans + 1, 0)
    targets_slots = jnp.where(present, noise + spans + 1, 0)
    return sequence_pair(
        splice(source, inputs, inputs_slots, lengths["inputs"]),
        splice(source, targets, targets_slots, lengths["targets"]),
    )


def _draw_spans(key, number, n, numbers, size):
    """Counts and span starts of document `number` of n tokens, which has a key of its own."""
    density, low, high = numbers
    # Bits of one dimension, noise and text in turn: the first do not depend on how many there are.
    bits = jax.random.bits(jax.random.fold_in(key, number), (2 * size - 1,), jnp.uint32)
    # low == high unless a range was asked for, and then both are whole numbers.
    choice = below(bits[0], (high[0] - low[0]) // low[1] + 1)
    noise, spans = noise_counts(n, density, (low[0] + choice * low[1], low[1]))
    noise_start, text_start = jax.vmap(span_starts, (1, 0, None))(
        bits[1:].reshape(size - 1, 2), jnp.stack([noise, n - noise]), spans
    )
    return noise, spans, noise_start, text_start
