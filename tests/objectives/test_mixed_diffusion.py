"""XDLM: the noise, the loss compared with its published code, and the bound by brute force."""

import numpy as np
import pytest
from scipy.stats import chisquare

from pretrax.objectives import hide, mixed_diffusion
from pretrax.objectives.uniform_diffusion import stationary_losses
from tests.objectives.distributions import corrupt_random_texts
from tests.objectives.registry import IDS

# `XDMHelper.get_kl` of github.com/MzeroMiko/XDLM at 66c34ac5, in float64: 10 ids of text and a
# mask, of 11 ids, the true token 4, and `delta_alpha_scale = 1`. The random tokens of that code are
# drawn from all 11 ids. Columns: the input tokens 4 and 7, and the mask.
LOGITS = [4.08, -5.11, 0.84, -1.14, -0.91, -0.43, -4.04, -0.46, -1.73, 6.65]
PUBLISHED = {
    (0.1, 0.01): (16.176031, 880.599165, 746.283503),
    (0.1, 0.5): (3.678509, 9.280277, 9.267888),
    (0.1, 0.99): (17.722638, 0.717214, 0.717178),
    (0.7, 0.01): (57.694807, 702.452836, 678.555759),
    (0.7, 0.5): (3.388812, 5.521416, 5.521139),
    (0.7, 0.99): (1.113108, 0.138951, 0.138951),
}


@pytest.mark.parametrize("share, rate", PUBLISHED)
def test_loss_matches_published_code(share, rate):
    logits = np.array([*LOGITS, -1e9], np.float32)  # id 10 is drawn as noise but never predicted
    given = np.array([4, 7, 11])  # 11 is the mask
    rates = np.full(3, rate)
    got = stationary_losses(
        (0, 11), np.tile(logits, (3, 1)), np.full(3, 4), given, rates, share, 1.0
    )
    np.testing.assert_allclose(got, PUBLISHED[share, rate], rtol=1e-5, atol=1e-5)


def test_ratio_of_masked_to_random_tokens_is_constant():
    objective = mixed_diffusion(IDS, random_share=0.25, lowest_rate=0.1)
    tokens, got = corrupt_random_texts(objective, (300, 200), 256)
    rates = got["rates"] / 2**24
    assert rates.min() >= 0.9 * 0.1 and rates.max() < 0.9
    masked = got["inputs"] == IDS.mask
    random = (got["inputs"] != tokens) & ~masked
    for d, n in ((0, 300), (1, 200)):
        in_document = got["inputs_segments"] == d + 1
        for noised, share in ((masked, 0.75), (random, 0.25)):
            p = share * rates[:, d]
            z = ((noised & in_document).sum(1) - n * p) / np.sqrt(n * p * (1 - p))
            assert abs(z.mean()) < 4 / np.sqrt(256)
            assert abs(z.var() - 1) < 4 * np.sqrt(2 / 256)
    replacements = got["inputs"][random]
    cells = np.bincount(
        (replacements - IDS.text[0]) * 8 // (IDS.text[1] - IDS.text[0]), minlength=8
    )
    assert chisquare(cells).pvalue > 1e-3


def test_all_selected_tokens_are_noised():
    tokens = np.arange(100, 120)
    hidden = np.arange(20) % 5 == 0
    got = hide(mixed_diffusion, IDS, tokens, hidden)
    np.testing.assert_array_equal(got["inputs"] != tokens, hidden)
    assert got["rates"][0] / 2**24 == pytest.approx(0.2)


# --- the bound, by brute force --------------------------------------------------------------------

NUMBER = 3  # ids of text 0, 1, 2, and the mask 3
LOWEST = 0.01
TEXTS = np.array([(a, b) for a in range(NUMBER) for b in range(NUMBER)])
NOISED = np.array([(a, b) for a in range(NUMBER + 1) for b in range(NUMBER + 1)])


def noise_matrix(share, rate):
    """Returns f64[3, 4]: the probability of each noised id for each id of text."""
    noised = np.append(np.full(NUMBER, share * rate / NUMBER), (1 - share) * rate)
    return (1 - rate) * np.eye(NUMBER, NUMBER + 1) + noised


def joint(p_X, share, rate):
    """Returns f64[X, Z]: the joint probability of a text of two tokens and its noised text."""
    q = noise_matrix(share, rate)
    first, second = (q[TEXTS[:, i]][:, NOISED[:, i]] for i in (0, 1))
    return p_X[:, None] * first * second


def information(p_XZ):
    """Returns the mutual information of the two axes, in nats."""
    independent = p_XZ.sum(0) * p_XZ.sum(1, keepdims=True)
    return np.sum(p_XZ * np.log(p_XZ / independent))


def best_logits(p_X, share, rate):
    """Returns f64[2, Z, 3]: log p(token i | the other noised token), for tokens i = 0, 1."""
    p = p_X.reshape(NUMBER, NUMBER)
    q = noise_matrix(share, rate)
    first = (p @ q)[:, NOISED[:, 1]].T
    second = (p.T @ q)[:, NOISED[:, 0]].T
    return np.log(np.stack([first, second]))


def total_nats(p_X, share, logits_of):
    """Returns the loss over times, plus both terms that it omits, for a text of two tokens."""
    rates_T = (1 - LOWEST) * np.geomspace(LOWEST, 1, 401)
    p_TxXxZ = np.stack([joint(p_X, share, rate) for rate in rates_T])
    logits_TxIxZxV = np.stack([logits_of(rate) for rate in rates_T])
    losses_T = np.zeros_like(rates_T)
    for i in (0, 1):
        each_TxXxZ = stationary_losses(
            (0, NUMBER),
            np.broadcast_to(logits_TxIxZxV[:, i, None], (*p_TxXxZ.shape, NUMBER)),
            np.broadcast_to(TEXTS[:, i, None], p_TxXxZ.shape),
            np.broadcast_to(NOISED[:, i], p_TxXxZ.shape),
            np.broadcast_to(rates_T[:, None, None], p_TxXxZ.shape),
            share,
            1.0,
        )
        losses_T += np.sum(p_TxXxZ * np.asarray(each_TxXxZ, np.float64), axis=(1, 2))
    first = -np.sum(p_X * np.log(p_X)) - information(p_TxXxZ[0])
    last = information(p_TxXxZ[-1])
    return first + np.trapezoid(losses_T, rates_T) + last


@pytest.mark.sampled
@pytest.mark.parametrize("share", [0.1, 0.6, 0.99])
def test_bound_is_tight_only_for_optimal_model(share):
    """The best model knows the distribution of each token given the other noised token."""
    p_X = np.random.default_rng(0).dirichlet(np.full(len(TEXTS), 0.7))
    entropy = -np.sum(p_X * np.log(p_X))
    exact = total_nats(p_X, share, lambda rate: best_logits(p_X, share, rate))
    assert exact == pytest.approx(entropy, abs=1e-3)
    for seed in range(3):
        wrong = np.random.default_rng(seed).normal(size=(2, len(NOISED), NUMBER)) * 0.7
        loose = total_nats(p_X, share, lambda rate, w=wrong: best_logits(p_X, share, rate) + w)
        assert loose > entropy + 0.02


def test_loss_with_few_random_tokens_matches_masked_diffusion():
    logits = np.random.default_rng(0).normal(size=NUMBER).astype(np.float32)
    log_p = logits - np.log(np.exp(logits).sum())
    rates = np.array([0.05, 0.5, 0.95])

    def losses(given):
        arguments = np.tile(logits, (3, 1)), np.full(3, 1), np.full(3, given)
        return stationary_losses((0, NUMBER), *arguments, rates, 1e-6, 1.0)

    np.testing.assert_allclose(losses(given=3), -log_p[1] / rates, rtol=1e-3)
    np.testing.assert_allclose(losses(given=1), 0, atol=1e-3)
