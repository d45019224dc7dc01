"""Rules for differences that are not informative, from a comparison's results alone.

A difference between two variants is not informative in two cases: a variant is not shown to be
better than a threshold that needs no model, or a run was fine-tuned at an edge of its grid of
learning rates. A claim of no difference also needs a positive control.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from statistics import fmean

from ...constraints import listed
from ..figures import HIGHER, LARGEST, PEAK, SMALLEST
from ..statistics import Difference
from .positive_controls import PositiveControl
from .summary import Column, Summary

BAG_OF_WORDS = "/bag_of_words"
MODEL_FREE_PARTS = {  # part of a figure -> the predictor that needs no model and is measured there
    BAG_OF_WORDS: "a bag of words",
    "/most_frequent_name": "the most frequent name",
}
NO_CONTROL = (
    "there is no positive control: neither another pair of variants nor the pair of "
    "`positive_controls` differs at this figure by more than chance"
)


def thresholds(summary: Summary, column: Column) -> dict[str, float]:
    """Returns the levels that a figure must exceed to be informative, the weakest first."""
    levels = {} if column.baseline is None else {"the baseline": column.baseline}
    for part, words in MODEL_FREE_PARTS.items():
        predicted = _part(summary, column, part)
        if predicted is not None and predicted.estimates:
            levels[words] = fmean(estimate.mean for estimate in predicted.estimates.values())
    return levels


def is_shown_better(column: Column, variant: str, level: float) -> bool:
    """Returns whether the whole interval of a variant lies on the better side of a level.

    If all seeds have the same figure, this value is compared. A single seed is not enough.
    """
    estimate = column.estimates[variant]
    ends = (estimate.low, estimate.high)
    if estimate.seeds > 1 and math.isnan(estimate.low):  # the seeds have no spread
        ends = (estimate.mean, estimate.mean)
    return ends[0] > level if column.better == HIGHER else ends[1] < level


def why_not_informative(summary: Summary, difference: Difference) -> str:
    """Returns why a difference is not informative, or ""."""
    column = summary.column(difference.figure)
    pair = (difference.variant, difference.other)
    # If the difference is significant, one variant may be at the threshold: the true difference can
    # only be larger than the measured difference.
    nobody = f'neither "{pair[0]}" nor "{pair[1]}" is'
    return _reasons(summary, column, pair, nobody, allowed=int(difference.is_significant))


def why_equality_is_not_shown(
    summary: Summary, difference: Difference, controls: Iterable[PositiveControl]
) -> str:
    """Returns why a small difference does not support a claim of no difference, or "".

    In addition to `why_not_informative`, the claim needs a positive control: a pair of variants
    that the same figure distinguishes in this comparison or in `positive_controls`.
    """
    reasons = [why_not_informative(summary, difference)]
    passed = any(control.passed for control in controls if control.figure == difference.figure)
    if not (difference.is_significant or passed or _has_control(summary, difference)):
        reasons.append(NO_CONTROL)
    return "; ".join(filter(None, reasons))


def why_figure_is_not_informative(summary: Summary, column: Column) -> str:
    """Returns why no difference at a figure is informative, or ""."""
    column_differences = [d for d in summary.differences if d.figure == column.name]
    if any(not why_not_informative(summary, d) for d in column_differences):
        return ""
    return _reasons(summary, column, list(column.estimates), nobody="no variant is", allowed=0)


def _reasons(
    summary: Summary, column: Column, variants: Sequence[str], nobody: str, allowed: int
) -> str:
    """Returns which variants are not better than a threshold, and which runs are at an edge.

    `nobody` are the words for all variants, and `allowed` is the number that need not be better.
    """
    reasons = []
    for words, level in thresholds(summary, column).items():
        below = [v for v in variants if not is_shown_better(column, v, level)]
        if len(below) > allowed:
            named = f"{', '.join(below)} {'is' if len(below) == 1 else 'are'} not"
            start = nobody if len(below) == len(variants) else named
            reasons.append(f"{start} shown to be better than {words} ({level:.3g})")
            break
    return "; ".join(filter(None, (*reasons, _at_an_edge(summary, column, variants))))


def _at_an_edge(summary: Summary, column: Column, variants: Collection[str]) -> str:
    """Returns how many runs were fine-tuned at an edge of their grid of rates, or "" for 0."""
    chosen = _part(summary, column, PEAK)
    smallest = _part(summary, column, PEAK + SMALLEST)
    largest = _part(summary, column, PEAK + LARGEST)
    if chosen is None or smallest is None or largest is None:
        return ""
    # Older results do not record the ends of the grid, so their runs are left out.
    grids = {
        (v, seed): (smallest.values[v][seed], largest.values[v][seed])
        for v in variants
        for seed in chosen.values.get(v, {})
        if seed in smallest.values[v] and seed in largest.values[v]
    }
    ends = {(v, seed): grid for (v, seed), grid in grids.items() if chosen.values[v][seed] in grid}
    if not ends:
        return ""
    at = listed(f"{x:g}" for x in sorted({chosen.values[v][seed] for v, seed in ends}))
    least = min(low for low, _ in ends.values())
    most = max(high for _, high in ends.values())
    verb = "was" if len(ends) == 1 else "were"
    return (
        f"{len(ends)} of {len(grids)} runs {verb} fine-tuned at an edge of the grid of learning "
        f"rates ({at}, grid from {least:g} to {most:g})"
    )


def _has_control(summary: Summary, difference: Difference) -> bool:
    pair = {difference.variant, difference.other}
    return any(
        other.is_significant and not why_not_informative(summary, other)
        for other in summary.differences
        if other.figure == difference.figure and {other.variant, other.other} != pair
    )


def _part(summary: Summary, column: Column, part: str) -> Column | None:
    return next((figure for figure in summary.parts if figure.name == column.name + part), None)
