"""Hybrid diffusion: the shares of the noise, and the loss compared with the paper's formula."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrax.objectives import Row, batched, hybrid_diffusion
from pretrax.objectives.hybrid_diffusion import hybrid_losses
from tests.objectives.registry import IDS, quick_jit

# First id of text, number of ids of text, and the mask id, of 15 ids.
FIRST, NUMBER, MASK = 3, 10, 14


@pytest.fixture(scope="module")
def noised():
    """Returns (tokens, inputs, times) of rows of random tokens, which rarely replace themselves."""
    objective, n = hybrid_diffusion(IDS, random_share=0.2), 400
    tokens = np.random.default_rng(0).integers(*IDS.text, (512, n)).astype(np.int32)
    raw = Row(tokens, np.ones_like(tokens), np.zeros(512, np.int32))
    corrupt = quick_jit(batched(objective, objective.lengths(n)))
    features = jax.device_get(corrupt(jax.random.split(jax.random.key(0), 512), raw))
    return tokens, features["inputs"], features["rates"][:, 0] / 2**24


@pytest.mark.slow
def test_times_are_uniform_in_unit_interval(noised):
    _, _, times = noised
    assert times.min() > 5e-5 and times.max() < 1 - 5e-5
    assert abs(times.mean() - 0.5) < 4 / np.sqrt(12 * times.size)
    assert abs(times.var() - 1 / 12) < 4 * 0.0745 / np.sqrt(times.size)


def test_tokens_are_masked_and_replaced_at_rates_of_their_time(noised):
    tokens, inputs, times = noised
    replacing = 2 * 0.2 / 0.8 * np.sqrt(times * (1 - times))
    expected = {"masked": times / (1 + replacing), "replaced": replacing / (1 + replacing)}
    counts = {"masked": inputs == IDS.mask, "replaced": (inputs != tokens) & (inputs != IDS.mask)}
    for kind, p in expected.items():
        z = (counts[kind].sum(1) - 400 * p) / np.sqrt(400 * p * (1 - p) + 1e-9)
        typical = (times > 0.02) & (times < 0.98)  # Counts are nearly normal there.
        assert abs(z[typical].mean()) < 4 / np.sqrt(typical.sum()), kind
        assert abs(z[typical].var() - 1) < 0.3, kind
    middle = np.abs(times - 0.5) < 0.05
    assert abs(counts["replaced"][middle].mean() - 0.2) < 0.01
    first, last = IDS.text
    replacements = inputs[counts["replaced"]]
    assert replacements.min() >= first and replacements.max() < last
    assert abs(replacements.mean() - (first + last) / 2) < 4 * (last - first) / np.sqrt(
        12 * replacements.size
    )


def loss_by_paper(share, logits, label, given, t):
    """Returns (divergence, weight in the bound), from distributions over the whole vocabulary."""
    text = slice(FIRST, FIRST + NUMBER)
    p = np.zeros(15)
    p[text] = np.exp(logits[text]) / np.exp(logits[text]).sum()
    c = 2 * share / (1 - share) * np.sqrt(t * (1 - t))
    random = np.zeros(15)
    random[text] = 1 / NUMBER

    def noise(x):
        return ((1 - t) * x + t * np.eye(15)[MASK] + c * random) / (1 + c)

    true, predicted = noise(np.eye(15)[label]), noise(p)
    positive = true > 0
    divergence = np.sum(true[positive] * np.log(true[positive] / predicted[positive]))
    ratio = true[given] / predicted[given]
    # Compute the rates of change by finite differences: the rate of the probability that a token
    # stays, and the rate of the distribution that replaces it.
    step = 1e-6

    def parts(t):
        c = 2 * share / (1 - share) * np.sqrt(t * (1 - t))
        return (1 - t) / (1 + c), (t * np.eye(15)[MASK] + c * random)[given] / (1 + c)

    (a0, b0), (a1, b1) = parts(t - step), parts(t + step)
    alpha, _ = parts(t)
    weight = ((b1 - b0) - (a1 - a0) / alpha * parts(t)[1]) / (2 * step) / true[given]
    return divergence + ratio - np.log(ratio) - 1, weight


@pytest.mark.parametrize("given", ["mask", "same", "other"])
@pytest.mark.parametrize("share", [0.1, 0.3])
def test_loss_matches_paper(share, given):
    random, label = np.random.default_rng(1), 5
    noised = {"mask": MASK, "same": label, "other": 8}[given]
    for t in (0.05, 0.5, 0.9):
        logits = random.normal(size=15) * 2
        expected, weight = loss_by_paper(share, logits, label, noised, t)
        constants = hybrid_diffusion(IDS, random_share=share).loss.args[0]
        constants = dataclasses.replace(constants, mask=MASK, text=(FIRST, FIRST + NUMBER))
        arrays = (jnp.asarray(x) for x in (np.float32(logits), label, noised, np.float32(t)))
        loss, loss_weight, bound_weight = hybrid_losses(constants, *arrays)
        np.testing.assert_allclose(loss, expected, rtol=1e-4)
        np.testing.assert_allclose(bound_weight, weight, rtol=1e-4)
        unchanged_weight = 2 * share / (1 - share) / NUMBER * np.sqrt(t / (1 - t))
        assert loss_weight == pytest.approx(
            {"mask": 2, "same": unchanged_weight, "other": 1}[given], rel=1e-5
        )


@pytest.mark.slow
@pytest.mark.parametrize("share, missing_nats", [(0, 0.001), (0.1, 0.029), (0.5, 0.205)])
def test_bound_of_constant_outputs_equals_removed_information(share, missing_nats):
    """The bound is the information about the text that the noise removes between these times."""
    n, mask = 256, 256
    logit = np.linspace(-np.log(1e4), np.log(1e4), 4001)
    t = 1 / (1 + np.exp(-logit))
    noise = dataclasses.replace(
        hybrid_diffusion(IDS, random_share=share).loss.args[0], mask=mask, text=(0, n)
    )

    def loss_from(given, probability):  # the part of the mean loss from this input, by time
        logits, zeros = np.zeros((t.size, n), np.float32), np.zeros(t.size, int)
        losses, _, weight = hybrid_losses(noise, logits, zeros, zeros + given, np.float32(t))
        return probability * np.float64(losses) * np.float64(weight)

    c = 2 * share / (1 - share) * np.sqrt(t * (1 - t))
    keep, replace, masked = (1 - t) / (1 + c), c / (1 + c) / n, t / (1 + c)
    mean = loss_from(mask, masked) + loss_from(0, keep + replace) + loss_from(1, (n - 1) * replace)
    bound = np.trapezoid(mean, t)

    def information(k):  # nats of information about the original token
        kinds = (keep[k] + replace[k], 1), (replace[k], n - 1), (masked[k], 1)
        after = -sum(count * p * np.log(p) for p, count in kinds if p)
        text = 1 - masked[k]
        return -masked[k] * np.log(masked[k]) - text * np.log(text / n) - after

    assert bound == pytest.approx(information(0) - information(-1), abs=2e-3)
    assert np.log(n) - bound == pytest.approx(missing_nats, abs=2e-3)


def test_bound_without_random_tokens_matches_masked_diffusion():
    """The loss is -log p / t for masked tokens and 0 for other tokens."""
    constants = hybrid_diffusion(IDS, random_share=0).loss.args[0]
    constants = dataclasses.replace(constants, mask=MASK, text=(FIRST, FIRST + NUMBER))
    logits = np.random.default_rng(2).normal(size=(2, 15)).astype(np.float32)
    labels, given = jnp.array([5, 6]), jnp.array([MASK, 6])
    losses, _, weights = hybrid_losses(
        constants, jnp.asarray(logits), labels, given, jnp.array([0.3, 0.3])
    )
    text = logits[0, FIRST : FIRST + NUMBER]
    expected = (np.log(np.exp(text).sum()) - logits[0, 5]) / 0.3
    np.testing.assert_allclose(losses * weights, [expected, 0], atol=1e-4)
