"""Properties of families, for a smaller version of a tiny preset.

Tests cover packing, scanning, rematerialization and precision.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrax.models.unrolled import unrolled
from pretrax.training.devices.mesh import batch_sharding, placed_on, shardings_of
from tests.models.families import build, logits_of
from tests.models.small_models import (
    PACKED,
    PACKED_CAUSAL,
    alone,
    assert_close,
    encoder_batch,
    init,
    make_batch,
)
from tests.training import tiny


def slow(*families):
    return [pytest.param(family, marks=pytest.mark.slow) for family in families]


def packed_batch(layout):
    if layout == "encoder":
        return encoder_batch(PACKED)
    return make_batch(PACKED_CAUSAL, cross="packed" if layout == "encoder_decoder" else None)


def logits(model, params, batch):
    return np.asarray(logits_of(model)(params, batch))


def loss_and_gradients(model, params, batch):
    def loss(params):
        outputs = model.apply(params, batch)
        return jnp.sin(outputs.head("vocabulary", outputs.hidden["top"])).mean()

    return jax.jit(jax.value_and_grad(loss))(params)


@functools.cache
def example(family):
    model = build(family)
    batch = packed_batch(model.layout)
    params = init(model, batch)
    return model, batch, params, logits(model, params, batch)


# tests/parity compares packed documents of every family with separate ones of `transformers`.
@pytest.mark.parametrize("family", ["t5", "gpt2", *slow("modernbert")])
def test_packed_documents_equal_separate_rows(family):
    model, batch, params, packed = example(family)
    spans = [((0, 3), (0, 6)), ((3, 7), (6, 9))]
    if model.layout == "encoder":
        spans = [(None, (0, 3)), (None, (3, 7))]
    for decoder, encoder in spans:
        start, end = decoder or encoder
        got = logits(model, params, alone(batch, decoder, encoder))
        assert_close(got[0, : end - start], packed[0, start:end], atol=1e-4)


@pytest.mark.parametrize("family", ["modernbert", "bart", "qwen3", *slow("t5", "t5gemma2")])
def test_scanned_layers_equal_unrolled(family):
    model, batch, params, expected = example(family)
    separate = build(family, scan_layers=False)
    got = logits(separate, unrolled(model, params)[1], batch)
    assert_close(got, expected, atol=1e-4)


@pytest.mark.slow
def test_gradients_of_scanned_layers_equal_unrolled():
    model, batch, params, _ = example("t5")
    separate, separate_params = build("t5", scan_layers=False), unrolled(model, params)[1]
    assert jax.tree.structure(separate_params) == jax.tree.structure(init(separate, batch))
    loss, gradients = loss_and_gradients(model, params, batch)
    expected = loss_and_gradients(separate, separate_params, batch)
    assert_close((loss, unrolled(model, gradients)[1]), expected, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["t5", "bert", "t5gemma2"])
def test_rematerialization_keeps_loss_and_gradients(family):
    model, batch, params, _ = example(family)
    assert model.config.remat_policy == "minimal"
    plain, full = (build(family, remat_policy=policy) for policy in ("none", "full"))
    expected = loss_and_gradients(plain, params, batch)
    for built in (model, full):
        assert_close(loss_and_gradients(built, params, batch), expected, atol=1e-4)


@pytest.mark.sampled
@pytest.mark.parametrize("family", ["t5", "bert", "bart", "gpt2", "qwen3", "t5gemma2"])
def test_bfloat16_is_close_to_float32(family):
    """Differences are small compared with the logits' deviation, since a mantissa has 8 bits.

    The random parameters of T5Gemma 2 are ill-conditioned: in float32, rounding only them to
    bfloat16 moves a logit by 0.76 deviations.
    """
    _, batch, params, exact = example(family)
    model = build(family, dtype="bfloat16")
    assert {x.dtype for x in jax.tree.leaves(init(model, batch))} == {jnp.dtype("float32")}
    hidden = jax.eval_shape(lambda params: model.apply(params, batch).hidden, params)
    assert hidden["top"].dtype == "bfloat16"
    rounded = logits(model, params, batch)
    assert rounded.dtype == jnp.float32
    differences = np.abs(rounded - exact) / np.std(exact)
    assert differences.mean() < (0.06 if family == "t5gemma2" else 0.02)
    assert differences.max() < (1.0 if family == "t5gemma2" else 0.15)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["t5", "bert", "modernbert", "bart", "qwen3", "t5gemma2"])
def test_eight_devices_equal_one(family):
    """Uses the trainer's rules, on a mesh with all three axes."""
    model, batch, params, expected = example(family)
    mesh = tiny.mesh_of(2, 2, 2)
    batch = {name: np.concatenate([x] * 4) for name, x in batch.items()}
    with placed_on(mesh):
        boxed = jax.eval_shape(model.init, jax.random.key(0), batch)
        shardings = shardings_of(boxed, mesh)
        assert any(not s.is_fully_replicated for s in jax.tree.leaves(shardings))
        spread = jax.device_put(params, shardings)
        got = logits(model, spread, jax.device_put(batch, batch_sharding(mesh)))
    assert_close(jax.device_get(got), np.concatenate([expected] * 4), atol=1e-4)
