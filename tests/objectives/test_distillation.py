"""Distillation: which tokens have a teacher's probabilities, and the loss of both terms."""

import numpy as np
import pytest

from pretrax.objectives import distilled_lm
from pretrax.objectives.distillation import UNIT
from tests.objectives.batches import arranged, raw_rows
from tests.objectives.linear_outputs import LinearOutputs
from tests.objectives.registry import CASES, IDS
from tests.refusals import refuses

LENGTH = 12
TOP_K = 2
V = 40
RANDOM = np.random.default_rng(0)


def rows(top_k=TOP_K):
    """Returns two packed rows with a teacher's predictions for some of their tokens."""
    raw, _ = raw_rows((4, 1, 5), (9,), length=LENGTH)
    tokens = RANDOM.integers(0, V, (2, LENGTH, top_k))
    shares = RANDOM.integers(0, UNIT // 3, (2, LENGTH, top_k))
    shares[0, 2] = 0  # a token without predictions
    return raw._replace(
        tokens=raw.tokens % V,
        teacher=np.stack([tokens, shares], 2).astype(np.int32),
    )


def decoder_batch(objective, raw):
    return arranged(objective, raw, 3)[1]


LOGITS = RANDOM.normal(size=(2, LENGTH, V)).astype(np.float32)


@pytest.mark.slow
def test_text_token_gets_remaining_teacher_probability():
    raw = rows()
    objective = distilled_lm(IDS, share=0.25, top_k=TOP_K)
    log_p = LOGITS - np.log(np.exp(LOGITS).sum(-1, keepdims=True))
    text = teacher = 0.0
    for row, slot in zip(*np.nonzero(raw.segments)):
        token = raw.tokens[row, slot]
        tokens, shares = raw.teacher[row, slot]
        text -= log_p[row, slot, token]
        teacher -= (1 - shares.sum() / UNIT) * log_p[row, slot, token]
        teacher -= shares / UNIT @ log_p[row, slot, tokens]
    terms = objective.loss(decoder_batch(objective, raw)).scored(LinearOutputs({"top": LOGITS}))
    np.testing.assert_allclose(terms["tokens"].sums.sum(), text, rtol=1e-5)
    np.testing.assert_allclose(terms["teacher"].sums.sum(), teacher, rtol=1e-5)
    assert {name: term.scale for name, term in terms.items()} == {"tokens": 0.75, "teacher": 0.25}
    assert terms["teacher"].weights.tolist() == [10.0, 9.0]


@pytest.mark.slow
def test_teacher_term_without_teacher_equals_text_loss():
    objective = distilled_lm(IDS, top_k=TOP_K)
    raw = rows()._replace(teacher=None)
    terms = objective.loss(decoder_batch(objective, raw)).scored(LinearOutputs({"top": LOGITS}))
    np.testing.assert_allclose(terms["tokens"].sums, terms["teacher"].sums, rtol=1e-6)


def test_only_top_k_teacher_tokens_are_read():
    raw = rows(top_k=5)
    first = decoder_batch(distilled_lm(IDS, top_k=TOP_K), raw)
    assert first["decoder_teacher_tokens"].shape == (2, TOP_K, LENGTH)
    live = np.moveaxis(raw.teacher[:, :, 0, :TOP_K], 2, 1) * (raw.segments > 0)[:, None]
    np.testing.assert_array_equal(first["decoder_teacher_tokens"], live)


def test_too_few_teacher_predictions_raise():
    """Otherwise the last prediction of each token would count several times."""
    with refuses(ValueError, "top_k", 5, 2):
        decoder_batch(distilled_lm(IDS, top_k=5), rows(top_k=2))


def test_teacher_label_weights_sum_to_term_weight():
    objective = distilled_lm(IDS, top_k=TOP_K)
    term = objective.loss(decoder_batch(objective, rows())).terms["teacher"]
    np.testing.assert_allclose(term.labels.weights.sum(-1), term.weights, rtol=1e-6)


def test_only_distillation_reads_a_teacher():
    assert {name for name, case in CASES.items() if case.objective.facts.teacher} == {"distilled"}
