"""Statistics of an objective's noise, counted over many rows and compared with theory."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np

from .choice import Choice
from .drawing import Drawn
from .hidden import hidden_tokens, left_out_tokens, predicted_tokens
from .picture import Picture, SlotUse, Statistics
from .rows import STACKS, ModelView, ShownObjective, longest_document, view_of
from .tracing import read

ROWS = 1000  # total number of rows of text that are counted
BINS = 64  # number of bins of a row in `Statistics.hidden_at` and `predicted_at`


def with_statistics(
    choice: Choice, drawn: Drawn, stream: np.ndarray, stream_name: str, *, slots: int, seed: int
) -> Picture:
    """Returns the picture with the statistics of each member, counted on its share of the rows.

    Args:
      stream: i32[n] text of the rows.
      slots: number of slots of the first stack, which each row fills.
    """
    measured = [
        measure(
            member,
            stream,
            slots=slots,
            rows=max(round(ROWS * member.rate), 64),
            seed=seed,
            span_distribution=choice.entry.span_distribution if choice.entry else None,
            span_mean=choice.mean_span_length,
        )
        for member in drawn.members
    ]
    stack = next(iter(measured[0].use))
    longest = f"{max(member.use[stack].slots for member in measured):,} {stack} slots"
    total = sum(member.rows for member in measured)
    counted_on = (
        f"Counted over {total:,} rows of {stream_name}, one document each, of up to {longest}."
    )
    return replace(drawn.picture, statistics=measured, counted_on=counted_on)


def measure(
    member: ShownObjective,
    stream: np.ndarray,
    *,
    slots: int,
    rows: int,
    seed: int,
    span_distribution: str | None = None,
    span_mean: float | None = None,
) -> Statistics:
    """Counts the noise over rows of one document each, cut consecutively from a stream of text.

    Args:
      stream: i32[n] text, repeated if it is too short.
      slots: number of slots of the first stack, which each row fills.
      span_distribution: name of the expected distribution of span lengths, as in
        `objectives.catalog.Entry`.
      span_mean: mean of that distribution.
    """
    length = longest_document(member, slots)
    cut = np.resize(stream, (rows + rows % 2, length))
    return statistics(
        member, view_of(member, [[row] for row in cut], seed), span_distribution, span_mean
    )


def statistics(
    member: ShownObjective, view: ModelView, span_distribution=None, span_mean=None
) -> Statistics:
    hidden = hidden_tokens(view)
    predicted = predicted_tokens(view)
    left_out = left_out_tokens(view)
    text = max(int(np.sum(view.segments > 0)), 1)
    used = max(int(text - left_out.sum()), 1)
    spans, expected = _spans(view, hidden, span_distribution, span_mean)
    return Statistics(
        name=member.name,
        rate=member.rate,
        rows=len(view.tokens),
        length=view.length,
        left_out=int(left_out.sum()) / text,
        hidden=int(hidden.sum()) / used,
        predicted=int(predicted.sum()) / used,
        with_loss=int(view.gives_loss.sum()) / text,
        use=_slots_used(view),
        spans=spans.tolist(),
        expected_spans=None if expected is None else expected.tolist(),
        hidden_at=_along(hidden, ~left_out),
        predicted_at=_along(predicted, ~left_out),
    )


def _slots_used(view: ModelView) -> dict[str, SlotUse]:
    used = {}
    for stack in STACKS:
        if (segments := view.batch.get(f"{stack}_segment_ids")) is not None:
            live = np.sum(segments > 0, axis=1)
            used[stack] = SlotUse(
                slots=segments.shape[1],
                mean=float(live.mean()),
                least=int(live.min()),
                most=int(live.max()),
            )
    return used


def _along(marks: np.ndarray, tokens: np.ndarray) -> list[float]:
    """Returns, for each of `BINS` parts of the row, the share of marks among its tokens."""
    bin_of_slot = np.arange(marks.shape[1]) * BINS // marks.shape[1]
    total, marked = (
        np.bincount(bin_of_slot, weights=x.sum(axis=0), minlength=BINS) for x in (tokens, marks)
    )
    return (marked / np.maximum(total, 1)).tolist()


# --- spans ----------------------------------------------------------------------------------------


def span_lengths(hidden: np.ndarray) -> list[np.ndarray]:
    """Returns the lengths of the runs of hidden tokens of each row.

    >>> span_lengths(np.array([[True, True, False, True]]))
    [array([2, 1])]
    """
    edge = np.diff(np.pad(hidden.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    return [np.flatnonzero(row == -1) - np.flatnonzero(row == 1) for row in edge]


def composition_law(tokens: int, spans: int) -> np.ndarray:
    """Returns P(k), the probability that a span has k of the tokens, for k from 0 to `tokens`.

    All splits of the tokens into this number of spans are equally likely, as in T5:
    P(k) = C(tokens - k - 1, spans - 2) / C(tokens - 1, spans - 1).

    >>> composition_law(4, 2)
    array([0.        , 0.33333333, 0.33333333, 0.33333333, 0.        ])
    """
    distribution = np.zeros(tokens + 1)
    if spans == 1:
        distribution[tokens] = 1.0
        return distribution
    for k in range(1, tokens - spans + 2):
        distribution[k] = math.comb(tokens - k - 1, spans - 2) / math.comb(tokens - 1, spans - 1)
    return distribution


def _spans(view: ModelView, hidden, distribution: str | None, mean: float | None):
    """Returns the numbers of spans with k tokens over all rows, counted and expected."""
    lengths = span_lengths(hidden)
    counts = np.bincount(np.concatenate(lengths), minlength=2)
    if distribution == "poisson":  # each mask stands for a span, also a span without tokens
        from scipy import stats  # imported here, since examples do not need it

        tokens, _ = read(view.features["inputs"])
        masks = np.sum((tokens == view.ids.mask) & (view.features["inputs_segments"] > 0))
        counts[0] = max(int(masks) - counts.sum(), 0)
        return counts, masks * stats.poisson.pmf(np.arange(counts.size), mean or 3.0)
    rows = Counter((int(row.sum()), row.size) for row in lengths if row.size)
    nothing_is_split = max((spans for _, spans in rows), default=1) == 1
    if distribution is None or nothing_is_split:
        return counts, None
    expected = np.zeros(max(noise for noise, _ in rows) + 1)
    for (noise, spans), times in rows.items():
        expected[: noise + 1] += times * spans * composition_law(noise, spans)
    size = max(counts.size, expected.size)
    return tuple(np.pad(x, (0, size - x.size)) for x in (counts, expected))
