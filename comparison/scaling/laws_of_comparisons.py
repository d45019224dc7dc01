"""Scaling laws of comparisons whose variants differ in size and budget."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .. import results
from ..figures import LOWER, NATS
from ..results import Results, TrainedRun
from .scaling_law import Fit, Work, fit, fit_work


class Point(NamedTuple):
    run: TrainedRun
    loss: float


class FittedLaw(NamedTuple):
    """The scaling law of a comparison's figure, or why there is none."""

    figure: str  # "loss_under/causal_lm"
    points: Sequence[Point]
    fit: Fit | None
    why_not_fitted: str  # reason why no law could be fitted; "" if one was

    @property
    def work(self) -> Work:
        """The growth of FLOPs per token with the size of the runs' models."""
        runs = [point.run for point in self.points]
        return fit_work([r.parameters for r in runs], [r.flops_per_token for r in runs])

    @property
    def budgets(self) -> tuple[float, float]:
        """The smallest and the largest FLOPs of a run."""
        flops = [point.run.flops for point in self.points]
        return min(flops), max(flops)

    @property
    def error(self) -> float:
        """The root mean square relative error of the law."""
        assert self.fit is not None
        law = self.fit.law
        missed = [
            math.log(law.loss(p.run.parameters, p.run.text_tokens) / p.loss) for p in self.points
        ]
        return math.sqrt(float(np.mean(np.square(missed))))


def laws_of(kept: Results) -> list[FittedLaw]:
    """Returns the law of each loss in nats per target, or [] for a comparison with one budget."""
    if not kept.setup.scaling:
        return []
    runs = {(run.variant, run.seed): run for run in kept.runs if not run.error}
    points: dict[str, list[Point]] = {}
    for measurement in kept.measurements:
        figure = measurement.figure
        run = runs.get((measurement.variant, measurement.seed))
        if run is not None and (figure.unit, figure.better) == (NATS, LOWER):
            points.setdefault(figure.name, []).append(Point(run, figure.value))
    laws = []
    for name, figure_points in points.items():
        parameters, tokens = zip(*[(p.run.parameters, p.run.text_tokens) for p in figure_points])
        try:
            fitted = fit(parameters, tokens, [p.loss for p in figure_points])
            laws.append(FittedLaw(name, figure_points, fitted, ""))
        except ValueError as error:  # There are too few runs so far, or a run has diverged.
            laws.append(FittedLaw(name, figure_points, None, str(error)))
    return laws


def law_of_directory(directory: str | Path) -> FittedLaw:
    """Returns the law that was fitted to the runs of a comparison.

        law_of_directory("comparisons/scaling").fit.law.alpha

    Raises ValueError for a directory without a law, or with several laws.
    """
    kept = results.read(directory)
    if not kept.setup.scaling:
        raise ValueError(
            f"{directory} has the comparison {kept.setup.name!r} with a single budget, expected a "
            "comparison of several sizes on several budgets: run one, such as `pretrax compare "
            "scaling`."
        )
    laws = laws_of(kept)
    if len(laws) != 1:
        names = ", ".join(law.figure for law in laws)
        raise ValueError(
            f"{directory} has {f'several losses, {names}' if laws else f'no loss in {NATS}'}, "
            "expected one loss: give eval_metrics.loss_under one objective."
        )
    (law,) = laws
    if law.fit is None:
        raise ValueError(f"{directory} has no law of {law.figure}: {law.why_not_fitted}")
    return law
