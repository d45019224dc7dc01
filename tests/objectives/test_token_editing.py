"""LLaDA2.1: which tokens are wrong, and both terms compared with the formula."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from scipy.stats import chisquare

from pretrax.objectives import (
    block_diffusion,
    causal_lm,
    hybrid_diffusion,
    masked_diffusion,
    masked_lm,
    shifted_diffusion,
    token_editing,
    uniform_diffusion,
)
from tests.objectives.distributions import corrupt_random_texts
from tests.objectives.linear_outputs import LinearOutputs
from tests.objectives.registry import IDS, quick_jit
from tests.refusals import refuses

WHOLE = functools.partial(token_editing, builder=masked_diffusion)
NUMBER = 7
TINY = IDS._replace(text=(2, 2 + NUMBER))


@pytest.mark.slow
def test_visible_tokens_are_replaced_uniformly():
    tokens, got = corrupt_random_texts(WHOLE(TINY, wrong_share=0.3), (300,), 400, text=TINY.text)
    visible = got["inputs"] != IDS.mask
    wrong = visible & (got["inputs"] != tokens)
    share = wrong.sum() / visible.sum()
    assert abs(share - 0.3) < 4 * np.sqrt(0.3 * 0.7 / visible.sum())
    shift = (got["inputs"][wrong] - tokens[wrong]) % NUMBER
    assert chisquare(np.bincount(shift, minlength=NUMBER)[1:]).pvalue > 1e-3
    labeled = np.zeros_like(visible)
    for row, (slots, counts) in enumerate(zip(got["labels_slots"], got["labels_weights"])):
        labeled[row, slots[counts > 0]] = True
    np.testing.assert_array_equal(labeled, ~visible | wrong)
    rates = got["rates"][:, 0] / 2**24
    masked = 300 - visible.sum(1)
    z = (masked - 300 * rates) / np.sqrt(300 * rates * (1 - rates) + 1e-9)
    assert abs(z.mean()) < 4 / np.sqrt(400)


def terms_by_loops(read, clean, rates, logits):
    """Returns the sums of both terms of a row, and the number of wrong tokens."""
    masked = edits = 0.0
    number = 0
    for slot, token in enumerate(clean):
        loss = scipy.special.logsumexp(logits[slot]) - logits[slot, token]
        if read[slot] == IDS.mask:
            masked += loss / rates[slot]
        elif read[slot] != token:
            edits += loss
            number += 1
    return masked, edits, number


@pytest.mark.parametrize("builder", [masked_diffusion, block_diffusion])
def test_loss_terms_match_formula(builder):
    objective = token_editing(TINY, builder, wrong_share=0.4, scale=0.7)
    rows, length = 3, 40
    tokens, got = corrupt_random_texts(objective, (length,), rows, text=TINY.text)
    logits = np.random.default_rng(0).normal(size=(rows, length, 12))
    stack = "decoder" if builder is block_diffusion else "encoder"
    batch = {
        f"{stack}_segment_ids": got["inputs_segments"],
        f"{stack}_input_tokens": got["inputs"],
        f"{stack}_target_tokens": got["labels"],
        f"{stack}_target_slots": got["labels_slots"],
        f"{stack}_loss_weights": got["labels_weights"],
    }
    if builder is block_diffusion:
        name, read, rates = "noised", got["noised"], got["noised_rates"] / 2**24
        batch["noised_segment_ids"] = got["inputs_segments"]
        batch["noised_input_tokens"] = read
        batch["noised_rates"] = got["noised_rates"]
        np.testing.assert_array_equal(got["inputs"], tokens)
    else:
        name, read, rates = "top", got["inputs"], np.repeat(got["rates"] / 2**24, length, 1)
        batch["rates"] = got["rates"]

    @quick_jit
    def scored(batch, logits):
        return objective.loss(batch).scored(LinearOutputs({name: logits}))

    terms = scored(batch, jnp.asarray(logits, jnp.float32))
    assert terms["edits"].scale == 0.7 and set(terms) == {"tokens", "edits"}
    for row in range(rows):
        masked, edits, number = terms_by_loops(read[row], tokens[row], rates[row], logits[row])
        assert number and masked
        np.testing.assert_allclose(terms["tokens"].sums[row], masked, rtol=1e-5)
        np.testing.assert_allclose(terms["edits"].sums[row], edits, rtol=1e-5)
        assert terms["edits"].weights[row] == number and terms["tokens"].weights[row] == length


def test_token_editing_has_no_likelihood_bound():
    assert token_editing(IDS).facts.bound is None
    assert token_editing(IDS).facts.prompt_forms == block_diffusion(IDS).facts.prompt_forms


@pytest.mark.parametrize(
    "builder", [causal_lm, masked_lm, hybrid_diffusion, uniform_diffusion, shifted_diffusion]
)
def test_builders_that_do_not_mask_in_place_raise(builder):
    with refuses(ValueError, "builder", "block_diffusion", "masked_diffusion"):
        token_editing(IDS, builder)
