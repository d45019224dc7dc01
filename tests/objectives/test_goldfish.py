"""Goldfish loss: which tokens are dropped, and the loss, compared with the paper's formula."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrax.objectives import Row, batched, causal_lm, goldfish_loss, packed_lengths
from tests.objectives.linear_outputs import LinearOutputs
from tests.objectives.registry import IDS, quick_jit, text_row

WORD = 2**32


def fnv_and_murmur(context) -> int:
    """Returns the 32-bit hash of some tokens, in Python's own integers."""
    value = 0x811C9DC5
    for token in context:
        value = (value ^ int(token)) * 0x01000193 % WORD
    value = (value ^ value >> 16) * 0x85EBCA6B % WORD
    value = (value ^ value >> 13) * 0xC2B2AE35 % WORD
    return value ^ value >> 16


def weights_by_loops(tokens, segments, k, width) -> np.ndarray:
    """Returns the weight of each token: 0 if the hash of the tokens before it is below 1 / k."""
    weights = np.zeros(tokens.size, np.int32)
    for document in set(segments[segments > 0]):
        (slots,) = np.nonzero(segments == document)
        for number, slot in enumerate(slots):
            context = tokens[slots[number - width : number]]
            dropped = number >= width and fnv_and_murmur(context) / WORD < 1 / k
            weights[slot] = not dropped
    return weights


@functools.cache
def weigh(k, width, length):
    """Returns a compiled function (tokens, segments) -> weights of the targets."""
    objective = goldfish_loss(IDS, k, width)

    @quick_jit
    def weights(tokens, segments):
        row = Row(tokens, segments, jnp.int32(0))
        features = objective.corrupt(jax.random.key(0), row, row, {"targets": length}, 4)
        return features["targets_weights"]

    return lambda tokens, segments: np.asarray(weights(tokens, segments))


@pytest.mark.parametrize("k, width", [(4, 13), (2, 1), (50, 2)])
def test_dropped_tokens_match_paper(k, width):
    row, _ = text_row((150, 1, 40, 60), 280)  # packed documents, one with a single token
    expected = weights_by_loops(row.tokens, row.segments, k, width)
    np.testing.assert_array_equal(weigh(k, width, 280)(row.tokens, row.segments), expected)
    assert 0 < np.sum((expected == 0) & (row.segments > 0)) < 250


def test_loss_is_mean_over_kept_tokens():
    V, length = 60, 64
    objective = goldfish_loss(IDS, 3, 4)
    documents = [(30, 1, 20), (40,)]
    rows = [text_row(lengths, length)[0] for lengths in documents]
    rows = [row._replace(tokens=row.tokens % V) for row in rows]
    raw = jax.tree.map(lambda *x: np.stack(x), *rows)
    logits = np.random.default_rng(0).normal(size=(2, length, V)).astype(np.float32)
    lengths = packed_lengths(objective, (length,))

    @quick_jit
    def value_and_gradient(raw, logits):
        f = batched(objective, lengths, 3)(jax.random.split(jax.random.key(0), 2), raw)
        batch = {
            "decoder_target_tokens": f["targets"],
            "decoder_loss_weights": f["targets_weights"],
        }

        def loss(logits):
            term = objective.loss(batch).scored(LinearOutputs({"top": logits}))["tokens"]
            return jnp.sum(term.sums) / jnp.sum(term.weights)

        return jax.value_and_grad(loss)(logits)

    value, gradient = value_and_gradient(raw, logits)
    total = 0.0
    count = 0
    columns = raw.tokens, raw.segments, np.float64(logits), np.asarray(gradient)
    for tokens, segments, scores, slopes in zip(*columns):
        weights = weights_by_loops(tokens, segments, 3, 4)
        for slot in np.flatnonzero(weights):
            total += np.log(np.exp(scores[slot]).sum()) - scores[slot, tokens[slot]]
            count += 1
        assert not slopes[weights == 0].any()
    assert count < np.sum(raw.segments > 0)
    np.testing.assert_allclose(value, total / count, rtol=1e-5)


def test_facts_equal_causal_lm_except_likelihood():
    facts = goldfish_loss(IDS).facts
    assert facts == causal_lm(IDS).with_facts(likelihood=None).facts
