"""Starting from another run's parameters: what fits is taken, the rest is told."""

import contextlib
import shutil

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pretrax.models.trees import nested
from pretrax.training.run_directory import save_classes
from pretrax.training.saved.checkpoints import Checkpoints
from pretrax.training.saved.warm_start import warm_start
from pretrax.training.state import abstract_state, new_state
from tests.training import tiny


class Arrays:
    """A model of nested arrays, spread over fsdp."""

    def __init__(self, **shapes):
        self.shapes = shapes

    def init(self, key, batch):
        params = {}
        for i, (name, shape) in enumerate(sorted(self.shapes.items())):
            value = jax.random.normal(jax.random.fold_in(key, i), shape)
            params[f"{name}/w"] = nn.LogicallyPartitioned(value, ("embed", None))
        return nested(params.items())


def state_of(seed, optimizer=None, mesh_shape=(2, 2, 2), **shapes):
    mesh = tiny.mesh_of(*mesh_shape)
    return new_state(
        abstract_state(Arrays(**shapes), optimizer or optax.adam(1e-3), {}, mesh), seed, mesh
    )


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A run directory with a checkpoint of step 7, of a trunk and a head."""
    run = tmp_path_factory.mktemp("source")
    state = state_of(1, trunk=(8, 4), old_head=(4, 2))
    checkpoints = Checkpoints(f"{run}/checkpoints")
    checkpoints.save(state._replace(step=jnp.int32(7)), {"place.txt": b"here"})
    checkpoints.close()
    return run, state


@pytest.mark.parametrize("inside", ["", "checkpoints"])
def test_what_fits_is_taken_and_the_rest_is_told(source, inside):
    run, saved = source
    # Another optimizer, another mesh, another head.
    fresh = state_of(2, optax.sgd(0.1), (1, 4, 2), trunk=(8, 4), new_head=(4, 3))
    start = warm_start(f"{run}/{inside}", fresh)
    assert (start.step, start.taken, start.fresh, start.unused) == (
        7,
        ("trunk/w",),
        ("new_head/w",),
        ("old_head/w",),
    )
    params = start.state.params
    np.testing.assert_array_equal(params["trunk"]["w"], saved.params["trunk"]["w"])
    assert params["trunk"]["w"].sharding == fresh.params["trunk"]["w"].sharding
    np.testing.assert_array_equal(params["new_head"]["w"], fresh.params["new_head"]["w"])
    assert int(start.state.step) == 0 and start.state.opt_state == fresh.opt_state
    said = start.describe()
    assert "Starting from step 7 of" in said and "1 arrays, 32 parameters" in said
    assert "initialised: new_head/w" in said and "not used: old_head/w" in said


@pytest.mark.parametrize(
    "shapes, message",
    [
        ({"trunk": (8, 5)}, r"trunk/w: there \(8, 4\), here \(8, 5\)"),
        ({"other": (8, 4)}, "no array has a name of this model's"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(source, shapes, message):
    with pytest.raises(ValueError, match=f"Checkpoint 7 of .* does not fit.*{message}"):
        warm_start(str(source[0]), state_of(2, **shapes))


@pytest.mark.parametrize(
    "classes, fresh",
    [
        ((), ()),
        (("no", "yes"), ()),
        (("yes", "no"), ("projections_classes/classifier/w",)),
        (("a", "b"), ("projections_classes/classifier/w",)),
    ],
)
def test_a_classifier_of_other_classes_is_not_taken(tmp_path, classes, fresh):
    shapes = {"trunk": (8, 4), "projections_classes/classifier": (4, 2)}
    with contextlib.closing(Checkpoints(f"{tmp_path}/checkpoints")) as checkpoints:
        checkpoints.save(state_of(1, **shapes), {})
    save_classes(tmp_path, ["no", "yes"])
    start = warm_start(str(tmp_path), state_of(2, **shapes), classes)
    assert (start.fresh, start.unused) == (fresh, fresh)


def test_no_checkpoint_is_an_error(tmp_path):
    for place in (tmp_path, tmp_path / "absent"):
        with pytest.raises(ValueError, match="holds no checkpoint"):
            warm_start(str(place), state_of(2, trunk=(8, 4)))
        assert not (tmp_path / "absent").exists()


def test_a_damaged_checkpoint_is_named(source, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(source[0], copy)
    (largest,) = sorted(copy.glob("checkpoints/7/state/d/*"), key=lambda p: p.stat().st_size)[-1:]
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 255
    largest.write_bytes(content)
    with pytest.raises(ValueError, match="Checkpoint 7 of .*copy is damaged"):
        warm_start(str(copy), state_of(2, trunk=(8, 4), old_head=(4, 2)))
