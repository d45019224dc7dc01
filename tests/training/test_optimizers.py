"""Optimizers and schedules behave as their docstrings describe."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pretrax.training.optimizers import (
    adafactor,
    adamw,
    muon,
    normuon,
    soap,
    warmup_constant,
    warmup_cosine,
    warmup_linear,
    warmup_rsqrt,
    warmup_stable_decay,
)
from tests.objectives.waves import waves
from tests.refusals import refuses, warns


def constant(total_steps):
    return warmup_constant(total_steps, peak=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("make", [adamw, adafactor])
def test_weight_decay_excludes_norms_and_biases(make):
    params = {
        "mlp_norm": {"scale": jnp.ones((2, 4))},
        "mlp": {"wi": jnp.ones((2, 4, 4)), "wi_bias": jnp.ones((2, 4))},
        "relative_bias": {"table": jnp.ones((2, 4))},
        "query_bias": jnp.ones((2, 4)),  # weights of heads
        "bias": jnp.ones(4),
    }
    optimizer = make(10, learning_rate=0.5, weight_decay=0.2)
    zeros = jax.tree.map(jnp.zeros_like, params)
    updates, _ = optimizer.update(zeros, optimizer.init(params), params)
    for spared in (updates["mlp_norm"]["scale"], updates["mlp"]["wi_bias"], updates["query_bias"]):
        np.testing.assert_array_equal(spared, 0)
    np.testing.assert_array_equal(updates["bias"], 0)
    for shrunk in (updates["mlp"]["wi"], updates["relative_bias"]["table"]):
        np.testing.assert_allclose(shrunk, -0.1, rtol=1e-6)


def test_linear_schedule_ends_at_0():
    rate = warmup_linear(10, peak=0.4, warmup_steps=2)
    expected = [0.0, 0.2, 0.4, 0.35, 0.3, 0.25, 0.2, 0.15, 0.1, 0.05, 0.0]
    np.testing.assert_allclose([rate(step) for step in range(11)], expected, atol=1e-7)


def test_stable_schedule_decays_only_in_the_last_steps():
    rate = warmup_stable_decay(20, peak=0.4, warmup_steps=2, decay_steps=4)
    stable = [0.4] * 15
    falling = [0.4 * (1 - np.sqrt(k / 4)) for k in (1, 2, 3, 4)]
    expected = [0.0, 0.2, *stable, *falling]
    np.testing.assert_allclose([rate(step) for step in range(21)], expected, atol=1e-7)
    longer = warmup_stable_decay(40, peak=0.4, warmup_steps=2, decay_steps=4)
    np.testing.assert_array_equal(
        [longer(step) for step in range(17)], [rate(step) for step in range(17)]
    )


def test_warm_up_that_overlaps_the_decay_is_rejected():
    with refuses(ValueError, 20, 4, 16):
        warmup_stable_decay(20, peak=0.4, warmup_steps=16, decay_steps=4)


def _after(optimizer, params, gradients):
    """Returns the parameters after one step for each of the gradients."""
    state = optimizer.init(params)
    for gradient in gradients:
        updates, state = optimizer.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
    return params


def _example(shape):
    random = np.random.default_rng(0)
    return random.normal(size=shape), [random.normal(size=shape) for _ in range(3)]


RATES = [0.0, 0.05, 0.1]  # warm-up over 2 steps to 0.1


def rising(total_steps):
    return warmup_constant(total_steps, peak=0.1, warmup_steps=2)


def test_adamw_matches_hand_computed_steps():
    x, gradients = _example((3, 4))
    optimizer = adamw(3, learning_rate=rising, b1=0.8, b2=0.9, weight_decay=0.1, clip_norm=0.5)
    got = _after(optimizer, {"w": jnp.asarray(x)}, [{"w": jnp.asarray(g)} for g in gradients])
    m = v = 0.0
    for step, (rate, g) in enumerate(zip(RATES, gradients), 1):
        g = g * min(1.0, 0.5 / np.linalg.norm(g))
        m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g**2
        adam = m / (1 - 0.8**step) / (np.sqrt(v / (1 - 0.9**step)) + 1e-8)
        x = x - rate * (adam + 0.1 * x)
    np.testing.assert_allclose(got["w"], x, rtol=1e-4, atol=1e-6)


def test_muon_uses_nesterov_adam_for_other_parameters():
    x, gradients = _example((3, 4))
    optimizer = muon(3, learning_rate=rising, b1=0.8, b2=0.9, clip_norm=None)
    got = _after(optimizer, {"w": jnp.asarray(x)}, [{"w": jnp.asarray(g)} for g in gradients])
    m = v = 0.0
    for step, (rate, g) in enumerate(zip(RATES, gradients), 1):
        m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g**2
        ahead = 0.8 * m / (1 - 0.8 ** (step + 1)) + 0.2 * g / (1 - 0.8**step)
        x = x - rate * ahead / (np.sqrt(v / (1 - 0.9**step)) + 1e-8)
    np.testing.assert_allclose(got["w"], x, rtol=1e-4, atol=1e-6)


def _orthogonalised(matrix):
    """Returns five Newton-Schulz iterations with the coefficients of Jordan et al. 2024."""
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / np.linalg.norm(x)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
    return x.T if tall else x


@pytest.mark.parametrize("shape", [(6, 10), (10, 6)])
def test_muon_matches_hand_computed_steps(shape):
    """Computes steps for matrices.

    torch.optim.Muon differs: its Nesterov momentum has no bias correction, and its iterations are
    in bfloat16.
    """
    x, gradients = _example(shape)
    optimizer = muon(3, learning_rate=rising, beta=0.8, weight_decay=0.1, clip_norm=None)
    got = _after(
        optimizer,
        {"mlp": {"wo": jnp.asarray(x)}},
        [{"mlp": {"wo": jnp.asarray(g)}} for g in gradients],
    )
    m = 0.0
    for step, (rate, g) in enumerate(zip(RATES, gradients), 1):
        m = 0.8 * m + 0.2 * g
        ahead = 0.8 * m / (1 - 0.8 ** (step + 1)) + 0.2 * g / (1 - 0.8**step)
        x = x - rate * (0.2 * np.sqrt(max(shape)) * _orthogonalised(ahead) + 0.1 * x)
    np.testing.assert_allclose(got["mlp"]["wo"], x, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("weight_decay", [None, 0.3])
@pytest.mark.parametrize("factored", [True, False])
def test_adafactor_matches_hand_computed_steps(factored, weight_decay):
    x, gradients = _example((6, 4))
    optimizer = adafactor(
        3,
        learning_rate=rising,
        weight_decay=weight_decay,
        min_dim_size_to_factor=4 if factored else 5,
    )
    got = _after(optimizer, {"w": jnp.asarray(x)}, [{"w": jnp.asarray(g)} for g in gradients])
    v = 0.0
    for step, (rate, g) in enumerate(zip(RATES, gradients), 1):
        v = (1 - step**-0.8) * v + step**-0.8 * (g**2 + 1e-30)
        rows, columns = v.mean(1, keepdims=True), v.mean(0, keepdims=True)
        update = g / np.sqrt(rows * columns / rows.mean() if factored else v)
        update /= max(1.0, np.sqrt(np.mean(update**2)))
        size = max(np.sqrt(np.mean(x**2)), 1e-3)
        x = x - rate * (size * update + (weight_decay or 0.0) * x)
    np.testing.assert_allclose(got["w"], x, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_muon_orthogonalizes_matrix_updates():
    random = np.random.default_rng(0)
    params = {
        "self_attention": {"query": (8, 2, 3)},
        "cross_attention": {"out": (5, 2, 3, 8)},  # weights of five scanned layers
        "mlp": {"wo": (4, 8)},
        "experts": {"wi_0": (3, 8, 4), "router": (8, 3)},
        "token_embedding": (9, 8),
        "mlp_norm": {"scale": (8,)},
        "own": {"query": (7,)},  # a weight of a user's module
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
        # Five iterations bring singular values to between 0.7 and 1.2, the range of Jordan et al.
        sizes = np.linalg.svd(matrix, compute_uv=False) / scale
        assert sizes.min() > 0.6 and sizes.max() < 1.25
    # the first step of AdamW
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
def test_momentum_dtype_sets_the_type_of_first_moments(optimizer):
    params = {"mlp": {"wo": jnp.ones((4, 8))}, "bias": jnp.ones(4)}
    state = optimizer(10, learning_rate=1.0, momentum_dtype="bfloat16").init(params)
    dtypes = [x.dtype for x in jax.tree.leaves(state) if x.ndim and x.size > 3]
    assert dtypes.count(jnp.bfloat16) == 2
    with refuses(ValueError, "float32", "bfloat16", "int8"):
        optimizer(10, learning_rate=1.0, momentum_dtype="int8")


def test_schedules_reach_their_peaks_and_ends():
    cosine = warmup_cosine(100, peak=2.0, warmup_steps=10)
    assert [float(cosine(s)) for s in (0, 5, 10)] == [0.0, 1.0, 2.0]
    assert float(cosine(100)) == pytest.approx(0.2)
    with warns(UserWarning, 4, 40):
        trial = warmup_cosine(20, peak=2.0, warmup_steps=40, warmup_share=0.2)
    assert [float(trial(s)) for s in (0, 2, 4)] == [0.0, 1.0, 2.0] and trial(5) < 2
    rsqrt = warmup_rsqrt(100, warmup_steps=25)
    assert [float(rsqrt(s)) for s in (0, 25, 100)] == pytest.approx([0.2, 0.2, 0.1])


@pytest.mark.parametrize("warmup_steps", [-1, 100, 200])
def test_warm_up_longer_than_training_is_rejected(warmup_steps):
    with refuses(ValueError, "warmup_steps"):
        warmup_cosine(100, peak=1.0, warmup_steps=warmup_steps)


@pytest.mark.parametrize(
    ("make", "given", "setting", "value"),
    [
        (warmup_rsqrt, {}, "warmup_steps", 0),
        (warmup_rsqrt, {}, "scale", -1.0),
        (warmup_constant, {}, "peak", float("nan")),
        (warmup_cosine, {"warmup_steps": 2}, "peak", -0.1),
        (warmup_cosine, {"peak": 0.1, "warmup_steps": 2}, "end_share", -0.1),
        (adamw, {"learning_rate": 0.1}, "weight_decay", -0.1),
        (adamw, {"learning_rate": 0.1}, "clip_norm", 0.0),
        (muon, {"learning_rate": 0.1}, "weight_decay", -0.1),
        (adafactor, {"learning_rate": 0.1}, "weight_decay", -0.1),
    ],
)
def test_negative_or_infinite_rates_are_rejected(make, given, setting, value):
    with refuses(ValueError, f"{make.__name__}.{setting}", value):
        make(100, **given, **{setting: value})


def test_learning_rate_may_be_a_schedule_or_a_number():
    params = {"bias": jnp.ones(4)}
    for rate in (1.0, 1, constant):
        optimizer = adamw(10, learning_rate=rate)
        updates, _ = optimizer.update(params, optimizer.init(params), params)
        np.testing.assert_allclose(updates["bias"], -1.0, rtol=1e-5)
    for rate in ("0.1", -0.1, None, True, float("nan")):
        with refuses(ValueError, "learning_rate", "0"):
            adamw(10, learning_rate=rate)


def _matrix(x):
    return {"mlp": {"wo": jnp.asarray(x, jnp.float32)}}


@pytest.mark.parametrize("shape", [(6, 10), (10, 6)])
def test_normuon_matches_hand_computed_steps(shape):
    x, gradients = _example(shape)
    optimizer = normuon(3, learning_rate=rising, beta=0.8, b2=0.7, weight_decay=0.1, clip_norm=None)
    got = _after(optimizer, _matrix(x), [_matrix(g) for g in gradients])
    m = v = 0.0
    for rate, g in zip(RATES, gradients):
        m = 0.8 * m + 0.2 * g
        o = _orthogonalised(0.8 * m + 0.2 * g)
        v = 0.7 * v + 0.3 * (o**2).mean(0)
        o = o / np.sqrt(v)
        x = x - rate * (0.2 * o / np.sqrt(np.mean(o**2)) + 0.1 * x)
    np.testing.assert_allclose(got["mlp"]["wo"], x, rtol=1e-4, atol=1e-5)


def _bases(state):
    """Returns the eigenbases in the state of SOAP for the only matrix."""
    found = [
        x for path, x in jax.tree.leaves_with_path(state) if ".bases" in jax.tree_util.keystr(path)
    ]
    return [np.asarray(x[0], np.float64) for x in found]


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("shape", "longest_side"), [((6, 4), 100), ((4, 6), 100), ((6, 4), 5), ((6, 4), 3)]
)
def test_soap_matches_hand_computed_steps(shape, longest_side):
    """Computes ten steps from the first eigenbases, which the first gradient may leave open."""
    random = np.random.default_rng(0)
    x = random.normal(size=shape)
    gradients = random.normal(size=(11, *shape))
    optimizer = soap(
        11,
        learning_rate=0.1,
        b1=0.8,
        b2=0.9,
        frequency=4,
        longest_side=longest_side,
        weight_decay=0.1,
        clip_norm=None,
    )
    params = _matrix(x)
    first, state = optimizer.update(_matrix(gradients[0]), optimizer.init(params), params)
    np.testing.assert_allclose(first["mlp"]["wo"], -0.01 * x, rtol=1e-5)  # only weight decay
    step = jax.jit(optimizer.update)
    rotated = [side <= longest_side for side in shape]
    found = iter(_bases(state))
    bases = [next(found) if is_rotated else np.eye(n) for is_rotated, n in zip(rotated, shape)]
    g = gradients[0]
    covariances = [0.1 * g @ g.T, 0.1 * g.T @ g]
    for basis, covariance, is_rotated in zip(bases, covariances, rotated):
        np.testing.assert_allclose(basis.T @ basis, np.eye(len(basis)), atol=1e-5)
        sizes = basis.T @ covariance @ basis
        if is_rotated:
            np.testing.assert_allclose(sizes, np.diag(np.diag(sizes)), atol=1e-5)
            assert (np.diff(np.diag(sizes)) < 1e-5).all()
    m = v = 0.0
    for t, g in enumerate(gradients[1:], 1):
        updates, state = step(_matrix(g), state, _matrix(x))
        left, right = bases
        m = 0.8 * m + 0.2 * g
        v = 0.9 * v + 0.1 * (left.T @ g @ right) ** 2
        adam = (left.T @ m @ right) / (1 - 0.8**t) / np.sqrt(v / (1 - 0.9**t))
        expected = -0.1 * (left @ adam @ right.T + 0.1 * x)
        np.testing.assert_allclose(updates["mlp"]["wo"], expected, rtol=1e-3, atol=2e-4)
        x = x + expected
        covariances = [0.9 * covariances[0] + 0.1 * g @ g.T, 0.9 * covariances[1] + 0.1 * g.T @ g]
        if t % 4 == 0:
            for side in (0, 1):
                if rotated[side]:
                    basis = bases[side]
                    order = np.argsort(-np.diag(basis.T @ covariances[side] @ basis))
                    v = np.take(v, order, axis=side)
                    bases[side] = np.linalg.qr(covariances[side] @ basis[:, order])[0]


@pytest.mark.sampled
@pytest.mark.parametrize("make", [normuon, soap])
def test_stacked_matrices_are_updated_separately_and_other_arrays_by_adamw(make):
    random = np.random.default_rng(0)
    heads = jnp.asarray(random.normal(size=(2, 8, 2, 3)))  # two scanned layers
    table = jnp.asarray(random.normal(size=(9, 8)))
    together = {"self_attention": {"query": heads}, "token_embedding": table}
    apart = [{"mlp": {"wo": layer.reshape(8, 6)}} for layer in heads]
    optimizer = make(3, learning_rate=0.1, b1=0.9, b2=0.95, weight_decay=0.1, clip_norm=None)
    got = _after(optimizer, together, [together] * 3)
    for layer, one in zip(got["self_attention"]["query"], apart):
        expected = _after(optimizer, one, [one] * 3)["mlp"]["wo"]
        np.testing.assert_allclose(layer.reshape(8, 6), expected, rtol=1e-4, atol=1e-5)
    plain = adamw(3, learning_rate=0.1, b1=0.9, b2=0.95, clip_norm=None)
    expected = _after(plain, {"table": table}, [{"table": table}] * 3)["table"]
    np.testing.assert_allclose(got["token_embedding"], expected, rtol=1e-5)


# Matrices that begin as waves, after steps of 0.1 without weight decay. SOAP is nikhilvyas/SOAP at
# a1e55353 (`soap.py`), for 8 steps. NorMuon is `normuon_update` of zichongli5/NorMuon at d45c9a42
# (`normuon.py`) without bfloat16, for 3 steps. Its updates were scaled to a root mean square of
# 0.2, as in the paper's algorithm 1.
PUBLISHED = {
    "soap": [
        [-0.291793, 2.00684, -0.458801, -1.207547],
        [0.420992, 1.157902, -0.992909, -1.442703],
        [1.719493, 0.370807, -2.272337, -0.273395],
        [2.568722, -0.098996, -1.586648, 0.369456],
    ],
    "normuon": [
        [-0.006195, 1.957347, -0.54682, -1.768812],
        [0.950115, 1.542099, -1.404146, -1.30379],
        [1.709019, 0.855506, -1.929033, -0.318845],
        [2.104033, -0.205793, -1.900193, 0.725206],
        [1.747964, -1.117319, -1.430227, 1.513821],
        [1.065457, -1.869526, -0.632202, 1.915186],
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "steps", "settings"),
    [(soap, 8, dict(b1=0.8, b2=0.9, frequency=3)), (normuon, 3, dict(beta=0.8, b2=0.7))],
)
def test_updates_match_the_published_code(make, steps, settings):
    expected = np.array(PUBLISHED[make.__name__])
    gradients = [np.random.default_rng(i).normal(size=expected.shape) for i in range(steps)]
    optimizer = make(steps, learning_rate=0.1, weight_decay=0.0, clip_norm=None, **settings)
    optimizer = optimizer._replace(update=jax.jit(optimizer.update))
    start = _matrix(waves(*expected.shape, step=1.7))
    got = _after(optimizer, start, [_matrix(g) for g in gradients])
    np.testing.assert_allclose(got["mlp"]["wo"], expected, rtol=1e-5, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("make", [normuon, soap])
def test_zero_gradients_keep_parameters_at_0(make):
    zeros = _matrix(np.zeros((4, 6)))
    got = _after(make(3, learning_rate=0.1, clip_norm=None), zeros, [zeros] * 3)
    np.testing.assert_array_equal(got["mlp"]["wo"], 0)
