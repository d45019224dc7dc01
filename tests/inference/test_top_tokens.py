"""The top tokens of a text agree with its score and with the top next tokens."""

import math

import numpy as np
import pytest

from pretrax.inference import Options, fill_masks, next_tokens, score
from pretrax.inference.answering.top_tokens import top_tokens
from tests.inference.runs import TEXT, trained
from tests.refusals import refuses


@pytest.mark.parametrize("builder, name", [("decoder", "causal_lm"), ("encoder", "masked_lm")])
def test_token_probabilities_match_score(builder, name):
    trained_model = trained(builder, name)
    found = top_tokens(trained_model, TEXT, top=3)
    (scored,) = score(trained_model, [("", TEXT)])
    assert "".join(each.token for each in found) == TEXT
    np.testing.assert_allclose([math.log(each.probability) for each in found], scored.log_probs)
    for each in found:
        p = [guess.probability for guess in each.others]
        assert len(p) == 3 and p == sorted(p, reverse=True)
        assert all(guess.probability == pytest.approx(each.probability, abs=1e-6)
                   for guess in each.others if guess.token == each.token)  # fmt: skip


def test_alternatives_of_a_token_are_the_top_next_tokens():
    trained_model = trained("decoder", "causal_lm")
    found = top_tokens(trained_model, "Ada", top=4)
    (expected,) = next_tokens(trained_model, ["Ad"], Options(top=4))
    assert [guess.id for guess in found[2].others] == [guess.id for guess in expected]


@pytest.mark.slow
def test_alternatives_of_a_masked_token_are_the_mask_predictions():
    trained_model = trained("encoder", "masked_lm")
    (expected,) = fill_masks(trained_model, ["A[MASK]a"], Options(top=4))
    found = top_tokens(trained_model, "Ada", top=4)[1].others
    for guess, other in zip(found, expected[0], strict=True):
        assert guess[:2] == other[:2]
        assert guess.probability == pytest.approx(other.probability, abs=1e-6)


@pytest.mark.slow
def test_answer_probabilities_are_conditioned_on_the_context():
    trained_model = trained("encoder_decoder", "prefix_lm")
    found = top_tokens(trained_model, " it", top=2, context="Ada wrote")
    (scored,) = score(trained_model, [("Ada wrote", " it")])
    np.testing.assert_allclose([math.log(each.probability) for each in found], scored.log_probs)
    with refuses(ValueError, "--target=ANSWER"):
        top_tokens(trained_model, "Ada wrote")
