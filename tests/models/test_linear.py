"""Linear layers: the array that their scale multiplies, and bfloat16 products on a CPU."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from pretrax.models.config import Config
from pretrax.models.linear import linear, project
from pretrax.models.rematerialization import POLICIES

INPUTS, HEADS, WIDTH = 16, 3, 6


class _Scaled(nn.Module):
    config: Config
    scale: float

    @nn.compact
    def __call__(self, x_BxTxE):
        shape, axes = (INPUTS, HEADS, WIDTH), ("embed", "heads", "kv")
        return linear(self, "query", x_BxTxE, shape, axes, scale=self.scale)


@pytest.mark.parametrize("slots, scales_weights", [(1, False), (20, True)])
def test_scale_multiplies_weights_or_output_of_few_slots(slots, scales_weights):
    config = Config(8, 0, 1, (), INPUTS, HEADS, WIDTH, 8, biases=True)
    x = jax.random.normal(jax.random.key(0), (2, slots, INPUTS))
    params = nn.unbox(_Scaled(config, 1.0).init(jax.random.key(1), x))
    params = jax.tree.map(lambda parameter: parameter + 0.1, params)
    apply = _Scaled(config, 0.3).apply
    np.testing.assert_allclose(
        apply(params, x), 0.3 * _Scaled(config, 1.0).apply(params, x), rtol=1e-4, atol=1e-5
    )
    equations = jax.make_jaxpr(apply)(params, x).jaxpr.eqns
    scaled = [e.outvars[0].aval.shape for e in equations if e.primitive.name == "mul"]
    weights = [(INPUTS, HEADS, WIDTH), (HEADS, WIDTH)]
    assert scaled == (weights if scales_weights else [(2, slots, HEADS, WIDTH)])


def _bfloat16_operands(rows, inputs, outputs):
    shapes = (rows, inputs), (inputs, outputs)
    keys = jax.random.split(jax.random.key(0))
    return [jax.random.normal(key, shape, jnp.bfloat16) for key, shape in zip(keys, shapes)]


@pytest.mark.parametrize("rows, inputs, outputs", [(6, 16, 40), (6, 40, 16), (7, 16, 40)])
def test_bfloat16_product_and_gradients_match_float32(rows, inputs, outputs):
    operands = _bfloat16_operands(rows=rows, inputs=inputs, outputs=outputs)
    weights = jax.random.normal(jax.random.key(1), (rows, outputs), jnp.bfloat16)

    def loss(x, kernel):
        y = project(x, kernel)
        return jnp.sum((y * weights).astype(jnp.float32)), y

    gradients, y = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))(*operands)
    x, kernel, d_y = (np.asarray(a, np.float32) for a in (*operands, weights))
    expected = x @ kernel, d_y @ kernel.T, x.T @ d_y
    for got, want in zip((y, *gradients), expected):
        assert got.dtype == jnp.bfloat16
        np.testing.assert_allclose(np.asarray(got, np.float32), want, rtol=0.01, atol=0.05)


def test_bfloat16_product_can_be_transposed():
    """XLA folds transpositions into products, but has no such product for bfloat16."""
    x, kernel = _bfloat16_operands(rows=64, inputs=64, outputs=96)

    @jax.jit
    def transposed(x, kernel):
        y, pull_back = jax.vjp(project, x, kernel)
        d_x, d_kernel = pull_back(y)
        return [a.astype(jnp.float32).T for a in (y, d_x, d_kernel)]

    shapes = [a.shape for a in transposed(x, kernel)]
    assert shapes == [(96, 64), (64, 64), (96, 64)]


def test_bfloat16_products_accumulate_in_float32_without_recomputation():
    x, kernel = _bfloat16_operands(rows=64, inputs=64, outputs=96)

    @functools.partial(jax.checkpoint, policy=POLICIES["minimal"])
    def loss(x, kernel):
        return jnp.sum(jnp.tanh(project(x, kernel).astype(jnp.float32)))

    lowered = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(x, kernel).as_text()
    products = [line for line in lowered.splitlines() if "stablehlo.dot_general" in line]
    assert len(products) == 3  # the output, and the gradients of x and the kernel
    for line in products:
        operands, result = line.rsplit(" : ", 1)[1].split("->")
        assert operands.count("bf16") == 2
        assert result.endswith("xf32>")
