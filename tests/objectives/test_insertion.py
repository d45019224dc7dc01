"""ILM: which tokens are dropped, and the loss compared with the paper's formula."""

import itertools

import jax
import numpy as np
import pytest
from scipy.special import log_softmax
from scipy.stats import chisquare

from pretrax.objectives import Row, batched, insertion_lm
from tests.objectives.linear_outputs import LinearOutputs, ProjectedOutputs
from tests.objectives.registry import IDS, quick_jit

V, E, T = 7, 3, 12
RANDOM = np.random.default_rng(0)
STATES = 3 * RANDOM.normal(size=(1, T, E)).astype(np.float32)
KERNEL, STOP = (RANDOM.normal(size=(E, n)).astype(np.float32) for n in (V, 2))
# [CLS] ^ . . with 3 dropped tokens, [CLS] ^ . with none, and [CLS] ^ with all tokens dropped.
BATCH = {
    "encoder_segment_ids": [1, 1, 1, 1, 2, 2, 2, 3, 3, 0, 0, 0],
    "encoder_positions": [0, 1, 2, 3, 0, 1, 2, 0, 1, 0, 0, 0],
    "encoder_target_tokens": [5, 5, 2, 6, 3, 0],
    "encoder_target_slots": [1, 3, 3, 8, 8, 0],
    "encoder_loss_weights": [1, 1, 1, 1, 1, 0],
    "pools_slots": [0, 4, 7, 0],
    "pools_labels": [1, 0, 1, 0],
    "pools_weights": [1, 1, 1, 0],
}
BATCH = {name: np.array([x], np.int32) for name, x in BATCH.items()}
# Losses of each document by `ILMWithStoppingClassificationLossWithMaskedCE` of dhruvdcoder/ILM at
# 04f78bd1 (`ilm_v2.py`), with the targets of its `DefaultILMCollator`.
PUBLISHED = {
    "ce": [14.969746726498537, 0.0, 1.6080456362515645],
    "stop": [0.00827118378869176, 2.209049515573772, 5.095388128925898],
}


def loss_by_paper() -> float:
    """Returns the mean over documents of the cross-entropy of dropped tokens.

    A single softmax covers slots and tokens.
    """
    logits = np.float64(STATES[0] @ KERNEL)
    first, last = log_softmax(logits[1:4]), log_softmax(logits[8:9])
    losses = [-(first[0, 5] + first[2, 5] + first[2, 2]) / 3, 0.0, -(last[0, 6] + last[0, 3]) / 2]
    return sum(losses) / 3


def terms_of(kind, states=STATES):
    return (
        insertion_lm(IDS)
        .loss(BATCH)
        .scored(kind({"top": states}, {"vocabulary": KERNEL, "stop": STOP}))
    )


@pytest.mark.parametrize("kind", [LinearOutputs, ProjectedOutputs])
def test_loss_matches_paper_and_published_code(kind):
    terms = jax.jit(lambda states: terms_of(kind, states))(STATES)
    means = {name: float(t.sums.sum() / t.weights.sum()) for name, t in terms.items()}
    assert means["tokens"] + means["slots"] == pytest.approx(loss_by_paper(), rel=1e-5)
    assert means["tokens"] + means["slots"] == pytest.approx(np.mean(PUBLISHED["ce"]), rel=1e-5)
    assert means["stop"] == pytest.approx(np.mean(PUBLISHED["stop"]), rel=1e-5)
    stop = log_softmax(STATES[0, [0, 4, 7]] @ STOP, axis=1)
    assert means["stop"] == pytest.approx(-stop[range(3), [1, 0, 1]].mean(), rel=1e-5)
    assert {name for name, t in terms.items() if t.scale == 1} == {"tokens", "slots", "stop"}
    assert {float(t.weights[0]) for t in terms.values()} == {3.0}
    # Slot losses: two of three dropped tokens are in the last slot. A text with one slot has none.
    slots = log_softmax(np.log(np.exp(np.float64(STATES[0, 1:4] @ KERNEL)).sum(1)))
    assert 3 * means["slots"] == pytest.approx(-(slots[0] + 2 * slots[2]) / 3, rel=1e-5)


@pytest.mark.slow
def test_chunked_gradient_matches_full_logits():
    def total(states, kind):
        return sum(term.sums.sum() for term in terms_of(kind, states).values() if term.scale)

    full, chunked = (
        quick_jit(jax.grad(lambda states, kind=kind: total(states, kind)))(STATES)
        for kind in (LinearOutputs, ProjectedOutputs)
    )
    np.testing.assert_allclose(chunked, full, rtol=1e-4, atol=1e-6)
    learns = np.abs(np.asarray(full)[0]).sum(-1) > 0
    # A complete text has no slot to learn.
    assert np.flatnonzero(learns).tolist() == [0, 1, 2, 3, 4, 7, 8]


def test_labels_determine_loss_of_constant_states():
    """Baselines use this. The states are near 0, and far from 0."""
    jitted = quick_jit(lambda states: terms_of(LinearOutputs, states))
    for size in (0.0, 100.0):
        terms = jitted(np.full_like(STATES, size))
        np.testing.assert_allclose(terms["slots"].sums, [np.log(3)], rtol=1e-4)
        for name, kernel in (("tokens", KERNEL), ("stop", STOP)):
            labels, guess = terms[name].labels, -log_softmax(size * kernel.sum(0))
            expected = (guess[np.asarray(labels.values)] * labels.weights).sum()
            np.testing.assert_allclose(terms[name].sums, [expected], rtol=1e-4)
        np.testing.assert_allclose(terms["tokens"].labels.weights.sum(), 2.0, rtol=1e-6)


def test_dropped_counts_and_subsets_are_uniform():
    """Runs a chi-squared test at significance 0.001 for 3 tokens that follow another document."""
    rows, segments = 4_000, np.array([1, 1, 2, 2, 2], np.int32)
    objective = insertion_lm(IDS)
    raw = Row(np.arange(10, 15, dtype=np.int32), segments, np.int32(0))
    raw = jax.tree.map(lambda x: np.broadcast_to(x, (rows, *np.shape(x))), raw)
    lengths = {"inputs": 9, "labels": 5, "pools": 2}
    keys = jax.random.split(jax.random.key(0), rows)
    got = jax.device_get(quick_jit(batched(objective, lengths, 2))(keys, raw))
    dropped = np.stack([(got["labels"] == token).any(1) for token in (12, 13, 14)], 1)
    subsets = list(itertools.product([0, 1], repeat=3))
    found = [(dropped == subset).all(1).sum() for subset in subsets]
    expected = [rows / 4 / [1, 3, 3, 1][sum(subset)] for subset in subsets]
    assert chisquare(found, expected).pvalue > 1e-3
    np.testing.assert_array_equal(got["pools_labels"][:, 1], dropped.any(1))


def test_special_tokens_are_never_dropped():
    objective, tokens = insertion_lm(IDS), np.array([IDS.eos, 11, IDS.mask, 12] * 8, np.int32)
    rows = Row(tokens, np.ones_like(tokens), np.int32(0))
    lengths = objective.lengths(tokens.size)
    corrupt = quick_jit(lambda key, rows: objective.corrupt(key, rows, rows, lengths, 1))
    got = corrupt(jax.random.key(0), rows)
    labels = np.asarray(got["labels"])[np.asarray(got["labels_weights"]) > 0]
    assert set(labels.tolist()) == {11, 12}
