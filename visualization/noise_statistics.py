"""What an objective does on average: counted over many rows, beside what is known beforehand."""

import math
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from .examples import hidden_tokens, left_out_tokens, predicted_tokens
from .rows import STACKS, ModelView, ShownObjective, longest_document, view_of

BINS = 64  # of a row, in "where"


class SlotUse(NamedTuple):
    """Slots of a stack: those that hold a token, and those that are paid for."""

    slots: int
    mean: float
    least: int
    most: int

    @property
    def share(self) -> float:
        return self.mean / self.slots


class NoiseFigures(NamedTuple):
    """Of one objective, or one member of a mixture; shares are of the tokens not left out."""

    name: str
    rate: float
    rows: int
    length: int  # tokens of text in a row
    left_out: float  # neither given nor predicted, of all tokens of text
    hidden: float  # predicted, and not given by the inputs or in their place
    predicted: float  # are targets or labels
    with_loss: float  # places that give a loss, for each token of text
    use: dict[str, SlotUse]
    spans: np.ndarray  # [k]: how many hidden spans have k tokens
    expected_spans: np.ndarray | None  # [k]: by the law, for as many spans in such rows
    hidden_at: np.ndarray  # f[BINS]: share hidden along the row
    predicted_at: np.ndarray  # f[BINS]


def rows_of(tokens: np.ndarray, length: int, count: int) -> list[list[np.ndarray]]:
    """Rows of one document each, cut one after another from a stream of text, as training does."""
    stream = np.resize(tokens, count * length)
    return [[row] for row in stream.reshape(count, length)]


def measure_each(
    members: Iterable[ShownObjective], stream: np.ndarray, *, rows: int, **settings
) -> list[NoiseFigures]:
    """Measures each member of a mixture on its share of `rows`, or 64 of them, as `measure`."""
    return [
        measure(member, stream, rows=max(round(rows * member.rate), 64), **settings)
        for member in members
    ]


def measure(
    subject: ShownObjective,
    stream: np.ndarray,
    *,
    slots: int,
    rows: int,
    seed: int,
    span_law: str | None = None,
    span_mean: float | None = None,
) -> NoiseFigures:
    """Counts over `rows` rows of `stream` (i32[n] text) that fill a stack of so many slots.

    Args:
      slots: of the encoder, or of the decoder where that is the only stack.
      span_law, span_mean: see `objectives.catalogue.Entry.span_law`.
    """
    length = longest_document(subject, slots)
    view = view_of(subject, rows_of(stream, length, rows + rows % 2), seed)
    return figures(subject, view, span_law, span_mean)


def figures(
    subject: ShownObjective, view: ModelView, span_law=None, span_mean=None
) -> NoiseFigures:
    hidden = hidden_tokens(view)
    predicted = predicted_tokens(view)
    left_out = left_out_tokens(view)
    text = np.maximum(np.sum(view.segments > 0), 1)
    used = np.maximum(text - left_out.sum(), 1)
    spans, expected = _spans(view, hidden, span_law, span_mean)
    return NoiseFigures(
        name=subject.name,
        rate=subject.rate,
        rows=len(view.tokens),
        length=view.length,
        left_out=left_out.sum() / text,
        hidden=hidden.sum() / used,
        predicted=predicted.sum() / used,
        with_loss=view.gives_loss.sum() / text,
        use=_slots_used(view),
        spans=spans,
        expected_spans=expected,
        hidden_at=_along(hidden, ~left_out),
        predicted_at=_along(predicted, ~left_out),
    )


def _slots_used(view: ModelView) -> dict[str, SlotUse]:
    used = {}
    for stack in STACKS:
        if (segments := view.batch.get(f"{stack}_segment_ids")) is not None:
            live = np.sum(segments > 0, axis=1)
            least = int(live.min())
            most = int(live.max())
            used[stack] = SlotUse(segments.shape[1], float(live.mean()), least, most)
    return used


def _along(marks: np.ndarray, of: np.ndarray) -> np.ndarray:
    """Returns f[BINS]: the share of marks among the tokens `of`, along the row."""
    bin_of_slot = np.arange(marks.shape[1]) * BINS // marks.shape[1]
    total, marked = (
        np.bincount(bin_of_slot, weights=x.sum(axis=0), minlength=BINS) for x in (of, marks)
    )
    return marked / np.maximum(total, 1)


# --- spans ----------------------------------------------------------------------------------------


def span_lengths(hidden: np.ndarray) -> list[np.ndarray]:
    """Returns the lengths of the runs of hidden tokens of each row.

    >>> span_lengths(np.array([[True, True, False, True]]))
    [array([2, 1])]
    """
    edge = np.diff(np.pad(hidden.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    return [np.flatnonzero(row == -1) - np.flatnonzero(row == 1) for row in edge]


def composition_law(tokens: int, spans: int) -> np.ndarray:
    """P(k) that a span has k = 0 … tokens of them, all splits into so many spans alike.

    T5's law: C(tokens - k - 1, spans - 2) / C(tokens - 1, spans - 1).

    >>> composition_law(4, 2)
    array([0.        , 0.33333333, 0.33333333, 0.33333333, 0.        ])
    """
    law = np.zeros(tokens + 1)
    if spans == 1:
        law[tokens] = 1.0
        return law
    for k in range(1, tokens - spans + 2):
        law[k] = math.comb(tokens - k - 1, spans - 2) / math.comb(tokens - 1, spans - 1)
    return law


def _spans(view: ModelView, hidden, law: str | None, mean: float | None):
    """(how many spans have k tokens, how many should), over all rows."""
    lengths = span_lengths(hidden)
    counts = np.bincount(np.concatenate(lengths), minlength=2)
    if law == "poisson":  # each mask stands for a span, those of no tokens too
        from scipy import stats  # here: not for those who only look at examples

        tokens, _ = view.read(view.features["inputs"])
        masks = np.sum((tokens == view.ids.mask) & (view.features["inputs_segments"] > 0))
        counts[0] = max(int(masks) - counts.sum(), 0)
        return counts, masks * stats.poisson.pmf(np.arange(counts.size), mean or 3.0)
    rows = Counter((int(row.sum()), row.size) for row in lengths if row.size)
    nothing_is_split = max((spans for _, spans in rows), default=1) == 1
    if law is None or nothing_is_split:
        return counts, None
    expected = np.zeros(max(noise for noise, _ in rows) + 1)
    for (noise, spans), times in rows.items():
        expected[: noise + 1] += times * spans * composition_law(noise, spans)
    size = max(counts.size, expected.size)
    return tuple(np.pad(x, (0, size - x.size)) for x in (counts, expected))
