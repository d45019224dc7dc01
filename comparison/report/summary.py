"""`Summary`: the contents of a comparison's reports."""

import math
import re
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from ..figures import HIGHER, NEITHER
from ..results import ComparisonSetup, Measurement, Results, TrainedRun
from ..scaling.laws_of_comparisons import FittedLaw, laws_of
from ..statistics import NO_SPREAD, Difference, Estimate, Values, differences, estimate
from .eval_metric_curves import Curves, curves_of

_SETTINGS = re.compile(r" \(.*\)")  # for example " (power=4)", see `figures.labeled`


class Column(NamedTuple):
    name: str
    unit: str
    better: str
    baseline: float | None  # mean of the baseline over runs
    values: Values  # finite values by variant and seed; a variant may have none
    estimates: Mapping[str, Estimate]  # estimate of each variant that has a value
    notes: Mapping[str, Sequence[str]]  # note of the eval metric -> variants that have it
    unknown: Mapping[str, str]  # variant without a finite value -> its note

    @property
    def best(self) -> str | None:
        """The variant with the best mean.

        None for a cost, for a single variant, and if several variants share the best mean.
        """
        if self.better == NEITHER or len(self.estimates) < 2:
            return None
        best = best_of({v: estimate.mean for v, estimate in self.estimates.items()}, self.better)
        return best[0] if len(best) == 1 else None


class TunedVariant(NamedTuple):
    losses: Mapping[float, Sequence[float]]  # value, ascending -> loss in each of its rounds

    @property
    def chosen(self) -> float:
        """The value with the lowest loss in the last round. Earlier rounds break ties."""
        last = max(map(len, self.losses.values()))
        finite = {
            value: [*reversed(losses)]
            for value, losses in self.losses.items()
            if len(losses) == last and math.isfinite(losses[-1])
        }
        return min(finite, key=lambda value: finite[value])

    @property
    def end(self) -> str:
        """Returns "smallest" or "largest" if an end of the values was chosen, else ""."""
        first, *_, last = self.losses
        return {first: "smallest", last: "largest"}.get(self.chosen, "")


class Summary(NamedTuple):
    setup: ComparisonSetup
    runs: Sequence[TrainedRun]  # ordered by variant and seed
    columns: Sequence[Column]  # figures that are compared
    costs: Sequence[Column]  # figures for which neither higher nor lower is better
    parts: Sequence[Column]  # parts of the columns, which are shown without tests
    # Differences of the columns, corrected as one family. Empty if there are several budgets.
    differences: Sequence[Difference]
    laws: Sequence[FittedLaw]  # scaling laws of losses, if variants have several budgets
    tuned: Mapping[str, TunedVariant]  # by variant, if its tuning trials were kept
    curves: Mapping[str, Curves]  # by column name, if earlier checkpoints were measured too

    @property
    def trained(self) -> list[TrainedRun]:
        return [run for run in self.runs if not run.error]

    @property
    def failed(self) -> list[TrainedRun]:
        return [run for run in self.runs if run.error]

    def column(self, figure: str) -> Column:
        (matching,) = (column for column in self.columns if column.name == figure)
        return matching

    def gain(self, difference: Difference, variant: str) -> Difference:
        """Returns a difference whose estimates are positive if one of its variants is better."""
        higher = self.column(difference.figure).better == HIGHER
        if higher == (variant == difference.variant):
            return difference
        return difference._replace(
            estimate=difference.estimate.negated,
            corrected_estimate=difference.corrected_estimate.negated,
        )

    def better_and_worse(self, difference: Difference) -> tuple[str, str]:
        """Returns the two variants of a difference, the one with the better mean first."""
        pair = (difference.variant, difference.other)
        return pair if self.gain(difference, pair[0]).estimate.mean > 0 else pair[::-1]


def summary_of(results: Results) -> Summary:
    """Returns the summary of the results.

    Raises ValueError for a figure with several units, and for a reference that is not a variant.
    """
    setup = results.setup
    if setup.reference is not None and setup.reference not in setup.variants:
        raise ValueError(
            f"Got the reference {setup.reference}, expected one of {', '.join(setup.variants)}."
        )
    by_name: dict[str, list[Measurement]] = {}
    for measurement in results.measurements:
        by_name.setdefault(measurement.figure.name, []).append(measurement)
    all_columns = [_column(setup, name, measurements) for name, measurements in by_name.items()]
    heads = [column for column in all_columns if not is_part(column.name)]
    columns = [column for column in heads if column.better != NEITHER]
    values = {column.name: column.values for column in columns}
    looks = max(len(setup.looks), 1)
    return Summary(
        setup=setup,
        runs=results.runs,
        columns=columns,
        costs=[column for column in heads if column.better == NEITHER],
        parts=[column for column in all_columns if is_part(column.name)],
        differences=[] if setup.scaling else differences(values, setup.reference, looks),
        laws=laws_of(results),
        tuned=_tuned(results),
        curves=curves_of(results, values),
    )


def _tuned(results: Results) -> dict[str, TunedVariant]:
    losses: dict[str, dict[float, dict[int, list[float]]]] = {}
    for trial in results.tuning_trials:
        rounds = losses.setdefault(trial.variant, {}).setdefault(trial.value, {})
        rounds.setdefault(trial.round, []).append(trial.loss)
    return {
        variant: TunedVariant(
            {
                value: [fmean(rounds[n]) for n in sorted(rounds)]
                for value, rounds in sorted(losses[variant].items())
            }
        )
        for variant in results.setup.variants
        if variant in losses and results.setup.tuned
    }


def best_of(means: Mapping[str, float], better: str) -> list[str]:
    """Returns the variants with the best mean; several if their means are equal."""
    best = max(means.values()) if better == HIGHER else min(means.values())
    return [v for v, mean in means.items() if math.isclose(mean, best, rel_tol=NO_SPREAD)]


def is_part(name: str) -> bool:
    """Returns whether a figure is a part of another figure.

    Slashes in the settings of its name do not count.

    >>> is_part("minimal_pairs/brackets"), is_part("minimal_pairs (blimp='data/blimp')")
    (True, False)
    """
    return "/" in _SETTINGS.sub("", name)


def _column(setup: ComparisonSetup, name: str, measurements: Sequence[Measurement]) -> Column:
    kinds = {(m.figure.unit, m.figure.better) for m in measurements}
    if len(kinds) > 1:
        words = " and ".join(f"{unit} ({better} is better)" for unit, better in sorted(kinds))
        raise ValueError(f"Got the figure {name} in {words}: expected one unit for all runs.")
    ((unit, better),) = kinds
    baselines = [m.figure.baseline for m in measurements if m.figure.baseline is not None]
    values: dict[str, dict[int, float]] = {variant: {} for variant in setup.variants}
    for m in measurements:
        if math.isfinite(m.figure.value):
            values[m.variant][m.seed] = m.figure.value
    notes: dict[str, list[str]] = {}
    unknown: dict[str, str] = {}
    for m in measurements:
        if not values[m.variant]:
            unknown[m.variant] = m.figure.note
        elif m.figure.note and m.variant not in notes.setdefault(m.figure.note, []):
            notes[m.figure.note].append(m.variant)
    return Column(
        name=name,
        unit=unit,
        better=better,
        baseline=sum(baselines) / len(baselines) if baselines else None,
        values=values,
        estimates={v: estimate(seeds.values()) for v, seeds in values.items() if seeds},
        notes=notes,
        unknown=unknown,
    )
