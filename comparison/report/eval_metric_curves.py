"""Curves of eval metrics: their figures at checkpoints of a run, and the cost so far."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..results import Results, TrainingCost
from ..statistics import Values

# Horizontal axis of a curve -> field of `TrainingCost`.
AXES = {"text tokens": "text_tokens", "FLOPs": "flops", "seconds": "seconds"}


class Checkpoint(NamedTuple):
    """A checkpoint of a variant, with the figure of each of its seeds."""

    cost: TrainingCost  # the median costs over the seeds
    values: Sequence[float]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)


Curves = Mapping[str, Sequence[Checkpoint]]  # by variant, from the first checkpoint to the end


def curves_of(results: Results, columns: Mapping[str, Values]) -> dict[str, Curves]:
    """Returns the curves of each figure that was also measured before the end of runs.

    A checkpoint needs a figure for every seed of the end, so that all means are over the same
    seeds.

    Args:
      columns: the values at the end, by figure.
    """
    ends = {(run.variant, run.seed): run.cost for run in results.runs}
    earlier: dict[tuple[str, str], dict[int, dict[int, tuple[TrainingCost, float]]]] = {}
    for m in results.earlier:
        if m.cost is not None and math.isfinite(m.figure.value):
            by_step = earlier.setdefault((m.figure.name, m.variant), {})
            by_step.setdefault(m.cost.step, {})[m.seed] = m.cost, m.figure.value
    curves: dict[str, Curves] = {}
    for name, values in columns.items():
        variant_curves = {}
        for variant, seeds in values.items():
            by_step = earlier.get((name, variant), {})
            checkpoints = [
                by_step[step] for step in sorted(by_step) if by_step[step].keys() >= {*seeds}
            ]
            if seeds and checkpoints:
                checkpoints.append(
                    {seed: (ends[variant, seed], value) for seed, value in seeds.items()}
                )
                variant_curves[variant] = [
                    _checkpoint([figures[seed] for seed in seeds]) for figures in checkpoints
                ]
        if variant_curves:
            curves[name] = variant_curves
    return curves


def _checkpoint(seeds: Sequence[tuple[TrainingCost, float]]) -> Checkpoint:
    cost, values = zip(*seeds)
    return Checkpoint(TrainingCost(*map(statistics.median, zip(*cost))), values)
