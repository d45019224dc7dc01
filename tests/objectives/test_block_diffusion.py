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
def test_each_block_is_masked_at_own_rate_between_bounds():
    _, f, _ = drawn(256, block_size=12, lowest_rate=0.3, highest_rate=0.8)
    rates = f["noised_rates"].reshape(256, -1, 12) / 2**24
    assert (rates == rates[:, :, :1]).all()
    block_rates = rates[:, :, 0]
    assert block_rates.min() >= 0.3
    assert block_rates.max() <= 0.8
    assert len(np.unique(block_rates)) > 0.99 * block_rates.size
    # The mean and the variance are those of a uniform distribution, within four standard errors.
    assert abs(block_rates.mean() - 0.55) < 4 * (0.5 / 12**0.5) / block_rates.size**0.5
    assert abs(block_rates.var() - 0.25 / 12) < 4 * 0.25 * 0.0745 / block_rates.size**0.5
    masked = (f["noised"] == IDS.mask).reshape(rates.shape)
    spread = np.sqrt((block_rates * (1 - block_rates)).mean() / masked.size)
    assert abs(masked.mean() - block_rates.mean()) < 4 * spread
    assert np.corrcoef(block_rates.ravel(), masked.mean(-1).ravel())[0, 1] > 0.6


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 16])
def test_loss_matches_paper(size):
    """The loss is the sum of -log p / rate over masked tokens, divided by the number of tokens."""
    objective, f, batch = drawn(8, block_size=size)
    logits = np.random.default_rng(1).normal(size=(8, LENGTH, VOCABULARY)).astype(np.float32)
    term = objective.loss(batch).scored(Outputs(jnp.asarray(logits)))["tokens"]
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    token_log_p = np.take_along_axis(log_p, (f["inputs"] - 5)[..., None], -1)[..., 0]
    masked = f["noised"] == IDS.mask
    expected = -(token_log_p * masked / (f["noised_rates"] / 2**24)).sum(-1)
    np.testing.assert_allclose(term.sums, expected, rtol=1e-5)
    np.testing.assert_array_equal(term.weights, LENGTH)


@pytest.mark.slow
def test_loss_of_separate_decoder_equals_single_stack():
    objective, f, batch = drawn(8)
    layout = layouts.encoder_decoder
    sizes = layout.lengths(objective.lengths(LENGTH))
    separate_batch = jax.vmap(lambda row: layout.arrange(row, sizes, 0, 1))(f)
    logits = jax.random.normal(jax.random.key(1), (8, LENGTH, VOCABULARY))
    outputs = Outputs(logits)
    expected = objective.loss(batch).scored(outputs)["tokens"]
    outputs.hidden = {"top": logits}
    got = objective.loss(separate_batch).scored(outputs)["tokens"]
    for x, y in ((got.sums, expected.sums), (got.weights, expected.weights)):
        np.testing.assert_array_equal(x, y)


@pytest.mark.slow
def test_rows_of_other_mixture_members_are_excluded_from_loss():
    """They add neither to the sum nor to the number of tokens."""
    objective = mixture(IDS, {"blocks": (block_diffusion, 1), "causal": (causal_lm, 1)})
    _, batch = corrupted(objective, 4, 20)
    slots = batch["decoder_segment_ids"].shape[1]
    outputs = Outputs(jnp.zeros((4, slots, VOCABULARY)))
    outputs.head = lambda name, hidden: jnp.zeros((*hidden.shape[:-1], IDS.size))
    term = objective.loss(batch).scored(outputs)["tokens"]
    np.testing.assert_allclose(term.weights, 20)
    np.testing.assert_allclose(term.sums[1::2], 20 * np.log(IDS.size), rtol=1e-5)


def test_model_without_noised_states_raises():
    objective, _, batch = drawn(2)
    outputs = Outputs(jnp.zeros((2, LENGTH, VOCABULARY)))
    del outputs.hidden["noised"]
    with refuses(ValueError, "noised"):
        objective.loss(batch).scored(outputs)
