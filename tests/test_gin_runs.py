"""Every gin run parses and builds, and its loss traces. Each kind of step lowers on its mesh."""

import dataclasses
import re
from pathlib import Path

import jax
import pytest

from pretrax.models.builders import abstract_params
from pretrax.objectives.catalog import run_of
from pretrax.settings.partial import as_partial
from pretrax.training.devices.mesh import batch_sharding, placed_on
from pretrax.training.planning import abstract_batch, abstract_rows
from pretrax.training.run_configuration import as_run, read_run
from pretrax.training.step_program import abstract_state_of, jitted_step
from tests.planned_runs import planned
from tests.training import tiny

BINDING = re.compile(r"^([\w./]+) = ", re.MULTILINE)
# Files that runs share, which are not runs.
INCLUDES = {"laptop", "synthetic_task", "eight_devices", "c4_pretraining", "finetuning"}
RUNS = sorted(p for p in Path("gin_configs/runs").glob("*.gin") if p.stem not in INCLUDES)
# The objective of seqio_objectives is in the SeqIO registry. tests/tasks has tests of this run.
COMPLETE = [run for run in RUNS if run.stem != "seqio_objectives"]
OBJECTIVES = sorted(Path("gin_configs/objectives").glob("*.gin"))


def traced(plan):
    state = abstract_state_of(plan).shapes
    rows = abstract_rows(plan, batch_sharding(plan.mesh))
    with placed_on(plan.mesh):
        return jitted_step(plan, state).trace(state, rows)


def loss_terms(plan):
    """Returns the shapes of the loss terms of a run's objective on its model."""
    recipe = plan.recipe

    def terms(params, batch):
        return recipe.objective.loss(batch).scored(recipe.model.apply(params, batch))

    return jax.eval_shape(terms, abstract_params(recipe.model), abstract_batch(plan))


@pytest.fixture(scope="module")
def steps():
    """The steps that have been traced or lowered."""
    return set()


def step_without_sizes(run, plan) -> str:
    """Describes the step of a run, without numbers and without its objective."""
    model, optimizer = as_partial(run.model), as_partial(run.optimizer)
    settings = {
        name: value
        for name, value in sorted(model.settings.items())
        if type(value) not in (int, float)
    }
    axes = [axis for axis, size in plan.mesh.shape.items() if size > 1]
    flags = (run.shard_optimizer_over_data, run.microbatches > 1, len(plan.recipe.groups) > 1)
    return str((model.function, settings, optimizer.function, axes, flags))


def test_no_gin_file_binds_a_name_twice():
    """Readers would see the first value, but it would have no effect."""
    for path in Path("gin_configs").glob("*/*.gin"):
        names = BINDING.findall(path.read_text())
        assert len(names) == len(set(names)), path


@pytest.mark.slow
@pytest.mark.parametrize("path", COMPLETE, ids=lambda path: path.stem)
def test_run_parses_builds_and_lowers_on_the_mesh_it_names(path, steps):
    """If an earlier run had the same step except for numbers, only the loss is traced."""
    run = as_run(tiny.completed(str(path)))
    plan = planned(run)
    if plan.mesh.shape["fsdp"] > 1:
        params = jax.tree.leaves(abstract_state_of(plan).shapes.params)
        large = [x for x in params if x.size > 1_000_000]
        assert large and not any(x.sharding.is_fully_replicated for x in large)
    step = step_without_sizes(run, plan)
    if step in steps:
        assert loss_terms(plan)
        return
    steps.add(step)
    with placed_on(plan.mesh):
        lowered = traced(plan).lower(lowering_platforms=("tpu",))
    assert f"mhlo.num_partitions = {plan.mesh.size}" in lowered.as_text()[:2000]


@pytest.mark.slow
def test_shakespeare_chars_matches_the_cpu_run_of_nanogpt(tmp_path):
    (tmp_path / "text.txt").write_text("To be, or not to be, that is the question:\n" * 100)
    files = [f"FILES = '{tmp_path}/text.txt'", f"RUN_DIR = '{tmp_path}/run'"]
    run = read_run(["runs/shakespeare_chars.gin"], files)
    plan = tiny.planned(dataclasses.replace(run, mesh=lambda: tiny.mesh_of(1)))
    assert "the last 10% of the tokens" in plan.corpus.summary
    assert (plan.run.batch_size, plan.run.steps, plan.packing.limits[0].raw) == (12, 2000, 64)
    params = abstract_state_of(plan).shapes.params
    # nanoGPT counts 795,904 parameters, excluding positions and including its embedding of 65
    # characters.
    embedding = params["token_embedding"].size
    assert sum(x.size for x in jax.tree.leaves(params)) - embedding == 795_904 + 64 * 128 - 65 * 128


@pytest.mark.slow
@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda path: path.stem)
def test_loss_of_each_objective_traces_on_its_laptop_run(objective, steps):
    small = f"runs/{run_of(objective.stem)}.gin"
    run = read_run([small, str(objective)])
    if run == read_run([small]):  # The test above traces its loss.
        return
    plan = planned(run)
    features = tuple(sorted(abstract_batch(plan)))
    learned, groups = plan.recipe.objective, len(plan.recipe.groups)
    # If these are the same, only the corruption differs.
    step = (
        small,
        learned.loss,
        tuple(learned.facts.heads),
        len(learned.facts.members),
        groups,
        features,
    )
    if step not in steps:
        steps.add(step)
        assert loss_terms(plan)


@pytest.mark.parametrize("run", RUNS, ids=lambda path: path.stem)
def test_gin_run_begins_with_its_command(run):
    assert run.read_text().startswith("# pretrax train")


def test_every_c4_run_names_its_devices():
    for run in RUNS:
        if run.stem.endswith("_c4"):
            settings = as_partial(read_run([str(run)]).mesh).settings
            assert all(isinstance(settings[axis], int) for axis in ("data", "fsdp", "tensor")), run
