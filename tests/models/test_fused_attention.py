"""The kernels of fused attention, interpreted on this CPU, against plain attention."""

import functools

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.experimental import pallas

from pretrax.models import attention, linear, token_embeddings
from pretrax.models.attention_mechanisms import MECHANISMS
from pretrax.models.config import Config
from pretrax.models.kernels import fused_attention, fused_attention_gpu, fused_attention_tpu
from pretrax.models.linear import project
from pretrax.models.positions import bias_at, rotate, rotate_slots_last, rotation_of
from pretrax.models.rematerialization import POLICIES
from pretrax.objectives.laws import quick_jit
from pretrax.training.devices.mesh import make_mesh, placed_on
from tests.models.small_models import (
    THREE,
    assert_close,
    batch_for,
    build,
    init,
    loss_and_gradients,
    make_batch,
    top,
)
from tests.refusals import refuses

T = 300  # three blocks of a TPU's kernels and five of a GPU's, of which the last is padded
D = 16
TPU, GPU = fused_attention_tpu, fused_attention_gpu
on_both_platforms = pytest.mark.parametrize(
    "kernels", [TPU, GPU], ids=["tpu", "gpu"], indirect=True
)


@pytest.fixture
def kernels(request, monkeypatch):
    """Makes fused attention run the kernels of a platform in Pallas's interpreter."""
    platform_kernels = getattr(request, "param", TPU)
    call = functools.partial(pallas.pallas_call, interpret=True)
    monkeypatch.setattr(platform_kernels.pl, "pallas_call", call)
    monkeypatch.setattr(
        fused_attention, "by_platform", functools.partial(getattr, platform_kernels)
    )
    return platform_kernels


def patterns(keys):
    """Key intervals of T queries, i32[rows, 2, T], one row for each attention pattern."""
    slot, all_keys = np.arange(T), np.full(T, keys)
    last = np.minimum(slot + 1, keys)
    first_document = slot < 130
    rows = {
        "causal": (0 * slot, last),
        "bidirectional": (0 * slot, all_keys),
        "prefix of 150": (0 * slot, np.maximum(last, 150)),
        "documents": (np.where(first_document, 0, 130), np.where(first_document, 130, keys)),
        "window of 20": (np.clip(slot - 20, 0, keys - 1), np.minimum(slot + 21, keys)),
        "causal, then padding": (
            np.where(slot < 200, 0, np.minimum(slot, keys - 1)),
            np.where(slot < 200, last, np.minimum(slot, keys - 1) + 1),
        ),
        "nothing from 140 on": (np.minimum(slot, 140), np.minimum(last, 140)),
    }
    return list(rows), np.array(list(rows.values()), np.int32)


def arrays(rows, queries, keys, heads, groups, biased, dtype=jnp.float32):
    rng = np.random.default_rng(0)
    q, d_out = rng.normal(size=(2, rows, queries, heads, D)).astype(dtype)
    k, v = rng.normal(size=(2, rows, keys, groups, D)).astype(dtype)
    bias = rng.normal(size=(heads, 257)).astype(np.float32) if biased else None
    return (q, k, v, bias), d_out


def plain(q, k, v, intervals, bias, softcap=None):
    if bias is not None:
        bias = bias_at(bias, jnp.arange(q.shape[1])[None], k.shape[1])[0]
    return attention.attend(q, k, v, intervals, bias, softcap)


def output_and_gradients(attend, softcap, arrays, intervals, d_out):
    """Returns the output, and the gradients of queries, keys, values and bias."""
    call = lambda q, k, v, bias: attend(q, k, v, intervals, bias, softcap)[0]  # noqa: E731
    out, pull_back = jax.vjp(call, *arrays)
    return out, pull_back(d_out)


@functools.cache
def compiled(attend, softcap=None, kernels=None):
    """Returns the compiled program of attention.

    `kernels` is the platform of the kernels, which the fixture has chosen, or None.
    """
    return jax.jit(functools.partial(output_and_gradients, attend, softcap))


SETTINGS = {  # platform, keys, heads, key heads, biased, softcap, the longest block
    "TPU, T5's bias, blocks of two tiles": (TPU, T, 2, 2, True, None, 256),
    "TPU, bias, grouped heads, softcap": (TPU, T, 2, 1, True, 1.5, 128),
    "TPU, bias, all gradients at once": (TPU, 170, 2, 2, True, None, 256),
    "TPU, cross-attention, fewer keys": (TPU, 170, 4, 2, False, None, 128),
    "GPU, T5's bias, softcap": (GPU, T, 2, 2, True, 1.5, 64),
    "GPU, grouped cross-attention, fewer keys": (GPU, 170, 4, 2, False, None, 64),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ["kernels", "keys", "heads", "groups", "biased", "softcap", "block"],
    SETTINGS.values(),
    ids=SETTINGS,
    indirect=["kernels"],
)
def test_fused_attention_matches_plain_attention(
    kernels, keys, heads, groups, biased, softcap, block, monkeypatch
):
    monkeypatch.setattr(kernels, "BLOCK", block)
    names, intervals = patterns(keys)
    given, d_out = arrays(len(names), T, keys, heads, groups, biased)
    empty = (intervals[:, 0] >= intervals[:, 1])[..., None, None]
    program = compiled(fused_attention.attend, softcap, (kernels, block))
    fused = lambda d_out: jax.device_get(program(given, intervals, d_out))  # noqa: E731

    d_nonempty = np.where(empty, 0, d_out)
    out, gradients = fused(d_nonempty)
    expected, expected_gradients = compiled(plain, softcap)(given, intervals, d_nonempty)
    for row, pattern in enumerate(names):
        expected_row = np.where(empty[row], 0, expected[row])
        np.testing.assert_allclose(out[row], expected_row, atol=1e-5, err_msg=pattern)
        for gradient, expected_gradient in zip(gradients[:3], expected_gradients[:3]):
            np.testing.assert_allclose(
                gradient[row], expected_gradient[row], atol=1e-4, err_msg=pattern
            )
    if biased:
        np.testing.assert_allclose(gradients[3], expected_gradients[3], atol=1e-3)

    # The second document's outputs do not depend on the first document.
    row = names.index("documents")
    d_second = np.zeros_like(d_out)
    d_second[row, 130:] = d_out[row, 130:]
    _, (_, d_k, d_v, _) = fused(d_second)
    for gradient in (d_k, d_v):
        assert not gradient[:, :130].any() and gradient[row, 130:].any()

    # The output of a query that attends to no keys is zero.
    assert empty.any()
    _, gradients = fused(np.where(empty, d_out, 0))
    assert not any(x.any() for x in jax.tree.leaves(gradients))


@pytest.mark.slow
@on_both_platforms
def test_lse_gradient_matches_plain_attention(kernels):
    """The gradient is needed to merge the outputs over two sets of keys."""
    names, intervals = patterns(T)
    given, d_out = arrays(len(names), T, T, 2, 1, True)
    rng = np.random.default_rng(2)
    d_lse = rng.normal(size=(len(names), 2, T)).astype(np.float32)
    empty = intervals[:, 0] >= intervals[:, 1]
    d_lse[np.broadcast_to(empty[:, None], d_lse.shape)] = 0

    def by_slots(q, k, v, intervals, bias):
        bias = bias_at(bias, jnp.arange(T)[None], T)[0]
        return attention.attend(q, k, v, intervals, bias)

    def lse_and_gradients(attend):
        def call(q, k, v, bias):
            return attend(q, k, v, intervals, bias)

        (_, lse), pull_back = jax.vjp(call, *given)
        return lse, pull_back((np.where(empty[..., None, None], 0, d_out), d_lse))

    lse, got = jax.jit(lambda: lse_and_gradients(fused_attention.attend))()
    expected_sum, expected = jax.jit(lambda: lse_and_gradients(by_slots))()
    has_keys = ~np.broadcast_to(empty[:, None], lse.shape)
    np.testing.assert_allclose(lse[has_keys], expected_sum[has_keys], atol=1e-5)
    assert (lse[~has_keys] < -1e10).all()
    for gradient, expected_gradient in zip(got, expected):
        np.testing.assert_allclose(gradient, expected_gradient, atol=1e-3)


def on_the_mesh(given, intervals, d_out, kernels=None, **axes):
    with placed_on(make_mesh(**(axes or {"data": 2, "fsdp": 2, "tensor": 2}))):
        return compiled(fused_attention.attend, kernels=kernels)(given, intervals, d_out)


@pytest.mark.slow
@on_both_platforms
def test_sharded_attention_equals_unsharded(kernels):
    given, d_out = arrays(4, 50, 50, 4, 2, True)
    intervals = patterns(50)[1][:4, :, :50]
    whole = compiled(fused_attention.attend, kernels=kernels)(given, intervals, d_out)
    sharded = on_the_mesh(given, intervals, d_out, kernels)
    assert sharded[0].sharding.spec == jax.P(("data", "fsdp"), None, "tensor")
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), sharded, whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    "rows, key_heads",
    [(1, 2), (2, 2), (4, 1)],
    ids=["rows of no axis", "rows of one axis of two", "a key head of two devices"],
)
def test_indivisible_rows_and_key_heads_are_replicated(kernels, rows, key_heads):
    given, d_out = arrays(rows, 50, 50, 4, key_heads, True)
    intervals = patterns(50)[1][:rows, :, :50]
    _, gradients = on_the_mesh(given, intervals, d_out, kernels)
    _, expected = compiled(plain)(given, intervals, d_out)
    assert gradients[1].shape == given[1].shape
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-4), gradients, expected)


@pytest.mark.slow
@on_both_platforms
@pytest.mark.parametrize("keys", [512, 170], ids=["512 keys", "keys that it does not divide"])
def test_context_parallel_queries_attend_to_all_keys(kernels, keys):
    """T5's bias is by slot in the row, and documents span several shards."""
    given, d_out = arrays(2, 512, keys, 2, 1, keys == 512)
    slot = np.arange(512)
    begins = np.where(slot < 300, 0, 300) if keys == 512 else 0 * slot
    ends = np.minimum(slot + 1, keys)
    intervals = np.array([[begins, ends], [0 * slot, 0 * slot + keys]], np.int32)
    mesh = {"data": 1, "fsdp": 2, "context": 4}
    out, gradients = on_the_mesh(given, intervals, d_out, kernels, **mesh)
    assert out.sharding.spec == jax.P("fsdp", "context")
    expected, expected_gradients = compiled(plain)(given, intervals, d_out)
    np.testing.assert_allclose(out, expected, atol=1e-5)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, atol=1e-3), gradients, expected_gradients
    )


@pytest.mark.parametrize("slots", [64, 60], ids=["halves of 8", "shards of an odd number of slots"])
def test_context_parallel_devices_share_causal_work_evenly(slots, monkeypatch):
    """Later causal queries attend to more keys, so devices exchange halves of their queries.

    Shards that cannot be halved are computed without an exchange.
    """
    given, _ = arrays(2, slots, slots, 2, 1, False)
    slot = np.arange(slots)
    intervals = np.tile(np.array([0 * slot, slot + 1], np.int32), (2, 1, 1))
    pairs, forward = np.zeros(4, int), attention.forward

    def counted(softcap, q, k, v, intervals, bias):
        count = lambda device, keys: np.add.at(pairs, device, keys)  # noqa: E731
        num_keys = (intervals[:, 1] - intervals[:, 0]).sum()
        jax.debug.callback(count, jax.lax.axis_index("context"), num_keys)
        return forward(softcap, q, k, v, intervals, bias)

    monkeypatch.setattr(attention, "forward", counted)
    with placed_on(make_mesh(data=2, context=4)):
        jax.jit(fused_attention.attend)(*given[:3], intervals)
    jax.effects_barrier()
    assert pairs.sum() == 2 * slots * (slots + 1) // 2
    if slots == 64:
        assert (pairs == pairs.mean()).all()
    else:
        assert pairs[3] > 1.7 * pairs.mean()


def test_heads_not_divisible_by_mesh_raise():
    given, d_out = arrays(4, 50, 50, 3, 3, False)
    with refuses(ValueError, "3", "2"):
        on_the_mesh(given, patterns(50)[1][:4, :, :50], d_out)


@on_both_platforms
def test_memory_is_linear_in_length(kernels):
    length = 2048
    shapes, d_out = jax.eval_shape(lambda: arrays(1, length, length, 1, 1, True))
    intervals = jax.ShapeDtypeStruct((1, 2, length), jnp.int32)
    call = functools.partial(output_and_gradients, fused_attention.attend, None)
    traced = jax.make_jaxpr(call)(shapes, intervals, d_out)
    equations = _equations(traced.jaxpr, in_kernels=False)
    largest = max(x.aval.size for equation in equations for x in equation.outvars)
    assert length * D <= largest < length * length / 10


@pytest.mark.parametrize("kernels", [GPU], ids=["gpu"], indirect=True)
def test_kernels_do_not_select_between_python_scalars(kernels):
    """Pallas's lowering to Triton gives Python numbers the type of the condition, which is bool.

    `jnp.where(x < 0, 0, 256)` is therefore 0 on a GPU, but not in the interpreter.
    """
    given, d_out = arrays(1, 40, 40, 1, 1, True)
    intervals = patterns(40)[1][:1, :, :40]
    call = functools.partial(output_and_gradients, fused_attention.attend, 1.5)
    equations = list(_equations(jax.make_jaxpr(call)(given, intervals, d_out).jaxpr))
    chosen = [
        x
        for equation in equations
        if equation.primitive.name == "select_n"
        for x in equation.invars[1:]
    ]
    assert chosen and not any(x.aval.weak_type for x in chosen)


def _equations(jaxpr, in_kernels=True):
    for equation in jaxpr.eqns:
        yield equation
        if in_kernels or equation.primitive.name != "pallas_call":
            for inner in jax.extend.core.jaxprs_in_params(equation.params):
                yield from _equations(inner, in_kernels)


@on_both_platforms
def test_all_matmuls_accumulate_in_float32(kernels):
    (q, k, v, bias), d_out = arrays(1, 40, 40, 1, 1, True, jnp.bfloat16)
    intervals = patterns(40)[1][:1, :, :40]
    call = functools.partial(output_and_gradients, fused_attention.attend, None)
    products = str(jax.make_jaxpr(call)((q, k, v, bias), intervals, d_out)).split("dot_general[")[
        1:
    ]
    assert len(products) >= 9
    for product in products:
        assert "preferred_element_type=float32" in product.split(" ] ")[0]


@pytest.mark.slow
@on_both_platforms
def test_huge_scores_and_padding_stay_finite(kernels):
    (q, k, v, bias), d_out = arrays(4, 50, 50, 4, 2, True)
    intervals = patterns(50)[1][:4, :, :50]
    huge = 1e4 * q, 1e4 * k, v, 1e4 * bias
    found = compiled(fused_attention.attend, kernels=kernels)(huge, intervals, d_out)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(found))


@pytest.mark.slow
def test_other_platforms_use_plain_attention():
    given, d_out = arrays(2, 40, 40, 2, 1, True)
    intervals = patterns(40)[1][:2, :, :40]
    got = compiled(fused_attention.attend)(given, intervals, d_out)
    jax.tree.map(np.testing.assert_array_equal, got, compiled(plain)(given, intervals, d_out))


@pytest.mark.slow
def test_gpus_use_triton_kernels():
    (shapes, d_out) = jax.eval_shape(lambda: arrays(1, 80, 80, 2, 1, True, jnp.bfloat16))
    intervals = jax.ShapeDtypeStruct((1, 2, 80), jnp.int32)
    traced = compiled(fused_attention.attend).trace(shapes, intervals, d_out)
    program = traced.lower(lowering_platforms=("cuda",)).as_text()
    for kernel in ("output", "query_gradient", "key_gradient", "tile_gradient"):
        assert f"attention_{kernel}" in program


def test_heads_too_wide_for_kernels_use_plain_attention():
    """This also holds for a model that was trained on a TPU and runs on a GPU."""

    def program(width):
        array = jax.ShapeDtypeStruct((1, 40, 2, width), jnp.bfloat16)
        intervals = jax.ShapeDtypeStruct((1, 2, 40), jnp.int32)
        traced = jax.jit(fused_attention.attend).trace(array, array, array, intervals)
        return traced.lower(lowering_platforms=("cuda",)).as_text()

    assert "attention_output" in program(256) and "attention_output" not in program(257)


@pytest.mark.parametrize("differences", [255, 259])
def test_bias_with_wrong_number_of_differences_raises(differences):
    (q, k, v, _), _ = arrays(1, 40, 40, 2, 2, False)
    with refuses(ValueError, differences, 257):
        fused_attention.attend(q, k, v, patterns(40)[1][:1, :, :40], jnp.zeros((2, differences)))


@pytest.mark.slow
def test_rotary_with_slots_last_is_identical():
    x = jax.random.normal(jax.random.key(0), (2, 5, 3, 8), jnp.bfloat16)
    rotation = rotation_of(jnp.array([[0, 1, 2, 3, 4], [0, 1, 0, 1, 2]]), 8, 100.0)
    (rotated, back), (got, got_back) = (
        jax.vjp(lambda x, rotate_x=rotate_x: rotate_x(x, rotation), x)
        for rotate_x in (rotate, rotate_slots_last)
    )
    assert (rotated != x).any()
    np.testing.assert_array_equal(got, rotated)
    np.testing.assert_array_equal(*(pull_back(rotated)[0] for pull_back in (got_back, back)))


@pytest.mark.parametrize("slots_last", [False, True])
@pytest.mark.parametrize("joined", ["columns", "inputs"])
def test_head_projections_match_between_cpu_and_tpu_paths(joined, slots_last, monkeypatch):
    keys = jax.random.split(jax.random.key(0), 2)
    shape, axes = ((8, 2, 4), 1) if joined == "columns" else ((2, 4, 8), 2)
    x = jax.random.normal(keys[0], (3, 5, *shape[:axes]))
    kernel = jax.random.normal(keys[1], shape)
    found = {}
    for name in ("cpu", "tpu"):
        monkeypatch.setattr(linear, "platform", lambda name=name: name)

        def squares(x, kernel):
            return (project(x, kernel, axes=axes, slots_last=slots_last) ** 2).sum()

        gradients = jax.grad(squares, (0, 1))
        text = str(jax.make_jaxpr(gradients)(x, kernel))
        assert text.count("optimization_barrier") == {"cpu": 0, "tpu": 3 - axes}[name]
        out = project(x, kernel, axes=axes, slots_last=slots_last)
        found[name] = out, gradients(x, kernel)
    assert found["tpu"][0].shape == (3, 5, *shape[axes:])
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), *found.values())


@pytest.mark.parametrize("layout", ["slots last", "as they come", "apart"])
def test_head_bias_and_gradient_match_between_cpu_and_tpu_paths(layout, monkeypatch):
    keys = jax.random.split(jax.random.key(0), 3)
    x, kernel = jax.random.normal(keys[0], (2, 5, 8)), jax.random.normal(keys[1], (8, 3, 4))
    bias = jax.random.normal(keys[2], (3, 4))
    expected = jnp.einsum("bte,ehd->bthd", x, kernel) + bias[None, None]
    if layout == "apart":
        monkeypatch.setattr(linear, "num_shards", lambda name, size: 5)
    products = []
    for name in ("cpu", "tpu"):
        monkeypatch.setattr(linear, "platform", lambda name=name: name)

        def squares(bias):
            return (project(x, kernel, slots_last=layout != "as they come", bias=bias) ** 2).sum()

        np.testing.assert_allclose(squares(bias), (expected**2).sum(), rtol=1e-5)
        np.testing.assert_allclose(jax.grad(squares)(bias), 2 * expected.sum((0, 1)), rtol=1e-4)
        products.append(str(jax.make_jaxpr(jax.grad(squares))(bias)).count("dot_general"))
    assert products == ([1, 2] if layout == "slots last" else [1, 1])


@pytest.mark.slow
@pytest.mark.parametrize("settings", [dict(biases=True), dict(qk_norm=True), {}], ids=str)
def test_attention_with_slots_last_is_equal(settings, monkeypatch):
    """TPUs use this layout. Plain attention replaces the kernels here."""
    model = build("decoder", attention="fused", positions="rotary", **settings)
    batch = batch_for("decoder")
    params = jax.tree.map(lambda x: x + 0.1, init(model, batch))
    expected = loss_and_gradients(model, params, batch)
    monkeypatch.setattr(fused_attention, "platform", lambda: "tpu")
    monkeypatch.setattr(linear, "platform", lambda: "tpu")
    slots_last = build("decoder", attention="fused", positions="rotary", **settings)
    assert_close(loss_and_gradients(slots_last, params, batch), expected, atol=1e-4)


def test_tpu_rows_are_padded_by_at_most_one_eighth(monkeypatch):
    assert fused_attention.padding(114) == 0
    monkeypatch.setattr(fused_attention, "platform", lambda: "tpu")
    assert [fused_attention.padding(n) for n in (113, 114, 128, 500, 520)] == [0, 14, 0, 12, 0]
    # Whole blocks: 626 slots are two blocks of 384.
    assert [fused_attention.padding(n) for n in (626, 700)] == [0, 68]


@pytest.mark.parametrize("context", [2, 3])
def test_padding_keeps_context_shards_divisible(context, monkeypatch):
    """Three devices share 126 slots, and could not share 128. They divide neither 122 nor 128."""
    monkeypatch.setattr(fused_attention, "platform", lambda: "tpu")
    with placed_on(make_mesh(data=1, context=context, devices=jax.devices()[:context])):
        found = [fused_attention.padding(n) for n in (122, 126)]
    assert found == {2: [0, 0], 3: [6, 0]}[context]


PADDED = {
    "T5 with experts": ("encoder_decoder", dict(num_experts=4)),
    "two windows": ("decoder", dict(layers=2, window=3, global_every=2)),
    "tokens ahead": ("decoder", dict(heads=THREE, ahead="sequential")),
    "learned positions": ("decoder", dict(positions="learned", max_positions=16)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PADDED)
def test_row_padding_keeps_states_gradients_and_routing(name, monkeypatch):
    """As on TPUs, padding changes neither the states of real slots, nor gradients, nor routing."""
    layout, settings = PADDED[name]
    model, batch = build(layout, attention="fused", **settings), batch_for(layout)
    params = init(model, batch)

    def computed(params):
        outputs = model.apply(params, batch)
        # The last states ahead depend on slots after the end of the row.
        states = {
            name: x[..., : 6 if name == "ahead" else 8, :] for name, x in outputs.hidden.items()
        }
        return sum(jnp.sin(x).sum() for x in states.values()), (states, outputs.routing)

    def gradients():
        return quick_jit(jax.value_and_grad(computed, has_aux=True))(params)

    expected, lengths = gradients(), []
    embed_tokens = token_embeddings.embed_tokens

    def embed_and_record(module, table, tokens):
        lengths.append(tokens.shape[1])
        return embed_tokens(module, table, tokens)

    monkeypatch.setattr(token_embeddings, "embed_tokens", embed_and_record)
    padding = MECHANISMS["fused"]._replace(padding={8: 5, 10: 3}.__getitem__)
    monkeypatch.setitem(MECHANISMS, "fused", padding)
    assert_close(gradients(), expected, atol=1e-4)
    assert set(lengths) == {13}  # for 8 slots and for 10


@pytest.mark.parametrize("shared", [False, True])
def test_dropout_with_slots_last(shared):
    """Dropout has a factor for each number or, as in T5, one factor for each token of a head."""
    x = jnp.ones((2, 5, 3, 4))
    module = _Dropout(Config(8, 0, 1, (), 12, 3, 4, 8, dropout_rate=0.5, dropout_shared=shared))
    y = module.apply({}, x, rngs={"dropout": jax.random.key(0)})
    assert y.shape == x.shape and set(np.unique(y)) == {0.0, 2.0}
    assert bool((y == y[..., :1]).all()) == shared
    assert not (y == y[:, :, :1]).all() and not (y == y[:, :1]).all()


class _Dropout(nn.Module):
    config: Config

    @nn.compact
    def __call__(self, x_BxTxHxd):
        return linear.on_slots_last(lambda x: linear.dropout(self, x, over=1), x_BxTxHxd)


def test_projections_with_slots_last_are_equal_and_saved_in_that_layout():
    x = jax.random.normal(jax.random.key(0), (2, 5, 8))
    kernel = jax.random.normal(jax.random.key(1), (8, 3, 4))
    outs, gradients, saved = [], [], []
    for slots_last in (False, True):

        @functools.partial(jax.checkpoint, policy=POLICIES["minimal"])
        def squares(x, kernel, slots_last=slots_last):
            return (project(x, kernel, slots_last=slots_last) ** 2).sum()

        outs.append(project(x, kernel, slots_last=slots_last))
        gradients.append(jax.grad(squares, (0, 1))(x, kernel))
        _, pull_back = jax.vjp(squares, x, kernel)
        saved.append({leaf.shape for leaf in jax.tree.leaves(pull_back)})
    assert outs[0].shape == (2, 5, 3, 4)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), *outs)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), *gradients)
    assert saved[1] - saved[0] == {(12, 10)} and saved[0] - saved[1] == {(10, 12)}


# --- models with fused attention ------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout, platform",
    [
        ("encoder_decoder", "cpu"),
        ("encoder_decoder", "tpu"),
        ("decoder", "tpu"),
        ("rotary decoder", "tpu"),
    ],
)
def test_model_with_fused_attention_matches_plain(layout, platform, kernels, monkeypatch):
    """In T5 with relative positions in every layer, cross-attention has no bias.

    On TPUs, arrays have slots last if possible.
    """
    monkeypatch.setattr(fused_attention, "platform", lambda: platform)
    settings = {"layers": 2, "remat_policy": "minimal"}
    if layout == "decoder":
        settings |= {"positions": "relative", "relative_in_every_layer": True, "window": 3}
    layout = layout.removeprefix("rotary ")
    batch, plain = batch_for(layout), build(layout, **settings)
    params = init(plain, batch)
    fused = build(layout, **settings, attention="fused")
    assert jax.tree.structure(init(fused, batch)) == jax.tree.structure(params)
    expected = loss_and_gradients(plain, params, batch)
    assert_close(loss_and_gradients(fused, params, batch), expected, atol=1e-4)


@pytest.mark.slow
def test_fused_model_decodes_without_kernels():
    settings = {"positions": "relative", "scan_layers": False}
    plain, fused = build("decoder", **settings), build("decoder", **settings, attention="fused")
    batch = make_batch()
    params = init(plain, batch)
    expected = top(plain, params, batch)
    prompt = {name: x[..., :7] for name, x in batch.items()}
    last = {name: x[..., 7:] for name, x in batch.items()} | {
        "decoder_cache_slots": np.array([[7]])
    }

    @jax.jit
    def decoded(params, prompt, last):
        first, cache = fused.prefill(params, prompt, 8)
        second, _ = fused.extend(params, cache, last)
        return jnp.concatenate([first.hidden["top"], second.hidden["top"]], 1)

    assert_close(decoded(params, prompt, last), expected)


@pytest.mark.slow
@pytest.mark.parametrize("platform", ["cpu", "tpu"])  # this policy saves outputs with slots last
def test_minimal_rematerialization_repeats_no_kernel(kernels, platform, monkeypatch):
    monkeypatch.setattr(fused_attention, "platform", lambda: platform)

    def kernels(policy):
        model, batch = build("decoder", attention="fused", remat_policy=policy), make_batch()
        loss = lambda params: model.apply(params, batch).hidden["top"].sum()  # noqa: E731
        return sum(_used_kernels(jax.make_jaxpr(jax.grad(loss))(init(model, batch)).jaxpr))

    # the output twice, the gradients of queries, and the gradients of keys and values
    assert kernels("full") == 4
    assert kernels("minimal") == kernels("none") == 3


def test_saved_kernel_outputs_are_not_rounded_again(kernels):
    (q, k, v, _), _ = arrays(1, 8, 8, 2, 2, False, jnp.bfloat16)
    intervals = np.array([[[0] * 8, [8] * 8]], np.int32)

    @functools.partial(jax.checkpoint, policy=POLICIES["minimal"])
    def squares(q):
        return (fused_attention.attend(q, k, v, intervals)[0].astype(jnp.float32) ** 2).sum()

    assert "reduce_precision" not in str(jax.make_jaxpr(jax.grad(squares))(q))


def _used_kernels(jaxpr):
    """Yields whether the outputs of each kernel are used. XLA does not run kernels that are not."""
    used = {id(x) for equation in jaxpr.eqns for x in equation.invars} | set(map(id, jaxpr.outvars))
    for equation in jaxpr.eqns:
        if equation.primitive.name == "pallas_call":
            yield any(id(x) in used for x in equation.outvars)
        else:
            for inner in jax.extend.core.jaxprs_in_params(equation.params):
                yield from _used_kernels(inner)
