"""The likeliest next tokens agree with one forward pass over each text alone."""

import numpy as np
import pytest
from scipy import special

from pretrax.inference import Decoding, Options, answer, next_tokens
from pretrax.inference.decoding.decoding import decoder_prompts
from tests.inference.runs import CODEC, IDS, trained
from tests.models.families import logits_of
from tests.refusals import refuses

TEXTS = ["a", "Ada, ça va?", "tea"]


def distribution(one, row, prefix=0):
    """Returns f64[V]: the distribution of the next token, with a prefix that is read both ways."""
    batch = decoder_prompts([row], [prefix]).batch
    logits = np.array(logits_of(one.model)(one.params, batch)[0, -1], np.float64)
    logits[IDS.size :] = logits[IDS.pad] = -np.inf
    return special.softmax(logits)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["causal_lm", "prefix_lm"])
def test_next_tokens_are_the_likeliest_of_the_distribution(name):
    trained_model = trained("decoder", name)
    counts = []
    found = next_tokens(
        trained_model, TEXTS, Options(Decoding(batch_size=2), top=4, on_batch=counts.append)
    )
    for text, guesses in zip(TEXTS, found, strict=True):
        tokens = CODEC.encode(text)
        causal, both_ways = [IDS.bos, *tokens], [*tokens, IDS.eos, IDS.bos]
        row, prefix = (causal, 0) if name == "causal_lm" else (both_ways, len(tokens) + 1)
        p = distribution(trained_model, row, prefix)
        assert [guess.id for guess in guesses] == np.argsort(-p, kind="stable")[:4].tolist()
        np.testing.assert_allclose([guess.probability for guess in guesses], np.sort(p)[:-5:-1],
                                   atol=1e-6)  # fmt: skip
        assert guesses[0].token == CODEC.decode([guesses[0].id])
    assert counts == [2, 1]


def test_next_mode_answers_with_the_likeliest_tokens():
    trained_model = trained("decoder", "causal_lm")
    (guesses,) = next_tokens(trained_model, ["Ada"], Options(top=2))
    (record,) = answer(trained_model, "next", [{"text": "Ada"}], Options(top=2))
    assert record == {
        "next": [{"token": guess.token, "probability": guess.probability} for guess in guesses]
    }


@pytest.mark.parametrize(
    "name", ["permutation_lm", "block_diffusion", "masked_next_token", "shifted_diffusion"]
)
def test_model_not_trained_causally_has_no_next_token(name):
    with refuses(ValueError, "next"):
        answer(trained("decoder", name), "next", [{"text": "a"}])


def test_model_trained_on_masks_and_causally_has_a_next_token():
    both = trained("decoder", "masked_next_token", "causal_lm")
    assert answer(both, "next", [{"text": "a"}], Options(top=1))


@pytest.mark.parametrize(
    ("objectives", "advice"),
    [
        (("causal_lm",), "span_corruption"),
        (("fill_in_the_middle",), "--prefix"),
        (("masked_next_token", "causal_lm"), "[MASK]"),
        (("block_diffusion", "causal_lm"), "span_corruption"),
    ],
)
def test_error_about_blanks_names_the_mode_that_the_model_learned(objectives, advice):
    with refuses(ValueError, "'a <extra_id_0>'", "'continue'", advice):
        next_tokens(trained("decoder", *objectives), ["a <extra_id_0>"])


def test_texts_without_a_next_token_are_rejected():
    short = trained("decoder", "causal_lm", positions="learned", max_positions=8)
    assert next_tokens(short, ["1234567"])
    with refuses(ValueError, "9", "8"):
        next_tokens(short, ["12345678"])
    with refuses(ValueError, "'a <extra_id_0>'", "'continue'"):
        next_tokens(short, ["a <extra_id_0>"])
    with refuses(ValueError, "next", "encoder"):
        answer(trained("encoder", "masked_lm"), "next", [{"text": "a"}])
