"""Curves of eval metrics: their figures at checkpoints of a run, and the cost so far."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..results import Results, Spent
from ..statistics import Values

# Horizontal axis of a curve -> field of `Spent`.
OVER = {"text tokens": "text_tokens", "FLOPs": "flops", "seconds": "seconds"}


class Checkpoint(NamedTuple):
    """A checkpoint of a variant, with the figure of each of its seeds."""

    spent: Spent  # the median costs over the seeds
    values: Sequence[float]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)


Curves = Mapping[str, Sequence[Checkpoint]]  # by variant, from the first checkpoint to the end


def curves_of(results: Results, columns: Mapping[str, Values]) -> dict[str, Curves]:
    """Returns the curves of each figure that was also measured before the end of runs.

    A checkpoint counts if it has a figure for every seed that has a figure at the end. All means of
    a curve are therefore over the same seeds.

    Args:
      columns: the values at the end, by figure.
    """
    ends = {(run.variant, run.seed): run.spent for run in results.runs}
    found: dict[tuple[str, str], dict[int, dict[int, tuple[Spent, float]]]] = {}
    for one in results.earlier:
        if one.spent is not None and math.isfinite(one.figure.value):
            by_step = found.setdefault((one.figure.name, one.variant), {})
            by_step.setdefault(one.spent.step, {})[one.seed] = one.spent, one.figure.value
    curves: dict[str, Curves] = {}
    for name, values in columns.items():
        variant_curves = {}
        for variant, seeds in values.items():
            by_step = found.get((name, variant), {})
            some = [by_step[step] for step in sorted(by_step) if by_step[step].keys() >= {*seeds}]
            if seeds and some:
                some.append({seed: (ends[variant, seed], value) for seed, value in seeds.items()})
                variant_curves[variant] = [
                    _checkpoint([figures[seed] for seed in seeds]) for figures in some
                ]
        if variant_curves:
            curves[name] = variant_curves
    return curves


def _checkpoint(seeds: Sequence[tuple[Spent, float]]) -> Checkpoint:
    spent, values = zip(*seeds)
    return Checkpoint(Spent(*map(statistics.median, zip(*spent))), values)
