"""Scaling laws: fits that give planted laws back, and the published figures."""

import numpy as np
import pytest

from pretrax.comparing.scaling import CHINCHILLA, REPLICATED, Law, fit


def runs(law: Law, noise: float, seed: int = 0):
    """Six sizes by six numbers of tokens, with noise in the logarithm of the loss."""
    sizes, tokens = np.meshgrid(np.geomspace(5e7, 1e10, 6), np.geomspace(5e9, 2e11, 6))
    n, d = sizes.ravel(), tokens.ravel()
    return n, d, law.loss(n, d) * np.exp(np.random.default_rng(seed).normal(0, noise, n.size))


@pytest.mark.parametrize("law", [REPLICATED, CHINCHILLA, Law(0.5, 60.0, 0.25, 900.0, 0.4)])
def test_a_law_without_noise_is_found_again(law):
    found = fit(*runs(law, 0.0), resamples=2).law
    assert found.alpha == pytest.approx(law.alpha, rel=0.01)
    assert found.beta == pytest.approx(law.beta, rel=0.01)
    assert found.E == pytest.approx(law.E, rel=0.01)


def test_intervals_hold_the_planted_optimum():
    """Of six samples of runs; with intervals of 95% fewer than four would come once in 450 times."""
    true, held = REPLICATED.optimum(1e22), 0
    for seed in range(6):
        low, high = fit(*runs(REPLICATED, 0.003, seed), resamples=40).interval_of_optimum(1e22)
        held += low.parameters <= true.parameters <= high.parameters
    assert held >= 4


def test_the_size_of_chinchilla():
    """Hoffmann et al. 2022: 70B parameters and 1.4T tokens for the budget of Gopher, 5.76e23."""
    best = REPLICATED.optimum(5.76e23)
    assert 65e9 < best.parameters < 80e9 and 1.2e12 < best.tokens < 1.5e12
    assert 6 * best.parameters * best.tokens == pytest.approx(5.76e23)


def test_the_optimum_is_the_lowest_loss_of_its_budget():
    law, flops = Law(1.0, 100.0, 0.3, 300.0, 0.35), 1e20
    best = law.optimum(flops)
    for factor in (0.5, 0.9, 1.1, 2.0):
        n = factor * best.parameters
        assert law.loss(n, flops / 6 / n) > best.loss


@pytest.mark.parametrize(
    "points, words",
    [
        (([1e6] * 8, [1e8] * 8, [3.0] * 8), "8 runs of 1 sizes and 1 numbers of tokens"),
        (([1e6, 2e6], [1e8, 2e8], [3.0, 2.9]), "2 runs of 2 sizes"),
        (([1e6] * 6, [1e8] * 6, [3.0] * 5 + [0.0]), "all above 0"),
    ],
)
def test_too_little_for_five_numbers_is_said(points, words):
    with pytest.raises(ValueError, match=words):
        fit(*points)
