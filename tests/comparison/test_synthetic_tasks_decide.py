"""Comparisons by the questions of synthetic tasks find a planted effect, and no other effects."""

import inspect
import math

import numpy as np
import pytest

from pretrax.comparison.statistics import differences
from pretrax.corpora import synthetic_tasks

# number of training documents
FEW = {"documents": 9, "graphs": 9, "strings": 9, "lists": 9, "sums": 400}
TASKS = [
    name for name in synthetic_tasks.__all__ if inspect.isfunction(getattr(synthetic_tasks, name))
]
COMPARISONS, SEEDS = 60, 5


@pytest.fixture(scope="module", params=TASKS)
def questions(request):
    """Returns the questions of the first kind, which summarize a synthetic task."""
    draw = getattr(synthetic_tasks, request.param)
    reduced = FEW.keys() & inspect.signature(draw).parameters.keys()
    asked = draw(seed=0, **{name: FEW[name] for name in reduced}).questions
    return [question for question in asked if question.kind == asked[0].kind]


def found(questions, known, random) -> float:
    """Returns how often a difference between two variants is found.

    Their runs know these shares of the answers and guess the other answers. The known share varies
    between seeds with a standard deviation of 0.03.
    """
    chances = np.array([question.chance for question in questions])

    def share(of_variant):
        knows = np.clip(of_variant + random.normal(0, 0.03), 0, 1)
        return float(np.mean(random.random(chances.size) < knows + (1 - knows) * chances))

    def differ():
        figures = {v: {s: share(x) for s in range(SEEDS)} for v, x in zip("ab", known)}
        (one,) = differences({"synthetic_questions": figures}, "a")
        return one.is_significant

    return sum(differ() for _ in range(COMPARISONS)) / COMPARISONS


@pytest.mark.sampled
def test_synthetic_questions_detect_planted_differences_only(questions):
    random = np.random.default_rng(0)
    rarely = 0.05 + 3 * math.sqrt(0.05 * 0.95 / COMPARISONS)
    assert found(questions, (0.0, 0.0), random) <= rarely
    assert found(questions, (0.5, 0.5), random) <= rarely
    assert found(questions, (0.2, 0.6), random) >= 0.95
