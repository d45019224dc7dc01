"""Block diffusion: the rates, the loss compared with the paper's formula, and the bound."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrax.objectives import block_diffusion, causal_lm, layouts, mixture
from tests.objectives.blocks import corrupted
from tests.objectives.registry import IDS
from tests.refusals import refuses

LENGTH, VOCABULARY = 96, 11


def drawn(rows, length=LENGTH, **settings):
    """Returns (objective, features, decoder batch) of rows with one document of the ids 5 … 15."""
    objective = block_diffusion(IDS, **settings)
    return objective, *corrupted(objective, rows, length)


class Outputs:
    """Outputs whose hidden states are the logits of the ids 5 … 15."""

    def __init__(self, logits):
        self.hidden = {"noised": logits, "top": 0 * logits}

    def head(self, name, hidden):
        assert name == "vocabulary"
        before = jnp.full((*hidden.shape[:-1], 5), -1e30)
        return jnp.concatenate([before, hidden], -1)


@pytest.mark.slow
def test_each_block_is_masked_at_its_own_rate_between_the_two():
    _, f, _ = drawn(256, block_size=12, lowest_rate=0.3, highest_rate=0.8)
    rates = f["noised_rates"].reshape(256, -1, 12) / 2**24
    assert (rates == rates[:, :, :1]).all()
    each = rates[:, :, 0]
    assert each.min() >= 0.3 and each.max() <= 0.8 and len(np.unique(each)) > 0.99 * each.size
    # The mean and the variance are those of a uniform distribution, within four standard errors.
    assert abs(each.mean() - 0.55) < 4 * (0.5 / 12**0.5) / each.size**0.5
    assert abs(each.var() - 0.25 / 12) < 4 * 0.25 * 0.0745 / each.size**0.5
    masked = (f["noised"] == IDS.mask).reshape(rates.shape)
    spread = np.sqrt((each * (1 - each)).mean() / masked.size)
    assert abs(masked.mean() - each.mean()) < 4 * spread
    assert np.corrcoef(each.ravel(), masked.mean(-1).ravel())[0, 1] > 0.6


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 16])
def test_the_loss_matches_the_paper(size):
    """The loss is the sum of -log p / rate over masked tokens, divided by the number of tokens."""
    objective, f, batch = drawn(8, block_size=size)
    logits = np.random.default_rng(1).normal(size=(8, LENGTH, VOCABULARY)).astype(np.float32)
    term = objective.loss(batch).scored(Outputs(jnp.asarray(logits)))["tokens"]
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    of_token = np.take_along_axis(log_p, (f["inputs"] - 5)[..., None], -1)[..., 0]
    masked = f["noised"] == IDS.mask
    expected = -(of_token * masked / (f["noised_rates"] / 2**24)).sum(-1)
    np.testing.assert_allclose(term.sums, expected, rtol=1e-5)
    np.testing.assert_array_equal(term.weights, LENGTH)


@pytest.mark.slow
def test_the_loss_of_copies_in_a_decoder_of_their_own_is_the_same():
    objective, f, batch = drawn(8)
    layout = layouts.encoder_decoder
    sizes = layout.lengths(objective.lengths(LENGTH))
    alone = jax.vmap(lambda row: layout.arrange(row, sizes, 0, 1))(f)
    logits = jax.random.normal(jax.random.key(1), (8, LENGTH, VOCABULARY))
    outputs = Outputs(logits)
    expected = objective.loss(batch).scored(outputs)["tokens"]
    outputs.hidden = {"top": logits}
    got = objective.loss(alone).scored(outputs)["tokens"]
    for one, other in ((got.sums, expected.sums), (got.weights, expected.weights)):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("size", [1, 16, LENGTH])
def test_the_loss_of_a_model_that_knows_nothing_is_its_likelihood(size):
    objective, f, batch = drawn(256, block_size=size, lowest_rate=0.05)
    term = objective.loss(batch).scored(Outputs(jnp.zeros((256, LENGTH, VOCABULARY))))["tokens"]
    ratios = np.asarray(term.sums) / np.asarray(term.weights) / np.log(VOCABULARY)
    assert abs(ratios.mean() - 1) < 4 * ratios.std() / 256**0.5


@pytest.mark.slow
def test_rows_of_another_member_add_nothing_to_the_loss():
    """They add neither to the sum nor to the number of tokens."""
    objective = mixture(IDS, {"blocks": (block_diffusion, 1), "causal": (causal_lm, 1)})
    _, batch = corrupted(objective, 4, 20)
    slots = batch["decoder_segment_ids"].shape[1]
    outputs = Outputs(jnp.zeros((4, slots, VOCABULARY)))
    outputs.head = lambda name, hidden: jnp.zeros((*hidden.shape[:-1], IDS.size))
    term = objective.loss(batch).scored(outputs)["tokens"]
    np.testing.assert_allclose(term.weights, 20)
    np.testing.assert_allclose(term.sums[1::2], 20 * np.log(IDS.size), rtol=1e-5)


def test_a_model_without_states_of_copies_is_refused():
    objective, _, batch = drawn(2)
    outputs = Outputs(jnp.zeros((2, LENGTH, VOCABULARY)))
    del outputs.hidden["noised"]
    with refuses(ValueError, "noised"):
        objective.loss(batch).scored(outputs)
