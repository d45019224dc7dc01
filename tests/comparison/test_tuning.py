"""Tuning: which values are tried and chosen, and that variants train with the chosen value."""

import dataclasses
import itertools
import math
import pathlib

import numpy as np
import pytest

from pretrax.comparison import facts, trials
from pretrax.comparison.comparison import check
from pretrax.comparison.facts import (
    VariantFacts,
    check_unchanged,
    read_facts,
    settings_text,
)
from pretrax.comparison.failures import write_failure
from pretrax.comparison.results import read_tuning_trials
from pretrax.comparison.tuning import best_values, successive_halving, values_for, with_value
from pretrax.comparison.tuning_trials import tune
from pretrax.comparison.variants import read_comparison, runs_of_variants
from pretrax.settings.partial import Partial, flattened
from pretrax.training.heldout_scores import Score
from pretrax.training.run_configuration import read_run
from pretrax.training.saved.result import Result, write_result
from tests.comparison import small
from tests.refusals import assert_named, refuses

PEAK = "optimizers.warmup_constant.peak"
LINES = (
    "from pretrax.comparison import tuning",
    "comparison.Comparison.tuning = @tuning.successive_halving",
    f"tuning.successive_halving.parameter = {PEAK!r}",
    "tuning.successive_halving.factors = [0.1, 1, 3]",
    "tuning.successive_halving.seeds = [7, 8]",
)


# --- what is tried --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings, named",
    [
        (dict(), ("factors", "values", None)),
        (dict(factors=[1, 3], values=[1, 3]), ("factors", "values", [1, 3])),
        (dict(factors=[1, 3, 1]), ("factors", [1, 3, 1])),
        (dict(values=[0.1]), ("values", [0.1])),
        (dict(factors=[-1, 3]), ("factors", [-1, 3])),
        (dict(values=[1, 3], seeds=[7, 7]), ("seeds", [7, 7])),
        (dict(values=[1, 3], share=1.5), ("share", 1.5)),
        (dict(values=[1, 3], eta=1), ("eta", 1)),
    ],
)
def test_invalid_tuning_settings_are_rejected(settings, named):
    with refuses(ValueError, *named):
        successive_halving(**(dict(parameter="a.b", seeds=[7]) | settings))


@pytest.fixture(scope="module")
def decoder():
    return read_run(["runs/decoder.gin"])


def test_factors_multiply_the_value_of_the_run(decoder):
    halving = successive_halving(
        parameter="optimizers.warmup_cosine.peak", factors=[3, 0.3, 1], seeds=[7]
    )
    assert values_for(halving, decoder) == [0.03, 0.1, 0.3]
    for value in (0.03, None):
        run = with_value(halving, decoder, value)
        assert dict(flattened("", run.optimizer))[".learning_rate.peak"] == (value or 0.1)
        assert dataclasses.replace(run, optimizer=decoder.optimizer) == decoder
    by_default = successive_halving(
        parameter="optimizers.adafactor.decay_rate", values=[0.7, 0.9], seeds=[7]
    )
    assert with_value(by_default, decoder, 0.7).optimizer.settings["decay_rate"] == 0.7


@pytest.mark.parametrize(
    "parameter, factors, named",
    [
        ("optimizers.adamw.b2", [1, 3], ["optimizers.adafactor.learning_rate"]),
        ("optimizers.adafactor.clip_norm", [1, 3], [None]),
        ("models.decoder.emb_dim", [1, 3], ["optimizers.adafactor.learning_rate"]),
        ("optimizers.warmup_cosine.peak", [1, 1.0004, 3], ["0.1", "0.3", "3"]),  # twice 0.1
    ],
)
def test_untunable_settings_and_duplicate_values_are_rejected(decoder, parameter, factors, named):
    halving = successive_halving(parameter=parameter, factors=factors, seeds=[7])
    with refuses(ValueError, *named):
        values_for(halving, decoder)


def test_setting_with_two_values_is_rejected(decoder):
    both = Partial(max, a=decoder.optimizer, b=Partial(decoder.optimizer.function, decay_rate=0.9))
    halving = successive_halving(
        parameter="optimizers.adafactor.decay_rate", values=[1, 3], seeds=[7]
    )
    with refuses(ValueError, "decay_rate", "0.8", "0.9"):
        values_for(halving, dataclasses.replace(decoder, optimizer=both))


# --- what is chosen -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "number, eta, shares",
    [
        (2, 2, [0.5]),
        (3, 2, [0.25, 0.5]),
        (5, 2, [0.125, 0.25, 0.5]),
        (8, 2, [0.125, 0.25, 0.5]),
        (9, 3, [0.5 / 3, 0.5]),
    ],
)
def test_halving_keeps_the_best_until_one_value_is_left(number, eta, shares):
    halving = successive_halving(parameter="a.b", values=range(number), seeds=[7], eta=eta)
    draw = np.random.default_rng(0)
    left = halving.values
    for _ in halving.shares:
        losses = {value: float(draw.normal()) for value in left}
        left = best_values(halving, losses)
        assert left == sorted(losses, key=losses.get)[: math.ceil(len(losses) / eta)]
    assert len(left) == 1
    assert halving.shares == pytest.approx(shares)


def test_diverged_value_loses_and_all_diverged_raises():
    halving = successive_halving(parameter="a.b", values=[0.1, 0.3, 1.0], seeds=[7])
    assert best_values(halving, {0.1: 9.0, 0.3: math.inf, 1.0: math.nan}) == [0.1]
    with refuses(ValueError, "a.b", "0.1", "0.3"):
        best_values(halving, {0.1: math.nan, 0.3: math.inf})


# --- tuning trials --------------------------------------------------------------------------------


@pytest.fixture
def compared(tmp_path):
    """Returns a comparison with tuning whose variants have been planned with 40 steps each."""
    comparison = read_comparison(small.write(tmp_path, *LINES))
    planned = {}
    for variant, run in runs_of_variants(comparison).items():
        planned[variant] = VariantFacts(
            settings_text(run), "text_tokens(number=1,500)", 40, 1, 1, 1, "cpu",
            tuning=facts.tuning_text(comparison),
        )  # fmt: skip
        facts.write_facts(comparison.directory, variant, planned[variant])
    return comparison, planned


def loss_of(trial) -> float:
    """A loss that is best at a peak of 0.009, which only "small" has among its values."""
    peak = trial.run.optimizer.settings["learning_rate"].settings["peak"]
    return abs(math.log(peak / 0.009)) + 0.01 * trial.seed + 1 / trial.run.steps


def ending(trial, loss: float) -> None:
    folder = pathlib.Path(trial.run.run_dir)
    folder.mkdir(parents=True, exist_ok=True)
    scores = (
        # The sum of these scores is the loss. Their mean falls as the loss rises.
        Score("all", "tokens", 100.0 - 3 * loss, None, 9),
        Score("all", "replaced", loss / 12.5 - 2.0, None, 9, scale=50.0),
        Score("all", "hits", 99.0, None, 9, metric=True, scale=0.0),
    )
    write_result(Result(str(folder), trial.run.steps, True, scores, {}, {}))


def run_all(trials) -> None:
    for trial in trials:
        if not trial.state.is_complete:
            ending(trial, loss_of(trial))


def test_variant_is_trained_with_the_value_of_lowest_tuning_loss(compared):
    one, planned = compared
    tuned = tune(one, planned, (), run_all)
    assert {v: of.tuned for v, of in tuned.items()} == {"small": 0.009, "large/2": 0.01}
    assert {v: read_facts(one.directory, v) for v in tuned} == tuned
    check_unchanged(one, tuned)
    for trial in trials.trials_of(one, tuned):
        chosen = dict(flattened("", trial.run.optimizer))[".learning_rate.peak"]
        assert chosen == {"small": 0.009, "large/2": 0.01}[trial.variant]
    tuning_trials = read_tuning_trials(one.directory)
    assert len(tuning_trials) == 2 * 2 * (3 + 2)  # two variants with two seeds
    assert {(t.round, t.steps) for t in tuning_trials} == {(0, 10), (1, 20)}
    assert {t.value for t in tuning_trials if t.variant == "small"} == {0.0003, 0.003, 0.009}
    # It is not tuned again.
    assert tune(one, tuned, (), None) == tuned


def test_tuned_integers_stay_integers(compared):
    """Some settings, such as a number of steps, accept only integers."""
    one, planned = compared
    steps = dict(parameter="optimizers.warmup_constant.warmup_steps", values=[1, 3], seeds=[7])
    one = dataclasses.replace(one, tuning=Partial(successive_halving, **steps))
    tuned = tune(one, planned, (), run_all)
    assert [(of.tuned, type(of.tuned)) for of in tuned.values()] == [(1, int), (1, int)]
    assert {type(tuning_trial.value) for tuning_trial in read_tuning_trials(one.directory)} == {int}


@pytest.mark.slow
def test_tuning_trials_use_a_validation_split_and_their_own_seeds(compared):
    one, planned = compared
    recorded = []

    def look(trials):
        recorded.extend(trials)
        run_all(trials)

    tune(one, planned, (), look)
    for trial in recorded:
        assert trial.run.corpus.function.__name__ == "validation_split"
        assert trial.run.corpus.settings["corpus"] == runs_of_variants(one)["small"].corpus
        assert trial.seed in (7, 8) and not trial.eval_metrics
    assert (
        len({trial.run.run_dir for trial in recorded})
        == len({trial.name for trial in recorded})
        == 20
    )


class Killed(Exception):
    pass


@pytest.mark.slow
def test_killed_tuning_chooses_the_same_without_repeating_trials(compared):
    one, planned = compared
    left = itertools.count()

    def killed_after_one(trials):
        for trial in trials:
            if not trial.state.is_complete:
                ending(trial, loss_of(trial))
                next(left)
                raise Killed

    with pytest.raises(Killed):
        tune(one, planned, (), killed_after_one)
    for _ in range(40):
        try:
            tuned = tune(one, planned, (), killed_after_one)
            break
        except Killed:
            pass
    assert {v: of.tuned for v, of in tuned.items()} == {"small": 0.009, "large/2": 0.01}
    # No trial was run twice.
    assert next(left) == 20 and len(read_tuning_trials(one.directory)) == 20


def test_diverged_tuning_trial_loses_and_failed_trial_is_reported(compared):
    one, planned = compared

    def diverging(trials):
        for trial in trials:
            if ", 0.009," in trial.name:
                error = FloatingPointError("At step 3 the metrics are no longer finite: loss nan.")
                pathlib.Path(trial.run.run_dir).mkdir(parents=True, exist_ok=True)
                assert trials_exit(trial, error) == 1
            else:
                run_all([trial])

    assert tune(one, planned, (), diverging)["small"].tuned == 0.003
    (lost,) = {t.error for t in read_tuning_trials(one.directory) if not math.isfinite(t.loss)}
    assert lost.startswith("Diverged: At step 3")

    failing = dict.fromkeys(planned)
    for variant, of in planned.items():
        failing[variant] = of._replace(tuned=None)
    (pathlib.Path(one.directory) / "tuning.jsonl").unlink()

    def out_of_memory(trials):
        for trial in trials:
            if trial.seed == 8:
                pathlib.Path(trial.run.run_dir).mkdir(parents=True, exist_ok=True)
                (pathlib.Path(trial.run.run_dir) / "result.json").unlink(missing_ok=True)
                write_failure(trial.run.run_dir, "Out of memory")

    with refuses(ValueError, "6", "12") as error:
        tune(one, failing, (), out_of_memory)
    assert_named(str(error.value), "small", "0.0003", "round 1", "seed 8")
    again = []

    def counted(trials):
        again.extend(trial for trial in trials if trial.seed == 7 and trial.run.steps == 10)
        run_all(trials)

    assert tune(one, failing, (), counted)["small"].tuned == 0.003
    tuning_trials = read_tuning_trials(one.directory)
    assert (
        len(tuning_trials) == len({tuning_trial[:4] for tuning_trial in tuning_trials}) == 20
        and not again
    )


def trials_exit(trial, error) -> int:
    def work():
        raise error

    return trials.exit_status(trial.run.run_dir, work)


def test_changed_tuning_is_rejected(compared):
    one, planned = compared
    for other, expected in (
        (Partial(successive_halving, **{**one.tuning.settings, "seeds": [9]}), "seeds=[9]"),
        (None, "None"),
    ):
        changed = dataclasses.replace(one, tuning=other)
        with refuses(ValueError, "successive_halving", expected):
            check_unchanged(changed, planned)


def test_changed_base_is_rejected_after_tuning(compared):
    """The tried values are multiples of the base's value."""
    one, planned = compared
    tuned = tune(one, planned, (), run_all)
    changed = dataclasses.replace(one, base=[*one.base, "PEAK = 2e-3"])
    with refuses(ValueError, "'small'", f"{PEAK} = 0.003", f"{PEAK} = 0.002"):
        check_unchanged(changed, tuned)


def test_tuning_seeds_among_comparison_seeds_are_rejected(compared):
    one, _ = compared
    with refuses(ValueError, "seeds", 7, "tuning"):
        check(dataclasses.replace(one, seeds=[6, 7]))


def test_setting_missing_from_a_variant_is_rejected_before_planning(compared):
    one, _ = compared
    of = Partial(successive_halving, **{**one.tuning.settings, "parameter": "optimizers.adamw.b3"})
    with refuses(ValueError, "small", "optimizers.adamw.b3"):
        runs_of_variants(dataclasses.replace(one, tuning=of))


def test_tuning_trials_shorter_than_the_warm_up_are_rejected(compared):
    one, _ = compared
    run = runs_of_variants(one)["small"]
    rate = Partial(run.optimizer.settings["learning_rate"].function, peak=0.1, warmup_steps=12)
    run = dataclasses.replace(run, optimizer=Partial(run.optimizer.function, learning_rate=rate))
    facts.check_tuning_trials(one, run, 100)
    with refuses(ValueError, "0.25", "40", "12"):
        facts.check_tuning_trials(one, run, 40)


@pytest.mark.parametrize(
    "settings, steps, expected",
    [
        (dict(values=[-0.1, 0.1]), 40, [f"{PEAK} = -0.1", 0]),
        (
            dict(parameter="optimizers.warmup_constant.warmup_steps", values=[1, 2.5]),
            40,
            ["warmup_steps", 0, 2.5],
        ),
        (dict(factors=[0.1, 1, 3]), 1, ["tuning.successive_halving.share", "1, 1"]),
    ],
)
def test_invalid_tuning_values_and_rounds_are_rejected(compared, settings, steps, expected):
    one, _ = compared
    tuning = Partial(successive_halving, **(dict(parameter=PEAK, seeds=[7]) | settings))
    run = runs_of_variants(one)["small"]
    with refuses(ValueError, *expected):
        facts.check_tuning_trials(dataclasses.replace(one, tuning=tuning), run, steps)


def test_leftover_tuning_trials_are_rejected(compared):
    """A user may have removed the runs to start again with other settings."""
    one, planned = compared
    tune(one, planned, (), run_all)
    facts.check_nothing_left(dataclasses.replace(one, tuning=None), "small")
    with refuses(ValueError, "tuning/small", "tuning.jsonl"):
        facts.check_nothing_left(one, "small")
    facts.check_nothing_left(one, "other")
    (pathlib.Path(one.directory) / "runs/other/seed_0").mkdir(parents=True)
    with refuses(ValueError, "runs/other/seed_0"):
        facts.check_nothing_left(one, "other")


# --- whole ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_variants_are_tuned_trained_and_reported(tmp_path, monkeypatch, capsys):
    lines = [*LINES, "tuning.successive_halving.seeds = [7]"]
    lines.append("tuning.successive_halving.factors = [1, 3]")
    file, started = small.write(tmp_path, *lines), small.run_trials_in_process(monkeypatch)
    assert small.compare_in_process(file, "--gin.SEEDS=[0]") == 0
    assert [run.split("/")[0] for run in started] == ["tuning"] * 4 + ["runs"] * 2
    directory = tmp_path / "compared"
    for variant, folder in (("small", "small"), ("large/2", "large_2")):
        chosen = read_facts(str(directory), variant).tuned
        config = (directory / "runs" / folder / "seed_0/config.gin").read_text()
        assert f"{PEAK} = {chosen!r}\n" in config and "validation_split" not in config
    output = " ".join(capsys.readouterr().out.split())
    assert f"Tuned for each variant: {PEAK}, by tuning trials of 50% of its steps." in output
    started.clear()
    assert small.compare_in_process(file, "--gin.SEEDS=[0]") == 0 and not started
    more = "comparison.Comparison.variants = {'small': [], 'large/2': ['PEAK = 1e-2'], 'third': []}"
    assert small.compare_in_process(small.write(tmp_path, *lines, more), "--gin.SEEDS=[0]") == 0
    assert started == [
        *(f"tuning/third/{value}/round_1/seed_7" for value in (0.003, 0.009)),
        "runs/third/seed_0",
    ]
    of = {v: read_facts(str(directory), v).tuned for v in ("small", "third")}
    assert of["small"] == of["third"]
