"""Pilots: a few seeds of a comparison, to plan the other seeds.

A pilot shows which eval metrics cannot distinguish variants at this size, how many seeds would find
a difference, and whether more steps would help.

Since two seeds are few, the noise of all differences of a figure is assumed to be equal and pooled:
it is the residual of a two-way layout of variants and seeds, with (variants - 1) x (seeds - 1)
degrees of freedom. Numbers of seeds have intervals (Browne 1995): from the chi-squared distribution
of the variance for a given size of difference, and from the noncentral t distribution for a size
that the pilot measured.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from .figures import HIGHER
from .report.equality import costs
from .report.summary import Column, Summary
from .results import METRIC, TrainedRun
from .statistics import LEVEL, NO_SPREAD, check_smallest_effects, effect_found, seeds_for
from .trials import Trial

SEEDS = 2  # number of seeds of a pilot, unless more are complete
COVERED = 0.80  # coverage of an interval of seeds
SHOWN = 3  # number of differences shown per eval metric, the largest of the pilot
STEEP = 0.05  # share by which a loss must still fall to advise more steps
CLEAR = 2.0  # number of standard errors by which a mean must differ from a level
SMALLEST = "smallest effect"  # the difference of a `RequiredSeeds` whose size the user gives
BOUNDED = ("share", "accuracy", "reciprocal rank")  # prefixes of units that range from 0 to 1


class PairedNoise(NamedTuple):
    """The standard deviation of a paired difference; nan if it is unknown."""

    deviation: float
    freedom: int  # degrees of freedom of the estimate

    @property
    def interval(self) -> tuple[float, float]:
        """The interval that covers the standard deviation with a probability of `COVERED`."""
        if not self.freedom:
            return math.nan, math.nan
        from scipy import stats

        tail = (1 - COVERED) / 2
        low, high = stats.chi2.isf([tail, 1 - tail], self.freedom)
        spread = self.deviation * math.sqrt(self.freedom)
        return float(spread / math.sqrt(low)), float(spread / math.sqrt(high))


class RequiredSeeds(NamedTuple):
    """The number of seeds that finds a difference, with its interval.

    None: more than `statistics.MAX_SEEDS`.
    """

    difference: str  # the difference, such as "40% against 15%", or `SMALLEST`
    size: float  # size of the difference, in the figure's unit
    seeds: int | None
    least: int | None  # lower end of the interval
    most: int | None  # upper end of the interval


class MetricPower(NamedTuple):
    column: Column
    noise: PairedNoise
    leave_out: str  # why it should be left out, or ""
    found: float  # the smallest difference that the comparison's seeds find
    needs: Sequence[RequiredSeeds]


class LossTrend(NamedTuple):
    """How a loss falls at the end of training."""

    curve: str  # name of the loss, see `collecting.learning_curves`
    end: float  # the loss at the end, in nats per target
    share: float  # share by which the loss fell over the last doubling of the text


class Pilot(NamedTuple):
    seeds: Sequence[int]
    tested: int  # number of tested differences, for which the level is corrected
    looks: int  # number of planned looks, at least 1
    metrics: Sequence[MetricPower]
    seconds: float  # seconds of training per seed of all variants
    flops: float  # FLOPs per seed of all variants
    trends: Mapping[str, LossTrend]  # by variant
    still_falls: bool  # whether a loss still falls fast enough for more steps to help


def check_pilot(variants: Collection[str], seeds: Sequence[int], has_budgets: bool) -> None:
    """Raises ValueError for a comparison that a pilot cannot help to plan."""
    if has_budgets:
        raise ValueError(
            "--power plans tests of differences between variants, but a comparison with several "
            "budgets has no such tests, since a law is fitted to all of its runs: leave --power "
            "out, or use --report."
        )
    if len(variants) < 2 or len(seeds) < SEEDS:
        raise ValueError(
            f"--power takes {SEEDS} variants and {SEEDS} seeds or more, got {len(variants)} "
            f"({', '.join(variants)}) with the seeds {list(seeds)}: a pilot consists of the "
            f"first {SEEDS} seeds of all variants."
        )


def pilot_seeds(trials: Sequence[Trial]) -> list[int]:
    """Returns the seeds for which all variants are complete, and others up to `SEEDS`."""
    seeds = list(dict.fromkeys(trial.seed for trial in trials))
    lacking = {trial.seed for trial in trials if not trial.state.is_complete}
    complete = [seed for seed in seeds if seed not in lacking]
    first = [*complete, *(seed for seed in seeds if seed in lacking)][:SEEDS]
    return complete if len(complete) >= SEEDS else first


def pilot_of(summary: Summary, seeds: int) -> Pilot:
    """Returns the conclusions of a pilot for a planned number of seeds.

    Raises ValueError if no two variants have two seeds in common, and for `smallest_effects` of
    unknown figures.
    """
    looks = max(len(summary.setup.looks), 1)
    check_smallest_effects(summary.setup.smallest_effects, summary.differences)
    noises = {column.name: noise_of(column) for column in summary.columns}
    if not any(noise.freedom for noise in noises.values()):
        raise ValueError(
            "The pilot has no figure of two variants with two seeds, so the noise of a difference "
            "is unknown: see above, or the report, for what failed or could not be measured."
        )
    trends = loss_trends(summary.trained)
    steep = any(trend.share >= STEEP for trend in trends.values())
    reasons = {c.name: leave_out(c, noises[c.name], steep) for c in summary.columns}
    tested = sum(not reasons[d.figure] for d in summary.differences)
    level = LEVEL / looks / max(tested, 1)
    metrics = []
    for column in summary.columns:
        noise = noises[column.name]
        reason = reasons[column.name]
        needs = [] if reason else list(_needs(summary, column.name, noise, level))
        found = effect_found(seeds, level) * noise.deviation
        metrics.append(MetricPower(column, noise, leave_out=reason, found=found, needs=needs))
    seed_costs = costs(summary).values()
    return Pilot(
        seeds=sorted({run.seed for run in summary.runs}),
        tested=tested,
        looks=looks,
        metrics=metrics,
        seconds=sum(cost["seconds"] for cost in seed_costs),
        flops=sum(cost["FLOPs"] for cost in seed_costs),
        trends=trends,
        still_falls=steep,
    )


def noise_of(column: Column) -> PairedNoise:
    """Returns the noise of differences, pooled over the variants with the most seeds."""
    values = _table(column)
    freedom = (values.shape[0] - 1) * (values.shape[1] - 1) if values.size else 0
    if freedom <= 0:
        return PairedNoise(math.nan, 0)
    effects = values.mean(1, keepdims=True) + values.mean(0, keepdims=True) - values.mean()
    deviation = math.sqrt(2 * float(np.sum((values - effects) ** 2)) / freedom)
    return PairedNoise(
        deviation if deviation > NO_SPREAD * np.max(np.abs(values)) else 0.0, freedom
    )


def _table(column: Column) -> np.ndarray:
    """Returns f64[variants, seeds]: the values of the variants with the most seeds."""
    most = max((len(seeds) for seeds in column.values.values()), default=0)
    rows = [seeds for seeds in column.values.values() if seeds and len(seeds) == most]
    common = sorted(set.intersection(*map(set, rows))) if rows else []
    return np.array([[seeds[seed] for seed in common] for seeds in rows], np.float64)


def leave_out(column: Column, noise: PairedNoise, still_falls: bool) -> str:
    """Returns why an eval metric cannot distinguish variants at this size, or "".

    No variant is clearly better than the baseline, or clearly worse than the best possible value.
    Small differences are not a reason, since choosing eval metrics by them finds false ones.
    """
    if not noise.freedom:
        return "no two variants have its figure for two seeds"
    values = _table(column)
    sign = 1 if column.better == HIGHER else -1
    if np.ptp(values) <= NO_SPREAD * np.max(np.abs(values)):
        return f"every run has the figure {values.mean():.4g}"
    # Pooled standard error of the variants' means, including the part that seeds share.
    error = math.sqrt(float(np.mean(np.var(values, axis=1, ddof=1))) / values.shape[1])
    means = sign * values.mean(1)
    best = float(column.better == HIGHER)
    if column.baseline is not None and np.max(means) <= sign * column.baseline + CLEAR * error:
        more = "; more steps may help, as losses are still falling" if still_falls else ""
        return f"no variant is clearly better than the baseline, {column.baseline:.4g}{more}"
    if column.unit.startswith(BOUNDED) and np.min(means) >= sign * best - CLEAR * error:
        return f"no variant is clearly worse than the best value, {best:.4g}"
    return ""


def _needs(
    summary: Summary, figure: str, noise: PairedNoise, level: float
) -> Iterator[RequiredSeeds]:
    """Yields the seeds for a figure's smallest effect, or else for its largest measured effects."""
    if not noise.deviation > 0:
        return
    size = summary.setup.smallest_effects.get(figure)
    if size is not None:
        ends = (size / end for end in noise.interval)
        yield RequiredSeeds(SMALLEST, size, *_seeds(level, size / noise.deviation, *ends))
        return
    seen = [d for d in summary.differences if d.figure == figure]
    for d in sorted(seen, key=lambda d: -abs(d.estimate.mean))[:SHOWN]:
        effect = abs(d.estimate.mean) / noise.deviation
        low, high = effect_interval(effect, d.estimate.seeds, noise.freedom)
        yield RequiredSeeds(
            f"{d.variant} against {d.other}", d.estimate.mean, *_seeds(level, effect, high, low)
        )


def _seeds(level: float, *effects: float) -> list[int | None]:
    return [seeds_for(effect, level) for effect in effects]


def effect_interval(effect: float, seeds: int, freedom: int) -> tuple[float, float]:
    """Returns the interval that covers an effect with a probability of `COVERED`.

    The effect is the mean difference over `seeds` divided by its standard deviation. The lower end
    is 0 if the sign is not known.
    """
    from scipy import optimize, stats

    # SciPy fails for larger values, which hardly matter.
    t = min(effect * math.sqrt(seeds), 1e3)
    tail = (1 - COVERED) / 2

    def end(chance: float) -> float:
        def excess(noncentrality: float) -> float:
            return float(stats.nct.cdf(t, freedom, noncentrality)) - chance

        return optimize.brentq(excess, 0.0, 4 * t + 10) if excess(0.0) > 0 else 0.0

    return end(1 - tail) / math.sqrt(seeds), end(tail) / math.sqrt(seeds)


def loss_trends(runs: Sequence[TrainedRun]) -> dict[str, LossTrend]:
    """Returns how fast a loss of each variant falls over the last doubling of its text.

    The fall is the mean over seeds, for the held-out loss that falls fastest, or else the training
    loss. Variants with too few points are left out.
    """
    run_trends: dict[str, dict[str, list[LossTrend]]] = {}
    for run in runs:
        for name, curve in run.curves.items():
            x, y = np.array(curve, np.float64).T
            last = x >= x[-1] / 2
            if not name.startswith(METRIC) and x[0] > 0 and last.sum() > 1:
                slope, offset = np.polyfit(np.log2(x[last] / x[-1]), y[last], 1)
                run_trend = LossTrend(name, float(offset), float(-slope / offset))
                run_trends.setdefault(run.variant, {}).setdefault(name, []).append(run_trend)
    return {variant: _fastest(losses) for variant, losses in run_trends.items()}


def _fastest(losses: Mapping[str, Sequence[LossTrend]]) -> LossTrend:
    heldout = {name: trends for name, trends in losses.items() if name != "loss"} or losses
    means = [
        LossTrend(name, *np.mean([trend[1:] for trend in trends], 0).tolist())
        for name, trends in heldout.items()
    ]
    return max(means, key=lambda trend: trend.share)
