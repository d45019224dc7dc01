"""Letters at single sites of a synthetic task's texts, compared with their exact probabilities."""

import collections
import math
from collections.abc import Sequence

import numpy as np

from ...constraints import checked
from ...corpora.synthetic_tasks.task import SyntheticSite, SyntheticTask
from ...data.task_metrics import auroc, pearson_and_spearman
from ...inference.trained import mode_of
from ..figures import HIGHER, LOWER, Figure
from .known_answers import synthetic_task_of
from .parts.ranking import Question, answer_log_probs
from .subject import Subject

FIGURES_VERSION = 2  # see `kept_figures.version_of`


@checked
def variant_effects(subject: Subject) -> list[Figure]:
    """Spearman correlation of the model's scores of variants with the exact log-likelihood ratios.

    A variant replaces one letter of a text. Its score is the log-probability of the variant minus
    the log-probability of the text, including end-of-sequence. A model that fills blanks or
    predicts masks compares both letters at the site (the masked marginal of Meier et al. 2021,
    doi:10.1101/2021.07.09.450648). A perfect model has equal ratios and a correlation of 1.

    - `variant_effects`: the correlation over all variants.
    - `variant_effects/conserved` and `variant_effects/free`: the correlation over the variants of
      conserved and of free sites.
    - `variant_effects/rmse`: the root-mean-square error of the scores, in nats.

    The baseline scores letters by their frequencies. Equal scores have a correlation of 0.

    Raises ValueError for a corpus without sites, and for a model that does not give text a
    probability.
    """
    task, scores = _task_and_scores(subject)
    exact = [np.array(site.log_likelihoods) for site in task.sites]
    truth_N, scores_N, unigram_N = (
        np.concatenate([log_p_A[1:] - log_p_A[0] for log_p_A in log_probs])  # The first was drawn.
        for log_probs in (exact, scores, _unigram_log_probs(task))
    )
    kinds_N = np.repeat([site.kind for site in task.sites], [len(x_A) - 1 for x_A in exact])
    figures = [
        Figure(
            f"variant_effects/{kind}" if kind else "variant_effects",
            _spearman(truth_N[chosen_N], scores_N[chosen_N]),
            "Spearman correlation",
            HIGHER,
            _spearman(truth_N[chosen_N], unigram_N[chosen_N]),
            f"{np.sum(chosen_N)} variants",
        )
        for kind in ("", *_kinds(task))
        for chosen_N in [(kinds_N == kind) | (not kind)]
    ]
    error, baseline = (math.sqrt(np.mean((x_N - truth_N) ** 2)) for x_N in (scores_N, unigram_N))
    return [*figures, Figure("variant_effects/rmse", error, "nats", LOWER, baseline)]


@checked
def conserved_columns(subject: Subject) -> list[Figure]:
    """How often the model is less certain at free sites than at conserved sites.

    The certainty is the negative entropy of the letters at a site, scored as in `variant_effects`.
    The figure is the area under the ROC curve: the share of pairs of a conserved and a free site in
    which the conserved site has the lower entropy. Ties count half, so chance is 0.5. The note
    gives the figure of the exact probabilities. `synthetic_questions` tests the most likely letters
    of the same sites.

    Raises ValueError as `variant_effects`, and if all sites are of the same kind.
    """
    task, scores = _task_and_scores(subject)
    if len(_kinds(task)) < 2:
        raise ValueError(
            f"Got a synthetic task whose sites are all {task.sites[0].kind}, expected conserved "
            "and free sites."
        )
    exact = [np.array(site.log_likelihoods) for site in task.sites]
    area, best_area = (area_under_curve(task.sites, log_probs) for log_probs in (scores, exact))
    note = f"{len(task.sites)} sites; the exact probabilities score {best_area:.2f}"
    return [Figure("conserved_columns", area, "area under the ROC curve", HIGHER, 0.5, note)]


def area_under_curve(sites: Sequence[SyntheticSite], log_probs: Sequence[np.ndarray]) -> float:
    """Returns the share of pairs in which the conserved site has less entropy than the free site.

    >>> sites = [SyntheticSite(kind, "", (), ()) for kind in ("conserved", "free", "free")]
    >>> certain, uncertain = np.array([0.0, -9.0]), np.array([-1.0, -1.0])
    >>> area_under_curve(sites, [certain, certain, uncertain])
    0.75
    """
    certainties = []
    for log_p_A in log_probs:
        p_A = np.exp(log_p_A - np.logaddexp.reduce(log_p_A))
        certainties.append(float(np.sum(p_A * np.log(np.maximum(p_A, 1e-30)))))
    is_conserved = [site.kind == "conserved" for site in sites]
    rounded = np.round(certainties, 6).tolist()  # Ties survive rounding errors.
    return auroc(is_conserved, rounded)["auroc"]


def _task_and_scores(subject: Subject) -> tuple[SyntheticTask, list[np.ndarray]]:
    """Returns the task, and the log-probability f64[A] of each candidate of each site."""
    task = synthetic_task_of(subject, "sites")
    trained = subject.trained
    # Exact likelihoods include the end of the text.
    ends = mode_of(trained) in ("continue", "complete")
    end = trained.decode([trained.ids.eos]) if ends else ""
    questions = [Question(site.text + end, site.answers, "") for site in task.sites]
    return task, [scores_Ax2[:, 0] for scores_Ax2 in answer_log_probs(trained, questions)]


def _kinds(task: SyntheticTask) -> list[str]:
    return list(dict.fromkeys(site.kind for site in task.sites))


def _unigram_log_probs(task: SyntheticTask) -> list[np.ndarray]:
    counts = collections.Counter(word for text in task.documents for word in text.split())
    return [np.log([max(counts[x.strip()], 0.5) for x in site.answers]) for site in task.sites]


def _spearman(truth_N: np.ndarray, found_N: np.ndarray) -> float:
    """Returns the rank correlation; 0 if all scores are the same, up to rounding errors."""
    found = np.round(found_N, 6).tolist()
    return float(np.nan_to_num(pearson_and_spearman(truth_N.tolist(), found)["spearman"]))
