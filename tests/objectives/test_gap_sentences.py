"""PEGASUS: which sentences are selected, and the resulting features."""

import functools
from collections import Counter
from fractions import Fraction

import jax
import numpy as np
import pytest
from scipy.stats import binomtest, chisquare

from pretrax.objectives import Row, gap_sentences
from tests.objectives.distributions import SIGNIFICANCE
from tests.objectives.registry import IDS, quick_jit
from tests.objectives.undo_noising import sentences

A, B, C, D, STOP = 11, 12, 13, 14, 10  # Only STOP ends a sentence, since 10 % 7 == 3.
TEXT = [A, B, STOP, C, A, STOP, D, STOP]


@functools.cache
def _corrupt(n: int, **settings):
    objective = gap_sentences(IDS, **settings)

    def corrupt_one(key, tokens):
        row = Row(tokens, (tokens > 0).astype(np.int32), np.int32(0))
        return objective.corrupt(key, row, row, objective.lengths(n), 1)

    return quick_jit(jax.vmap(corrupt_one))


def corrupted(texts, seed=0, **settings) -> list[tuple[list[int], list[int]]]:
    """Returns (inputs, targets) of each text, without padding and end-of-sequence."""
    n = max(map(len, texts))
    tokens = np.array([[*text, *[0] * (n - len(text))] for text in texts], np.int32)
    keys = jax.random.split(jax.random.key(seed), len(texts))
    features = jax.device_get(_corrupt(n, **settings)(keys, tokens))
    return [
        tuple(
            features[stream][i][features[f"{stream}_segments"][i] > 0].tolist()[:-1]
            for stream in ("inputs", "targets")
        )
        for i in range(len(texts))
    ]


def rouge_1(sentence, rest) -> Fraction:
    """Returns the F1 of unigrams, computed from precision and recall."""
    overlap = sum((Counter(sentence) & Counter(rest)).values())
    precision, recall = Fraction(overlap, len(sentence)), Fraction(overlap, max(len(rest), 1))
    return 2 * precision * recall / (precision + recall) if overlap else Fraction(0)


@pytest.mark.slow
def test_principal_sentence_by_hand():
    assert corrupted([TEXT]) == [([A, B, STOP, IDS.mask, D, STOP], [C, A, STOP])]
    assert corrupted([TEXT], selection="lead") == [([IDS.mask, *TEXT[3:]], TEXT[:3])]


@pytest.mark.slow
def test_principal_sentences_have_highest_rouge_1():
    draw = np.random.default_rng(0)
    texts = [draw.integers(10, 24, draw.integers(1, 61)).tolist() for _ in range(60)]
    for text, (inputs, targets) in zip(texts, corrupted(texts)):
        units = sentences(text)
        scores = [
            (rouge_1(unit, sum(units[:i] + units[i + 1 :], [])), i) for i, unit in enumerate(units)
        ]
        best = {i for _, i in sorted(scores)[-max(1, 3 * len(units) // 10) :]}
        assert targets == sum((unit for i, unit in enumerate(units) if i in best), [])
        masked = [[IDS.mask] if i in best else unit for i, unit in enumerate(units)]
        assert inputs == sum(masked, [])


@pytest.mark.slow
def test_random_sentences_are_uniform_and_unchanged_share_is_kept():
    draws, text = 2000, sum(([x, STOP] for x in (20, 21, 22, 23)), [])
    settings = dict(rate=0.5, selection="random", unchanged_share=0.2)
    found = corrupted([text] * draws, **settings)
    pairs = Counter(tuple(targets[::2]) for _, targets in found)
    assert len(pairs) == 6 and chisquare(list(pairs.values())).pvalue > SIGNIFICANCE
    masks = sum(inputs.count(IDS.mask) for inputs, _ in found)
    assert binomtest(masks, 2 * draws, 0.8).pvalue > SIGNIFICANCE
    assert all(len(inputs) + inputs.count(IDS.mask) == len(text) for inputs, _ in found)
