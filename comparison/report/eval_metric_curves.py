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
    cost: TrainingCost  # the median costs over the seeds
    values: Sequence[float]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)


Curves = Mapping[str, Sequence[Checkpoint]]  # by variant, from the first checkpoint to the end


def curves_of(results: Results, columns: Mapping[str, Values]) -> Mapping[str, Curves]:
    """Returns the curves of each figure that was also measured before the end of runs.

    A checkpoint needs a figure for every seed of the end (`columns`), so that all means are over
    the same seeds.
    """
    ends = {(run.variant, run.seed): run.cost for run in results.runs}
    # (figure, variant, step) -> seed -> cost so far and value
    earlier: dict[tuple[str, str, int], dict[int, tuple[TrainingCost, float]]] = {}
    for m in results.earlier:
        if m.cost is not None and math.isfinite(m.figure.value):
            seeds_of_step = earlier.setdefault((m.figure.name, m.variant, m.cost.step), {})
            seeds_of_step[m.seed] = m.cost, m.figure.value
    curves: dict[str, dict[str, list[Checkpoint]]] = {}
    for name, values in columns.items():
        for variant, seeds in values.items():
            steps = sorted(step for *key, step in earlier if key == [name, variant])
            checkpoints = [earlier[name, variant, step] for step in steps]
            checkpoints = [found for found in checkpoints if found.keys() >= seeds.keys()]
            if seeds and checkpoints:
                at_end = {seed: (ends[variant, seed], value) for seed, value in seeds.items()}
                curves.setdefault(name, {})[variant] = [
                    _checkpoint([found[seed] for seed in seeds]) for found in (*checkpoints, at_end)
                ]
    return curves


def _checkpoint(seeds: Sequence[tuple[TrainingCost, float]]) -> Checkpoint:
    cost, values = zip(*seeds)
    return Checkpoint(TrainingCost(*map(statistics.median, zip(*cost))), values)
