"""Every gin run parses, builds, and lowers its train step on a mesh of the size it names."""

from pathlib import Path

import gin
import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType

from pretrax import train
from pretrax.objectives import TokenIds, bitmap, check_token_ids
from pretrax.objectives.catalogue import run_of
from pretrax.training.configuration import configure
from pretrax.training.mesh import AXES, batch_sharding, batch_shards, placed_on
from pretrax.training.runs import configured
from pretrax.training.setup import (
    abstract_batch,
    abstract_rows,
    compiled_step,
    make_setup,
    padded_vocabulary,
)
from pretrax.training.state import abstract_state

INCLUDES = {"laptop", "c4_pretraining"}  # what runs share; no runs of their own
RUNS = sorted(p for p in Path("gin_configs/runs").glob("*.gin") if p.stem not in INCLUDES)
OBJECTIVES = sorted(Path("gin_configs/objectives").glob("*.gin"))
# By some runs, and values for them.
LEFT_OPEN = dict.fromkeys(("FILES", "TOKENS", "MODULE", "MIXTURE_OR_TASK_NAME", "TASK"), "none")
LEFT_OPEN |= {"CLASSES": ["no", "yes"], "NUM_CLASSES": 2}

# T5's vocabulary, with UL2's mode tokens and sentinels above it, and other special tokens.
IDS = check_token_ids(
    TokenIds(
        size=32137,
        text=(3, 32000),
        mask=32131,
        cls=32132,
        sep=32133,
        sentinels=tuple(range(32099, 31999, -1)) + tuple(range(32100, 32128)),
        modes=(("R", 32128), ("S", 32129), ("X", 32130)),
        fim=(32134, 32135, 32136),
        word_starts=bitmap(np.arange(32137) % 2),
        sentence_ends=bitmap(np.arange(32137) % 20 == 0),
    )
)
# They differ from others in sizes or settings alone: `pytest -m slow` lowers them.
SLOW_RUNS = {"t5_1_1_base_c4", "t5_1_1_large_c4", "t5_1_1_xl_c4", "ul2_base_c4"}
SLOW_OBJECTIVES = {
    *("albert_ngrams", "whole_word_masking", "ul2r", "ul2_tutorial", "gpt_bert"),
    *("token_masking", "token_deletion", "sentence_permutation", "document_rotation"),
}


def cases(paths, slow):
    return [
        pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if path.stem in slow else [])
        for path in paths
    ]


@pytest.fixture(autouse=True)
def clean_gin():
    gin.clear_config()
    yield
    gin.clear_config()


def left_open(run):
    """Bindings for what a run leaves to the command line."""
    text = run.read_text()
    return [
        f"{name} = {value!r}"
        for name, value in LEFT_OPEN.items()
        if f"%{name}" in text and f"\n{name} = " not in text
    ]


def value(name, otherwise=None):
    try:
        return gin.query_parameter(name)
    except ValueError:
        return otherwise


def configured_setup():
    sizes = tuple(value(f"mesh.make_mesh.{axis}", 1) for axis in AXES)
    mesh = AbstractMesh(sizes, AXES, axis_types=(AxisType.Auto,) * 3)
    learned = configured("objective")(IDS)
    setup = make_setup(
        objective=learned,
        model=configured("model")(padded_vocabulary(IDS), learned.heads),
        optimizer=configured("optimizer")(configured("steps")),
        ids=IDS,
        sequence_lengths=configured("sequence_lengths"),
        batch_size=configured("batch_size"),
        microbatches=value("train.train.microbatches", 1),
        data_shards=value("train.train.data_shards", 1),
        z_loss=value("train.train.z_loss", 0.0),
        batch_shards=batch_shards(mesh),
    )
    return setup, mesh


def traced(setup, mesh):
    recipe = setup.recipe
    state = abstract_state(recipe.model, recipe.optimizer, abstract_batch(setup), mesh).shapes
    rows = abstract_rows(setup, batch_sharding(mesh))
    with placed_on(mesh):
        return state, compiled_step(setup, 0, state, mesh).trace(state, rows)


def lowered(setup, mesh):
    state, step = traced(setup, mesh)
    with placed_on(mesh):
        return state, step.lower(lowering_platforms=("tpu",))


@pytest.mark.parametrize("run", cases(RUNS, SLOW_RUNS))
def test_run_parses_builds_and_lowers_on_the_mesh_it_names(run):
    configure([str(run)], left_open(run))
    setup, mesh = configured_setup()
    state, step = lowered(setup, mesh)
    assert "mhlo.num_partitions = " + str(mesh.size) in step.as_text()[:2000]
    text = run.read_text()
    assert text.startswith("# python train.py"), "a run opens with its command"
    if mesh.shape["fsdp"] > 1:
        large = [x for x in jax.tree.leaves(state.params) if x.size > 1_000_000]
        assert large and not any(x.sharding.is_fully_replicated for x in large)


@pytest.mark.parametrize("objective", cases(OBJECTIVES, SLOW_OBJECTIVES))
def test_objective_trains_on_some_laptop_run(objective):
    run = run_of(objective.stem)
    configure([f"gin_configs/runs/{run}.gin", str(objective)], [])
    traced(*configured_setup())


def test_every_c4_run_names_its_devices():
    for run in RUNS:
        if run.stem.endswith("_c4"):
            gin.clear_config()
            configure([str(run)], [])
            assert all(isinstance(value(f"mesh.make_mesh.{axis}"), int) for axis in AXES), run


def test_train_is_what_gin_configures():
    configure(["gin_configs/runs/quickstart.gin"], [])
    assert gin.get_configurable(train.train) is not None
