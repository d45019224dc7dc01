"""The cross-entropy that forms few logits at a time is that of all of them, and so is its gradient."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrax.objectives import cross_entropy
from pretrax.objectives.cross_entropy import Sums, projected_cross_entropy

B, K, E, V = 4, 10, 8, 40


class Projection(NamedTuple):
    states: jax.Array
    kernel: jax.Array
    finish: object


class Example(NamedTuple):
    """Everything that a loss may be differentiated in."""

    states: jax.Array
    kernel: jax.Array
    bias: jax.Array
    weights: jax.Array


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


def plain(example):
    states, kernel, finish = projection_of(example)
    products = jnp.tensordot(states, kernel, 1, preferred_element_type=jnp.float32)
    losses, log_partition = cross_entropy.cross_entropy(finish(products), LABELS)
    weights = example.weights
    return Sums(jnp.sum(losses * weights, -1), jnp.sum(log_partition**2 * weights, -1))


def in_pieces(example):
    return projected_cross_entropy(projection_of(example), LABELS, example.weights)


@pytest.fixture(params=[8, 12, 1000], ids=["even_pieces", "uneven_pieces", "one_piece"])
def pieces(request, monkeypatch):
    """Pieces of 2 slots of each row, of 3 (and padding), and of all."""
    monkeypatch.setattr(cross_entropy, "_slots_of_a_piece", lambda: request.param)


MIXED = jnp.array([1.0, -2.0, 0.0, 3.0])
COTANGENTS = {
    "mean": Sums(jnp.full(B, 0.3), None),
    "mean_and_z_loss": Sums(jnp.full(B, 0.3), jnp.full(B, 0.1)),
    "z_loss_alone": Sums(None, jnp.full(B, 0.1)),
    "rows_apart": Sums(MIXED, None),
    "rows_apart_and_z_loss": Sums(MIXED, jnp.full(B, 0.1)),
}


@pytest.mark.parametrize("cotangents", COTANGENTS.values(), ids=COTANGENTS)
@pytest.mark.usefixtures("pieces")
def test_sums_and_gradients_equal_those_of_all_logits(cotangents):
    def total(sums_of, example):
        sums = sums_of(example)
        parts = [jnp.vdot(c, x) for c, x in zip(cotangents, sums) if c is not None]
        return sum(parts), sums

    def differentiated(sums_of):
        return jax.jit(jax.value_and_grad(functools.partial(total, sums_of), has_aux=True))

    (_, sums), gradients = differentiated(in_pieces)(example())
    (_, expected), expected_gradients = differentiated(plain)(example())
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), sums, expected)
    for name, got in gradients._asdict().items():
        want = getattr(expected_gradients, name)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=name)


def test_bfloat16_keeps_sums_and_accumulation_in_float32(monkeypatch):
    monkeypatch.setattr(cross_entropy, "_slots_of_a_piece", lambda: 8)
    given = example("bfloat16")
    for got, want in zip(in_pieces(given), plain(given)):
        assert got.dtype == jnp.float32
        np.testing.assert_allclose(got, want, rtol=1e-5)
    gradient = jax.grad(lambda x: in_pieces(x).losses.sum())(given)
    exact = jax.grad(lambda x: plain(x).losses.sum())(
        jax.tree.map(lambda x: x.astype(jnp.float32), given)
    )
    for got, want in zip(gradient, exact):
        scale = float(jnp.max(jnp.abs(want)))
        np.testing.assert_allclose(got.astype(jnp.float32), want, atol=0.02 * scale)


def compiled(loss, slots):
    """The program of a loss and its gradients over rows of `slots` slots."""
    shapes = jax.eval_shape(example)
    shapes = shapes._replace(
        states=jax.ShapeDtypeStruct((B, slots, E), jnp.float32),
        weights=jax.ShapeDtypeStruct((B, slots), jnp.float32),
    )
    labels = jax.ShapeDtypeStruct((B, slots), jnp.int32)
    return jax.jit(jax.value_and_grad(loss)).lower(shapes, labels).compile()


def loss(example, labels, z_loss=0.0):
    sums = projected_cross_entropy(projection_of(example), labels, example.weights)
    return sums.losses.sum() + (z_loss * sums.squared_log_partition.sum() if z_loss else 0.0)


def test_no_array_of_the_program_holds_all_logits(monkeypatch):
    monkeypatch.setattr(cross_entropy, "_slots_of_a_piece", lambda: 4 * B)
    slots = 512
    program = compiled(loss, slots)
    assert program.memory_analysis().temp_size_in_bytes < B * slots * V * 4 / 2
    shapes = {f"[{B},{slots},{V}]", f"[{slots // 4},{B},4,{V}]", f"[{B * slots},{V}]"}
    assert not [shape for shape in shapes if f"f32{shape}" in program.as_text()]


def test_a_mean_compiles_without_the_gradient_of_rows_apart():
    def mean(example, labels):
        return loss(example, labels) / jnp.maximum(jnp.sum(example.weights), 1.0)

    assert " conditional(" not in compiled(mean, 512).as_text()


def test_a_run_without_z_loss_does_not_pay_for_its_gradient():
    def products(**settings):
        return compiled(functools.partial(loss, **settings), 512).as_text().count(" dot(")

    # Of the squares: the gradients of the states and the kernel.
    assert products(z_loss=0.1) - products() == 2
