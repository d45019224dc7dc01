"""A comparison that may end early makes false claims as rarely as one that may not."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from pretrax.comparison import comparing, results
from pretrax.comparison.comparison import check
from pretrax.comparison.looks import check_looks, keep_looks
from pretrax.comparison.report import wording
from pretrax.comparison.report.comparison_page import page
from pretrax.comparison.report.markdown_report import markdown
from pretrax.comparison.report.summary import summary_of
from pretrax.comparison.statistics import LEVEL, differences, power, undecided
from tests.comparison import planted
from tests.comparison.planted import compared
from tests.comparison.simulations import at_most_five_in_a_hundred, simulated
from tests.refusals import refuses

LOOKS = (3, 5, 8)


def ended(random, draws: int, effect: float = 0.0, pairs: int = 4, looks: int = len(LOOKS)):
    """Returns the number of seeds at which each simulated comparison ends, and whether it claims.

    All `pairs` have this effect. Each look has a share of the level.
    """
    x = effect + random.normal(0, 1, (draws, pairs, LOOKS[-1]))
    seeds, claimed = np.full(draws, LOOKS[-1]), np.zeros(draws, bool)
    for look in LOOKS[::-1]:
        p = stats.ttest_1samp(x[..., :look], 0.0, axis=-1).pvalue
        # Holm: the smallest p-value is corrected for all pairs, and the largest only for itself.
        ordered = np.sort(p, axis=1) * np.arange(pairs, 0, -1)
        corrected = looks * np.maximum.accumulate(ordered, axis=1)
        claimed = np.where(all_hold := (corrected <= LEVEL).all(1), True, claimed)
        claimed |= (corrected <= LEVEL).any(1)
        seeds[all_hold] = look
    return seeds, claimed


def test_false_claims_at_any_look_stay_below_the_level():
    """A claim at any of the looks counts, whatever ended the comparison."""
    random, draws = np.random.default_rng(0), 10_000
    for pairs in (1, 4):
        _, claimed = ended(random, draws, pairs=pairs)
        assert claimed.sum() <= at_most_five_in_a_hundred(draws)
    # the same number of looks without a correction
    _, claimed = ended(random, draws, pairs=1, looks=1)
    assert claimed.sum() > 0.08 * draws


def test_seeds_saved_by_large_effects_match_the_docs():
    """The numbers are those of docs/comparing.md."""
    random = np.random.default_rng(1)
    one, claimed = ended(random, 4000, effect=3.0, pairs=1)
    assert one.mean() == pytest.approx(4.4, abs=0.1) and claimed.mean() > 0.99
    four, _ = ended(random, 4000, effect=3.0, pairs=4)
    assert four.mean() == pytest.approx(5.6, abs=0.1)
    _, found = ended(random, 4000, effect=1.5, pairs=1)  # the price if the true effect is smaller
    assert found.mean() == pytest.approx(0.85, abs=0.02)
    assert power(1.5, LOOKS[-1], LEVEL) == pytest.approx(0.95, abs=0.01)


def test_each_look_has_its_share_of_the_level():
    figures = simulated(np.random.default_rng(2), "abc", 2, effect=2.0)
    one, three = differences(figures, "a"), differences(figures, "a", looks=3)
    for d, e in zip(one, three):
        assert e.p == d.p and e.corrected == pytest.approx(min(3 * d.corrected, 1))
        assert e.estimate.half_width > d.estimate.half_width and e.needed >= d.needed
        low, high = stats.t.interval(1 - LEVEL / 3, 4, scale=1)
        share = (high - low) / np.diff(stats.t.interval(1 - LEVEL, 4))[0]
        assert e.estimate.half_width == pytest.approx(d.estimate.half_width * share)
        assert e.is_significant == (e.corrected <= LEVEL)
    equal = {"y": {"a": {0: 1.0, 1: 2.0}, "b": {0: 1.0, 1: 2.0}}}
    assert math.isnan(differences(equal, None, looks=3)[0].corrected)


@pytest.mark.slow
def test_early_ending_keeps_false_claims_below_the_level():
    """A variant is compared with itself, with a smallest effect.

    The comparison ends if the difference is small, as well as if it is significant.
    """
    random, comparisons, false, early = np.random.default_rng(3), 400, 0, 0
    for _ in range(comparisons):
        all_figures = simulated(random, "ab", 2, seeds=LOOKS[-1])
        for look in LOOKS:
            figures = {
                name: {
                    variant: dict([*seeds.items()][:look]) for variant, seeds in by_variant.items()
                }
                for name, by_variant in all_figures.items()
            }
            found = differences(figures, None, len(LOOKS))
            if not undecided(found, {"eval_metric_0": 2.0}):
                break
        early += look < LOOKS[-1]
        false += any(d.is_significant for d in found)
    assert false <= at_most_five_in_a_hundred(comparisons) and early > 0.2 * comparisons


def test_undecided_differences_depend_on_significance_and_smallest_effect():
    figures = {
        "y": {"a": {0: 1.0, 1: 2.0, 2: 3.0}, "b": {0: 1.1, 1: 2.2, 2: 3.3}},  # +0.2, ± 0.25
        "z": {"a": {0: 1.0, 1: 2.0, 2: 3.0}, "b": {0: 9.0, 1: 7.0, 2: 2.0}},
    }
    found = differences(figures, None)
    assert [d.figure for d in undecided(found, {})] == ["y", "z"]
    assert undecided(found, {"y": 0.45}) == [] and len(undecided(found, {"y": 0.44})) == 1
    assert [d.figure for d in undecided(found, {"y": 0.45, "z": 1.0})] == ["z"]
    negative = differences(figures, "b")
    assert undecided(negative, {"y": 0.45}) == [] and len(undecided(negative, {"y": 0.44})) == 1
    assert undecided([found[1]._replace(corrected=LEVEL)], {}) == []
    with refuses(ValueError, "x", "y", "z"):
        undecided(found, {"x": 1.0})


def test_last_look_uses_all_seeds():
    assert compared().planned_looks == () and check(compared())
    assert check(compared(looks=[2, 4], smallest_effects={"len": 0.1})).planned_looks == (2, 4, 5)


@pytest.mark.parametrize(
    "fields, named",
    [
        (dict(looks=[5]), ("looks", 5, [5])),
        (dict(looks=[4, 3]), ("looks", [4, 3])),
        (dict(looks=[3, 3]), ("looks", [3, 3])),
        (dict(looks=[1]), ("looks", [1])),
        (dict(looks=[3], budget={"1M": len}), ("looks", "budget")),
        (dict(smallest_effects={"len": 0.0}), ("smallest_effects", 0.0)),
    ],
)
def test_invalid_looks_are_rejected(fields, named):
    with refuses(ValueError, *named):
        check(compared(**fields))


def test_changed_looks_are_rejected_after_results(tmp_path):
    check_looks(compared(directory=str(tmp_path), looks=[3]))  # There are no looks.
    made = planted.results(["a", "b"])
    results.write(tmp_path, made._replace(setup=made.setup._replace(looks=(3, 5))))
    check_looks(compared(directory=str(tmp_path), looks=[3]))
    for fields, now in (
        (dict(), "end"),
        (dict(looks=[4]), "4, 5"),
        (dict(looks=[3], seeds=range(8)), "3, 8"),
    ):
        with refuses(ValueError, "3, 5", now):
            check_looks(compared(directory=str(tmp_path), **fields))


def test_changed_looks_are_rejected_after_a_pilot(tmp_path):
    """A pilot has shown figures of the first seeds, although it writes no results."""
    keep_looks(compared(directory=str(tmp_path)))
    check_looks(compared(directory=str(tmp_path), seeds=range(8)))
    with refuses(ValueError, "3", "5"):
        check_looks(compared(directory=str(tmp_path), looks=[3]))


@pytest.mark.parametrize(
    "decided, failing, expected, run",
    [
        (3, (), 3, [[0, 1, 2]]),
        (5, (), 5, [[0, 1, 2], [3, 4]]),
        (9, (), 8, [[0, 1, 2], [3, 4], [5, 6, 7]]),
        (3, (1,), 8, [[0, 1, 2], [3, 4], [5, 6, 7]]),  # The failed run may decide otherwise.
        (5, (4,), 8, [[0, 1, 2], [3, 4], [5, 6, 7]]),
    ],
)
def test_seeds_run_up_to_the_deciding_look(monkeypatch, decided, failing, expected, run):
    trials = [SimpleNamespace(seed=seed) for seed in range(8) for _ in "ab"]
    begun = []

    def run_trials(batch):
        begun.append(list(dict.fromkeys(trial.seed for trial in batch)))
        return [trial for trial in batch if trial.seed in failing]

    monkeypatch.setattr(comparing, "ends_early", lambda _, finished: len(finished) >= 2 * decided)
    comparison = compared(seeds=range(8), looks=[3, 5])
    finished, failed = comparing.run_to_the_last_look(comparison, trials, run_trials)
    assert begun == run and len(finished) == 2 * expected
    assert [trial.seed for trial in failed] == [seed for seed in failing for _ in "ab"]


@pytest.mark.slow
def test_reports_name_the_look_of_an_early_end():
    effect = {("40%", name): 1.0 for name in planted.EVAL_METRICS}
    made = planted.results(["15%", "40%"], range(5), effect)

    def summary_with(**changes):
        return summary_of(made._replace(setup=made.setup._replace(**changes)))

    early = summary_with(looks=(3, 5, 8))
    *_, first = wording.findings(early)
    assert first.startswith("Ended early with 5 of 8 seeds, at look 2 of 3: ")
    assert len(wording.significant(early)) == 3
    assert first in page(early) and first in markdown(early)
    assert "looks planned beforehand, after 3, 5 and 8 seeds." in markdown(early)
    assert "all 3 looks together" in markdown(early) and "(Bonferroni)" in page(early)
    why = wording.findings(summary_with(looks=(5, 8), smallest_effects={"classify": 0.01}))[-1]
    assert "look 1 of 2" in why and why.endswith("± 0.01 at classify.")
    last, plain = summary_with(looks=(3, 5)), summary_with()
    assert "Ended" not in markdown(last) + markdown(plain)
    assert "looks" not in markdown(plain) and "seeds was chosen beforehand" in markdown(plain)
