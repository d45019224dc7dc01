"""Likelihoods of hidden Markov models, compared with sums over all paths through their tables."""

import collections
import itertools

import numpy as np
import pytest

from pretrax.corpora.synthetic_tasks.hidden_markov import (
    PADDING,
    expected_visits,
    hidden_markov,
    letter_log_likelihoods,
    log_likelihoods,
    reversed_in_time,
    sampled,
)
from pretrax.corpora.synthetic_tasks.protein_families import profile
from tests.refusals import refuses

LETTERS = 2
ROWS = np.array([[0.9, 0.1], [0.3, 0.7], [0.5, 0.5]])
TABLES = profile(ROWS, np.array([0.6, 0.4]), gap=0.2, longer=0.4)
MODEL = hidden_markov(*TABLES)
SHORT = [x for n in range(1, 6) for x in itertools.product(range(LETTERS), repeat=n)]


def probability_by_paths(letters, state="begin"):
    """Returns the sum of the probabilities of all paths from a state that emit the letters."""
    transitions, emissions = TABLES
    if state == "end":
        return float(not letters)
    total = 0.0
    for following, p in transitions[state].items():
        if following not in emissions:
            total += p * probability_by_paths(letters, following)
        elif letters:
            p *= emissions[following][letters[0]]
            total += p * probability_by_paths(letters[1:], following)
    return total


def padded(sequences):
    return np.array([*itertools.zip_longest(*sequences, fillvalue=PADDING)]).T


def test_likelihood_is_the_sum_over_all_paths():
    expected = np.log([probability_by_paths(letters) for letters in SHORT])
    np.testing.assert_allclose(log_likelihoods(MODEL, padded(SHORT)), expected, rtol=1e-12)


def test_probabilities_of_all_sequences_sum_to_1():
    total = probability_by_paths(())  # all columns are left out
    assert total == pytest.approx(0.2 * 0.4**2)
    for length in range(1, 15):
        all_sequences = np.array([*itertools.product(range(LETTERS), repeat=length)])
        total += np.exp(log_likelihoods(MODEL, all_sequences)).sum()
    assert total == pytest.approx(1, abs=2e-4) and total < 1


def test_reversed_model_emits_reversed_sequences():
    backwards = padded([letters[::-1] for letters in SHORT])
    np.testing.assert_allclose(
        log_likelihoods(reversed_in_time(MODEL), backwards), log_likelihoods(MODEL, padded(SHORT))
    )


def test_letter_likelihoods_match_whole_sequences():
    parts = [(x[: len(x) // 2], x[len(x) // 2 + 1 :]) for x in SHORT if len(x) > 2]
    found = letter_log_likelihoods(
        MODEL, padded([x for x, _ in parts]), padded([x[::-1] for _, x in parts])
    )
    for letter in range(LETTERS):
        whole = padded([(*before, letter, *after) for before, after in parts])
        np.testing.assert_allclose(found[:, letter], log_likelihoods(MODEL, whole))


def test_long_sequences_do_not_underflow_and_impossible_ones_have_probability_0():
    coin = hidden_markov({"begin": {"x": 1}, "x": {"x": 0.5, "end": 0.5}}, {"x": (1.0, 0.0)})
    long, wrong = log_likelihoods(coin, np.array([[0] * 5000, [0] * 4999 + [1]]))
    assert long == pytest.approx(5000 * np.log(0.5)) and wrong == -np.inf


def test_samples_follow_the_model_distribution():
    draws = 40_000
    drawn = sampled(np.random.default_rng(0), MODEL, draws, longest=5)
    found = collections.Counter(tuple(letters.tolist()) for letters, _ in drawn)
    p = np.exp(log_likelihoods(MODEL, padded(SHORT))) / MODEL.start_S.sum()
    shares = np.array([found[letters] for letters in SHORT]) / draws
    assert np.max(np.abs(shares - p) / np.sqrt(p * (1 - p) / draws)) < 4.5
    assert {*found} <= {*SHORT}
    drawn = sampled(np.random.default_rng(1), MODEL, draws, longest=60)
    visits = np.bincount([s for _, states in drawn for s in states], minlength=5) / draws
    np.testing.assert_allclose(visits, expected_visits(MODEL) / MODEL.start_S.sum(), atol=0.03)


def test_probabilities_that_do_not_sum_to_1_are_rejected():
    with refuses(ValueError, "begin", 0.9):
        hidden_markov({"begin": {"x": 0.9}, "x": {"end": 1}}, {"x": (0.5, 0.5)})


def test_state_without_transitions_is_rejected():
    with refuses(ValueError, "y"):
        hidden_markov({"begin": {"x": 1}, "x": {"y": 0.5, "end": 0.5}}, {"x": (0.5, 0.5)})
