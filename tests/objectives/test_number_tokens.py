"""The loss of number tokens, compared with the paper's formulas in NumPy."""

import jax
import numpy as np
import pytest

from pretrax.objectives import (
    block_diffusion,
    causal_lm,
    check_token_ids,
    number_token_loss,
    span_corruption,
    ul2,
)
from tests.objectives.linear_outputs import LinearOutputs, ProjectedOutputs
from tests.objectives.registry import IDS, quick_jit
from tests.refusals import refuses

V, E, B, T = 40, 6, 2, 30
RANDOM = np.random.default_rng(0)
STATES = RANDOM.normal(size=(B, T, E)).astype(np.float32)
KERNEL = RANDOM.normal(size=(E, V)).astype(np.float32)
# The vocabulary has a second 5, as after a space.
DIGITS = (*((5 + (3 * value) % 10, value) for value in range(10)), (30, 5))
TOKENS = RANDOM.integers(2, V, (B, T)).astype(np.int32)
WEIGHTS = (np.arange(T) < np.array([[25], [30]])).astype(np.int32)
BATCH = {"decoder_target_tokens": TOKENS, "decoder_loss_weights": WEIGHTS}


def loss_by_paper(distance: str) -> np.ndarray:
    """Returns the loss of each row, as a sum over its digits."""
    ids, values = (list(x) for x in zip(*DIGITS))
    sums = np.zeros(B)
    for row, slot in zip(*np.nonzero(np.isin(TOKENS, ids) & (WEIGHTS > 0))):
        truth = dict(DIGITS)[TOKENS[row, slot]]
        p = np.exp(np.float64(STATES[row, slot] @ KERNEL))[ids]
        p /= p.sum()
        if distance == "squared":
            sums[row] += (truth - p @ values) ** 2
        else:
            sums[row] += sum(p_j * abs(value - truth) for p_j, value in zip(p, values))
    return sums


@pytest.mark.parametrize("kind", [LinearOutputs, ProjectedOutputs])
@pytest.mark.parametrize("distance", ["wasserstein", "squared"])
def test_loss_matches_paper(distance, kind):
    outputs = kind({"top": STATES}, {"vocabulary": KERNEL})
    ids = IDS._replace(digits=DIGITS)
    objective = number_token_loss(ids, distance=distance, scale=0.5)
    terms = jax.jit(lambda batch: objective.loss(batch).scored(outputs))(BATCH)
    np.testing.assert_allclose(terms["numbers"].sums, loss_by_paper(distance), rtol=1e-4)
    counted = (np.isin(TOKENS, [i for i, _ in DIGITS]) & (WEIGHTS > 0)).sum(1)
    np.testing.assert_array_equal(terms["numbers"].weights, counted)
    assert counted.min() > 3 and terms["numbers"].scale == 0.5
    causal_terms = jax.jit(lambda batch: causal_lm(ids).loss(batch).scored(outputs))(BATCH)
    np.testing.assert_allclose(terms["tokens"].sums, causal_terms["tokens"].sums, rtol=1e-6)


def test_rows_without_digits_have_no_loss_or_weight():
    objective = number_token_loss(IDS._replace(digits=DIGITS))
    without = BATCH | {"decoder_target_tokens": np.full((B, T), 4, np.int32)}
    outputs = LinearOutputs({"top": STATES}, {"vocabulary": KERNEL})

    @quick_jit
    def sums_and_weights(batch):
        term = objective.loss(batch).scored(outputs)["numbers"]
        return term.sums, term.weights

    assert not any(np.any(x) for x in sums_and_weights(without))


def test_span_corruption_keeps_lengths_and_prompt_forms():
    objective = number_token_loss(IDS, span_corruption)
    assert objective.lengths(100) == span_corruption(IDS).lengths(100)
    assert objective.facts.prompt_forms == span_corruption(IDS).facts.prompt_forms


@pytest.mark.parametrize("digits", [(), IDS.digits[:9]])
def test_vocabulary_without_all_digits_raises(digits):
    with refuses(ValueError, list(range(len(digits), 10))):
        number_token_loss(IDS._replace(digits=digits))


@pytest.mark.parametrize("builder", [block_diffusion, ul2])
def test_builder_with_other_loss_raises(builder):
    with refuses(ValueError, "number_token_loss"):
        number_token_loss(IDS, builder)


@pytest.mark.parametrize("digit", [(IDS.mask, 3), (5, 10)])
def test_digits_outside_text_or_range_raise(digit):
    with refuses(ValueError, "0", "9"):
        check_token_ids(IDS._replace(digits=(digit,)))
