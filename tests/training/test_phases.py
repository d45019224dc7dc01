"""Phases: every step has the rows, the program and the costs of one objective alone."""

import functools
import itertools
import shutil

import jax
import numpy as np
import pytest

from pretrax.comparison import budgets
from pretrax.comparison.eval_metrics.costs import seconds_per_step, targets_per_token
from pretrax.objectives import (
    ProgressSchedule,
    Row,
    causal_lm,
    corruptor,
    mixture,
    phases,
    superposed_lm,
    ul2,
)
from pretrax.objectives.mixtures import turns
from pretrax.training.devices.mesh import placed_on
from pretrax.training.evaluator import _weight_at_end
from pretrax.training.planning import open_batches, with_steps
from pretrax.training.state import new_state
from pretrax.training.step_program import StepPrograms, abstract_state_of
from pretrax.training.throughput import step_flops
from tests.refusals import refuses
from tests.training import tiny

BAG = 4
SLOTS = 16
SUPERPOSED = functools.partial(superposed_lm, bag_size=BAG)


@functools.cache
def two_phases():
    return phases(tiny.IDS, {"superposed": (SUPERPOSED, 0.3), "causal": (causal_lm, 0.7)})


@functools.cache
def plan_of(steps=10):
    return tiny.plan(tiny.decoder(), two_phases(), {"decoder": SLOTS}, steps=steps)


@functools.cache
def causal_plan(steps=10):
    return tiny.plan(tiny.decoder(), causal_lm(tiny.IDS), {"decoder": SLOTS}, steps=steps)


def members_of_steps(plan):
    (schedule,) = plan.schedules
    return [schedule.member_of_step(step) for step in range(plan.run.steps)]


@pytest.mark.parametrize("steps", [10, 100, 1000])
def test_phases_have_their_exact_share_of_the_steps(steps):
    first = round(0.3 * steps)
    assert members_of_steps(with_steps(plan_of(), steps)) == [0] * first + [1] * (steps - first)


def test_rows_have_the_text_length_of_their_phase():
    rows = [row for (row,) in itertools.islice(open_batches(plan_of()), 10)]
    assert [row.tokens.shape[1] for row in rows] == [BAG * SLOTS] * 3 + [SLOTS] * 7
    assert [int(np.max(row.member)) for row in rows] == members_of_steps(plan_of())
    assert all((np.asarray(row.segments) > 0).all() for row in rows)


@pytest.mark.slow
def test_phase_step_equals_the_step_of_its_objective_alone():
    """The second phase has the parameters of plain causal language modeling, bit for bit."""
    plan = plan_of()
    shapes = abstract_state_of(plan).shapes
    programs = StepPrograms(plan, shapes)
    alone = StepPrograms(causal_plan(), abstract_state_of(causal_plan()).shapes)
    *_, (row,) = itertools.islice(open_batches(plan), 4)
    with placed_on(plan.mesh):
        state = [new_state(abstract_state_of(plan), 0, plan.mesh) for _ in range(2)]
        got, metrics = programs.at(3)(state[0], (row,))
        as_alone = (Row(row.tokens, row.segments, jax.tree.map(lambda x: x * 0, row.member)),)
        expected, expected_metrics = alone.at(3)(state[1], as_alone)
    jax.tree.map(np.testing.assert_array_equal, got.params, expected.params)
    assert metrics["loss"] == expected_metrics["loss"]
    assert metrics["member_terms"]["tokens"].weights.tolist() == [0.0, 16.0 * SLOTS]


@pytest.mark.slow
def test_each_phase_has_one_program():
    plan = plan_of()
    programs = StepPrograms(plan, abstract_state_of(plan).shapes)
    assert not programs.is_compiled(0)
    with placed_on(plan.mesh):
        programs.at(0)
    assert programs.is_compiled(2) and not programs.is_compiled(3)


def test_step_flops_average_the_phases():
    """Both phases have the same number of slots, all of which predict."""
    expected = step_flops(causal_plan())
    assert step_flops(plan_of()) == expected


@pytest.mark.slow
def test_text_tokens_count_every_phase():
    """With a share of 0.3 and bags of 4 tokens, a step reads 1.9 times the text of its slots."""
    per_step = {
        name: budgets.tokens_of(plan, plan.run.steps) / plan.run.steps
        for name, plan in (("phases", plan_of(40)), ("causal", causal_plan(40)))
    }
    assert per_step["phases"] / per_step["causal"] == pytest.approx(0.7 + 0.3 * BAG, rel=0.02)
    start = budgets.tokens_of(plan_of(40), 12) / 12  # a checkpoint at the end of the first phase
    assert start / per_step["causal"] == pytest.approx(BAG, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("counted", [budgets.COUNTED, 50])
def test_token_budget_covers_all_phases(counted, monkeypatch):
    monkeypatch.setattr(budgets, "COUNTED", counted)
    steps = budgets.text_tokens(plan_of(), number=60_000)
    read = budgets.tokens_of(with_steps(plan_of(), steps), steps)
    assert read == pytest.approx(60_000, rel=0.01)
    slots = 16 * SLOTS
    assert steps == pytest.approx(60_000 / (slots * 1.9), rel=0.05)


@pytest.mark.slow
def test_target_budget_covers_all_phases():
    """Every token of text is a target once in both phases."""
    steps = budgets.targets(plan_of(), number=60_000)
    assert steps == pytest.approx(60_000 / (16 * SLOTS * 1.9), rel=0.05)
    assert targets_per_token(plan_of(), 10) == pytest.approx(
        {"bags": 1.2 / 1.9, "tokens": 0.7 / 1.9}, rel=0.01
    )


@pytest.mark.slow
def test_seconds_budget_times_all_phases(monkeypatch):
    timed = []
    at = StepPrograms.at

    def program(programs, step):
        timed.append(programs._member(step))
        return at(programs, step)

    monkeypatch.setattr(StepPrograms, "at", program)
    monkeypatch.setattr(budgets, "TIMED", 10)
    assert budgets.seconds(plan_of(), number=1.0) > 0
    assert timed[-10:] == members_of_steps(plan_of())


def test_seconds_per_step_weight_the_phases(tmp_path):
    speeds = {1: 100.0, 2: 50.0, 3: 100.0, 4: 200.0, 8: 200.0, 9: 200.0, 10: 200.0}
    lines = [
        f'{{"step": {step}, "text_tokens": 100.0, "tokens_per_second": {speed}}}\n'
        for step, speed in speeds.items()
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    expected = (3 * 1.0 + 4 * 0.5) / 7
    assert seconds_per_step(str(tmp_path), 10, plan_of().schedules) == pytest.approx(expected)


def test_progress_rates_are_divided_among_inner_members():
    def inner(ids):
        return mixture(ids, {"a": (causal_lm, 1), "b": (SUPERPOSED, 3)})

    outer = {"inner": (inner, ProgressSchedule(lambda share: share)), "last": (causal_lm, 1)}
    rates = [member.rate for member in mixture(tiny.IDS, outer).facts.members]
    assert [rate.at(0.5) for rate in rates[:2]] == [0.125, 0.375]

    def taking_turns(ids):
        return mixture(ids, {"a": (causal_lm, turns(1, 0)), "b": (SUPERPOSED, turns(1, 1))})

    with refuses(ValueError, "a, b"):
        mixture(tiny.IDS, outer | {"inner": (taking_turns, outer["inner"][1])})


def test_unsuitable_phases_are_rejected():
    with refuses(ValueError, "phases", "members"):
        phases(tiny.IDS, {"mixed": (ul2, 1), "causal": (causal_lm, 1)})
    with refuses(ValueError, "members"):
        phases(tiny.IDS, {"causal": (causal_lm, 1)})
    with refuses(ValueError, "rates"):
        corruptor(lambda ids: two_phases(), tiny.IDS, 16)


def test_members_that_share_a_step_are_rejected():
    members = {"a": (causal_lm, 1), "b": (SUPERPOSED, 1)}
    both = mixture(tiny.IDS, members).with_facts(separate_steps=True)
    with refuses(ValueError, "separate_steps", "0"):
        next(open_batches(tiny.plan(tiny.decoder(), both, {"decoder": SLOTS})))


MIXED = """training.Run.objective = @objectives.mixture
objectives.mixture.members = {
    "span": (@objectives.span_corruption, 2),
    "prefix": (@objectives.prefix_lm, 1),
}
"""
SUPERPOSITION = """training.Run.objective = @objectives.phases
objectives.superposed_lm.bag_size = 3
objectives.phases.members = {
    "superposed": (@objectives.superposed_lm, 1),
    "causal": (@objectives.causal_lm, 1),
}
"""


@pytest.mark.slow
def test_run_resumed_within_a_phase_equals_the_uninterrupted_run(tmp_path, capsys):
    """The second phase begins at step 6 of 12. The run resumes from the checkpoint of step 4."""
    data = tiny.write_documents(tmp_path / "store")
    run = tiny.Run(tmp_path, data)
    assert MIXED in run.config.read_text()
    run.config.write_text(run.config.read_text().replace(MIXED, SUPERPOSITION))
    run.train_in_process(capsys)
    lines = run.lines()
    arrays = tiny.saved_arrays(run.dir, 12)
    read = [line["text_tokens"] for line in lines if "text_tokens" in line]
    assert min(read[:6]) > 2 * max(read[6:])
    for step in (8, 12):
        shutil.rmtree(run.dir / "checkpoints" / str(step))
    (run.dir / "result.json").unlink()
    assert "step 4" in run.train_in_process(capsys)
    assert run.lines() == lines
    tiny.assert_same(tiny.saved_arrays(run.dir, 12), arrays)


def test_heldout_loss_counts_only_the_last_phase():
    """The loss by which checkpoints are kept is that of the objective that the run ends with."""
    weights = [_weight_at_end(member.rate) for member in two_phases().facts.members]
    assert weights == [0.0, 1.0]
    assert _weight_at_end(2.0) == _weight_at_end(turns(1, 0)) == 1.0
