"""The cross-entropy by chunks and its gradient equal the values from all logits at once."""

import functools
import types
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from pretrax.objectives import cross_entropy
from pretrax.objectives.cross_entropy import projected_cross_entropies, weighted_sums

B, K, E, V = 4, 10, 8, 40


class Projection(NamedTuple):
    states: jax.Array
    kernel: jax.Array
    finish: object
    row_shards: int = 1
    slot_shards: int = 1


class Example(NamedTuple):
    """All arguments with respect to which a loss can be differentiated."""

    states: jax.Array
    kernel: jax.Array
    bias: jax.Array
    weights: jax.Array


@functools.cache
def example(dtype="float32"):
    keys = jax.random.split(jax.random.key(0), 4)
    states = jax.random.normal(keys[0], (B, K, E)).astype(dtype)
    kernel = jax.random.normal(keys[1], (E, V)).astype(dtype)
    weights = jax.random.bernoulli(keys[3], 0.6, (B, K)) * 1.5
    return Example(states, kernel, jax.random.normal(keys[2], (V,)), weights)


LABELS = jax.random.randint(jax.random.key(9), (B, K), 0, V)


def projection_of(example):
    def finish(logits):
        return 5.0 * jnp.tanh((logits + example.bias[None, None]) / 5.0)

    return Projection(example.states, example.kernel, finish)


def full_logits(example, z_loss):
    states, kernel, finish, *_ = projection_of(example)
    products = jnp.tensordot(states, kernel, 1, preferred_element_type=jnp.float32)
    return weighted_sums(finish(products), [LABELS], [example.weights], [z_loss])[0]


def chunked(example, z_loss, labels=LABELS, **shards):
    head = projection_of(example)._replace(**shards)
    return projected_cross_entropies(head, [labels], [example.weights], [z_loss])[0]


@pytest.fixture(params=[8, 12, 1000], ids=["even_chunks", "uneven_chunks", "one_chunk"])
def chunk_size(request, monkeypatch):
    """Chunks of 2 slots of each row, of 3 slots (with padding), and of all slots."""
    monkeypatch.setattr(cross_entropy, "slots_of_a_piece", lambda: request.param)
    return request.param


MEAN, MIXED = jnp.full(B, 0.3), jnp.array([1.0, -2.0, 0.0, 3.0])
CASES = {  # cotangents of losses and z-losses, and the z-loss coefficient
    "mean": (MEAN, None, 0.0),
    "mean_and_z_loss": (MEAN, MEAN, 0.1),
    "z_loss_alone": (jnp.zeros(B), MEAN, 0.1),
    "rows_apart": (MIXED, None, 0.0),
    "rows_apart_and_z_loss": (MIXED, MEAN, 0.1),
}


@functools.cache
def differentiated(sums_of, z_loss, chunk_size=None):
    """Returns the compiled function (example, cotangents) -> sums and gradients."""

    def total(example, loss_cotangents, z_loss_cotangents):
        sums = sums_of(example, z_loss)
        total = jnp.vdot(loss_cotangents, sums.losses)
        return total + (jnp.vdot(z_loss_cotangents, sums.z_losses) if z_loss else 0.0), sums

    return jax.jit(jax.value_and_grad(total, has_aux=True))


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("loss_cotangents", "z_loss_cotangents", "z_loss"), CASES.values(), ids=CASES
)
def test_chunked_sums_and_gradients_match_full_logits(
    loss_cotangents, z_loss_cotangents, z_loss, chunk_size
):
    given = example(), loss_cotangents, z_loss_cotangents
    (_, sums), gradients = differentiated(chunked, z_loss, chunk_size)(*given)
    (_, expected), expected_gradients = differentiated(full_logits, z_loss)(*given)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), sums, expected)
    for name, got in gradients._asdict().items():
        want = getattr(expected_gradients, name)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=name)


def test_zero_cotangents_of_unweighted_rows_keep_gradients_exact():
    """Rows of other members of a mixture have weights of 0 and a cotangent of 0."""
    given = example()
    has_weight = jnp.array([False, True, False, True])
    given = given._replace(weights=given.weights * has_weight[:, None])

    def total(sums_of, example):
        return jnp.sum(jnp.where(has_weight, sums_of(example, 0.0).losses, 0.0))

    got, want = (
        jax.jit(jax.grad(functools.partial(total, f)))(given) for f in (chunked, full_logits)
    )
    for name, x in got._asdict().items():
        np.testing.assert_allclose(x, getattr(want, name), rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.sampled
@pytest.mark.parametrize("shards", [(2, 1), (4, 1), (2, 5)], ids=str)
def test_sharded_gradient_matches_unsharded(shards, monkeypatch):
    monkeypatch.setattr(cross_entropy, "slots_of_a_piece", lambda: 12)

    def total(states, kernel, shards):
        given = example()._replace(states=states, kernel=kernel)
        sums = chunked(given, 0.0, row_shards=shards[0], slot_shards=shards[1])
        return jnp.sum(sums.losses)

    gradient = jax.jit(jax.grad(total, (0, 1)), static_argnums=2)
    got, want = (gradient(*example()[:2], num_shards) for num_shards in (shards, (1, 1)))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5), got, want)


@pytest.mark.parametrize("slot_shards", [1, 2, 5])
@pytest.mark.usefixtures("chunk_size")
def test_projected_scores_return_argmax_of_each_slot(slot_shards):
    head = projection_of(example())._replace(slot_shards=slot_shards)
    logits = head.finish(jnp.tensordot(head.states, head.kernel, 1))
    read = jax.jit(
        lambda: cross_entropy.projected_scores(head, lambda logits: jnp.argmax(logits, -1))
    )
    expected = np.argmax(logits, -1)
    likeliest = read()
    np.testing.assert_array_equal(likeliest, expected)


@pytest.mark.slow
def test_zero_slots_have_zero_loss_and_gradient():
    """This occurs if a row group predicts only pairs, and other members predict tokens."""
    given = example()
    given = given._replace(states=given.states[:, :0], weights=given.weights[:, :0])

    def total(example):
        sums = chunked(example, 0.1, LABELS[:, :0])
        return jnp.sum(sums.losses + sums.z_losses)

    assert total(given) == 0
    scores = cross_entropy.projected_scores(projection_of(given), lambda logits: logits[..., 0])
    assert scores.shape == given.states.shape[:2]
    for got, argument in zip(jax.grad(total)(given), given):
        np.testing.assert_array_equal(got, jnp.zeros_like(argument))


def test_bfloat16_inputs_accumulate_in_float32(monkeypatch):
    monkeypatch.setattr(cross_entropy, "slots_of_a_piece", lambda: 8)
    given = example("bfloat16")
    results = (jax.jit(f, static_argnums=1)(given, 0.1) for f in (chunked, full_logits))
    for got, want in zip(*map(jax.tree.leaves, results), strict=True):
        assert got.dtype == jnp.float32
        np.testing.assert_allclose(got, want, rtol=1e-5)
    gradient = jax.jit(jax.grad(lambda x: chunked(x, 0.0).losses.sum()))(given)
    exact = jax.jit(jax.grad(lambda x: full_logits(x, 0.0).losses.sum()))(
        jax.tree.map(lambda x: np.asarray(x, np.float32), given)
    )
    for got, want in zip(gradient, exact):
        scale = float(np.max(np.abs(want)))
        np.testing.assert_allclose(np.asarray(got, np.float32), want, atol=0.02 * scale)


def compiled(loss, slots):
    """Returns the compiled loss and its gradients for rows of `slots` slots."""
    shapes = jax.eval_shape(example.__wrapped__)  # not the cached function: it would keep tracers
    shapes = shapes._replace(
        states=jax.ShapeDtypeStruct((B, slots, E), jnp.float32),
        weights=jax.ShapeDtypeStruct((B, slots), jnp.float32),
    )
    labels = jax.ShapeDtypeStruct((B, slots), jnp.int32)
    return jax.jit(jax.value_and_grad(loss)).lower(shapes, labels).compile()


def mean(example, labels, z_loss=0.1):
    sums = chunked(example, z_loss, labels)
    total = jnp.sum(sums.losses + (sums.z_losses if z_loss else 0.0))
    return total / jnp.maximum(jnp.sum(example.weights), 1.0)


def test_full_logits_are_never_materialized(monkeypatch):
    monkeypatch.setattr(cross_entropy, "slots_of_a_piece", lambda: 4 * B)
    slots = 512
    program = compiled(mean, slots)
    assert program.memory_analysis().temp_size_in_bytes < B * slots * V * 4
    shapes = {f"[{B},{slots},{V}]", f"[{slots // 4},{B},4,{V}]", f"[{B * slots},{V}]"}
    assert not [shape for shape in shapes if f"f32{shape}" in program.as_text()]


@pytest.mark.slow
def test_gradient_of_mean_takes_three_matmuls():
    text = compiled(mean, 512).as_text()
    assert " conditional(" not in text
    assert text.count(" dot(") == 3


# Factors of three labels of each slot. The third label is often the first label, too.
FACTORS = jnp.array([0.125, 0.0625, 1e-9])


def three_labels(example, labels=LABELS):
    """Returns the labels and the weights of three labels of each slot."""
    third = jnp.where(jnp.arange(labels.shape[1]) % 2 == 0, labels, (labels + 1) % V)
    return [labels, (labels * 7 + 3) % V, third], [
        example.weights,
        example.weights * (labels % 3 > 0),
        example.weights * 0.5,
    ]


def three_labels_full(example, z_losses):
    """Returns the sums of each label alone, from all logits."""
    states, kernel, finish, *_ = projection_of(example)
    logits = finish(jnp.tensordot(states, kernel, 1, preferred_element_type=jnp.float32))
    labels, weights = three_labels(example)
    return [
        weighted_sums(logits, [labels[k]], [weights[k]], [z_losses[k]])[0]
        for k in range(len(labels))
    ]


def three_labels_chunked(example, z_losses, factors=None):
    labels, weights = three_labels(example)
    head = projection_of(example)
    return projected_cross_entropies(head, labels, weights, z_losses, factors)


@pytest.mark.sampled
@pytest.mark.parametrize(
    "factors, z_losses",
    [("expected", (0.1, 0.0, 0.2)), ("others", (0.0, 0.0, 0.0)), (None, (0.1, 0.0, 0.2))],
)
@pytest.mark.usefixtures("chunk_size")
def test_three_labels_per_slot_match_each_label_alone(factors, z_losses):
    factors_argument = {"expected": FACTORS, "others": FACTORS[::-1], None: None}[factors]

    def total(sums_of, example):
        sums = sums_of(example, z_losses)
        losses = [x.losses if x.z_losses is None else x.losses + x.z_losses for x in sums]
        return sum(factor * jnp.sum(x) for factor, x in zip(FACTORS, losses)), sums

    def differentiated(sums_of):
        return jax.jit(jax.value_and_grad(functools.partial(total, sums_of), has_aux=True))

    (_, sums), got = differentiated(
        functools.partial(three_labels_chunked, factors=factors_argument)
    )(example())
    (_, expected_sums), want = differentiated(three_labels_full)(example())
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), sums, expected_sums)
    for name, x in got._asdict().items():
        np.testing.assert_allclose(x, getattr(want, name), rtol=1e-4, atol=1e-6, err_msg=name)


def mean_of_three_labels(example, labels, z_loss=0.1):
    labels, weights = three_labels(example, labels)
    total = jnp.maximum(jnp.sum(example.weights), 1.0)
    factors = [scale * (1.0 / total) for scale in (1.0, 0.5, 0.25)]
    head = projection_of(example)
    sums = projected_cross_entropies(head, labels, weights, (z_loss, 0.0, 0.0), factors)
    losses = [x.losses if x.z_losses is None else x.losses + x.z_losses for x in sums]
    return sum(factor * jnp.sum(x) for factor, x in zip(factors, losses))


def test_gradient_of_three_labels_is_not_recomputed(monkeypatch):
    saved = []

    def spy(predicate, *branches):
        jax.debug.callback(lambda x: saved.append(bool(x)), predicate)
        return lax.cond(predicate, *branches)

    monkeypatch.setattr(cross_entropy, "lax", types.SimpleNamespace(**vars(lax) | {"cond": spy}))
    gradient = jax.jit(jax.grad(mean_of_three_labels))(example(), LABELS)
    jax.block_until_ready(gradient)
    jax.effects_barrier()
    assert saved == [True]
