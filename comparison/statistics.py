"""Statistics over seeds: intervals of means, paired differences, which of them hold.

Two variants trained with one seed share their data order and, where the shapes agree, their first
parameters, so that differences are taken seed by seed. All differences of a comparison are one
family: the chance that any of them is claimed where there is none is at most 5%.

Student's t throughout, which takes differences over seeds to be normal; Holm (1979) corrects for
the size of the family. Where a comparison may stop early, at one of several looks that were planned
beforehand, each look has an equal share of the level (Bonferroni): that the rule for stopping is
any at all then leaves the chance of a false claim at 5%.
"""

import bisect
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

LEVEL = 0.05  # the chance of one false claim in a comparison, and that an interval misses its mean
POWER = 0.80  # the chance that the next comparison finds a difference of the observed size
MOST_SEEDS = 1000  # beyond which no number of seeds is given
NO_SPREAD = 1e-9  # of values, relative to their size: rounding, not noise

Values = Mapping[str, Mapping[int, float]]  # of one eval metric: by variant, by seed


class Estimate(NamedTuple):
    """A mean over seeds; its interval is nan where there is none."""

    mean: float
    low: float
    high: float
    seeds: int

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2


class Difference(NamedTuple):
    """By how much a variant differs from another at an eval metric."""

    figure: str
    variant: str
    other: str
    estimate: Estimate  # of the variant's value less the other's
    p: float  # that chance alone gives so large a difference; nan: cannot be tested
    corrected: float  # p, corrected for all differences of the comparison
    holds: bool
    needed: int | None  # seeds for the next comparison; None: more than `MOST_SEEDS`, or unknown


def estimate(values: Iterable[float], level: float = LEVEL) -> Estimate:
    """Returns the mean of values with its interval, which misses it with a chance of `level`;
    values without spread get none.

    >>> estimate([1.0, 2.0, 3.0])
    Estimate(mean=2.0, low=-0.484..., high=4.484..., seeds=3)
    """
    x = np.array(list(values), np.float64)
    mean = float(np.mean(x)) if x.size else math.nan
    if not has_spread(x):
        return Estimate(mean, math.nan, math.nan, x.size)
    from scipy import stats  # here: not for those who only read Figures

    low, high = stats.ttest_1samp(x, 0.0).confidence_interval(1 - level)
    return Estimate(mean, float(low), float(high), x.size)


def at_level(one: Estimate, level: float, wanted: float) -> Estimate:
    """Returns an estimate whose interval has the level `wanted` instead of `level`.

    >>> at_level(estimate([1.0, 2.0, 3.0]), LEVEL, LEVEL / 12).half_width
    8.916...
    """
    if not math.isfinite(one.half_width):
        return one
    from scipy import stats  # see `estimate`

    freedom = one.seeds - 1
    wider = stats.t.ppf(1 - wanted / 2, freedom) / stats.t.ppf(1 - level / 2, freedom)
    half = one.half_width * float(wider)
    return one._replace(low=one.mean - half, high=one.mean + half)


def differences(
    figures: Mapping[str, Values], reference: str | None, looks: int = 1
) -> list[Difference]:
    """Returns the paired differences of all variants from `reference`, or of all pairs where it is
    None, at each of these eval metrics: one family.

    They are over the seeds for which both have a finite value; pairs without any are left out.

    Args:
      looks: how often a comparison planned to test them; p-values and intervals are corrected for
        their number.
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
    level = share / max(len(pairs), 1)
    return [
        Difference(
            *(name, variant, other, estimate(x, share)),
            *(p, after, after <= LEVEL, seeds_needed(x, level)),
        )
        for (name, variant, other, x), p, after in zip(pairs, tests, corrected)
    ]


def undecided(some: Sequence[Difference], wanted: Mapping[str, float]) -> list[Difference]:
    """Returns the differences of which a comparison still has to find out whether they are there.

    Decided is one that holds, and one whose interval lies within ± what is `wanted` of its figure.
    Figures of which nothing is wanted are left out, unless that is so of all.

    Raises what `check_wanted` raises.
    """
    check_wanted(wanted, some)

    def is_small(d: Difference) -> bool:
        return max(-d.estimate.low, d.estimate.high) < wanted.get(d.figure, 0.0)

    return [
        d for d in some if not d.holds and not is_small(d) and (d.figure in wanted or not wanted)
    ]


def check_wanted(wanted: Mapping[str, float], some: Iterable[Difference]) -> None:
    """Raises ValueError where something is wanted of a figure that no difference is of."""
    figures = list(dict.fromkeys(d.figure for d in some))
    if unknown := [name for name in wanted if name not in figures]:
        raise ValueError(
            f"comparison.Comparison.wanted has {', '.join(map(repr, unknown))}, of which there is "
            f"no difference: give one of {', '.join(map(repr, figures)) or 'none'}."
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
    """Returns the differences f64[seeds]; 0 of values that are equal but for rounding."""
    first = values[variant]
    second = values[other]
    both = [(first[seed], second[seed]) for seed in sorted(first.keys() & second.keys())]
    known = [(a, b) for a, b in both if math.isfinite(a - b)]
    return np.array([0.0 if math.isclose(a, b, rel_tol=NO_SPREAD) else a - b for a, b in known])


def has_spread(values: np.ndarray) -> bool:
    """Returns whether values differ by more than rounding, as a test on their noise needs."""
    return values.size > 1 and float(np.std(values)) > NO_SPREAD * float(np.max(np.abs(values)))


def p_value(differences: np.ndarray) -> float:
    """Returns the p-value of a two-sided paired t-test; nan where differences have no spread."""
    if not has_spread(differences):
        return math.nan
    from scipy import stats

    return float(stats.ttest_1samp(differences, 0.0).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns p-values corrected for their number by Holm's step-down procedure; one that is nan
    stays so, and counts.

    >>> holm([0.01, 0.04, 0.03, math.nan])
    [0.04, 0.09, 0.09, nan]
    """
    tested = np.array([1.0 if math.isnan(p) else p for p in p_values])
    order = np.argsort(tested)
    steps = np.arange(tested.size, 0, -1)  # of the p-values that are as large or larger
    corrected = np.empty(tested.size)
    corrected[order] = np.minimum(np.maximum.accumulate(steps * tested[order]), 1.0)
    return [math.nan if math.isnan(p) else float(c) for p, c in zip(p_values, corrected)]


def seeds_needed(differences: np.ndarray, level: float) -> int | None:
    """Returns the least number of seeds whose paired t-test at `level` finds a difference as large
    and as noisy as these with a chance of `POWER`; None: more than `MOST_SEEDS`, or unknown.

    A difference that was selected for its size is overestimated, so the number may be too small.
    """
    if not has_spread(differences):
        return None
    effect = abs(float(np.mean(differences))) / float(np.std(differences, ddof=1))
    return seeds_for(effect, level)


def seeds_for(effect: float, level: float) -> int | None:
    """Returns the least number of seeds whose paired t-test at `level` finds an `effect`, as
    `power` has it, with a chance of `POWER`; None: more than `MOST_SEEDS`.

    >>> seeds_for(1.0, 0.05), seeds_for(0.01, 0.05)
    (10, None)
    """
    if power(effect, MOST_SEEDS, level) < POWER:
        return None
    numbers = range(MOST_SEEDS)
    return bisect.bisect_left(numbers, POWER, lo=2, key=lambda seeds: power(effect, seeds, level))


def effect_found(seeds: int, level: float) -> float:
    """Returns the least effect, as `power` has it, that so many seeds find with a chance of
    `POWER`.

    >>> effect_found(10, 0.05)
    0.996...
    """
    from scipy import optimize

    def missing(log_effect: float) -> float:
        return power(math.exp(log_effect), seeds, level) - POWER

    return math.exp(optimize.brentq(missing, math.log(1e-3), math.log(1e9)))


def power(effect: float, seeds: int, level: float) -> float:
    """Returns the chance that a two-sided paired t-test at `level` finds an `effect`, the mean
    difference / standard deviation of the differences, in its own direction."""
    from scipy import stats

    # The other direction's tail is what "two-sided" would add.
    freedom = seeds - 1
    threshold = stats.t.isf(level / 2, seeds - 1)
    chance = float(stats.nct.sf(threshold, freedom, effect * math.sqrt(seeds)))
    return 1.0 if math.isnan(chance) else chance  # SciPy gives up far out, where it is 1
