"""The attention kernel against the dense mask, values and gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrax.models import attention

B, T, S, H, D = 3, 6, 9, 4, 8


@functools.partial(jax.jit, static_argnames="softcap")
def dense(q, k, v, intervals, bias=None, softcap=None):
    """Plain attention with a mask, differentiated by JAX."""
    k, v = (jnp.repeat(x, H // x.shape[2], axis=2) for x in (k, v))
    scores = jnp.einsum("bthd,bshd->bhts", q, k)
    if softcap is not None:
        scores = softcap * jnp.tanh(scores / softcap)
    if bias is not None:
        scores += bias[None]
    key = jnp.arange(k.shape[1])[None, None]
    seen = (intervals[:, 0, :, None] <= key) & (key < intervals[:, 1, :, None])
    probabilities = jax.nn.softmax(jnp.where(seen[:, None], scores, -jnp.inf), -1)
    return jnp.einsum("bhts,bshd->bthd", probabilities, v)


def example(groups=H, dtype=jnp.float32):
    """Arrays of random intervals, empty ones excepted."""
    rng = np.random.default_rng(0)
    q = rng.normal(size=(B, T, H, D)).astype(dtype)
    k, v = rng.normal(size=(2, B, S, groups, D)).astype(dtype)
    bias = rng.normal(size=(H, T, S)).astype(np.float32)
    draws = np.sort(rng.integers(0, S, (B, 2, T)), axis=1)
    return q, k, v, (draws + [[0], [1]]).astype(np.int32), bias


def gradients_of(function, softcap):
    def value(q, k, v, bias, intervals):
        return jnp.sin(function(q, k, v, intervals, bias, softcap)).sum()

    return jax.jit(jax.grad(value, (0, 1, 2, 3)))


dense_gradients = functools.cache(functools.partial(gradients_of, dense))


@pytest.mark.parametrize("order", ["one after another", "all at once"])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("groups, softcap", [(2, None), (4, None), (2, 1.5)])
def test_equals_the_dense_mask(groups, softcap, biased, order, monkeypatch):
    monkeypatch.setattr(attention, "_one_by_one", lambda: order == "one after another")
    q, k, v, intervals, bias = example(groups)
    bias = bias if biased else None

    got = jax.jit(lambda *args: attention.attend(*args, softcap))(q, k, v, intervals, bias)
    np.testing.assert_allclose(got, dense(q, k, v, intervals, bias, softcap), atol=1e-5)
    got = gradients_of(attention.attend, softcap)(q, k, v, bias, intervals)
    expected = dense_gradients(softcap)(q, k, v, bias, intervals)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), got, expected)


def test_this_platform_takes_rows_as_measured():
    q, k, v, intervals, bias = example()
    got = jax.jit(attention.attend)(q, k, v, intervals, bias)
    np.testing.assert_allclose(got, dense(q, k, v, intervals, bias), atol=1e-5)


def test_bfloat16_is_close_to_float32():
    q, k, v, intervals, bias = example(dtype=jnp.bfloat16)
    got = jax.jit(attention.attend)(q, k, v, intervals, bias)
    assert got.dtype == jnp.bfloat16
    expected = dense(*(x.astype(np.float32) for x in (q, k, v)), intervals, bias)
    np.testing.assert_allclose(np.asarray(got, np.float32), expected, atol=0.03)


def test_every_product_accumulates_in_float32():
    # Read from the program: XLA on CPU may keep more bits than asked, which hides a lapse.
    q, k, v, intervals, bias = example(dtype=jnp.bfloat16)
    gradients = jax.grad(lambda *x: attention.attend(*x, intervals, bias).sum(), (0, 1, 2))
    products = str(jax.make_jaxpr(gradients)(q, k, v)).split("dot_general[")[1:]
    assert len(products) >= 7
    for product in products:
        assert "preferred_element_type=float32" in product.split(" ] ")[0]


def test_huge_scores_stay_finite():
    q, k, v, intervals, bias = example()
    value, gradients = jax.jit(
        jax.value_and_grad(
            lambda q, k, v: attention.attend(q, k, v, intervals, bias).sum(), (0, 1, 2)
        )
    )(1e4 * q, 1e4 * k, v)
    assert np.isfinite(value) and all(np.isfinite(x).all() for x in gradients)


def test_no_probabilities_are_saved_for_the_gradient():
    q, k, v, intervals, _ = example()
    pull_back = jax.eval_shape(
        lambda q, k, v: jax.vjp(lambda *x: attention.attend(*x, intervals), q, k, v)[1], q, k, v
    )
    assert not any(x.shape[-2:] == (T, S) for x in jax.tree.leaves(pull_back))
