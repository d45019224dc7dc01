"""Upcoming tokens: which tokens count, and the losses compared with formulas in NumPy."""

import jax
import numpy as np
import pytest

from pretrax.objectives import future_summary, token_order_prediction
from tests.objectives.linear_outputs import LinearOutputs, ProjectedOutputs
from tests.objectives.registry import IDS

V, E, B, T = 40, 6, 2, 30
RANDOM = np.random.default_rng(0)
STATES = RANDOM.normal(size=(B, T, E)).astype(np.float32)
KERNELS = {
    name: RANDOM.normal(size=(E, V)).astype(np.float32)
    for name in ("vocabulary", "order", "summary")
}
TOKENS = RANDOM.integers(2, V, (B, T)).astype(np.int32)
DOCUMENTS = np.repeat([[1] * 11 + [2] * 2 + [3] * 12 + [0] * 5, [1] * 30], 1, axis=0)
BATCH = {
    "decoder_target_tokens": TOKENS,
    "decoder_loss_weights": (DOCUMENTS > 0).astype(np.int32),
    "decoder_segment_ids": DOCUMENTS.astype(np.int32),
}


def terms_of(objective, states, kind=LinearOutputs, batch=BATCH):
    return objective.loss(batch).scored(kind({"top": states}, KERNELS))


def following(row: int, slot: int) -> list[int]:
    """Returns the tokens that this slot and later slots of its document predict."""
    in_document = DOCUMENTS[row] == DOCUMENTS[row, slot]
    return TOKENS[row, slot:][in_document[slot:]].tolist()


def listnet(logits, window):
    """Computes as the authors' code. A token scores window - distance to its next use, or -inf."""

    def slot_loss(row, slot):
        scores = np.full(V, -np.inf)
        for distance, token in reversed(list(enumerate(following(row, slot)[:window]))):
            scores[token] = window - distance
        target = np.exp(scores - scores.max())
        log_probabilities = logits[row, slot] - np.log(np.exp(logits[row, slot]).sum())
        return -(target / target.sum() * log_probabilities).sum()

    return slot_loss


def binary(logits, window):
    def slot_loss(row, slot):
        bag = np.isin(np.arange(V), following(row, slot)[1:window])
        share = 1 / (1 + np.exp(-logits[row, slot]))
        return -np.where(bag, np.log(share), np.log1p(-share)).sum() * bag.any()

    return slot_loss


CASES = [
    (token_order_prediction, "order", 4, listnet),
    (token_order_prediction, "order", 4096, listnet),
    (future_summary, "summary", 2, binary),
    (future_summary, "summary", 12, binary),
    (future_summary, "summary", 10**6, binary),  # longer than a row
]


@pytest.mark.sampled
@pytest.mark.parametrize("window, loss", [(4, 6.055134763389706), (41, 6.067199711663467)])
def test_token_order_loss_matches_published_code(window, loss):
    """`seq_to_top` and `list_net_loss` of zaydzuhri/token-order-prediction at b347f485.

    The text is the second row, which is one document. `seq_to_top` counts one token more than its
    window has, so its window was 3 and 40. The authors' kernel does not (`seq_to_top_triton.py`).
    """
    batch = {name: x[1:] for name, x in BATCH.items()}
    term = terms_of(token_order_prediction(IDS, window), STATES[1:], batch=batch)["order"]
    np.testing.assert_allclose(term.sums / term.weights, [loss], rtol=1e-5)


@pytest.mark.parametrize("build, head, window, reference", CASES)
def test_losses_match_papers(build, head, window, reference):
    terms = jax.jit(lambda states: terms_of(build(IDS, window=window), states))(STATES)
    slot_loss = reference((STATES @ KERNELS[head]).astype(np.float64), window)
    live = [(r, t) for r in range(B) for t in range(T) if DOCUMENTS[r, t]]
    sums = [sum(slot_loss(*slot) for slot in live if slot[0] == row) for row in range(B)]
    np.testing.assert_allclose(terms[head].sums, sums, rtol=1e-5)
    has_target = [len(following(*slot)) > (head == "summary") for slot in live]
    assert terms[head].weights.sum() == sum(has_target) and terms[head].scale == 1.0
    assert terms["tokens"].weights.sum() == len(live)
    if head == "order":  # The labels of a slot have a total weight of 1.
        np.testing.assert_allclose(terms[head].labels.weights.sum(1), terms[head].weights, 1e-5)
    else:  # the different tokens in the window of each slot
        labels = terms[head].labels
        np.testing.assert_array_equal(labels.slots, terms[head].weights)
        bags = [len(set(following(*slot)[1:window])) for slot in live]
        assert labels.weights.sum() == sum(bags)


@pytest.mark.parametrize("build, head", [case[:2] for case in CASES[1:4:2]])
def test_chunked_loss_and_gradient_match_full_logits(build, head, monkeypatch):
    monkeypatch.setattr("pretrax.objectives.cross_entropy.CPU_SLOTS", 16)

    def loss(states, kind):
        return terms_of(build(IDS), states, kind)[head].sums.sum()

    full, chunked = (
        jax.jit(jax.value_and_grad(lambda x, kind=kind: loss(x, kind)))(STATES)
        for kind in (LinearOutputs, ProjectedOutputs)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5), full, chunked)
    program = str(jax.make_jaxpr(jax.grad(lambda x: loss(x, ProjectedOutputs)))(STATES))
    assert f"f32[{B},8,{V}]" in program and f"f32[{B},{T},{V}]" not in program
