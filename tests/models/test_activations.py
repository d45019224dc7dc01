"""The exact GELU, and the gradient from the derivative that the forward pass saves."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrax.models import activations
from pretrax.models.activations import gelu_exact
from pretrax.models.rematerialization import POLICIES


@pytest.mark.parametrize("dtype, within", [(jnp.float32, 1e-6), (jnp.bfloat16, 2**-7)])
def test_exact_gelu_and_gradient_match_jax(dtype, within):
    x = jnp.linspace(-6, 6, 1001)
    expected = jax.nn.gelu(x, approximate=False), jax.vmap(jax.grad(_jax_gelu))(x)
    y, pull_back = jax.vjp(gelu_exact, x.astype(dtype))
    (d_x,) = pull_back(jnp.ones_like(y))
    assert y.dtype == d_x.dtype == dtype and gelu_exact(x.astype(dtype)).dtype == dtype
    close = functools.partial(np.testing.assert_allclose, rtol=within, atol=within)
    rounded = x.astype(dtype).astype(jnp.float32)
    close(y.astype(jnp.float32), jax.nn.gelu(rounded, approximate=False))
    close(d_x.astype(jnp.float32), expected[1])
    np.testing.assert_array_equal(gelu_exact(x.astype(dtype)), y)


def _jax_gelu(x):
    return jax.nn.gelu(x, approximate=False)


@pytest.mark.parametrize("policy, shapes", [("minimal", {(3, 5)}), ("full", set())])
def test_gelu_gradient_uses_saved_derivative(policy, shapes):
    @functools.partial(jax.checkpoint, policy=POLICIES[policy])
    def total(x):
        return gelu_exact(jnp.sin(x)).sum()

    x = jax.random.normal(jax.random.key(0), (3, 5))
    _, pull_back = jax.vjp(total, x)
    residuals = jax.tree.leaves(pull_back)
    saved = {leaf.shape for leaf in residuals if leaf.dtype == jnp.uint32}  # the names are on bits
    assert saved == shapes
    np.testing.assert_allclose(pull_back(1.0)[0], jax.grad(lambda x: total(x))(x), rtol=1e-6)


@pytest.mark.slow
def test_tpus_compute_gelu_and_derivative_together(monkeypatch):
    gradients = []
    for name, count in (("cpu", 0), ("tpu", 1)):
        jax.clear_caches()  # platforms other than the traced one
        monkeypatch.setattr(activations, "platform", lambda name=name: name)
        gradient = jax.grad(lambda x: gelu_exact(x).sum())
        x = jnp.linspace(-2, 2, 9)
        assert str(jax.make_jaxpr(gradient)(x)).count("optimization_barrier") == count
        gradients.append(gradient(x))
    np.testing.assert_array_equal(*gradients)
