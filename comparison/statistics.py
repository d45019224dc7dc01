"""Statistics over seeds: intervals of means, paired differences, and which are significant.

Variants with the same seed share their data order and, for equal shapes, their initial parameters,
so differences are paired by seed. All differences of a comparison form one family: the probability
of any false claim is at most 5%.

Tests are Student's t-tests, which assume normal differences over seeds, corrected by Holm's
procedure (1979). If a comparison may end early, each planned look gets an equal share of the level
(Bonferroni), so the probability of a false claim stays at 5% for any stopping rule.
"""

import bisect
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ..constraints import listed

# Probability of a false claim, and that an interval misses its mean.
LEVEL = 0.05
POWER = 0.80  # probability that the next comparison finds a difference of the observed size
MAX_SEEDS = 1000  # largest number of seeds that is reported
NO_SPREAD = 1e-9  # a relative spread of values up to this size is rounding, not noise

Values = Mapping[str, Mapping[int, float]]  # values of an eval metric by variant and seed


class Estimate(NamedTuple):
    """A mean over seeds with its confidence interval, which is nan if there is none."""

    mean: float
    low: float
    high: float
    seeds: int

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2

    @property
    def negated(self) -> "Estimate":
        return Estimate(-self.mean, -self.high, -self.low, self.seeds)


class Difference(NamedTuple):
    """The difference between two variants at an eval metric."""

    figure: str
    variant: str
    other: str
    estimate: Estimate  # estimate of the variant's value minus the other's value
    corrected_estimate: Estimate  # with an interval that is corrected for all differences
    deviation: float  # standard deviation over seeds; nan if it is unknown or 0
    level: float  # probability of a false claim for this difference alone (Bonferroni)
    p: float  # p-value; nan if the difference cannot be tested
    corrected: float  # p-value corrected for all differences of the comparison

    @property
    def is_significant(self) -> bool:
        return self.corrected <= LEVEL

    @property
    def in_deviations(self) -> tuple[float, float, float]:
        """The difference and the ends of its corrected interval, in standard deviations."""
        mean, low, high, _ = self.corrected_estimate
        return mean / self.deviation, low / self.deviation, high / self.deviation

    @property
    def needed(self) -> int | None:
        """The number of seeds with which the next comparison finds such a difference.

        None if it is unknown or more than `MAX_SEEDS`. For differences selected by size, it may be
        too small.
        """
        if math.isnan(self.deviation):
            return None
        return seeds_for(abs(self.estimate.mean) / self.deviation, self.level)


def estimate(values: Iterable[float], level: float = LEVEL) -> Estimate:
    """Returns the mean of values with a confidence interval, whose error rate is `level`.

    Values without spread have no interval.

    >>> estimate([1.0, 2.0, 3.0])
    Estimate(mean=2.0, low=-0.484..., high=4.484..., seeds=3)
    """
    x = np.array(list(values), np.float64)
    mean = float(np.mean(x)) if x.size else math.nan
    if math.isnan(deviation_of(x)):
        return Estimate(mean, math.nan, math.nan, x.size)
    from scipy import stats  # imported late, so that reading figures does not load SciPy

    low, high = stats.ttest_1samp(x, 0.0).confidence_interval(1 - level)
    return Estimate(mean, float(low), float(high), x.size)


def deviation_of(values: np.ndarray) -> float:
    """Returns the standard deviation of values; nan if they differ by no more than rounding."""
    has_spread = values.size > 1 and np.std(values) > NO_SPREAD * np.max(np.abs(values))
    return float(np.std(values, ddof=1)) if has_spread else math.nan


def differences(
    figures: Mapping[str, Values], reference: str | None, looks: int = 1
) -> list[Difference]:
    """Returns the paired differences at each of these eval metrics, as one family.

    Only seeds with finite values of both variants count. Pairs without such seeds are left out.

    Args:
      reference: the variant that all others are compared with, or None to compare all pairs.
      looks: number of planned tests of each difference, for which p-values and intervals are
        corrected.
    """
    pairs = [
        (name, variant, other, common)
        for name, values in figures.items()
        for variant, other in pairs_of(list(values), reference)
        if (common := _paired(values, variant, other)).size
    ]
    tests = [p_value(common) for *_, common in pairs]
    corrected = np.minimum(looks * np.array(holm(tests)), 1.0).tolist()
    share = LEVEL / looks
    return [
        Difference(
            figure=name,
            variant=variant,
            other=other,
            estimate=estimate(x, share),
            corrected_estimate=estimate(x, share / len(pairs)),
            deviation=deviation_of(x),
            level=share / len(pairs),
            p=p,
            corrected=after,
        )
        for (name, variant, other, x), p, after in zip(pairs, tests, corrected)
    ]


def undecided(differences: Sequence[Difference], smallest: Mapping[str, float]) -> list[Difference]:
    """Returns the differences that are not decided yet.

    A difference is decided if it is significant, or its interval lies within ± the smallest effect
    of its figure. Only figures in `smallest` count, if it has any.

    Raises ValueError if `smallest` names a figure without differences.
    """
    check_smallest_effects(smallest, differences)

    def is_small(d: Difference) -> bool:
        return max(-d.estimate.low, d.estimate.high) < smallest.get(d.figure, 0.0)

    asked = [d for d in differences if d.figure in smallest or not smallest]
    return [d for d in asked if not d.is_significant and not is_small(d)]


def check_smallest_effects(
    smallest: Mapping[str, float], differences: Iterable[Difference]
) -> None:
    """Raises ValueError if `smallest` names a figure without differences."""
    figures = list(dict.fromkeys(d.figure for d in differences))
    if unknown := [name for name in smallest if name not in figures]:
        raise ValueError(
            f"comparison.Comparison.smallest_effects has {', '.join(map(repr, unknown))}, but no "
            f"difference is at such a figure: give {listed(map(repr, figures), 'or') or 'none'}."
        )


def pairs_of(variants: Sequence[str], reference: str | None) -> list[tuple[str, str]]:
    """
    >>> pairs_of(["a", "b", "c"], "b")
    [('a', 'b'), ('c', 'b')]
    >>> pairs_of(["a", "b", "c"], None)
    [('b', 'a'), ('c', 'a'), ('c', 'b')]
    """
    if reference is not None:
        return [(v, reference) for v in variants if v != reference and reference in variants]
    return [(later, earlier) for k, later in enumerate(variants) for earlier in variants[:k]]


def _paired(values: Values, variant: str, other: str) -> np.ndarray:
    """Returns the differences f64[seeds]; 0 for values that are equal up to rounding."""
    first = values[variant]
    second = values[other]
    both = [(first[seed], second[seed]) for seed in sorted(first.keys() & second.keys())]
    known = [(a, b) for a, b in both if math.isfinite(a - b)]
    return np.array([0.0 if math.isclose(a, b, rel_tol=NO_SPREAD) else a - b for a, b in known])


def p_value(differences: np.ndarray) -> float:
    """Returns the p-value of a two-sided paired t-test; nan if the differences have no spread."""
    if math.isnan(deviation_of(differences)):
        return math.nan
    from scipy import stats

    return float(stats.ttest_1samp(differences, 0.0).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns p-values corrected for their number by Holm's step-down procedure.

    A p-value of nan stays nan, but counts toward the number.

    >>> holm([0.01, 0.04, 0.03, math.nan])
    [0.04, 0.09, 0.09, nan]
    """
    tested = np.array([1.0 if math.isnan(p) else p for p in p_values])
    order = np.argsort(tested)
    steps = np.arange(tested.size, 0, -1)  # number of p-values that are as large or larger
    corrected = np.empty(tested.size)
    corrected[order] = np.minimum(np.maximum.accumulate(steps * tested[order]), 1.0)
    return [math.nan if math.isnan(p) else float(c) for p, c in zip(p_values, corrected)]


def seeds_for(effect: float, level: float) -> int | None:
    """Returns the number of seeds with which a paired t-test at `level` finds an effect.

    The power is `POWER`, and the effect is defined as in `power`. Returns None if the number is
    more than `MAX_SEEDS`.

    >>> seeds_for(1.0, 0.05), seeds_for(0.01, 0.05)
    (10, None)
    """
    if power(effect, MAX_SEEDS, level) < POWER:
        return None
    numbers = range(MAX_SEEDS)
    return bisect.bisect_left(numbers, POWER, lo=2, key=lambda seeds: power(effect, seeds, level))


def effect_found(seeds: int, level: float) -> float:
    """Returns the smallest effect that a paired t-test with these seeds finds with `POWER`.

    The effect is defined as in `power`.

    >>> effect_found(10, 0.05)
    0.996...
    """
    from scipy import optimize

    def missing(log_effect: float) -> float:
        return power(math.exp(log_effect), seeds, level) - POWER

    return math.exp(optimize.brentq(missing, math.log(1e-3), math.log(1e9)))


def power(effect: float, seeds: int, level: float) -> float:
    """Returns the probability that a two-sided paired t-test at `level` finds an effect.

    The effect is the mean difference divided by the standard deviation of the differences. Only
    findings in the right direction count.
    """
    from scipy import stats

    freedom = seeds - 1
    threshold = stats.t.isf(level / 2, freedom)
    chance = float(stats.nct.sf(threshold, freedom, effect * math.sqrt(seeds)))
    return 1.0 if math.isnan(chance) else chance  # SciPy returns nan for large effects.
