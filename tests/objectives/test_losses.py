"""Losses are sums per row, so that any way of adding rows gives the same result."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.special

from pretrax.objectives.cross_entropy import cross_entropy
from pretrax.objectives.losses import token_loss
from tests.objectives.linear_outputs import LinearOutputs

B, T, P, D, V = 8, 12, 5, 16, 40


def example(has_slots: bool, seed=0):
    rng = np.random.default_rng(seed)
    hidden, matrix = (rng.normal(size=shape).astype(np.float32) for shape in ((B, T, D), (D, V)))
    n = P if has_slots else T
    batch = {
        "decoder_target_tokens": rng.integers(0, V, (B, n), np.int32),
        "decoder_loss_weights": rng.binomial(1, 0.6, (B, n)).astype(np.int32),
    }
    if has_slots:
        batch["decoder_target_slots"] = rng.integers(0, T, (B, n), np.int32)
    return LinearOutputs({"top": hidden}, {"vocabulary": matrix}, z_loss=0.1), batch


@jax.jit
def scored(outputs, batch):
    return token_loss(batch).scored(outputs)["tokens"]


with_and_without_slots = pytest.mark.parametrize(
    "has_slots", [False, True], ids=["all_slots", "target_slots"]
)


@pytest.mark.parametrize("shape", [(7,), (3, 7), (2, 3, 7)])
def test_cross_entropy_matches_optax(shape):
    rng = np.random.default_rng(0)
    logits = 20 * rng.normal(size=(*shape, V)).astype(np.float32)
    labels = rng.integers(0, V, shape, np.int32)
    expected = jax.jit(optax.softmax_cross_entropy_with_integer_labels)(logits, labels)
    losses, log_partition = jax.jit(cross_entropy)(logits, labels)
    np.testing.assert_allclose(losses, expected, rtol=1e-6, atol=1e-5)
    expected = scipy.special.logsumexp(logits, axis=-1)
    np.testing.assert_allclose(log_partition, expected, rtol=1e-6)


def test_cross_entropy_of_bfloat16_logits_is_float32():
    logits = np.random.default_rng(0).normal(size=(4, V)).astype(jnp.bfloat16)
    labels = np.arange(4)
    got, exact = (jax.jit(cross_entropy)(x, labels) for x in (logits, logits.astype(np.float32)))
    for x, y in zip(got, exact):
        assert x.dtype == jnp.float32
        np.testing.assert_array_equal(x, y)


@with_and_without_slots
def test_token_loss_is_weighted_sum_per_row(has_slots):
    outputs, batch = example(has_slots)
    term = scored(outputs, batch)
    assert term.scale == 1.0
    for b in range(B):
        slots = np.asarray(batch["decoder_target_slots"][b] if has_slots else np.arange(T))
        logits = np.asarray(outputs.hidden["top"][b])[slots] @ np.asarray(
            outputs.matrices["vocabulary"]
        )
        log_partition = scipy.special.logsumexp(logits, axis=-1)
        labels = np.asarray(batch["decoder_target_tokens"][b])
        losses = log_partition - logits[np.arange(len(labels)), labels]
        weights = np.asarray(batch["decoder_loss_weights"][b])
        for sums, slot_values in ((term.sums, losses), (term.z_losses, 0.1 * log_partition**2)):
            np.testing.assert_allclose(sums[b], slot_values @ weights, rtol=1e-5)
        assert term.weights[b] == weights.sum()


@with_and_without_slots
def test_zero_weights_give_zero_gradient(has_slots):
    outputs, batch = example(has_slots)
    batch["decoder_loss_weights"] = np.zeros_like(batch["decoder_loss_weights"])
    gradient = jax.jit(jax.grad(lambda outputs: scored(outputs, batch).sums.sum()))(outputs)
    assert not any(np.any(x) for x in jax.tree.leaves(gradient))


@with_and_without_slots
def test_gradient_accumulation_keeps_mean_loss(has_slots):
    outputs, batch = example(has_slots)

    def total(field, parts):
        sums = weights = 0.0
        for part in parts:
            part_batch = {key: value[part] for key, value in batch.items()}
            rows = dataclasses.replace(outputs, hidden={"top": outputs.hidden["top"][part]})
            term = jax.device_get(scored(rows, part_batch))
            sums, weights = sums + getattr(term, field).sum(), weights + term.weights.sum()
        return sums / weights

    for field in ("sums", "z_losses"):
        whole = total(field, [slice(0, B)])
        for size in (B // 2, B // 4):
            parts = [slice(b, b + size) for b in range(0, B, size)]
            np.testing.assert_allclose(total(field, parts), whole, rtol=1e-6)
