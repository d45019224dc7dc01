"""Every comparison of gin_configs/comparisons can be read, planned, budgeted and measured."""

import functools
from pathlib import Path
from types import SimpleNamespace

import pytest

from pretrax.comparison.comparison import trained_variants
from pretrax.comparison.eval_metrics import EVAL_METRICS
from pretrax.comparison.eval_metrics.heldout_loss import ROW_TOKENS
from pretrax.comparison.eval_metrics.parts.likelihoods import likelihood_form
from pretrax.comparison.eval_metrics.parts.noise import is_bounded_by_noise
from pretrax.comparison.scaling.requirements import Requirements, requirements
from pretrax.comparison.variants import read_comparison, runs_of_variants
from pretrax.corpora import synthetic_documents
from pretrax.corpora.synthetic_tasks.task import drawn_task
from pretrax.objectives.catalog import find
from pretrax.settings.partial import as_partial, flattened
from pretrax.training.heldout_evaluation import plan_under
from pretrax.training.run import fields_of
from pretrax.training.run_configuration import read_fields
from tests.planned_runs import IDS, planned

NAMES = sorted(path.stem for path in Path("gin_configs/comparisons").glob("*.gin"))
LIKELIHOODS = {"bits_per_byte", "minimal_pairs", "fill_in"}
ROWS = 2176  # rows of the embedding: a vocabulary of 2048 with its special tokens
STEPS = 200  # A shorter run has hardly left its warm-up of 40 steps.
# These variants train too briefly on purpose.
BRIEF = {("positive_controls", "an eighth"), ("objectives_8m", "causal, an eighth of the updates")}
SLOWEST = 2e10  # FLOP/s of a slow laptop, for budgets of seconds
# Discriminators do not give text a probability. `pretrax compare` says so and measures the others.
NO_LIKELIHOOD = {("objectives", "replaced tokens")}


@functools.cache
def read(name):
    comparison = read_comparison(name)
    return comparison, runs_of_variants(comparison)


@pytest.fixture(params=NAMES)
def named(request):
    return request.param, *read(request.param)


COST = ("model", "objective", "sequence_lengths", "batch_size", "packing", "mark_document_ends")
NEEDS: dict[str, Requirements] = {}  # by the settings that determine the cost of a step


def needs_of(run) -> Requirements:
    settings = {name: fields_of(run)[name] for name in (*COST, "max_documents")}
    key = repr(settings)
    if key not in NEEDS:
        NEEDS[key] = requirements({**settings, "vocabulary_rows": ROWS})
    return NEEDS[key]


def steps_of(comparison, variant, run) -> float:
    """Returns the number of steps that a variant's budget pays for, at least, from shapes alone."""
    needs = needs_of(run)
    budget = as_partial(trained_variants(comparison)[variant].budget)
    of_a_step = {
        "text_tokens": needs.text_tokens,
        "targets": needs.text_tokens,  # here, no token is predicted twice
        "model_flops": needs.flops,
        "seconds": needs.flops / SLOWEST,
    }
    return budget.settings["number"] / of_a_step[budget.function.__name__]


def test_comparison_file_states_command_seeds_source_and_question(named):
    name, comparison, _ = named
    text = Path(f"gin_configs/comparisons/{name}.gin").read_text()
    assert text.startswith(f"# pretrax compare {name}\n")
    assert comparison.directory == f"comparisons/{name}"
    # A law is fitted to all runs at once. With fewer than three runs, intervals say little, but
    # objectives_8m had an accelerator for minutes.
    fewest = 2 if name in ("scaling", "objectives_8m") else 3
    assert fewest <= len(comparison.seeds) <= 5
    assert comparison.seeds == list(range(len(comparison.seeds)))
    assert "arXiv:" in comparison.about and comparison.question.endswith("?")


def test_documentation_lists_every_comparison_with_its_question():
    listed = [line for line in Path("docs/comparing.md").read_text().splitlines() if "?" in line]
    asked = [f"| `{name}` | {read_comparison(name).question} |" for name in NAMES]
    assert [line for line in listed if line.startswith("| `")] == asked


@pytest.mark.slow
def test_budget_pays_for_enough_steps(named):
    name, comparison, runs = named
    for variant, run in runs.items():
        brief = (name, variant) in BRIEF
        assert brief or steps_of(comparison, variant, run) >= STEPS, variant


def test_noise_schedule_ends_with_the_run(named):
    _, comparison, runs = named
    for variant, run in runs.items():
        asked = dict(flattened("objective", run.objective))
        if "objective.steps" in asked:
            steps = steps_of(comparison, variant, run)
            assert asked["objective.steps"] == pytest.approx(steps, rel=0.05), variant


@functools.cache
def most_words(task) -> int:
    return max(len(text.split()) for text in drawn_task(task, 0).heldout)


def synthetic_documents_fit_a_row(plan, corpus) -> bool:
    """Returns whether the longest document fits. A token is a word, and one may end a document."""
    if corpus.function is not synthetic_documents:
        return True
    most = max(limits.longest[0][-1] for limits in plan.packing.limits.values())
    return most_words(corpus.settings["task"]) + (plan.packing.end_of_document is not None) <= most


def can_compute(plan, name: str) -> bool:
    objective = read_fields([f"objectives/{name}.gin"])["objective"](IDS)
    try:
        plan_under(plan, objective, ROW_TOKENS)
    except ValueError:
        return False
    return True


@pytest.mark.slow
def test_every_variant_can_be_planned_and_measured(named):
    name, comparison, runs = named
    for variant, run in runs.items():
        plan = planned(run)
        assert synthetic_documents_fit_a_row(plan, as_partial(run.corpus)), variant
        for eval_metric in map(as_partial, comparison.eval_metrics):
            kind = eval_metric.function.__name__
            assert EVAL_METRICS[kind] is eval_metric.function
            if kind == "loss_under":
                asked = set(map(find, eval_metric.settings["objectives"]))
                # If one of several objectives is missing, there is no mean. If the reference has
                # no figure, there are no differences.
                may_lack = len(asked) == 1 and variant != comparison.reference
                missing = [other for other in asked if not can_compute(plan, other)]
                assert may_lack or not missing, (variant, missing)
            if kind in LIKELIHOODS and (name, variant) not in NO_LIKELIHOOD:
                trained = SimpleNamespace(
                    ids=IDS, prompt_forms=plan.recipe.objective.facts.prompt_forms
                )
                subject = SimpleNamespace(trained=trained, plan=plan)
                by_noise = kind != "fill_in" and is_bounded_by_noise(subject)
                assert by_noise or likelihood_form(trained), (variant, kind)
