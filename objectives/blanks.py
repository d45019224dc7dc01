"""Blank infilling: spans become blanks, and are predicted one after another in random order.

Source: Du et al. 2022, "GLM: General Language Model Pretraining with Autoregressive Blank
Infilling", section 2.1, and its published code.
"""

from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Interval
from jax import lax

from ..constraints import OpenShare, checked
from .arithmetic import kernel, ratio, round_ratio
from .contract import Facts, Objective, Rows
from .features import input_sequence, target_sequence
from .losses import token_loss
from .prompt_forms import PromptForm
from .random_order import random_order
from .span_lengths import poisson_lengths, poisson_table, span_starts
from .splicing import (
    Pieces,
    document_bits,
    document_ranges,
    hidden_runs,
    interleaved,
    pieces,
    splice,
    with_markers,
    with_specials,
)
from .token_ids import TokenIds


@checked
def blank_infilling(
    ids: TokenIds,
    density: OpenShare = 0.15,
    mean_span_length: Annotated[float, Interval(gt=0, le=20)] = 3.0,
) -> Objective:
    """GLM's blank infilling: each noise span becomes a mask; the targets are the shuffled spans.

    With text `a b c d e f`, spans b c and f, masks _, and end-of-sequence / after each span:

        inputs            a _ d e _        bidirectional attention
        targets           f / b c /        predicted left to right
        positions         4 4 1 1 1        the position of the span's mask in its document's inputs
        block positions   1 2 1 2 3        the position in the span

    The / that closes a span is also the decoder's input for the first token of the next span. Span
    lengths have a Poisson distribution without 0. They are drawn until round(density n) tokens are
    hidden, at least one, and the last span is truncated to this number. No two spans are adjacent.
    Positions and order of the spans are uniform.

    Args:
      ids: needs `mask`.
      density: share of tokens hidden.
      mean_span_length: mean of the Poisson distribution, in tokens.

    `lengths` allows for the expected number of spans plus a third and six more. In the one or two
    documents per million that draw more, the last span is longer instead.

    >>> blank_infilling(ids).lengths(512)
    {'inputs': 475, 'targets': 117, 'positions': 117}
    """
    share = ratio(density, "density")
    mean = ratio(mean_span_length, "mean_span_length")

    def lengths(n: int) -> dict[str, int]:
        hidden, spans = (
            int(x) for x in blank_counts(n, share.as_integer_ratio(), mean.as_integer_ratio(), np)
        )
        targets = hidden + spans
        return {"inputs": n - hidden + spans, "targets": targets, "positions": targets}

    return Objective(
        lengths=lengths,
        corrupt=kernel(
            _blank_spans,
            counts=(share, mean),
            span_lengths=_positive(poisson_table(mean)),
            mask=ids.special("mask"),
            eos=ids.eos,
        ),
        loss=token_loss,
        facts=Facts(
            prompt_forms=(PromptForm("infill", blanks="masks"),),
            rows=Rows("documents", appends_eos=True),
        ),
    )


def blank_counts(n, density, mean_span_length, xp=jnp):
    """Returns the number of hidden tokens and the maximum number of spans for n tokens.

    >>> [int(x) for x in blank_counts(512, (3, 20), (3, 1), np)]
    [77, 40]
    """
    hidden = xp.clip(round_ratio(n * density[0], density[1]), xp.minimum(n, 1), n)
    expected = round_ratio(hidden * mean_span_length[1], mean_span_length[0])
    return hidden, xp.minimum(xp.minimum(hidden, n - hidden + 1), expected + expected // 3 + 6)


def _positive(table: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the table of the distribution conditioned on numbers above 0."""
    zero = table[0]
    return tuple(int(round_ratio((x - zero) * 2**24, 2**24 - zero)) for x in table)


def _blank_spans(key, row, partner, lengths, max_documents, *, counts, span_lengths, mask, eos):
    S = max(lengths["targets"] // 2, 1)  # a span has at least two targets
    document = document_ranges(row.segments, max_documents)
    # Bits are one-dimensional, four for each span, so that the first bits do not depend on the
    # number of spans.
    bits_DxSx4 = document_bits(key, max_documents, (4 * S,)).reshape(-1, S, 4)
    hidden_D, most_D = blank_counts(document.length, *counts)
    begin, end, order = jax.vmap(_draw_blanks, (None, 0, 0, 0, 0))(
        span_lengths, bits_DxSx4, document.length, hidden_D, most_D
    )
    if row.hidden is not None:
        begin, end = hidden_runs(row, document, S)
        order = jax.vmap(_shuffled)(bits_DxSx4[..., 2], jnp.sum(end > begin, axis=1))
    source, (mask_at, eos_at) = with_specials(row.tokens, mask, eos)
    live = end > begin
    from_row = document.start[:, None] + begin

    inputs = with_markers(document, begin, end, pieces(mask_at, live))
    blocks = interleaved(
        Pieces(*(jnp.take_along_axis(x, order, axis=1) for x in (from_row, end - begin))),
        pieces(eos_at, jnp.take_along_axis(live, order, axis=1)),
    )
    slots = jnp.arange(source.size, dtype=jnp.int32)
    origin, segments = splice(slots, blocks, lengths["targets"])

    # The slot of a span's mask is the number of text tokens and masks before it.
    hidden = jnp.cumsum(end - begin, axis=1)
    mask_slot = begin - (hidden - (end - begin)) + jnp.arange(S, dtype=jnp.int32)[None]
    mask_of = jnp.zeros(source.size, jnp.int32)
    mask_of = mask_of.at[jnp.where(live, from_row, source.size)].set(mask_slot, mode="drop")

    slot = jnp.arange(origin.size, dtype=jnp.int32)
    closes = (segments > 0) & (origin == eos_at)
    block = lax.cummax(jnp.where(jnp.roll(closes, 1), slot, 0))  # where each target's block begins
    return (
        input_sequence(splice(source, inputs, lengths["inputs"]))
        | target_sequence((jnp.where(segments > 0, source[origin], 0), segments))
        | {
            "targets_positions": jnp.where(segments > 0, mask_of[origin[block]], 0),
            "targets_block_positions": jnp.where(segments > 0, slot - block + 1, 0),
        }
    )


def _draw_blanks(span_lengths, bits_Sx4, n, hidden, most):
    """Draws the spans that hide `hidden` of a document's n tokens, and their order.

    Returns:
      begin, end: i32[S], positions in the document; n for absent spans.
      order: i32[S] numbers of the spans, with absent spans last.
    """
    drawn = jnp.cumsum(poisson_lengths(bits_Sx4[:, 0], span_lengths))
    spans = jnp.minimum(1 + jnp.sum(drawn < hidden, dtype=jnp.int32), most)
    is_last = jnp.arange(drawn.size) >= spans - 1
    drawn = jnp.where(is_last, hidden, drawn)  # the last span covers the rest
    length = jnp.diff(drawn, prepend=0)[_shuffled(bits_Sx4[:, 1], spans)]
    # Text before each span: at least one token between two spans, possibly none at either end.
    text_before = span_starts(bits_Sx4[:, 3], n - hidden + 2, spans + 1)[1:] - 1
    begin = jnp.minimum(text_before, n - hidden) + jnp.cumsum(length) - length
    return begin, begin + length, _shuffled(bits_Sx4[:, 2], spans)


def _shuffled(bits, count):
    """Returns i32[size]: 0 … count-1 in random order, then the other numbers in order."""
    absent = jnp.arange(bits.size) >= count
    return random_order(jnp.where(absent, 0, bits), absent, 2)
