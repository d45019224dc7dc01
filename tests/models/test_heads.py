"""Outputs of the heads other than the vocabulary projection."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from pretrax.models.config import Config
from pretrax.models.heads import HEADS, LogitScale, add_head
from tests.refusals import refuses

HIDDEN = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)


def drawn(head, hidden):
    """Returns parameters that differ from the initial values, so that a missing bias shows."""
    shapes = nn.unbox(jax.eval_shape(head.init, jax.random.key(0), hidden))["params"]
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), shapes)


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize(
    "name, inner, activation, outer",
    [
        ("pair", "pooler", np.tanh, "classifier"),  # BERT's pooler and classifier
        ("classes", "pooler", np.tanh, "classifier"),
        ("embedding", "layer", np.tanh, None),  # as in SimCSE
        ("replaced", "layer", gelu, "classifier"),  # as in ELECTRA
    ],
)
def test_heads_by_hand(name, inner, activation, outer):
    config = Config(
        64, 1, 0, (), 4, 1, 4, 8, num_classes=5, mlp_activations=("gelu",), norm="layer"
    )
    head = HEADS[name].build(config)
    params = drawn(head, HIDDEN)
    expected = activation(HIDDEN @ params[inner]["kernel"] + params[inner]["bias"][None])
    if outer:
        assert params[outer]["bias"].shape == ({"pair": 2, "classes": 5, "replaced": 1}[name],)
        expected = expected @ params[outer]["kernel"] + params[outer]["bias"][None]
    np.testing.assert_allclose(head.apply({"params": params}, HIDDEN), expected, rtol=1e-4)
    config = dataclasses.replace(config, dtype="bfloat16")
    half = HEADS[name].build(config).apply({"params": params}, HIDDEN)
    assert half.dtype == jnp.float32
    np.testing.assert_allclose(half, expected, atol=0.1)


def test_logit_scale_starts_as_in_clip_and_is_capped_at_100():
    head = LogitScale()
    start = nn.unbox(head.init(jax.random.key(0), HIDDEN))
    np.testing.assert_allclose(head.apply(start, HIDDEN), 1 / 0.07, rtol=1e-6)
    value = jax.value_and_grad(lambda x: head.apply({"params": {"log_scale": x}}, HIDDEN))
    for log_scale, expected in ((2.0, np.exp(2.0)), (np.log(100), 100.0), (6.0, 100.0)):
        scale, gradient = value(jnp.float32(log_scale))
        # If the cap blocked the gradient, the scale could never fall below it again.
        np.testing.assert_allclose([scale, gradient], expected, rtol=1e-5)


@pytest.mark.parametrize("build", [nn.Dense(2), "dense"])
def test_add_head_rejects_builds_that_are_not_functions(build):
    with refuses(ValueError, "mine", "lambda"):
        add_head("mine", build)
    assert "mine" not in HEADS
