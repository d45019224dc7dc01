"""The likelihood that a model gives a text: its kind, compared with `score`."""

import numpy as np
import pytest

from pretrax.comparison.eval_metrics.parts.likelihoods import (
    BOUND,
    BY_BLANK,
    BY_RESTORING,
    CONDITIONAL,
    EXACT,
    PSEUDO,
    likelihood_form,
    log_probs,
)
from pretrax.inference.answering.scoring import score
from tests.inference.runs import CODEC, trained
from tests.refusals import refuses

GIVEN, REST = "Ada wrote", " all of it"


@pytest.mark.parametrize(
    "builder, names, kind",
    [
        ("decoder", ["causal_lm"], EXACT),
        ("decoder", ["fill_in_the_middle"], EXACT),
        ("decoder", ["masked_next_token", "causal_lm"], EXACT),
        ("encoder", ["masked_diffusion"], BOUND),
        ("encoder_decoder", ["span_corruption", "prefix_lm"], CONDITIONAL),
        ("encoder_decoder", ["span_corruption"], BY_BLANK),
        ("decoder", ["blank_infilling"], BY_BLANK),
        ("encoder_decoder", ["bart"], BY_RESTORING),
        ("encoder", ["masked_lm"], PSEUDO),
        ("decoder", [], EXACT),
    ],
)
def test_likelihood_kind_follows_the_objective(builder, names, kind):
    assert likelihood_form(trained(builder, *names)).kind == kind


def test_mixture_uses_its_completing_member():
    trained_model = trained("encoder_decoder", "span_corruption", "prefix_lm")
    assert likelihood_form(trained_model).form.mode == "complete"
    with refuses(ValueError, "embed", "likelihood"):
        likelihood_form(trained("encoder", "contrastive"))


@pytest.mark.parametrize(
    "builder, name, given, rest",
    [
        ("decoder", "causal_lm", GIVEN, REST),
        ("encoder_decoder", "prefix_lm", GIVEN, REST),
        ("decoder", "prefix_lm", GIVEN, REST),
        ("encoder_decoder", "span_corruption", f"{GIVEN}<extra_id_0>", f"<extra_id_0>{REST}"),
        ("decoder", "blank_infilling", f"{GIVEN}<extra_id_0>", REST),
        ("encoder_decoder", "bart", GIVEN, f"{GIVEN}{REST}"),
    ],
)
def test_log_probs_match_score_with_training_prompts(builder, name, given, rest):
    """The log-probabilities equal those of `score`, which adds end-of-sequence to an answer."""
    trained_model = trained(builder, name)
    texts = CODEC.encode(GIVEN), CODEC.encode(REST)
    (found,) = log_probs(trained_model, likelihood_form(trained_model), [texts])
    (expected,) = score(trained_model, [(given, rest)])
    ends = 0 if name == "causal_lm" else 1
    expected = expected.log_probs[: len(expected.log_probs) - ends][-len(REST) :]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_masked_model_predicts_each_token_from_all_others():
    trained_model = trained("encoder", "masked_lm")
    texts = [(CODEC.encode("Ada"), CODEC.encode("it")), ([], CODEC.encode("Adait"))]
    first, second = log_probs(trained_model, likelihood_form(trained_model), texts)
    (expected,) = score(trained_model, [("", "Adait")])
    np.testing.assert_allclose(second, expected.log_probs, rtol=1e-5)
    np.testing.assert_allclose(first, expected.log_probs[3:], rtol=1e-5)
