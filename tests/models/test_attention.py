"""The attention kernel agrees with a dense mask in values and gradients."""

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
    visible = (intervals[:, 0, :, None] <= key) & (key < intervals[:, 1, :, None])
    probabilities = jax.nn.softmax(jnp.where(visible[:, None], scores, -jnp.inf), -1)
    return jnp.einsum("bhts,bshd->bthd", probabilities, v)


def example(groups=H, dtype=jnp.float32):
    """Returns arrays with random, nonempty intervals."""
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


@pytest.mark.sampled
@pytest.mark.parametrize("order", ["one after another", "all at once"])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("groups, softcap", [(2, None), (4, None), (2, 1.5)])
def test_attention_matches_dense_mask(groups, softcap, biased, order, monkeypatch):
    monkeypatch.setattr(attention, "on_one_cpu", lambda: order == "one after another")
    q, k, v, intervals, bias = example(groups)
    bias = bias if biased else None

    got, _ = jax.jit(lambda *args: attention.attend(*args, softcap))(q, k, v, intervals, bias)
    np.testing.assert_allclose(got, dense(q, k, v, intervals, bias, softcap), atol=1e-5)
    attend = lambda *args: attention.attend(*args)[0]  # noqa: E731
    got = gradients_of(attend, softcap)(q, k, v, bias, intervals)
    expected = dense_gradients(softcap)(q, k, v, bias, intervals)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), got, expected)


def test_bfloat16_is_close_to_float32():
    q, k, v, intervals, bias = example(dtype=jnp.bfloat16)
    got, _ = jax.jit(attention.attend)(q, k, v, intervals, bias)
    assert got.dtype == jnp.bfloat16
    expected = dense(*(x.astype(np.float32) for x in (q, k, v)), intervals, bias)
    np.testing.assert_allclose(np.asarray(got, np.float32), expected, atol=0.03)


def test_all_matmuls_accumulate_in_float32():
    # This is read from the program, since XLA on CPU may keep more bits than requested.
    q, k, v, intervals, bias = example(dtype=jnp.bfloat16)
    gradients = jax.grad(lambda *x: attention.attend(*x, intervals, bias)[0].sum(), (0, 1, 2))
    products = str(jax.make_jaxpr(gradients)(q, k, v)).split("dot_general[")[1:]
    assert len(products) >= 7
    for product in products:
        assert "preferred_element_type=float32" in product.split(" ] ")[0]


def test_huge_scores_stay_finite():
    q, k, v, intervals, bias = example()
    value, gradients = jax.jit(
        jax.value_and_grad(
            lambda q, k, v: attention.attend(q, k, v, intervals, bias)[0].sum(), (0, 1, 2)
        )
    )(1e4 * q, 1e4 * k, v)
    assert np.isfinite(value) and all(np.isfinite(x).all() for x in gradients)


def test_probabilities_are_not_saved_for_backward():
    q, k, v, intervals, _ = example()
    pull_back = jax.eval_shape(
        lambda q, k, v: jax.vjp(lambda *x: attention.attend(*x, intervals)[0], q, k, v)[1], q, k, v
    )
    assert not any(x.shape[-2:] == (T, S) for x in jax.tree.leaves(pull_back))


# --- noised copies ------------------------------------------------------------------------------


def copies(kind, size=3, slots=8, groups=2):
    """Returns arrays of clean tokens and noised copies, and their intervals.

    The row has two documents that are divided into blocks.
    """
    rng = np.random.default_rng(1)
    q = rng.normal(size=(B, 2 * slots, H, D)).astype(np.float32)
    k, v = rng.normal(size=(2, B, 2 * slots, groups, D)).astype(np.float32)
    slot = np.arange(slots)
    first, last = np.where(slot < 5, 0, 5), np.where(slot < 5, 5, slots)
    begin = first + (slot - first) // size * size
    end = np.minimum(begin + size, last)
    pairs = np.array([(first, end), (begin, end), (first, begin)], np.int32)
    bias = rng.normal(size=(H, slots, slots)).astype(np.float32) if kind == "biased" else None
    return (q, k, v, bias), np.broadcast_to(pairs[:, None], (3, B, 2, slots))


def dense_with_copies(q, k, v, bias, intervals):
    """Plain attention over clean tokens and copies at once, with a mask written from the paper."""
    k, v = (jnp.repeat(x, H // x.shape[2], axis=2) for x in (k, v))
    slots = q.shape[1] // 2
    key = np.arange(slots)
    clean, own, before = ((x[0, 0, :, None] <= key) & (key < x[0, 1, :, None]) for x in intervals)
    visible = np.block([[clean, np.zeros_like(own)], [before, own]])
    scores = jnp.einsum("bthd,bshd->bhts", q, k)
    if bias is not None:
        scores += jnp.tile(bias, (2, 2))[None]
    p = jax.nn.softmax(jnp.where(visible, scores, -jnp.inf), -1)
    return jnp.einsum("bhts,bshd->bthd", p, v)


def with_copies(q, k, v, bias, intervals):
    def over(half):
        keys, values = (jnp.split(x, 2, axis=1)[half] for x in (k, v))
        return lambda q, intervals_of_keys: attention.attend(
            q, keys, values, intervals_of_keys, bias
        )

    return attention.attend_noised(over(0), over(1), q, intervals[0], intervals[1:])


@pytest.mark.parametrize("kind", ["plain", "biased"])
def test_noised_copies_match_dense_mask(kind):
    """The first block of a document attends to no clean tokens."""
    arrays, intervals = copies(kind)
    assert (intervals[2][:, 0] == intervals[2][:, 1]).any()

    def value_and_gradients(function):
        def value(arrays):
            return jnp.sin(function(*arrays, intervals)).sum()

        return jax.jit(jax.value_and_grad(value))(arrays)

    got, expected = value_and_gradients(with_copies), value_and_gradients(dense_with_copies)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5, rtol=1e-5), got, expected)


def test_combining_with_keyless_attention_changes_nothing():
    arrays, intervals = copies("plain")
    q, k, v, _ = (x if x is None else x[:, :8] for x in arrays)
    with_keys = attention.attend(q, k, v, intervals[1])
    without_keys = attention.attend(q, k, v, 0 * intervals[1])
    combined = attention.combine_attention(with_keys, without_keys)
    np.testing.assert_array_equal(combined, with_keys[0])
