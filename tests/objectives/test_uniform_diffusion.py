"""Uniform-state diffusion: the noise, and the loss compared with the paper's formula."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare

from pretrax.objectives import hide, uniform_diffusion
from pretrax.objectives.uniform_diffusion import stationary_losses
from tests.objectives.distributions import corrupt_random_texts
from tests.objectives.registry import IDS

FIRST, NUMBER = 3, 10  # first id of text and number of ids of text, of 15 ids
TEXT = FIRST, FIRST + NUMBER


def test_rates_are_uniform_per_document_and_tokens_replaced_at_rate():
    tokens, got = corrupt_random_texts(uniform_diffusion(IDS, lowest_rate=0.1), (300, 200), 512)
    p = got["rates"] / 2**24
    assert p.min() >= 0.9 * 0.1 and p.max() < 0.9
    cell = ((p - 0.09) / 0.81 * 5).astype(int)
    assert chisquare(np.bincount(cell[:, 0] * 5 + cell[:, 1], minlength=25)).pvalue > 1e-3
    changed = got["inputs"] != tokens
    for d, n in ((0, 300), (1, 200)):
        replaced = (changed & (got["inputs_segments"] == d + 1)).sum(1)
        z = (replaced - n * p[:, d]) / np.sqrt(n * p[:, d] * (1 - p[:, d]))
        assert abs(z.mean()) < 4 / np.sqrt(512) and abs(z.var() - 1) < 4 * np.sqrt(2 / 512)
    first, last = IDS.text
    replacements = got["inputs"][changed]
    assert replacements.min() >= first and replacements.max() < last
    assert abs(replacements.mean() - (first + last) / 2) < 4 * (last - first) / np.sqrt(
        12 * replacements.size
    )


def test_rate_of_selected_tokens_is_their_share():
    tokens, hidden = np.arange(100, 110), np.arange(10) % 5 == 0
    got = hide(uniform_diffusion, IDS, tokens, hidden)
    np.testing.assert_array_equal(got["inputs"] != tokens, hidden)
    assert got["rates"][0] / 2**24 == pytest.approx(0.2)


def test_rate_is_capped_if_all_tokens_are_selected():
    """At a rate of 1 the loss is not a number."""
    got = hide(uniform_diffusion, IDS, np.arange(100, 110), np.full(10, True))
    assert got["rates"][0] / 2**24 == pytest.approx(1 - 0.001, abs=1e-6)


@pytest.mark.parametrize("lowest, expected", [(0.001, 5.537), (0.3, 4.007)])
def test_bound_of_constant_outputs_lacks_only_boundary_terms(lowest, expected):
    """With both terms, the bound is the logarithm of the number of ids, 256."""

    def entropy(rate):  # entropy of the noised token
        keep = 1 - rate + rate / 256
        return -keep * np.log(keep) - (1 - keep) * np.log(rate / 256)

    rate = (1 - lowest) * np.geomspace(lowest, 1, 1000)
    logits = np.zeros((1000, 256), np.float32)
    same, other = (
        np.asarray(stationary_losses((0, 256), logits, label, label * 0, rate, 1.0, 1 - lowest))
        for label in (np.zeros(1000, int), np.ones(1000, int))
    )
    keep = 1 - rate + rate / 256
    mean = np.trapezoid(keep * same + (1 - keep) * other, rate) / np.ptp(rate)
    assert mean == pytest.approx(expected, abs=1e-3)
    first, last = entropy(rate[0]), np.log(256) - entropy(rate[-1])
    assert (1 - lowest) * mean + first + last == pytest.approx(np.log(256), abs=1e-3)
    if lowest == 0.001:
        assert (round(first, 3), round(last, 4)) == (0.013, 0.0001)


def loss_by_paper(logits, label, given, alpha, d_alpha):
    """Returns the integrand of the paper's bound, from distributions over all ids of text."""
    x = np.eye(NUMBER)[label - FIRST]
    p = np.exp(logits[slice(*TEXT)]) / np.exp(logits[slice(*TEXT)]).sum()
    bar, bar_p = (NUMBER * alpha * y + (1 - alpha) for y in (x, p))
    z = given - FIRST
    inside = NUMBER / bar[z] - NUMBER / bar_p[z]
    inside -= np.sum(bar / bar[z] * np.log(bar_p[z] * bar / (bar_p * bar[z])))
    return d_alpha / (NUMBER * alpha) * inside


@pytest.mark.parametrize("given", [5, 8])
def test_loss_matches_paper(given):
    random = np.random.default_rng(1)
    for rate in (0.01, 0.5, 0.99):
        logits = random.normal(size=15).astype(np.float32) * 2
        expected = loss_by_paper(np.float64(logits), 5, given, 1 - rate, -0.999)
        got = stationary_losses(
            TEXT, jnp.asarray(logits), jnp.array(5), jnp.array(given), jnp.float32(rate), 1.0, 0.999
        )
        np.testing.assert_allclose(got, expected, rtol=2e-4)
