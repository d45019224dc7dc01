"""The exponential moving average of parameters in steps, on meshes, in checkpoints and in runs."""

import jax
import numpy as np
import pytest

from pretrax.objectives import causal_lm
from pretrax.training.devices.mesh import placed_on
from pretrax.training.run_configuration import read_directory
from pretrax.training.saved.result import read_result
from pretrax.training.saved.runs import open_saved_model
from pretrax.training.state import new_state
from pretrax.training.step_program import abstract_state_of, jitted_step
from tests.training import tiny

DECAY = 0.5


def steps_of(shape, n=3):
    """Returns the state before all steps and after each step, on the host."""
    mesh = tiny.mesh_of(*shape)
    settings = dict(mesh=mesh, data_shards=16, batch_size=16, ema_decay=DECAY)
    plan = tiny.plan(tiny.decoder(), causal_lm(tiny.IDS), {"decoder": 32}, **settings)
    abstract = abstract_state_of(plan)
    state, rows = new_state(abstract, 0, mesh), tiny.batches(plan, mesh, data_shards=16)
    take_step, states = jitted_step(plan, abstract.shapes), [jax.device_get(state)]
    with placed_on(mesh):
        for _ in range(n):
            state, _ = take_step(state, next(rows))
            states.append(jax.device_get(state))
    return states


def test_step_moves_the_average_towards_the_parameters():
    states = steps_of((1,))
    jax.tree.map(np.testing.assert_array_equal, states[0].ema, states[0].params)
    for n, (before, after) in enumerate(zip(states, states[1:]), 1):
        kept = min(DECAY, (1 + n) / (10 + n))
        averages = map(jax.tree.leaves, (before.ema, after.params, after.ema))
        for last, x, average in zip(*averages):
            np.testing.assert_allclose(average, kept * last + (1 - kept) * x, atol=1e-6)
        assert after.eval_params is after.ema
    assert (1 + n) / (10 + n) < DECAY  # the decay is reached later


@pytest.mark.slow
def test_average_is_the_same_on_any_mesh():
    alone, sharded = steps_of((1,))[-1], steps_of((2, 2, 2))[-1]
    close = lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4)  # noqa: E731
    jax.tree.map(close, alone.ema, sharded.ema)


def run_of(folder, **values) -> tiny.Run:
    folder.mkdir()
    return tiny.Run(folder / "own", tiny.write_documents(folder / "data"), **values)


def train(run: tiny.Run, **values) -> float:
    """Trains a run in this process, and returns its held-out loss."""
    with pytest.MonkeyPatch.context() as patch:
        tiny.on_one_device(patch)
        tiny.train_in_process(run.arguments(**values))
    return read_result(str(run.dir)).scores[0].loss


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tiny.Run:
    run = run_of(tmp_path_factory.mktemp("ema") / "whole", **{"training.Run.ema_decay": DECAY})
    train(run)
    return run


@pytest.mark.slow
def test_opened_run_has_the_averaged_parameters(whole, tmp_path):
    saved = tiny.saved_arrays(whole.dir, 12)
    fields = read_directory(str(whole.dir), {"tests.training.tiny"})
    opened, _ = jax.tree_util.tree_flatten_with_path(
        open_saved_model(str(whole.dir), fields=fields).params
    )
    assert len(opened) > 5
    for path, x in opened:
        name = jax.tree_util.keystr(path)
        np.testing.assert_array_equal(x, saved[f"['ema']{name}"])
        assert np.any(x != saved[f"['params']{name}"])

    warm = run_of(tmp_path / "warm", **whole.values | {"training.Run.initial_run": str(whole.dir)})
    train(warm, RUN_DIR=str(warm.dir), STEPS=1, **{"training.Run.checkpoint_every": 1, "PEAK": 0.0})
    moved = tiny.saved_arrays(warm.dir, 1)
    for kind in ("ema", "params"):
        np.testing.assert_allclose(moved[f"['{kind}']{name}"], saved[f"['ema']{name}"], atol=1e-6)


@pytest.mark.slow
def test_resumed_run_continues_the_average(whole, tmp_path):
    run = run_of(tmp_path / "resumed", **whole.values)
    run.values["RUN_DIR"] = str(run.dir)
    train(run, STEPS=5)
    train(run)
    tiny.assert_same(tiny.saved_arrays(run.dir, 12), tiny.saved_arrays(whole.dir, 12))


@pytest.mark.slow
def test_evaluation_uses_the_average(whole, tmp_path):
    plain = train(run_of(tmp_path / "plain"))
    assert abs(read_result(str(whole.dir)).scores[0].loss - plain) > 1e-3
