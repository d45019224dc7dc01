"""Pairs of texts of a synthetic task: does a model tell the two that follow one another from two others?"""

import math
from collections.abc import Sequence

import numpy as np

from ...constraints import checked
from ...inference import Trained
from ...inference.answering.classifying import judge
from ...inference.trained import prompt_form
from ..figures import HIGHER, Figure
from .known_answers import synthetic_task_of
from .parts.likelihoods import AFTER_READING, BOUND, PSEUDO, log_probs, reading_of
from .parts.ranking import share_right
from .subject import Subject

FIGURES_VERSION = 1  # see `kept_figures.version_of`
_LEAST = 1e-30  # a probability, so that none has a logarithm of minus infinity


@checked
def synthetic_pairs(subject: Subject) -> list[Figure]:
    """Share of the pairs of texts of a run's synthetic task that the model prefers to the wrong ones.

        synthetic_pairs              of the kind that the synthetic task names first
        synthetic_pairs/order        of each kind

    A model is asked as it was trained: one whose objective judges pairs by how much likelier it
    holds its class for texts that follow one another, in order, than the other; any other by the
    likelihood of both texts as one. That of a model that predicts masks is each token's given all
    others (Salazar et al. 2020, arXiv:1910.14659), and that of one that reads before it writes is
    of the second text given the first. Ties count half: a model that knows nothing has .5.

    Raises ValueError for a run whose corpus is no synthetic task, for a synthetic task without pairs, and for a model
    that neither judges pairs nor gives a likelihood.
    """
    trained = subject.trained
    pairs = synthetic_task_of(subject).pairs
    if not pairs:
        raise ValueError(
            "Got a synthetic task without `pairs`, expected texts of which one follows the other: measure a "
            "run of one that has them, such as runs/processes.gin."
        )
    if "pair" in trained.model.heads:
        score = _judged
        how = "judged by the model's head"
    else:
        kind = reading_of(trained).kind
        kind = PSEUDO if kind == BOUND else kind  # which `log_probs` gives of either
        score = _likelihoods
        how = f"by {kind} likelihood"
    rights, wrongs = (score(trained, some) for some in zip(*((x.right, x.wrong) for x in pairs)))
    points = [share_right(np.array(both), 0) for both in zip(rights, wrongs)]
    figures = []
    for kind in dict.fromkeys(pair.kind for pair in pairs):
        of_kind = [point for pair, point in zip(pairs, points) if pair.kind == kind]
        note = f"{len(of_kind)} pairs, {how}"
        share = float(np.mean(of_kind))
        figures.append(Figure(f"synthetic_pairs/{kind}", share, "share", HIGHER, 0.5, note))
    return [figures[0]._replace(name="synthetic_pairs"), *figures]


Texts = tuple[str, str]


def _judged(trained: Trained, pairs: Sequence[Texts]) -> list[float]:
    """Returns the log-odds that the second text follows the first."""
    follows = prompt_form(trained, "pair").classes[0]
    shares = (dict(classes)[follows] for classes in judge(trained, pairs))
    return [math.log(max(p, _LEAST)) - math.log(max(1 - p, _LEAST)) for p in shares]


def _likelihoods(trained: Trained, pairs: Sequence[Texts]) -> list[float]:
    """Returns the log-likelihood of both texts as one."""
    reading = reading_of(trained)
    texts = []
    for first, second in pairs:
        whole = trained.encode(f"{first} {second}")
        read = len(trained.encode(first))
        given = read if reading.kind in AFTER_READING else 0
        texts.append((whole[:given], whole[given:]))
    return [math.fsum(one) for one in log_probs(trained, reading, texts)]
