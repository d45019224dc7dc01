"""Starting from another run's parameters: matching arrays are taken, the rest is reported."""

import contextlib
import dataclasses
import shutil

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pretrax import corpora, models, objectives
from pretrax.models.trees import nested
from pretrax.settings import atomic_writes
from pretrax.settings.run_directory import save_classes
from pretrax.training import Partial, Run
from pretrax.training.optimizers import adamw
from pretrax.training.run_file import write_run
from pretrax.training.saved.assignment_map import check_assignment_map
from pretrax.training.saved.checkpoints import Checkpoints
from pretrax.training.saved.warm_start import warm_start
from pretrax.training.state import new_state, with_initial_ema
from tests.refusals import refuses
from tests.training import tiny


class Arrays:
    """A model of nested arrays, sharded over fsdp."""

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
    return new_state(tiny.abstract_state_of(Arrays(**shapes), optimizer, mesh), seed, mesh)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Returns a run directory with a checkpoint of step 7, which has a trunk and a head."""
    run = tmp_path_factory.mktemp("source")
    state = state_of(1, trunk=(8, 4), old_head=(4, 2))
    checkpoints = Checkpoints(f"{run}/checkpoints")
    checkpoints.save(state._replace(step=jnp.int32(7)), {"place.txt": b"here"})
    checkpoints.close()
    return run, state


@pytest.mark.parametrize("inside", ["", "checkpoints"])
def test_matching_parameters_are_taken_and_the_rest_is_reported(source, inside):
    run, saved = source
    # Another optimizer, mesh and head.
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
    output = start.describe()
    assert "Starting from step 7 of" in output and "1 arrays, 32 parameters" in output
    assert "other classes: new_head/w" in output and "not used: old_head/w" in output


def test_average_begins_with_the_taken_parameters(source):
    run, saved = source
    start = warm_start(str(run), with_initial_ema(state_of(2, trunk=(8, 4))))
    np.testing.assert_array_equal(start.state.ema["trunk"]["w"], saved.params["trunk"]["w"])


def test_external_checkpoints_of_the_source_are_taken(source, tmp_path):
    """The result names the run directory, whose vocabulary and classes are compared."""
    config = tmp_path / "config.gin"
    for folder, fits in (f"{source[0]}/checkpoints", True), (f"{tmp_path}/none", False):
        config.write_text(f"training.Run.checkpoint_dir = '{folder}'\n")
        for directory in (str(tmp_path), folder):
            atomic_writes.write_json(f"{directory}/run_id", {"id": "1", "run": str(tmp_path)})
        found = contextlib.nullcontext()
        if not fits:
            found = refuses(ValueError, f"initial_run = '{tmp_path}'", folder)
        with found:
            start = warm_start(str(tmp_path), state_of(2, trunk=(8, 4)))
            assert (start.step, start.source) == (7, str(tmp_path))


@pytest.mark.parametrize(
    "shapes, values",
    [({"trunk": (8, 5)}, ["trunk/w", (8, 4), (8, 5)]), ({"other": (8, 4)}, ["array", "parameter"])],
)
def test_incompatible_model_is_rejected(source, shapes, values):
    with refuses(ValueError, "Checkpoint 7", source[0], *values):
        warm_start(str(source[0]), state_of(2, **shapes))


@pytest.mark.sampled
@pytest.mark.parametrize(
    "classes, fresh",
    [
        ((), ()),
        (("no", "yes"), ()),
        (("yes", "no"), ("projections_classes/classifier/w",)),
        (("a", "b"), ("projections_classes/classifier/w",)),
    ],
)
def test_classifier_with_other_classes_is_not_taken(tmp_path, classes, fresh):
    shapes = {"trunk": (8, 4), "projections_classes/classifier": (4, 2)}
    with contextlib.closing(Checkpoints(f"{tmp_path}/checkpoints")) as checkpoints:
        checkpoints.save(state_of(1, **shapes), {})
    save_classes(tmp_path, ["no", "yes"])
    start = warm_start(str(tmp_path), state_of(2, **shapes), classes)
    assert (start.fresh, start.unused) == (fresh, fresh)


def test_missing_checkpoint_is_rejected(tmp_path):
    with refuses(ValueError, "/bucket/run"):
        warm_start("s3://bucket/run", state_of(2, trunk=(8, 4)))
    for place in (tmp_path, tmp_path / "absent"):
        with refuses(ValueError, "--gin.training.Run.initial_run", "--initial_run", place):
            warm_start(str(place), state_of(2, trunk=(8, 4)))
        assert not (tmp_path / "absent").exists()


def test_damaged_checkpoint_is_named(source, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(source[0], copy)
    (largest,) = sorted(copy.glob("checkpoints/7/state/d/*"), key=lambda p: p.stat().st_size)[-1:]
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 255
    largest.write_bytes(content)
    with refuses(ValueError, "Checkpoint 7", copy):
        warm_start(str(copy), state_of(2, trunk=(8, 4), old_head=(4, 2)))


# --- from one stack to two ------------------------------------------------------------------------

BOTH_STACKS = {
    r"encoder/(.*)": r"decoder/\1",
    r"decoder/cross_attention/(.*)": r"decoder/self_attention/\1",
}


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    run = tmp_path_factory.mktemp("decoder")
    state = state_of(1, **{"decoder/self_attention": (8, 4), "decoder/mlp": (8, 2)})
    with contextlib.closing(Checkpoints(f"{run}/checkpoints")) as checkpoints:
        checkpoints.save(state, {})
    return str(run), state.params["decoder"]


def encoder_decoder(**shapes):
    stack = {"self_attention": (8, 4), "mlp": (8, 2)}
    both = {f"{side}/{name}": x for side in ("encoder", "decoder") for name, x in stack.items()}
    return state_of(2, **(both | {"decoder/cross_attention": (8, 4)} | shapes))


@pytest.mark.slow
@pytest.mark.parametrize("crosses", [True, False])
def test_layers_of_a_decoder_fill_both_stacks(decoder, crosses):
    source, saved = decoder
    fresh = encoder_decoder()
    names = dict(list(BOTH_STACKS.items())[: 1 + crosses])
    start = warm_start(source, fresh, assignment_map=names)
    encoder, decoder = (start.state.params[side] for side in ("encoder", "decoder"))
    for name in ("self_attention", "mlp"):
        np.testing.assert_array_equal(encoder[name]["w"], saved[name]["w"])
        np.testing.assert_array_equal(decoder[name]["w"], saved[name]["w"])
    own = fresh.params["decoder"]["cross_attention"]["w"]
    cross = saved["self_attention"]["w"] if crosses else own
    np.testing.assert_array_equal(decoder["cross_attention"]["w"], cross)
    assert start.fresh == (() if crosses else ("decoder/cross_attention/w",))
    assert start.unused == ()
    jax.jit(lambda state: state, donate_argnums=0)(start.state)  # no array is in memory twice


@pytest.mark.parametrize(
    "names, shapes, values",
    [
        ({"encodr/(.*)": r"decoder/\1"}, {}, ["'encodr/(.*)'", "encoder/mlp/w"]),
        (BOTH_STACKS, {"encoder/mlp": (8, 3)}, ["encoder/mlp/w", (8, 2), (8, 3)]),
    ],
)
def test_assignment_with_wrong_names_or_shapes_is_rejected(decoder, names, shapes, values):
    with refuses(ValueError, *values):
        warm_start(decoder[0], encoder_decoder(**shapes), assignment_map=names)


def adapting(tmp_path, **changes):
    """Returns a run that starts an encoder-decoder from the layers of a decoder."""
    sizes = dict(emb_dim=8, num_heads=2, head_dim=4, mlp_dim=8)
    source = Run(
        run_dir=str(tmp_path / "decoder"),
        corpus=Partial(corpora.token_store, stores="unread"),
        objective=objectives.causal_lm,
        model=Partial(models.decoder, num_layers=2, **sizes),
        optimizer=Partial(adamw, learning_rate=1e-3),
        sequence_lengths={"decoder": 32},
        batch_size=8,
        steps=3,
    )
    write_run(source)
    own = dict(positions="rotary", attention_scale=None, mlp_activations=("silu", "linear"))
    both = Partial(models.encoder_decoder, **(sizes | own | changes.pop("settings", {})))
    names = dict(initial_run=source.run_dir, assignment_map=BOTH_STACKS)
    run_dir = str(tmp_path / "both")
    return dataclasses.replace(source, run_dir=run_dir, model=both, **(names | changes))


@pytest.mark.parametrize(
    "changes, values",
    [
        ({"initial_run": None}, ["training.Run.initial_run"]),
        ({"assignment_map": {"(": "a"}}, ["'('", "'a'"]),
        ({"assignment_map": {"a": r"\1"}}, ["'a'", "group"]),
        (
            {"settings": {"positions": "relative", "norm": "layer"}},
            ["decoder", "norm", "'rms'", "'layer'", "positions"],
        ),
    ],
)
def test_invalid_assignment_map_is_rejected_before_reading(changes, values, tmp_path):
    with refuses(ValueError, "training.Run.assignment_map", *values):
        check_assignment_map(adapting(tmp_path, **changes))


def test_assignment_map_accepts_merged_attention(tmp_path):
    settings = dict(merged_attention=True, share_encoder_decoder_embeddings=False)
    check_assignment_map(adapting(tmp_path, settings=settings))
