"""Statistics keep their promises in simulations, and claim nothing if nothing is known."""

import math
import warnings

import numpy as np
import pytest

from pretrax.comparison import statistics
from pretrax.comparison.statistics import (
    LEVEL,
    differences,
    estimate,
    holm,
    power,
    seeds_for,
)
from tests.comparison.simulations import SEEDS, at_most_five_in_a_hundred, simulated


@pytest.fixture(autouse=True)
def _warnings_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def values(sample):
    """Returns values of two variants whose differences over seeds are the sample."""
    return {"a": dict.fromkeys(range(len(sample)), 0.0), "b": dict(enumerate(sample))}


@pytest.mark.slow
def test_equal_variants_rarely_differ():
    random = np.random.default_rng(0)
    comparisons = 1000
    false = sum(
        any(d.is_significant for d in differences(simulated(random, ("a", "a again"), 3), None))
        for _ in range(comparisons)
    )
    assert false <= at_most_five_in_a_hundred(comparisons)


@pytest.mark.slow
def test_correction_controls_errors_over_all_pairs_and_metrics():
    random = np.random.default_rng(1)
    comparisons, uncorrected, corrected = 300, 0, 0
    for _ in range(comparisons):
        found = differences(simulated(random, "abcd", 3), None)
        assert len(found) == 18
        uncorrected += any(d.p <= 0.05 for d in found)
        corrected += any(d.is_significant for d in found)
    assert corrected <= at_most_five_in_a_hundred(comparisons)
    assert uncorrected > 0.4 * comparisons  # the error rate without a correction


@pytest.mark.slow
def test_planted_effect_is_found_with_the_stated_power():
    effect, family, comparisons = 1.5, 4, 300
    level = statistics.LEVEL / family
    sample = effect + np.array([-1, 1, -1, 1]) * math.sqrt(3 / 4)  # mean 1.5, deviation 1
    figures = {name: values(sample) for name in "wxyz"}
    seeds = differences(figures, "a")[0].needed
    assert power(effect, seeds, level) >= 0.8 > power(effect, seeds - 1, level)
    random = np.random.default_rng(2)
    found = 0
    for _ in range(comparisons):
        first, *_ = differences(simulated(random, "ab", family, effect, seeds), None)
        found += first.is_significant and first.estimate.mean > 0
    stated = power(effect, seeds, level)
    error = math.sqrt(stated * (1 - stated) / comparisons)
    assert (
        stated - 3 * error <= found / comparisons <= stated + 4 * error
    )  # Holm may find some more differences.


@pytest.mark.slow
def test_intervals_have_their_nominal_coverage():
    random, draws = np.random.default_rng(3), 1000
    estimates = [estimate(random.normal(7, 3, SEEDS)) for _ in range(draws)]
    covered = sum(e.low <= 7 <= e.high for e in estimates) / draws
    assert abs(covered - 0.95) <= 3 * math.sqrt(0.95 * 0.05 / draws)


def test_paired_difference_matches_hand_computed_values():
    """Differences of 1, 2, 3 have mean 2 and standard error 1/√3, so t = 3.46."""
    figures = {"y": {"a": {0: 1.0, 1: 5.0, 2: 3.0}, "b": {0: 2.0, 1: 7.0, 2: 6.0}}}
    (found,) = differences(figures, "a")
    assert (found.variant, found.other) == ("b", "a")
    assert found.estimate.mean == 2 and found.estimate.seeds == 3
    assert found.estimate.low == pytest.approx(2 - 4.30265 / math.sqrt(3), abs=1e-4)
    assert found.p == pytest.approx(0.0742, abs=1e-4) == found.corrected
    assert not found.is_significant and found.needed == 5
    two_differences = differences(figures | {"z": figures["y"]}, "a")
    assert [d.needed for d in two_differences] == 2 * [seeds_for(2.0, LEVEL / 2)] == [6, 6]


def test_holm_correction_matches_hand_computed_values():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.01, math.nan]) == pytest.approx([0.02, math.nan], nan_ok=True)
    assert holm([]) == []


def test_differences_use_the_seeds_that_both_variants_have():
    nan = math.nan
    figures = {
        "y": {"a": {0: 1.0, 1: 2.0, 2: 4.0}, "b": {1: 3.0, 2: 6.0, 3: 9.0}, "c": {7: 1.0}},
        "z": {"a": {0: 1.0, 1: nan, 2: 1.0}, "b": {0: 2.0, 1: 1.0, 2: math.inf}},
    }
    found = differences(figures, None)  # c shares no seed and does not have z.
    assert [(d.figure, d.variant, d.other, d.estimate.seeds) for d in found] == [
        ("y", "b", "a", 2),
        ("z", "b", "a", 1),
    ]


@pytest.mark.parametrize(
    "other", [[0.5], [1.0, 2.0, 3.0], [1.3, 2.3, 3.3], [1 + 1e-12, 2 + 1.01e-12, 3 + 0.99e-12]]
)
def test_differences_without_noise_are_not_significant(other):
    """A single seed, no difference, and differences that are equal up to rounding."""
    figures = {"y": {"a": {0: 1.0, 1: 2.0, 2: 3.0}, "b": dict(enumerate(other))}}
    (found,) = differences(figures, "a")
    assert math.isnan(found.p) and math.isnan(found.corrected) and not found.is_significant
    assert math.isnan(found.estimate.low) and found.needed is None


def test_one_seed_has_no_interval():
    assert math.isnan(estimate([2.0]).low) and estimate([2.0]).mean == 2
    assert math.isnan(estimate([]).mean)


def test_power_rises_with_effect_and_seeds():
    for level in (0.05, 0.05 / 90):
        grid = [[power(e, n, level) for n in (2, 5, 15, 100)] for e in np.geomspace(0.01, 1e9, 40)]
        assert np.all(np.diff(grid, axis=0) >= -1e-9) and np.all(np.diff(grid, axis=1) >= -1e-9)


def test_tiny_difference_has_no_number_of_needed_seeds():
    (tiny,) = differences({"y": values([-1.0, 1.0, 0.01])}, "a")
    (clear,) = differences({"y": values([1.0, 1.01])}, "a")
    assert tiny.needed is None and clear.needed == 2
