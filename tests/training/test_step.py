"""One training step: the same on every mesh and however its rows are split, and what it reports."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import models
import objectives
from objectives import causal_lm, members_of
from tests.training import tiny
from training import optimizers
from training.mesh import batch_sharding, placed_on
from training.setup import compiled_step
from training.state import new_state
from training.step import make_batches

CASES = {
    "encoder_decoder_ul2_two_groups": (
        tiny.encoder_decoder,
        tiny.small_ul2,
        tiny.ROWS_OF_TWO_SHAPES,
        32,
    ),
    "decoder_mixture": (tiny.decoder, tiny.span_and_prefix, {"decoder": 32}, 32),
}


def adafactor(total_steps=10):
    return optimizers.adafactor(total_steps, learning_rate=lambda _: 1e-2)


def setup_of(name, mesh, microbatches=1, optimizer=None, **settings):
    model, objective, lengths, batch_size = CASES[name]
    return tiny.setup(
        model(),
        objective(),
        lengths,
        mesh=mesh,
        batch_size=batch_size,
        microbatches=microbatches,
        data_shards=16,
        # With plain SGD an error in a gradient is an error of the same size in a parameter: Adam
        # would hide a wrong factor, and blow up rounding where a gradient is nearly zero.
        optimizer=optimizer or optax.sgd(0.5),
        z_loss=1e-2,
        **settings,
    )


@functools.cache
def steps_of(name, shape, microbatches, n=2):
    """Parameters and metrics after each of `n` steps, on the host."""
    mesh = tiny.mesh_of(*shape)
    one = setup_of(name, mesh, microbatches)
    abstract = tiny.abstract(one, mesh)
    state = new_state(abstract, 0, mesh)
    rows = tiny.batches(one, mesh, data_shards=16)
    take_step, steps = compiled_step(one, 0, abstract.shapes, mesh), []
    with placed_on(mesh):
        for _ in range(n):
            state, metrics = take_step(state, next(rows))
            steps.append(jax.device_get((state.params, metrics)))
    return steps


@pytest.mark.parametrize(
    "name, shape, microbatches",
    [
        ("decoder_mixture", (1, 1, 1), 4),
        ("decoder_mixture", (8, 1, 1), 1),
        ("decoder_mixture", (2, 2, 2), 1),
        ("decoder_mixture", (1, 4, 2), 2),
        ("encoder_decoder_ul2_two_groups", (1, 1, 1), 4),
        ("encoder_decoder_ul2_two_groups", (1, 4, 2), 1),
        ("encoder_decoder_ul2_two_groups", (2, 2, 2), 2),
        pytest.param("encoder_decoder_ul2_two_groups", (8, 1, 1), 1, marks=pytest.mark.slow),
        pytest.param("encoder_decoder_ul2_two_groups", (2, 2, 2), 1, marks=pytest.mark.slow),
    ],
)
def test_meshes_and_microbatches_change_nothing(name, shape, microbatches):
    # float32 sums in another order; gradients here are of size 0.01 … 1
    close = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-6)
    expected, got = steps_of(name, (1, 1, 1), 1), steps_of(name, shape, microbatches)
    jax.tree.map(close, got, expected)


@pytest.mark.parametrize("name", CASES)
def test_a_step_changes_every_parameter(name):
    """Else the equalities above could hold for a step that does nothing."""
    (first, _), (second, _) = steps_of(name, (1, 1, 1), 1)
    changed = jax.tree.map(lambda a, b: bool((a != b).any()), first, second)
    assert all(jax.tree.leaves(changed)), changed


@pytest.mark.parametrize("make", [adafactor, lambda: optax.adamw(1e-2)], ids=["adafactor", "adamw"])
def test_large_parameters_and_their_moments_are_born_spread(make):
    mesh = tiny.mesh_of(2, 2, 2)
    one = setup_of("encoder_decoder_ul2_two_groups", mesh, optimizer=make())
    abstract = tiny.abstract(one, mesh)
    state = new_state(abstract, 0, mesh)
    sizes = {}
    for path, x in jax.tree_util.tree_flatten_with_path(state)[0]:
        name = jax.tree_util.keystr(path)
        shard = x.addressable_shards[0].data.size
        assert {s.data.size for s in x.addressable_shards} == {shard}
        sizes[name] = (x.size, shard)
    # Every matrix is spread over fsdp and tensor; vectors and the small table of relative
    # positions ([32 buckets, heads]) are not, and Adafactor keeps only vectors of a matrix.
    matrices = {
        name: size
        for name, size in sizes.items()
        if size[0] >= 256 and ".v_row" not in name and ".v_col" not in name
    }
    assert len(matrices) >= 10
    assert {name for name, (size, shard) in matrices.items() if shard * 4 != size} == set()
    if make is not adafactor:
        assert sum("mu" in name for name in matrices) >= 10

    # Born so: the program that makes it holds no more on a device than the device's share of the
    # state and a few temporary arrays of a share's size.
    shardings = jax.tree.map(lambda x: x.sharding, abstract.shapes)
    with placed_on(mesh):
        compiled = (
            jax.jit(abstract.create, out_shardings=shardings).lower(jax.random.key(0)).compile()
        )
    share = sum(4 * shard for _, shard in sizes.values())
    assert compiled.memory_analysis().output_size_in_bytes <= 1.2 * share + 1024
    largest = max(size for size, _ in sizes.values())
    for shape in _shapes(compiled.as_text()):
        assert np.prod(shape, dtype=int) < largest, shape


def _shapes(hlo: str):
    for dims in re.findall(r"= f32\[([\d,]+)\]", hlo):
        yield [int(d) for d in dims.split(",")]


def test_adafactor_with_factored_moments_takes_the_same_step_on_a_mesh():
    """Its moments are kept as rows and columns from 128 x 128 up."""
    results = []
    for shape in ((1, 1, 1), (2, 2, 2)):
        mesh = tiny.mesh_of(*shape)
        wide = models.decoder(128, emb_dim=128, num_heads=2, head_dim=8, mlp_dim=128, num_layers=2)
        one = tiny.setup(
            wide, causal_lm(tiny.IDS), {"decoder": 16}, mesh=mesh, optimizer=adafactor()
        )
        abstract = tiny.abstract(one, mesh)
        state = new_state(abstract, 0, mesh)
        names = [jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_leaves_with_path(state)]
        assert any(".v_row" in name for name in names)
        with placed_on(mesh):
            take_step = compiled_step(one, 0, abstract.shapes, mesh)
            rows = tiny.batches(one, mesh)
            for _ in range(2):
                state, _ = take_step(state, next(rows))
        assert take_step._cache_size() == 1, "the second step must not compile again"
        kept = jax.tree.map(
            lambda x, s: x.sharding.is_equivalent_to(s.sharding, x.ndim), state, abstract.shapes
        )
        assert all(jax.tree.leaves(kept))
        results.append(jax.device_get(state))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-5), *results)


def test_the_new_state_takes_the_memory_of_the_old():
    mesh = tiny.mesh_of(2, 2, 2)
    one = setup_of("decoder_mixture", mesh)
    abstract = tiny.abstract(one, mesh)
    state = new_state(abstract, 0, mesh)
    rows = next(tiny.batches(one, mesh, data_shards=16))
    with placed_on(mesh):
        new, _ = compiled_step(one, 0, abstract.shapes, mesh)(state, rows)
    assert all(x.is_deleted() for x in jax.tree.leaves(state))
    assert not any(x.is_deleted() for x in jax.tree.leaves(new))


@pytest.mark.parametrize("name", CASES)
def test_corruption_adds_no_collective_and_the_same_bits_on_a_mesh(name):
    mesh = tiny.mesh_of(2, 2, 2)
    one = setup_of(name, mesh)
    rows = next(tiny.batches(one, mesh, data_shards=16))
    make = functools.partial(make_batches, one.recipe)
    with placed_on(mesh):
        compiled = jax.jit(make, out_shardings=batch_sharding(mesh)).lower(jax.random.key(3), rows)
        text = compiled.compile().as_text()
        spread = jax.jit(make)(jax.random.key(3), rows)
    for collective in ("all-reduce", "all-gather", "all-to-all", "collective-permute", "scatter-r"):
        assert collective not in text
    alone = jax.jit(make)(jax.random.key(3), jax.device_get(rows))
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(spread), jax.device_get(alone))


def test_noise_differs_between_rows_groups_steps_and_seeds():
    mesh = tiny.mesh_of(1)
    one = setup_of("encoder_decoder_ul2_two_groups", mesh)
    rows = next(tiny.batches(one, mesh, data_shards=16))
    same = jax.tree.map(lambda x: jnp.broadcast_to(x[:1], x.shape), rows)
    make = jax.jit(functools.partial(make_batches, one.recipe))
    first, second = make(jax.random.key(0), same)
    again, _ = make(jax.random.key(1), same)
    inputs = np.asarray(first["encoder_input_tokens"])
    assert len(np.unique(inputs, axis=0)) > len(inputs) // 2
    assert (inputs != np.asarray(again["encoder_input_tokens"])).any()
    places = slice(0, min(len(inputs), len(second["encoder_input_tokens"])))
    assert (inputs[places] != np.asarray(second["encoder_input_tokens"])[places]).any()


def test_metrics_are_what_they_say():
    """Loss by member, z-loss and useful share, recomputed row by row with NumPy."""
    name, mesh = "encoder_decoder_ul2_two_groups", tiny.mesh_of(1)
    one = setup_of(name, mesh)
    recipe = one.recipe
    state = new_state(tiny.abstract(one, mesh), 0, mesh)
    rows = next(tiny.batches(one, mesh, data_shards=16))
    new, metrics = steps_of(name, (1, 1, 1), 4)[0]
    key, _ = jax.random.split(jax.random.fold_in(jax.random.key(0), 0))
    forward = jax.jit(
        lambda params, batch: (outputs := recipe.model.apply(params, batch)).head(
            "vocabulary", outputs.hidden["top"]
        )
    )
    sums, weights = np.zeros(7), np.zeros(7)
    squares = useful = slots = 0.0
    for batch in jax.jit(functools.partial(make_batches, recipe))(key, rows):
        logits = np.asarray(forward(state.params, batch), np.float64)
        top = logits.max(-1, keepdims=True)
        log_z = np.log(np.exp(logits - top).sum(-1)) + top[..., 0]
        targets = np.asarray(batch["decoder_target_tokens"])
        losses = log_z - np.take_along_axis(logits, targets[..., None], -1)[..., 0]
        counts = np.asarray(batch["decoder_loss_weights"])
        for i, member in enumerate(np.asarray(batch["member"])):
            sums[member] += losses[i] @ counts[i]
            weights[member] += counts[i].sum()
        squares += (log_z**2 * counts).sum()
        useful += (np.asarray(batch["encoder_segment_ids"]) > 0).sum()
        useful += (np.asarray(batch["decoder_segment_ids"]) > 0).sum()
        slots += batch["encoder_segment_ids"].size + batch["decoder_segment_ids"].size
    np.testing.assert_allclose(metrics["member_terms"]["tokens"][0], sums, rtol=1e-5)
    np.testing.assert_array_equal(metrics["member_terms"]["tokens"][1], weights)
    assert (weights > 0).all()
    np.testing.assert_allclose(metrics["loss/tokens"], sums.sum() / weights.sum(), rtol=1e-5)
    np.testing.assert_allclose(metrics["loss/z"], squares / weights.sum(), rtol=1e-5)
    expected = (sums.sum() + 1e-2 * squares) / weights.sum()
    np.testing.assert_allclose(metrics["loss"], expected, rtol=1e-5)
    np.testing.assert_allclose(metrics["useful"], useful / slots, rtol=1e-6)
    norm = np.sqrt(sum(np.sum(np.square(x, dtype=np.float64)) for x in jax.tree.leaves(new)))
    np.testing.assert_allclose(metrics["parameter_norm"], norm, rtol=1e-5)
    # SGD's update gives the gradient back
    grads = jax.tree.map(lambda a, b: (np.asarray(a) - np.asarray(b)) / 0.5, state.params, new)
    norm = np.sqrt(sum(np.sum(np.square(x, dtype=np.float64)) for x in jax.tree.leaves(grads)))
    np.testing.assert_allclose(metrics["gradient_norm"], norm, rtol=1e-3)
    assert len(members_of(recipe.objective)) == 7


def test_a_missing_head_is_an_error_when_the_run_is_configured():
    objective = objectives.span_corruption(tiny.IDS)._replace(heads=("vocabulary", "pooled"))
    with pytest.raises(ValueError, match="pooled.*the model offers.*choose a model"):
        tiny.setup(tiny.decoder(), objective, {"decoder": 32})


def test_microbatches_that_do_not_divide_the_rows_are_an_error():
    with pytest.raises(ValueError, match="has 16 rows, which 3 microbatches over 2 devices"):
        tiny.setup(
            tiny.decoder(),
            tiny.span_and_prefix(),
            {"decoder": 32},
            mesh=tiny.mesh_of(2),
            microbatches=3,
        )
