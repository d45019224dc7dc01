"""Pairs of texts of a synthetic task: whether a model predicts that one follows the other."""

import math
from collections.abc import Sequence

import numpy as np

from ...constraints import checked
from ...inference import Trained
from ...inference.answering.classifying import judge
from ...inference.trained import prompt_form
from ..figures import HIGHER, Figure
from .known_answers import synthetic_task_of
from .parts.likelihoods import AFTER_READING, BOUND, PSEUDO, likelihood_form, log_probs
from .parts.ranking import share_right
from .subject import Subject

FIGURES_VERSION = 1  # see `kept_figures.version_of`
_LEAST = 1e-30  # smallest probability, for finite logarithms


@checked
def synthetic_pairs(subject: Subject) -> list[Figure]:
    """Share of the task's correct pairs of texts that the model prefers to the wrong pairs.

    - `synthetic_pairs`: the share for the task's first kind of pairs.
    - `synthetic_pairs/KIND`: the share for each kind, such as `synthetic_pairs/order`.

    A model that classifies pairs is scored by the log-odds of the class "follows". Other models are
    scored by the likelihood of both texts as one text: the pseudo-likelihood for masked models
    (Salazar et al. 2020, arXiv:1910.14659), and the likelihood of the second text given the first
    for encoder-decoders and prefix LMs. Ties count half, so chance is 0.5.

    Raises ValueError for a corpus without pairs, and for a model that neither classifies pairs nor
    gives a likelihood.
    """
    trained = subject.trained
    pairs = synthetic_task_of(subject, "pairs").pairs
    if "pair" in trained.model.heads:
        score = log_odds
        method = "judged by the model's head"
    else:
        kind = likelihood_form(trained).kind
        kind = PSEUDO if kind == BOUND else kind  # `log_probs` gives the same for both kinds.
        score = log_likelihoods
        method = f"by {kind} likelihood"
    rights = score(trained, [pair.right for pair in pairs])
    wrongs = score(trained, [pair.wrong for pair in pairs])
    points: dict[str, list[float]] = {}
    for pair, *both in zip(pairs, rights, wrongs):
        points.setdefault(pair.kind, []).append(share_right(np.array(both), 0))
    figures = []
    for kind, kind_points in points.items():
        note = f"{len(kind_points)} pairs, {method}"
        share = float(np.mean(kind_points))
        figures.append(Figure(f"synthetic_pairs/{kind}", share, "share", HIGHER, 0.5, note))
    return [figures[0]._replace(name="synthetic_pairs"), *figures]


Texts = tuple[str, str]


def log_odds(trained: Trained, pairs: Sequence[Texts]) -> list[float]:
    follows = prompt_form(trained, "pair").classes[0]
    shares = (dict(classes)[follows] for classes in judge(trained, pairs))
    return [math.log(max(p, _LEAST)) - math.log(max(1 - p, _LEAST)) for p in shares]


def log_likelihoods(trained: Trained, pairs: Sequence[Texts]) -> list[float]:
    """Returns the log-likelihood of the two texts of each pair as one text."""
    reading = likelihood_form(trained)
    texts = []
    for first, second in pairs:
        whole = trained.encode(f"{first} {second}")
        read = len(trained.encode(first))
        start = read if reading.kind in AFTER_READING else 0
        texts.append((whole[:start], whole[start:]))
    return [math.fsum(token_log_probs) for token_log_probs in log_probs(trained, reading, texts)]
