"""Rules for differences that are not informative, from a comparison's results alone.

A difference between two variants is not informative in two cases: a variant is not shown to be
better than a threshold that needs no model, or a run was fine-tuned at an edge of its grid of
learning rates. A claim of no difference also needs a positive control.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from statistics import fmean
from typing import NamedTuple

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


class Threshold(NamedTuple):
    """A level that a variant's figure must exceed to be informative."""

    words: str
    level: float


def thresholds(summary: Summary, column: Column) -> list[Threshold]:
    """Returns the thresholds of a figure, from the weakest to the strongest."""
    levels = []
    if column.baseline is not None:
        levels.append(Threshold("the baseline", column.baseline))
    for part, words in MODEL_FREE_PARTS.items():
        part_column = _part(summary, column, part)
        if part_column is not None and part_column.estimates:
            level = fmean(estimate.mean for estimate in part_column.estimates.values())
            levels.append(Threshold(words, level))
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
    below = _below_a_threshold(summary, column, variants, nobody, allowed)
    return "; ".join(filter(None, (below, _at_an_edge(summary, column, variants))))


def _below_a_threshold(
    summary: Summary, column: Column, variants: Sequence[str], nobody: str, allowed: int
) -> str:
    """Returns which variants are not shown to be better than a threshold.

    Args:
      nobody: the words for all of the variants, such as "no variant is".
      allowed: number of variants that need not be better.
    """
    for threshold in thresholds(summary, column):
        below = [v for v in variants if not is_shown_better(column, v, threshold.level)]
        if len(below) > allowed:
            verb = "is" if len(below) == 1 else "are"
            named = f"{', '.join(below)} {verb} not"
            start = nobody if len(below) == len(variants) else named
            return f"{start} shown to be better than {threshold.words} ({threshold.level:.3g})"
    return ""


def _at_an_edge(summary: Summary, column: Column, variants: Collection[str]) -> str:
    """Returns how many runs were fine-tuned at an edge of the grid of learning rates.

    Returns "" if there are no such runs, or if the figure does not measure fine-tuning.
    """
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
