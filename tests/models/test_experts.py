"""Sparse layers agree with a plain loop over experts.

Tests cover dropped tokens, padding, losses, meshes and layers that repeat.
"""

import dataclasses
import functools
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax import lax

from pretrax import models
from pretrax.inference.decoding.decoding import decoder_prompts, next_batch
from pretrax.models import experts, grouped_products, grouped_products_tpu
from pretrax.models.config import Config
from pretrax.models.experts import Experts, Routing, load_balance_loss, router_z_loss
from pretrax.models.grouped_products import grouped_product
from pretrax.models.rematerialization import POLICIES
from pretrax.models.unrolled import unrolled
from pretrax.training.devices.mesh import make_mesh, placed_on
from tests.models.small_models import CAUSAL, assert_close, batch_for, init, make_batch, rows_of

RNG = np.random.default_rng(0)
SIZES = dict(emb_dim=16, num_heads=2, head_dim=8, mlp_dim=24, remat_policy="none")
SPARSE = SIZES | dict(num_experts=4)
GROUPS = {
    "uneven": [3, 0, 290, 7],
    "of whole blocks": [128, 256, 0, 128],
    "fewer rows than there are": [5, 0, 0, 1],
    "none": [0, 0, 0, 0],
    "the last": [0, 0, 0, 512],
}


@pytest.fixture(autouse=True)
def undefined_rows_are_nan(monkeypatch):
    """Sets rows after the last group to NaN, since a TPU's kernels may leave them undefined."""
    product = grouped_products._product

    def with_undefined_rows(x_AxI, kernels, sizes_N, transposed=False):
        y_AxO = product(x_AxI, kernels, sizes_N, transposed)
        in_a_group_Ax1 = jnp.arange(len(y_AxO))[:, None] < sizes_N.sum()
        return jnp.where(in_a_group_Ax1, y_AxO, jnp.nan)

    monkeypatch.setattr(grouped_products, "_product", with_undefined_rows)


def loop_over_groups(x, kernels, sizes):
    """Returns each group multiplied separately."""
    y, start = np.full((len(x), kernels.shape[2]), np.nan, np.float32), 0
    for size, kernel in zip(sizes, kernels):
        y[start : start + size] = x[start : start + size] @ kernel
        start += size
    return y


@pytest.mark.parametrize("name", GROUPS)
def test_grouped_product_matches_loop_over_groups(name):
    sizes = np.array(GROUPS[name], np.int32)
    x = RNG.normal(size=(512, 6)).astype(np.float32)
    kernels = RNG.normal(size=(4, 6, 5)).astype(np.float32)
    d_y = RNG.normal(size=(512, 5)).astype(np.float32)

    @jax.jit
    def value_and_gradients(x, kernels, d_y, sizes):
        y, pull_back = jax.vjp(lambda x, k: grouped_product(x, k, sizes), x, kernels)
        return y, *pull_back(d_y)

    y, d_x, d_kernels = value_and_gradients(x, kernels, d_y, sizes)
    assert_close(y, loop_over_groups(x, kernels, sizes))
    assert_close(d_x, loop_over_groups(d_y, kernels.swapaxes(1, 2), sizes))
    ends = np.cumsum(sizes)
    for group, (size, end) in enumerate(zip(sizes, ends)):
        rows = slice(end - size, end)
        assert_close(d_kernels[group], x[rows].T @ d_y[rows], atol=1e-4)


class Products(NamedTuple):
    products: list[jax.Array]
    outers: list[jax.Array]


@jax.jit
def all_products(x, y, kernels, sizes):
    """Returns the products of the interpreted kernels, and of blocks of both sizes."""
    product, outer = grouped_products_tpu.product, grouped_products_tpu.outer
    by_kernels = Products(
        [product(256, x, kernels, sizes, False), product(256, x, kernels.mT, sizes, True)],
        [outer(256, x, y, sizes, jnp.float32)],
    )
    by_blocks = Products(
        [grouped_products._product_by_blocks(block, x, kernels, sizes) for block in (128, 512)],
        [grouped_products._outer_by_blocks(block, x, y, sizes) for block in (128, 512)],
    )
    return by_kernels, by_blocks


@pytest.mark.sampled
@pytest.mark.parametrize("rows", [512, 1300])
@pytest.mark.parametrize("name", GROUPS)
def test_tpu_kernels_match_products_by_blocks(name, rows, monkeypatch):
    """The interpreted TPU kernels agree with the products by blocks, which run on CPUs and GPUs."""
    for kernel in ("gmm", "tgmm"):
        call = functools.partial(getattr(grouped_products_tpu, kernel), interpret=True)
        monkeypatch.setattr(grouped_products_tpu, kernel, call)
    for name_of_sizes in ("SIZES", "SIZES_OF_OUTER"):
        monkeypatch.setattr(grouped_products_tpu, name_of_sizes, (128, 128))
    sizes = jnp.array(GROUPS[name], jnp.int32)
    x, y = (jnp.asarray(RNG.normal(size=(rows, n)), jnp.float32) for n in (130, 260))
    kernels = jnp.asarray(RNG.normal(size=(4, 130, 260)), jnp.float32)
    inside = (np.arange(rows) < sum(GROUPS[name]))[:, None]
    by_kernels, by_blocks = all_products(x, y, kernels, sizes)
    for product in (*by_kernels.products, *by_blocks.products):
        assert_close(*(np.where(inside, x, 0) for x in (product, by_blocks.products[0])),
                     atol=1e-4)  # fmt: skip
    for outer in by_blocks.outers:
        assert_close(by_kernels.outers[0], outer, atol=1e-3)


@pytest.mark.parametrize("platform", ["tpu", "cuda", "cpu"])
def test_grouped_products_use_kernels_only_on_tpus(platform, monkeypatch):
    monkeypatch.setattr(grouped_products, "platform", lambda: platform)
    shapes = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((512, 128), (4, 128, 256))]
    gradient = jax.grad(lambda x, k, sizes: grouped_product(x, k, sizes).sum(), (0, 1))
    traced = jax.jit(gradient).trace(*shapes, jax.ShapeDtypeStruct((4,), jnp.int32))
    program = traced.lower(lowering_platforms=(platform,)).as_text()
    # two kernels in the gradient
    assert program.count("tpu_custom_call") == (2 if platform == "tpu" else 0)
    assert "ragged_dot" not in program


def experts_and_params(**changes):
    c = Config(64, 0, 1, (), **(SPARSE | changes))
    shapes = jax.eval_shape(lambda: Experts(c).init(jax.random.key(0), jnp.zeros((1, 1, 16))))
    draw = lambda x: jnp.asarray(RNG.normal(size=x.shape), jnp.float32)  # noqa: E731
    return Experts(c), jax.tree.map(draw, nn.unbox(shapes["params"]))


def loop_over_experts(config, params, x):
    """Runs every expert on every token. Experts that were not chosen have a weight of 0."""
    probabilities = jax.nn.softmax(x @ params["router"])
    top = lax.top_k(probabilities, config.experts_per_token)[0][..., -1:]
    weights = jnp.where(probabilities >= top, probabilities, 0)
    if config.normalize_expert_weights:
        weights /= weights.sum(-1, keepdims=True)
    wi_0, wi_1, wo = (params[name] for name in ("wi_0", "wi_1", "wo"))
    y = 0
    for n in range(config.num_experts):
        inner = jax.nn.gelu(x @ wi_0[n]) * (x @ wi_1[n])
        y += weights[..., n : n + 1] * (inner @ wo[n])
    return y


@pytest.mark.slow
@pytest.mark.parametrize("normalized", [True, False])
def test_experts_match_loop_over_experts(normalized):
    module, params = experts_and_params(normalize_expert_weights=normalized)
    # otherwise gradients are in the hundreds, and so are the arguments of sines
    params = jax.tree.map(lambda x: x / 2, params)
    x = jnp.asarray(RNG.normal(size=(3, 50, 16)), jnp.float32)

    def value_and_gradients(apply):
        return jax.value_and_grad(lambda p, x: jnp.sin(apply(p, x)).sum(), (0, 1))

    got = jax.jit(value_and_gradients(lambda p, x: module.apply({"params": p}, x)))(params, x)
    expected = jax.jit(value_and_gradients(lambda p, x: loop_over_experts(module.config, p, x)))(
        params, x
    )
    assert_close(got, expected, atol=2e-3)
    assert max(float(jnp.abs(g).max()) for g in jax.tree.leaves(got)) > 1


def test_router_logits_use_highest_precision():
    """With less than the highest precision, a TPU multiplies in bfloat16 and a GPU in TF32."""
    module, params = experts_and_params(dtype="bfloat16")
    x = jnp.zeros((2, 8, 16), jnp.bfloat16)
    lowered = jax.jit(lambda p, x: module.apply({"params": p}, x)).lower(params, x).as_text()
    (product,) = (s for s in lowered.splitlines() if "dot_general" in s and "<16x4xf32>" in s)
    assert product.count("HIGHEST") == 2


@pytest.mark.slow
def test_tokens_above_expert_capacity_are_dropped():
    module, params = experts_and_params(experts_per_token=1, expert_capacity=3)
    whole = Experts(dataclasses.replace(module.config, expert_capacity=None))
    x = jnp.asarray(RNG.normal(size=(2, 20, 16)), jnp.float32)
    segments = np.repeat([[1], [1]], 20, 1)
    segments[1, 8:] = 2  # two documents, and padding
    segments[1, 17:] = 0
    chosen = np.asarray(x @ params["router"]).argmax(-1)
    kept = [
        [
            list(row[:i][segments_of_row[:i] == segments_of_row[i]]).count(n) < 3
            for i, n in enumerate(row)
        ]
        for row, segments_of_row in zip(chosen, segments)
    ]
    got, unlimited = (
        np.asarray(jax.jit(m.apply)({"params": params}, x, segments)) for m in (module, whole)
    )
    assert 0 < np.mean(kept) < 1 and np.abs(unlimited[segments > 0]).max(-1).min() > 0
    assert_close(got, unlimited * np.array(kept)[..., None])


@pytest.mark.slow
def test_extending_by_several_tokens_equals_one_by_one():
    """The capacity drops tokens of the prompt, but none of the tokens that continue it."""
    model = models.decoder(32, num_layers=2, scan_layers=False, expert_capacity=1, **SPARSE)
    prompts = decoder_prompts([[3, 4, 5], [6, 7, 8]])
    params = init(model, prompts.batch)
    tokens = jnp.array([[9, 10, 11, 12], [13, 14, 15, 16]])

    @jax.jit
    def extend(cache, batch):
        outputs, cache = model.extend(params, cache, batch)
        return outputs.hidden["top"], cache

    def states(size):
        _, cache = model.prefill(params, prompts.batch, 7)
        found = []
        for first in range(0, 4, size):
            slots = jnp.broadcast_to(3 + first + jnp.arange(size), (2, size))
            batch = next_batch(prompts, tokens[:, first : first + size], slots)
            hidden, cache = extend(cache, batch)
            found.append(hidden)
        return jnp.concatenate(found, 1)

    assert_close(states(4), states(1))


@pytest.mark.slow
@pytest.mark.parametrize("padding", [0, 1])
def test_expert_capacity_counts_noised_copies_separately(padding):
    """A change of the last clean token must not change the copies, which do not attend to it."""
    slots = np.arange(8)
    segments = (slots < 8 - padding).astype(np.int32)
    batch = {
        "decoder_input_tokens": 20 + slots,
        "decoder_segment_ids": segments,
        "decoder_positions": slots,
        "decoder_key_intervals": CAUSAL,
        "noised_input_tokens": 5 + 0 * slots,
        "noised_segment_ids": segments,
        "noised_positions": slots,
        "noised_key_intervals": np.stack([slots, slots + 1]),
        "noised_clean_intervals": np.stack([0 * slots, np.minimum(slots, 4)]),
    }
    batch = rows_of(batch)
    model = models.decoder(
        64, num_layers=2, **SPARSE | dict(num_experts=2), experts_per_token=1, expert_capacity=2
    )
    params = init(model, batch)
    states = jax.jit(lambda batch: model.apply(params, batch).hidden)
    before = states(batch)
    for changed in range(30, 64, 6):
        batch["decoder_input_tokens"][0, 4:7] = changed
        after = states(batch)
        assert np.abs(after["top"] - before["top"])[0, 4:7].max() > 1e-3
        assert_close(after["noised"], before["noised"])


@pytest.mark.slow
def test_no_token_is_dropped_if_all_choose_one_expert():
    module, params = experts_and_params(experts_per_token=1)
    params["router"] = jnp.zeros((16, 4)).at[:, 2].set(1.0)
    x = jnp.abs(jnp.asarray(RNG.normal(size=(2, 150, 16)), jnp.float32))
    y, found = jax.jit(lambda p, x: module.apply({"params": p}, x, mutable=["routing"]))(params, x)
    assert_close(y, loop_over_experts(module.config, params, x), atol=1e-3)
    (routing,) = found["routing"]["statistics"]
    np.testing.assert_array_equal(routing.assigned_BxN, [[0, 0, 150, 0]] * 2)


ASSIGNMENTS = {
    "equal shares": lambda rows: np.arange(2 * rows).reshape(-1, 2) % 4,
    "all by two experts": lambda rows: np.broadcast_to([1, 0], (rows, 2)),
    "at random, some of padding": lambda rows: RNG.integers(0, 5, (rows, 2)),
    "all of padding": lambda rows: np.full((rows, 2), 4),
}


MESHES = {
    "four parts, two groups": (8, dict(data=2, expert=4)),
    "two parts, all axes": (8, dict(expert=2, context=2, tensor=2)),
    "the same rows for all": (3, dict(expert=4, fsdp=2)),
}


@functools.cache
def contributions_and_gradients(mesh):
    """Returns the program for a mesh, or for one device if the mesh is None."""

    def compute(arrays, expert, kept):
        x, weight, *kernels = arrays
        contributions = functools.partial(experts._contributions, ("gelu", "linear"))
        return experts._on_every_device(contributions, x, weight, expert, kept, *kernels)

    def value_and_gradients(arrays, expert, kept):
        loss = lambda arrays: jnp.sin(compute(arrays, expert, kept)).sum()  # noqa: E731
        return compute(arrays, expert, kept), jax.grad(loss)(arrays)

    return jax.jit(value_and_gradients)


@pytest.mark.sampled
@pytest.mark.parametrize("name", ASSIGNMENTS)
@pytest.mark.parametrize("mesh", MESHES)
def test_experts_on_a_mesh_match_one_device(name, mesh, monkeypatch):
    """Most cases need several turns, since a device sends fewer rows per turn than it has."""
    monkeypatch.setattr(experts, "BLOCK_OF_A_TPU", 1)
    monkeypatch.setattr(experts, "SLACK", 0.65)
    (rows, axes), slots = MESHES[mesh], 6
    x, weight = (RNG.normal(size=(rows, slots, n)).astype(np.float32) for n in (16, 2))
    expert = jnp.asarray(ASSIGNMENTS[name](rows * slots).reshape(rows, slots, 2), jnp.int32)
    kept = jnp.asarray(RNG.integers(0, 2, (rows, slots, 24)), jnp.float32)
    shapes = (4, 16, 24), (4, 16, 24), (4, 24, 16)
    kernels = [(RNG.normal(size=shape) / 4).astype(np.float32) for shape in shapes]
    arguments = [x, weight, *kernels], expert, kept
    expected = contributions_and_gradients(None)(*arguments)
    with placed_on(make_mesh(**(dict(data=1) | axes))):
        got = contributions_and_gradients(mesh)(*arguments)
    jax.tree.map(lambda got, expected: assert_close(got, expected, atol=1e-3), got, expected)
    assert bool(jnp.abs(got[0]).max() > 1) == (name != "all of padding")


def rematerialized_loss(module):
    """Returns (parameters, inputs) -> a loss whose backward pass recomputes parts of the layer."""

    @functools.partial(jax.checkpoint, policy=POLICIES["minimal"])
    def layer(params, x):
        return module.apply({"params": params}, x)

    return lambda params, x: jnp.sin(layer(params, x)).sum()


@pytest.mark.slow
def test_additional_exchange_turns_match_one_device(monkeypatch):
    """Most tokens choose the experts of the first of two devices.

    The estimate of a step's time finds the loop by its name.
    """
    monkeypatch.setattr(experts, "BLOCK_OF_A_TPU", 1)
    module, params = experts_and_params(experts_per_token=1, normalize_expert_weights=False)
    params = jax.tree.map(lambda x: x / 4, params)
    params["router"] = params["router"].at[:, 0].add(3.0)
    x = jnp.asarray(RNG.uniform(size=(4, 10, 16)), jnp.float32)
    # a turn has room for a share of 0.625
    assert (np.asarray(x @ params["router"]).argmax(-1) < 2).mean() > 0.9

    gradients = jax.value_and_grad(rematerialized_loss(module), (0, 1))
    expected = jax.jit(gradients)(params, x)
    with placed_on(make_mesh(data=1, fsdp=2, expert=2, tensor=2)):
        compiled = jax.jit(gradients).lower(params, x).compile()
        got = compiled(params, x)
    assert_close(got, expected, atol=1e-3)
    # The first turn and the further turns each sort the tokens that are sent and received.
    assert len(re.findall(r" sort\(", compiled.as_text())) == 8
    loops = re.findall(rf' while\(.*"([^"]*/{experts.UNBALANCED}/while)"', compiled.as_text())
    assert {"transpose(" in loop for loop in loops} == {True, False}


def test_all_devices_take_same_number_of_exchange_turns(monkeypatch):
    """This includes devices of other groups, for which exchanges on a TPU may wait."""
    monkeypatch.setattr(experts, "BLOCK_OF_A_TPU", 1)
    module, params = experts_and_params()
    mesh = make_mesh(data=2, expert=4)
    with placed_on(mesh):
        layer = lambda x: module.apply({"params": params}, x)  # noqa: E731
        program = str(jax.make_jaxpr(layer)(jnp.ones((8, 10, 16))))
    (axes,) = re.findall(r"pmax\[\s*axes=\((.*?)\)", program)
    assert set(re.findall(r"\w+", axes)) == set(mesh.axis_names)


@pytest.mark.slow
def test_backward_does_not_repeat_all_to_all(monkeypatch):
    monkeypatch.setattr(experts, "BLOCK_OF_A_TPU", 1)
    module, params = experts_and_params()
    gradients = jax.grad(rematerialized_loss(module), (0, 1))
    with placed_on(make_mesh(data=1, fsdp=4, expert=2)):
        program = str(jax.make_jaxpr(gradients)(params, jnp.zeros((8, 10, 16))))
    # Inputs, weights and outputs, forward and backward; the numbers of tokens; and for the further
    # turns, which recompute everything, inputs, weights and outputs forward twice.
    assert program.count("all_to_all[") == 2 * 3 + 1 + 3 * 3
    assert program.count("pmax[") == 1


@pytest.mark.slow
def test_backward_does_not_repeat_sort():
    module, params = experts_and_params()
    gradients = jax.jit(jax.grad(rematerialized_loss(module), (0, 1)))
    compiled = gradients.lower(params, jnp.zeros((2, 10, 16))).compile()
    assert len(re.findall(r" sort\(", compiled.as_text())) == 2  # to the experts and back


def test_devices_send_125_percent_of_fair_share_per_turn():
    assert experts._rows_for_each(8192, 8) * 8 == 10240
    assert experts._rows_for_each(8192, 3) == 3584
    assert experts._rows_for_each(300, 2) == 256
    assert experts._rows_for_each(30, 2) == 30


@pytest.mark.slow
def test_top_1_router_gets_gradient_only_without_normalized_weights():
    x = jnp.asarray(RNG.normal(size=(2, 8, 16)), jnp.float32)
    for normalized in (True, False):
        module, params = experts_and_params(
            experts_per_token=1, normalize_expert_weights=normalized
        )
        loss = lambda p: jnp.mean(module.apply({"params": p}, x) ** 2)  # noqa: B023, E731
        router = jax.jit(jax.grad(loss))(params)["router"]
        assert (np.abs(router).max() < 1e-2) == normalized


def test_padding_is_neither_processed_nor_counted():
    module, params = experts_and_params()
    x = jnp.asarray(RNG.normal(size=(2, 8, 16)), jnp.float32)
    segments = jnp.array([[1, 1, 2, 2, 2, 0, 0, 0], [1] * 8])
    apply = jax.jit(lambda *args: module.apply({"params": params}, *args, mutable=["routing"]))
    y, found = apply(x, segments)
    (routing,) = found["routing"]["statistics"]
    assert not np.any(y[0, 5:])
    assert np.all(np.abs(y[0, :5]).sum(-1) > 0)
    np.testing.assert_array_equal(routing.tokens_B, [5, 8])
    np.testing.assert_array_equal(routing.assigned_BxN.sum(1), [10, 16])
    # The contents of padding do not change anything.
    other, other_found = apply(x.at[0, 5:].set(7.0), segments)
    np.testing.assert_array_equal(y, other)
    jax.tree.map(np.testing.assert_array_equal, found, other_found)


@pytest.mark.slow
@pytest.mark.parametrize("shared", [True, False])
def test_dropout_within_experts_matches_mlp(shared):
    """Every expert copies its input here, so the output shows the dropout factors."""
    settings = dict(mlp_activations=("linear",), mlp_dim=16, dropout_rate=0.5)
    module, params = experts_and_params(**settings, dropout_shared=shared)
    params |= dict.fromkeys(("wi_0", "wo"), jnp.broadcast_to(jnp.eye(16), (4, 16, 16)))
    x, rngs = jnp.ones((2, 8, 16)), {"dropout": jax.random.key(0)}
    apply = jax.jit(lambda p, x, rngs: module.apply({"params": p}, x, rngs=rngs))
    y = apply(params, x, rngs)
    assert_close(jnp.unique(y.round(5)), jnp.array([0.0, 2.0]))
    assert bool((y == y[:, :1]).all()) == shared and not bool((y == y[:, :, :1]).all())
    for axes in ({"tensor": 2}, {"context": 2}):
        with placed_on(make_mesh(data=1, expert=2, fsdp=2, **axes)):
            assert_close(apply(params, x, rngs), y)
    assert_close(apply(params, x, None), x)


def test_load_balance_and_z_loss_by_hand():
    """The rows belong to one layer with two experts. Three of four tokens chose the first."""
    routing = Routing(
        jnp.array([[[2.0, 0.0], [1.0, 1.0]]]),
        jnp.array([[[1.5, 0.5], [1.1, 0.9]]]),
        jnp.array([[3.0, 5.0]]),
        jnp.array([[2.0, 2.0]]),
    )
    # 2 · (3/4 · 2.6/4 + 1/4 · 1.4/4)
    assert float(load_balance_loss(routing)) == pytest.approx(2 * (0.75 * 0.65 + 0.25 * 0.35))
    assert float(router_z_loss(routing)) == pytest.approx(2.0)


@pytest.mark.slow
@pytest.mark.parametrize("sparse_every", [1, 2])
def test_scanned_sparse_layers_equal_unrolled(sparse_every):
    layers = 2 * sparse_every
    settings = SPARSE | dict(num_layers=layers, sparse_every=sparse_every)
    model, batch = models.decoder(64, **settings), batch_for("decoder")
    params = init(model, batch)
    got = jax.jit(lambda p, b: _arrays(model, p, b))(params, batch)
    plain, unrolled_params = unrolled(model, params)
    expected = jax.jit(lambda p, b: _arrays(plain, p, b))(unrolled_params, batch)
    assert_close(got[0], expected[0])
    assert got[1].tokens_B.shape == (2, 1)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), got[1], expected[1])
    names = sorted(
        name for name in unrolled_params["decoder"] if "experts" in unrolled_params["decoder"][name]
    )
    assert names == [f"layers_{i}" for i in range(sparse_every - 1, layers, sparse_every)]


def _arrays(model, params, batch):
    outputs = model.apply(params, batch)
    return outputs.hidden, outputs.routing


@pytest.mark.slow
def test_rematerialization_keeps_sparse_layer_values():
    settings, batch = dict(num_layers=2), batch_for("decoder")

    def result_of(policy):
        model = models.decoder(64, **(SPARSE | settings | {"remat_policy": policy}))

        def loss(params):
            outputs = model.apply(params, batch)
            return jnp.sin(outputs.hidden["top"]).sum() + load_balance_loss(outputs.routing)

        return jax.jit(jax.value_and_grad(loss))(init(model, batch))

    without = result_of("none")
    for policy in ("minimal", "full"):
        assert_close(result_of(policy), without, atol=1e-4)


@pytest.mark.slow
def test_sparse_layers_decode_like_full_pass():
    model = models.decoder(64, **(SPARSE | dict(num_layers=2, scan_layers=False)))
    batch = make_batch()
    params = init(model, batch)
    whole = jax.jit(lambda p, b: model.apply(p, b).hidden["top"])(params, batch)
    first = {name: x[..., :5] for name, x in batch.items()}
    _, cache = jax.jit(lambda p, b: _hidden_and(model.prefill(p, b, 8)))(params, first)
    extend = jax.jit(lambda p, c, b: _hidden_and(model.extend(p, c, b)))
    for slot in range(5, 8):
        step = {name: x[..., slot : slot + 1] for name, x in batch.items()}
        step["decoder_cache_slots"] = np.array([[slot]], np.int32)
        hidden, cache = extend(params, cache, step)
        assert_close(hidden["top"][:, 0], whole[:, slot], atol=1e-4)


def _hidden_and(pair):
    outputs, cache = pair
    return outputs.hidden, cache


def test_flops_count_only_active_experts():
    lengths = {"decoder": 10, "predict": 0}
    dense = models.decoder(64, **(SIZES | dict(num_layers=2)))
    sparse = models.decoder(64, **(SPARSE | dict(num_layers=2, experts_per_token=1)))
    router = 2 * 2 * 10 * 16 * 4  # layers, multiply and add, tokens, width, experts
    assert sparse.flops(lengths) == dense.flops(lengths) + router
    half = models.decoder(64, **(SPARSE | dict(num_layers=2, sparse_every=2)))
    second_expert = 2 * 10 * 16 * 24 * 3
    assert half.flops(lengths) == dense.flops(lengths) + router // 2 + second_expert
