"""Noise that adapts to the model: its state in steps, on meshes, in checkpoints and in runs."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrax import models, objectives
from pretrax.objectives import causal_lm
from pretrax.training.devices.mesh import placed_on
from pretrax.training.saved.checkpoints import Checkpoints
from pretrax.training.state import AbstractState, State, new_state
from pretrax.training.step_program import abstract_state_of, jitted_step
from tests.training import tiny

IDS = tiny.IDS._replace(mask=103)


@functools.cache
def adaptive():
    return objectives.adaptive_masked_lm(IDS, rate=0.3, every=2, framed=False)


class Setup(NamedTuple):
    mesh: jax.sharding.Mesh
    take_step: Callable
    rows: Callable  # () -> the rows of the first steps
    abstract: AbstractState


@functools.cache
def setup_of(shape, microbatches):
    mesh = tiny.mesh_of(*shape)
    model = models.encoder(128, **(tiny.SIZES | {"num_layers": 1}))
    settings = dict(mesh=mesh, microbatches=microbatches, data_shards=16, batch_size=16)
    plan = tiny.plan(model, adaptive(), {"encoder": 32}, **settings)
    abstract = abstract_state_of(plan)
    rows = functools.partial(tiny.batches, plan, mesh, data_shards=16)
    return Setup(mesh, jitted_step(plan, abstract.shapes), rows, abstract)


@functools.cache
def steps_of(shape, microbatches, n=3):
    """Returns the state after each step, on the host, and the last metrics."""
    mesh, take_step, rows, abstract = setup_of(shape, microbatches)
    state, states, rows = new_state(abstract, 0, mesh), [], rows()
    with placed_on(mesh):
        for _ in range(n):
            state, metrics = take_step(state, next(rows))
            states.append(jax.device_get(state))
    return states, jax.device_get(metrics)


@pytest.mark.slow
def test_steps_count_answers_and_update_the_chances():
    (first, second, third), metrics = steps_of((1, 1, 1), 1)
    for state, steps in ((first, 1), (third, 1), (second, 0)):
        labels, right = state.adaptation.answers
        assert (labels.sum() > 0) == (steps > 0)
        assert (right <= labels).all()
    assert len(np.unique(first.adaptation.chances)) == 1
    assert len(np.unique(second.adaptation.chances)) > 3
    np.testing.assert_array_equal(second.adaptation.chances, third.adaptation.chances)
    np.testing.assert_allclose(third.adaptation.chances.mean(), 0.3, rtol=1e-6)
    assert metrics["adaptation/least_chance"] == third.adaptation.chances.min()
    assert metrics["adaptation/greatest_chance"] == third.adaptation.chances.max()


@pytest.mark.slow
def test_step_masks_by_the_chances_of_its_state():
    mesh, take_step, rows, abstract = setup_of((1, 1, 1), 1)
    state = new_state(abstract, 0, mesh)
    rare = np.arange(state.adaptation.chances.size) % 2 > 0
    chances = np.where(rare, 0.001, 0.5).astype(np.float32)
    chances = jax.device_put(chances, state.adaptation.chances.sharding)
    state = state._replace(adaptation=state.adaptation._replace(chances=chances))
    with placed_on(mesh):
        state, _ = take_step(state, next(rows()))
    labels = np.asarray(state.adaptation.answers.labels)
    assert labels.sum() > 50 and labels[rare].sum() < 0.05 * labels.sum()


@pytest.mark.slow
def test_meshes_and_microbatches_do_not_change_the_counts():
    whole, split = steps_of((1, 1, 1), 1), steps_of((2, 2, 1), 2)
    for a, b in zip(whole[0], split[0]):
        jax.tree.map(np.testing.assert_array_equal, a.adaptation, b.adaptation)


def test_other_objectives_have_no_adaptation_state(tmp_path):
    """Neither the steps nor the checkpoints of other objectives change."""
    plan = tiny.plan(tiny.decoder(), causal_lm(tiny.IDS), {"decoder": 16})
    assert abstract_state_of(plan).shapes.adaptation is None
    state = State(jnp.int32(0), {"a": jnp.ones(2)}, {"b": jnp.ones(2)})
    with Checkpoints(str(tmp_path / "checkpoints")) as checkpoints:
        checkpoints.save(state, {})
        checkpoints.wait()
        assert checkpoints.restore(state).state.adaptation is None
    names = tiny.saved_arrays(tmp_path, 0)
    assert {name.split("'")[1] for name in names} == {"step", "params", "opt_state"}


@pytest.mark.slow
def test_resumed_run_continues_from_the_counted_answers(tmp_path):
    """The run is saved between two updates of the chances."""
    states, _ = steps_of((1, 1, 1), 1)
    mesh, take_step, rows, abstract = setup_of((1, 1, 1), 1)
    rows = rows()
    with Checkpoints(str(tmp_path)) as checkpoints:
        checkpoints.save(jax.device_put(states[0], sharding_of(abstract)), {})
        checkpoints.wait()
        state = checkpoints.restore(abstract.shapes).state
    next(rows)
    with placed_on(mesh):
        for expected in states[1:]:
            state, _ = take_step(state, next(rows))
            jax.tree.map(np.testing.assert_array_equal, jax.device_get(state), expected)


def sharding_of(abstract):
    return jax.tree.map(lambda x: x.sharding, abstract.shapes)
