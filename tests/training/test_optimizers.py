"""Optimizers and schedules do what their docstrings say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrax.training.optimizers import adamw, muon, warmup_constant, warmup_cosine, warmup_rsqrt


def constant(total_steps):
    return warmup_constant(total_steps, peak=1.0)


def test_weight_decay_spares_norms_and_biases_scanned_or_not():
    params = {
        "mlp_norm": {"scale": jnp.ones((2, 4))},
        "mlp": {"wi": jnp.ones((2, 4, 4)), "wi_bias": jnp.ones((2, 4))},
        "relative_bias": {"table": jnp.ones((2, 4))},
        "query_bias": jnp.ones((2, 4)),  # of heads
        "bias": jnp.ones(4),
    }
    optimizer = adamw(10, learning_rate=constant, weight_decay=0.1)
    zeros = jax.tree.map(jnp.zeros_like, params)
    updates, _ = optimizer.update(zeros, optimizer.init(params), params)
    for spared in (updates["mlp_norm"]["scale"], updates["mlp"]["wi_bias"], updates["query_bias"]):
        np.testing.assert_array_equal(spared, 0)
    np.testing.assert_array_equal(updates["bias"], 0)
    for shrunk in (updates["mlp"]["wi"], updates["relative_bias"]["table"]):
        np.testing.assert_allclose(shrunk, -0.1, rtol=1e-6)


def test_muon_makes_the_updates_of_matrices_orthogonal():
    random = np.random.default_rng(0)
    params = {
        "self_attention": {"query": (8, 2, 3)},
        "cross_attention": {"out": (5, 2, 3, 8)},  # of five scanned layers
        "mlp": {"wo": (4, 8)},
        "experts": {"wi_0": (3, 8, 4), "router": (8, 3)},
        "token_embedding": (9, 8),
        "mlp_norm": {"scale": (8,)},
        "own": {"query": (7,)},  # of a module of one's own
    }
    is_shape = lambda x: isinstance(x, tuple)  # noqa: E731
    params = jax.tree.map(jnp.ones, params, is_leaf=is_shape)
    gradients = jax.tree.map(lambda x: jnp.asarray(random.normal(size=x.shape)), params)
    optimizer = muon(10, learning_rate=1.0, weight_decay=0.0, clip_norm=None)
    updates, _ = optimizer.update(gradients, optimizer.init(params), params)
    experts = updates["experts"]
    query, out = updates["self_attention"]["query"], updates["cross_attention"]["out"]
    for matrix in (
        query.reshape(8, 6),
        *out.reshape(5, 6, 8),
        updates["mlp"]["wo"],
        *experts["wi_0"],
    ):
        scale = 0.2 * max(matrix.shape) ** 0.5
        # Five iterations bring singular values near 1, as Jordan et al. chose them: 0.7 to 1.2.
        sizes = np.linalg.svd(matrix, compute_uv=False) / scale
        assert sizes.min() > 0.6 and sizes.max() < 1.25
    # AdamW's first step
    for other in (
        updates["token_embedding"],
        updates["mlp_norm"]["scale"],
        updates["own"]["query"],
        experts["router"],
    ):
        np.testing.assert_allclose(np.abs(other), np.abs(other).mean(), rtol=1e-3)
        np.testing.assert_array_equal(np.sign(other), -np.sign(_like(other, gradients)))


def _like(x, gradients):
    return next(g for g in jax.tree.leaves(gradients) if g.shape == x.shape)


@pytest.mark.parametrize("optimizer", [adamw, muon])
def test_first_moments_in_bfloat16(optimizer):
    params = {"mlp": {"wo": jnp.ones((4, 8))}, "bias": jnp.ones(4)}
    state = optimizer(10, learning_rate=1.0, momentum_dtype="bfloat16").init(params)
    dtypes = [x.dtype for x in jax.tree.leaves(state) if x.ndim and x.size > 3]
    assert dtypes.count(jnp.bfloat16) == 2
    with pytest.raises(ValueError, match="'float32' or 'bfloat16', got 'int8'"):
        optimizer(10, learning_rate=1.0, momentum_dtype="int8")


def test_schedules_reach_their_peaks_and_ends():
    cosine = warmup_cosine(100, peak=2.0, warmup_steps=10)
    assert [float(cosine(s)) for s in (0, 5, 10)] == [0.0, 1.0, 2.0]
    assert float(cosine(100)) == pytest.approx(0.2)
    rsqrt = warmup_rsqrt(100, warmup_steps=25)
    assert [float(rsqrt(s)) for s in (0, 25, 100)] == pytest.approx([0.2, 0.2, 0.1])


@pytest.mark.parametrize("warmup_steps", [-1, 100, 200])
def test_a_warm_up_that_does_not_fit_is_an_error(warmup_steps):
    with pytest.raises(ValueError, match="warmup_steps"):
        warmup_cosine(100, peak=1.0, warmup_steps=warmup_steps)


def test_a_learning_rate_is_a_schedule_or_a_number():
    params = {"bias": jnp.ones(4)}
    for rate in (1.0, 1, constant):
        optimizer = adamw(10, learning_rate=rate)
        updates, _ = optimizer.update(params, optimizer.init(params), params)
        np.testing.assert_allclose(updates["bias"], -1.0, rtol=1e-5)
    for rate in ("0.1", -0.1, None, True, float("nan")):
        with pytest.raises(ValueError, match="learning_rate must be a schedule"):
            adamw(10, learning_rate=rate)


def test_a_clip_norm_of_zero_is_an_error():
    with pytest.raises(ValueError, match="clip_norm"):
        adamw(10, learning_rate=constant, clip_norm=0.0)
