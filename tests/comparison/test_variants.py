"""Comparisons as gin files, the runs of their variants, and their budgets."""

import dataclasses
import functools
import itertools
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pretrax import models, objectives
from pretrax.comparison import budgets, variants
from pretrax.comparison.comparison import Comparison, check, trained_variants
from pretrax.comparison.eval_metrics import loss_under
from pretrax.comparison.figures import settings_in_words
from pretrax.comparison.trials import seeded, trials_of
from pretrax.comparison.variants import comparison_text, read_comparison, runs_of_variants
from pretrax.corpora import validation_split
from pretrax.settings.gin_reader import GIN_CONFIGS
from pretrax.settings.partial import Partial, flattened
from pretrax.training.planning import open_batches
from pretrax.training.throughput import step_flops
from tests.comparison import small
from tests.refusals import refuses
from tests.training import tiny
from tests.training.tiny import ROOT, environment

NAMES = sorted(path.stem for path in (GIN_CONFIGS / "comparisons").glob("*.gin"))


@pytest.fixture(scope="module")
def compared(tmp_path_factory) -> Comparison:
    return read_comparison(small.write(tmp_path_factory.mktemp("compared")))


@pytest.fixture(scope="module")
def planned(compared):
    return tiny.planned(runs_of_variants(compared)["small"])


def test_comparison_round_trips_through_gin(compared, tmp_path):
    again = [*compared.eval_metrics, Partial(small.norm, power=4)]
    other = dataclasses.replace(
        compared, eval_metrics=again, reference="small", about='It\'s\n"new".'
    )
    for one in (compared, other):
        (tmp_path / "comparison.gin").write_text(comparison_text(one))
        read = read_comparison(str(tmp_path / "comparison.gin"), trusted=["tests"])
        assert read == one
    with refuses(ValueError, "--trust=tests.comparison.small"):
        read_comparison(str(tmp_path / "comparison.gin"))


def test_given_search_paths_replace_the_saved_ones(tmp_path):
    saved = read_comparison("masking_rate", search_paths=["first"])
    file = tmp_path / "comparison.gin"
    file.write_text(comparison_text(saved))
    assert read_comparison(str(file)).search_paths == ("first",)
    assert read_comparison(str(file), search_paths=["second"]).search_paths == ("second",)


@pytest.mark.sampled
@pytest.mark.parametrize("name", NAMES)
def test_every_built_in_comparison_has_runs_and_round_trips(name, tmp_path):
    comparison = read_comparison(name)
    assert len(runs_of_variants(comparison)) == len(trained_variants(comparison)) > 1
    (tmp_path / "comparison.gin").write_text(comparison_text(comparison))
    assert read_comparison(str(tmp_path / "comparison.gin")) == comparison


def test_corpus_seed_follows_the_seed_of_the_run():
    """This includes a corpus within another corpus."""
    comparison = read_comparison("masking_rate")
    of = runs_of_variants(comparison)
    outer = {v: Partial(validation_split, corpus=run.corpus) for v, run in of.items()}
    within = {v: dataclasses.replace(run, corpus=outer[v]) for v, run in of.items()}
    for run in (*of.values(), *within.values()):
        corpus = dict(flattened("", seeded(run, 7, Path("runs/x")).corpus))
        assert {x for name, x in corpus.items() if name.endswith(".seed")} == {7}


def test_command_line_overrides_fields_but_not_base_macros(compared, tmp_path):
    file = small.write(tmp_path)
    comparison = read_comparison(file, ["SEEDS = [7]", "budgets.text_tokens.number = 3000"])
    assert comparison.seeds == [7] and comparison.budget == Partial(
        budgets.text_tokens, number=3000
    )
    with refuses(ValueError, "STEPS = 3"):
        read_comparison(file, ["STEPS = 3"])


def test_runs_differ_only_in_variant_lines_seed_and_directory(compared):
    facts = {"small": small.facts(6), "large/2": small.facts(9)}
    trials = trials_of(compared, facts)
    runs = {(trial.variant, trial.seed): trial.run for trial in trials}
    assert list(runs) == [(v, s) for s in (0, 1) for v in ("small", "large/2")]
    one, other = runs["small", 1], runs["large/2", 1]
    assert one.run_dir.endswith("compared/runs/small/seed_1") and one.seed == 1 and one.steps == 6
    assert other.run_dir.endswith("compared/runs/large_2/seed_1") and other.steps == 9
    assert one.optimizer != other.optimizer and one.corpus == other.corpus


def other_norm(subject) -> list:
    return []


other_norm.__name__ = "norm"


@pytest.mark.parametrize(
    "changed, named",
    [
        (dict(variants={}), ("variants", {})),
        (dict(variants={"a/b": [], "A_b": []}), ("variants", "'a/b'", "'A_b'", "runs/A_b")),
        (dict(variants={"掩码": [], "因果": []}), ("'掩码'", "'因果'", "runs/__", "ASCII")),
        (dict(variants={"..": []}), ("variants", "'..'")),
        (dict(variants={"a\n": []}), ("variants", repr("a\n"))),
        (dict(variants={"a": "STEPS = 2"}), ("variants", "'STEPS = 2'")),
        (dict(seeds=[0, 1, 0]), ("seeds", 0, [0, 1, 0])),
        (dict(seeds=[]), ("seeds", [])),
        (dict(seeds=[0, 2**32]), ("seeds", "4,294,967,296")),  # JAX treats 2**32 as 0.
        (dict(budget=Partial(budgets.text_tokens)), ("text_tokens", "number")),
        (dict(budget=Partial(budgets.model_flops, number=-1.0)), ("number", -1.0)),
        (dict(smallest_effects={"nrm": 1.0}), ("smallest_effects", "'nrm'", "norm")),
        (
            dict(
                smallest_effects={"norm": 1.0},
                eval_metrics=[Partial(small.norm, power=p) for p in (2, 4)],
            ),
            ("smallest_effects", "'norm'", "norm (power=2)", "norm (power=4)"),
        ),
        (dict(reference="third"), ("reference", "'third'", "'small'", "'large/2'")),
        (dict(eval_metrics=[Partial(small.norm, power="two")]), ("norm.power", "'two'")),
        (dict(eval_metrics=[loss_under]), ("loss_under", "objectives")),
        (dict(eval_metrics=[Partial(loss_under, objectives=["masked_l"])]), ("'masked_lm'",)),
        (dict(eval_metrics=[]), ("eval_metrics", [])),
        (dict(eval_metrics=[small.norm] * 2), ("eval_metrics", "norm", "twice")),
        (
            dict(eval_metrics=[small.norm, Partial(small.norm, power=2)]),
            ("eval_metrics", "norm", "twice"),
        ),
        (
            dict(eval_metrics=[Partial(small.named, first="x"), Partial(small.named, second="x")]),
            ("eval_metrics", "named (x)"),
        ),
        (dict(eval_metrics=[small.norm, other_norm]), ("eval_metrics", "norm", "small.norm")),
        (dict(base=[]), ("base", [])),
        (dict(variants={"a": ["X = %EQUAL_FLOPS"]}), ("variants['a']", "EQUAL_FLOPS", None)),
        (
            dict(variants={"a": ["X = %EQUAL_FLOPS", "Y = %EQUAL_PARAMETERS"]}, reference="a"),
            ("EQUAL_PARAMETERS", "EQUAL_FLOPS"),
        ),
        (dict(base=["X = %EQUAL_FLOPS"]), ("base", "EQUAL_FLOPS", "variants")),
        (dict(budget=700), ("budget", 700)),
        (dict(budget={}), ("budget", {})),
        (dict(budget={"a": 700}), ("budget", {"a": 700})),
        (dict(budget={"": len}), ("budget", "''")),
        (dict(budget={"1%": len, "1!": len}), ("'small, 1%'", "'small, 1!'", "variants")),
        (dict(budget={"1": len}, reference="small"), ("reference", "'small'", "budget")),
        (
            dict(budget={"1": len}, variants={"a": ["X = %EQUAL_FLOPS"]}),
            ("variants['a']", "EQUAL_FLOPS", "budgets"),
        ),
        (
            dict(variants={"a": [], "a, 1": []}, budget={"1, 2": len, "2": len}),
            ("variants", "'a, 1, 2'"),
        ),
    ],
)
def test_invalid_comparisons_are_rejected(compared, changed, named):
    with refuses(ValueError, *named):
        check(dataclasses.replace(compared, **changed))


def test_smallest_effect_accepts_every_name_of_a_figure(compared):
    """A figure may be named with the settings of its eval metric and with its unit."""
    eval_metrics = [small.norm, Partial(small.norm, power=4)]
    figures = ("norm", "norm (units)", "norm (power=4)", "norm (power=4, units)")
    one = dataclasses.replace(
        compared, eval_metrics=eval_metrics, smallest_effects=dict.fromkeys(figures, 1.0)
    )
    assert check(one) is one


@pytest.mark.parametrize(
    "lines, expected",
    [
        (["STEPS = 5"], ["training.Run.steps = 5"]),
        (["RUN_DIR = 'runs/x'"], ["training.Run.run_dir = 'runs/x'"]),
        (["training.Run.seed = 5"], ["training.Run.seed = 5"]),
        (["DATA = 'other'"], ["'small'", "corpus.path", "'other'"]),
        (["PAEK = 1.0"], ["PAEK = 1.0"]),
        (["objectives/none.gin"], ["objectives/none.gin"]),
    ],
)
def test_invalid_variant_lines_are_rejected(compared, lines, expected):
    with refuses(ValueError, "'x'", *expected):
        runs_of_variants(dataclasses.replace(compared, variants={"small": [], "x": lines}))


@pytest.mark.parametrize(
    "name, setting, values",
    [
        ("arithmetic", "corpus.task.order", {"plain", "reversed"}),
        ("more_data", "corpus.documents", {20, 200, None}),
    ],
)
def test_variants_may_differ_in_order_and_amount_of_one_text(name, setting, values):
    runs = runs_of_variants(read_comparison(name)).values()
    assert {dict(flattened("corpus", run.corpus)).get(setting) for run in runs} == values


def notes(*, seed, order="up"):
    """A user's synthetic task that this file never draws."""


def test_order_of_a_user_synthetic_task_counts_as_other_data():
    run = next(iter(runs_of_variants(read_comparison("arithmetic")).values()))
    corpora = [
        Partial(run.corpus.function, **{**run.corpus.settings, "task": Partial(notes, order=order)})
        for order in ("up", "down")
    ]
    own = {
        c.settings["task"].settings["order"]: dataclasses.replace(run, corpus=c) for c in corpora
    }
    with refuses(ValueError, "corpus.task.order", "up", "down"):
        variants.check_common_data(own)


def test_shared_checkpoint_directory_is_rejected(compared):
    base = [*compared.base, "training.Run.checkpoint_dir = '/checkpoints'"]
    with refuses(ValueError, "checkpoint_dir", "/checkpoints"):
        runs_of_variants(dataclasses.replace(compared, base=base))


def test_later_variant_line_overrides_an_earlier_one(compared):
    lines = ["PEAK = 1.0", "objectives/prefix_lm.gin", "PEAK = 2.0"]  # The base has causal_lm.gin.
    run = runs_of_variants(dataclasses.replace(compared, variants={"x": lines}))["x"]
    assert run.optimizer.settings["learning_rate"].settings["peak"] == 2.0
    assert run.objective.function.__name__ == "prefix_lm"


def test_variants_may_use_imports_of_the_comparison(tmp_path):
    objective = "training.Run.objective = @small.norm"
    variants_line = f"comparison.Comparison.variants = {{'small': [], 'own': ['{objective}']}}"
    compared = read_comparison(small.write(tmp_path, variants_line))
    (tmp_path / "comparison.gin").write_text(comparison_text(compared))
    again = read_comparison(str(tmp_path / "comparison.gin"), trusted=["tests"])
    for one in (compared, again, pickle.loads(pickle.dumps(compared))):
        assert runs_of_variants(one)["own"].objective.function is small.norm
    assert again == compared


def test_module_imported_by_one_variant_is_known_to_all(tmp_path):
    """The file imports it too, and the variant that does not import it comes first."""
    objective = "training.Run.objective = @small.norm"
    variants = {"own": [objective], "again": ["from tests.comparison import small", objective]}
    lines = f"comparison.Comparison.variants = {variants}"
    compared = read_comparison(small.write(tmp_path, lines))
    runs = runs_of_variants(compared)
    assert [run.objective.function for run in runs.values()] == [small.norm, small.norm]


@pytest.mark.parametrize(
    "line",
    [
        "import tests.comparison.small",
        "import \\\n tests.comparison.small",
        "from tests.comparison import small",
        "import tests.comparison.small as small\nx = = 1",
    ],
)
def test_import_in_a_variant_needs_trust(compared, tmp_path, line):
    loss_of = Partial(loss_under, objectives=["causal_lm"])
    own = dataclasses.replace(compared, eval_metrics=[loss_of], variants={"x": [line]})
    (tmp_path / "comparison.gin").write_text(comparison_text(own))
    file = str(tmp_path / "comparison.gin")
    with refuses(ValueError, "--trust=tests.comparison.small"):
        read_comparison(file)
    for trusted in ("tests", "tests.comparison.small"):
        assert read_comparison(file, trusted=[trusted]).variants == {"x": [line]}


def test_variants_may_use_two_modules_of_one_package(tmp_path, monkeypatch):
    package = tmp_path / "twofold"
    package.mkdir()
    (package / "__init__.py").touch()
    for name in ("first", "second"):
        builder = f"from pretrax.objectives import causal_lm as {name}_lm\n"
        (package / f"{name}.py").write_text(builder)
    monkeypatch.syspath_prepend(tmp_path)
    variants = {
        name: [f"training.Run.objective = @twofold.{name}.{name}_lm"]
        for name in ("first", "second")
    }
    lines = [
        "import twofold.first",
        "import twofold.second",
        f"comparison.Comparison.variants = {variants}",
    ]
    compared = read_comparison(small.write(tmp_path / "compared", *lines))
    assert compared.base[:2] == ["import twofold.first", "import twofold.second"]
    runs = runs_of_variants(compared)
    assert [run.objective.function.__name__ for run in runs.values()] == ["causal_lm"] * 2


def test_every_variant_is_trained_on_every_budget(compared, tmp_path):
    budgets_of = {n: Partial(budgets.text_tokens, number=n * 1000) for n in (2, 4)}
    several = {f"{n}k": budget for n, budget in budgets_of.items()}
    one = check(dataclasses.replace(compared, budget=several))
    names = ["small, 2k", "small, 4k", "large/2, 2k", "large/2, 4k"]
    assert [*trained_variants(one)] == [*runs_of_variants(one)] == names
    assert [t.budget for t in trained_variants(one).values()] == [*several.values()] * 2
    (tmp_path / "comparison.gin").write_text(comparison_text(one))
    assert read_comparison(str(tmp_path / "comparison.gin"), trusted=["tests"]) == one


def test_unknown_comparison_duplicate_variant_and_missing_fields_are_rejected(tmp_path):
    lines = "comparison.Comparison.variants = {'a': [], 'b': [], 'a': ['PEAK = 1e-2']}"
    with refuses(ValueError, "small.gin", "a"):
        read_comparison(small.write(tmp_path, lines), trusted=["tests"])
    with refuses(ValueError, "maskin_rate", "masking_rate"):
        read_comparison("maskin_rate")
    with refuses(ValueError, "xyz", "masking_rate"):
        read_comparison("xyz")
    file = tmp_path / "mine.gin"
    file.write_text("from pretrax import comparison\ncomparison.Comparison.question = 'Which?'\n")
    with refuses(ValueError, "comparison.Comparison.directory"):
        read_comparison(str(file))


@pytest.mark.slow
def test_token_budget_counts_text_tokens_of_the_rows(planned):
    steps = budgets.text_tokens(planned, number=1500)
    read = [budgets.tokens_of(planned, n) for n in (steps - 1, steps)]
    assert read[0] < 1500 <= read[1]
    batches = open_batches(planned)
    rows = np.concatenate([next(batches)[0].tokens.ravel() for _ in range(steps)])
    ends = int((rows == planned.recipe.ids.eos).sum())
    assert ends > 0 and read[1] == 256 * steps - ends  # steps of full rows


@pytest.mark.parametrize("number", [0, -3000])
def test_token_budget_below_1_is_rejected(planned, number):
    with refuses(ValueError, "text_tokens.number", 1, number):
        budgets.text_tokens(planned, number=number)


@pytest.mark.slow
def test_uncounted_tokens_are_extrapolated_from_counted_steps(planned, monkeypatch):
    exactly = budgets.text_tokens(planned, number=20_000), budgets.tokens_of(planned, 80)
    monkeypatch.setattr(budgets, "COUNTED", 20)
    about = budgets.text_tokens(planned, number=20_000), budgets.tokens_of(planned, 80)
    assert about == pytest.approx(exactly, rel=0.02)


def test_flops_budget_gives_whole_steps(planned):
    of_a_step = step_flops(planned)
    assert budgets.model_flops(planned, number=7.4 * of_a_step) == 7
    with refuses(ValueError, "0", "1", "budgets.model_flops"):
        budgets.model_flops(planned, number=of_a_step / 3)


def test_target_budget_counts_tokens_with_a_loss(planned):
    """A causal model has a loss on each of the 256 tokens of a step, also on ends of documents."""
    assert budgets.targets(planned, number=3 * 256) == 3
    assert budgets.targets(planned, number=3 * 256 + 1) == 4


IDS = tiny.IDS._replace(cls=110, mask=111, sep=112, sentinels=tiny.IDS.sentinels[:4])


@pytest.fixture(scope="module")
def masked():
    return encoder_plan(objectives.masked_lm(IDS, rate=0.25))


def encoder_plan(objective):
    """Returns the plan of a run of an encoder, with 16 rows of 32 slots per step."""
    sizes = dict(emb_dim=16, num_heads=2, head_dim=8, mlp_dim=32, num_layers=1)
    return tiny.plan(models.encoder(128, **sizes), objective, dict(encoder=32))


@pytest.mark.slow
def test_target_budget_counts_targets_of_corrupted_batches(masked):
    found = [sum(x.values()) for _, x in itertools.islice(budgets.targets_of_steps(masked), 8)]
    total = np.cumsum(found)
    # A quarter of the 480 tokens without cls and sep, rounded in each document, of 128 slots.
    assert all(120 <= number < 128 for number in found)
    assert budgets.targets(masked, number=total[4]) == 5
    assert budgets.targets(masked, number=total[4] + 1) == 6


@pytest.mark.slow
def test_uncounted_targets_are_extrapolated_from_counted_steps(masked, monkeypatch):
    exactly = budgets.targets(masked, number=4000)
    monkeypatch.setattr(budgets, "COUNTED", 8)
    assert exactly > 30 and budgets.targets(masked, number=4000) == pytest.approx(exactly, rel=0.1)


@pytest.mark.slow
def test_target_budget_rejects_noise_that_changes_after_counted_steps(monkeypatch):
    monkeypatch.setattr(budgets, "COUNTED", 2)
    plan = encoder_plan(
        objectives.annealed(IDS, objectives.masked_lm, "rate", 0.5, 0.1, 9, stages=2)
    )
    assert budgets.targets(plan, number=300) == 2
    with refuses(ValueError, "2", "rate_0.5"):
        budgets.targets(plan, number=5000)


@pytest.mark.slow
def test_seconds_budget_gives_steps(planned, monkeypatch):
    monkeypatch.setattr(budgets, "TIMED", 2)
    assert budgets.seconds(planned, number=3600) > 60


def test_budget_within_the_warm_up_is_rejected_with_a_sufficient_one(compared):
    longer = [*compared.base, "optimizers.warmup_constant.warmup_steps = 30"]
    plan = tiny.planned(
        runs_of_variants(dataclasses.replace(compared, base=[*longer, "STEPS = 31"]))["small"]
    )
    with refuses(ValueError, "6", "31", "budgets.text_tokens.number") as error:
        budgets.text_tokens(plan, number=1500)
    enough = int(re.search("to ([0-9,]+) or more", str(error.value))[1].replace(",", ""))
    assert 31 <= budgets.text_tokens(plan, number=enough) <= 32


def test_comparison_package_loads_neither_jax_nor_gin():
    program = (
        "import sys, pretrax.comparison; print({'jax', 'gin', 'tensorflow'} & set(sys.modules))"
    )
    completed = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment(), capture_output=True, text=True
    )
    assert completed.stdout.strip() == "set()", completed.stderr


def test_eval_metrics_of_one_function_are_named_by_their_settings():
    of = functools.partial(Partial, small.norm)
    several = [of(power=4), of(objectives=["causal_lm", "ul2"]), of(objectives="bart")]
    words = [settings_in_words(one, several) for one in several]
    assert words == [["power=4"], ["causal_lm, ul2"], ["bart"]]
    assert settings_in_words(several[0], several[:1]) == []
