"""Questions about a synthetic task that a run was trained on: how many does its model answer right?"""

from collections.abc import Sequence

import numpy as np

from ...constraints import checked
from ...corpora import synthetic_documents
from ...corpora.synthetic_tasks.task import SyntheticTask, SyntheticQuestion, drawn_task
from ...inference import Trained
from ...settings.partial import as_partial
from ..figures import HIGHER, Figure
from .parts.ranking import Question, answer_log_probs, share_right
from .subject import Subject

FIGURES_VERSION = 1  # see `kept_figures.version_of`


@checked
def synthetic_questions(subject: Subject) -> list[Figure]:
    """Share of the questions of a run's synthetic task whose right answer the model finds likeliest.

        synthetic_questions              of the kind that the synthetic task asks first
        synthetic_questions/reversed     of each kind

    A model is asked as it was trained: it continues the text, fills the blank or predicts masks.
    The baseline draws an answer; notes have the number of questions, and how often a reader is
    right who knows the world.

    Raises ValueError for a run whose corpus is no synthetic task, or has changed since, and for a model that
    gives no probability to text.
    """
    questions = synthetic_task_of(subject).questions
    by_kind = figures_of_questions("synthetic_questions", subject.trained, questions)
    first = by_kind[questions[0].kind]
    return [first._replace(name="synthetic_questions"), *by_kind.values()]


def synthetic_task_of(subject: Subject) -> SyntheticTask:
    """Returns the synthetic task that a run was trained on.

    Raises ValueError for a run whose corpus is no synthetic task, or has changed since.
    """
    corpus = None if subject.corpus is None else as_partial(subject.corpus)
    if corpus is None or corpus.function is not synthetic_documents:
        raise ValueError(
            f"Got a run whose corpus is {'none' if corpus is None else corpus.function.__name__}, "
            "expected corpora.synthetic_documents, whose synthetic tasks have questions: measure a run of one, "
            "such as runs/reversal.gin."
        )
    _ = subject.plan  # whose corpus is refused where it has changed
    return drawn_task(corpus.settings["task"], corpus.settings.get("seed", 0))


def figures_of_questions(
    name: str, trained: Trained, questions: Sequence[SyntheticQuestion]
) -> dict[str, Figure]:
    """Returns {kind: the share of its questions that are answered right}, in the order of kinds."""
    asked = [Question(one.text, one.answers, one.after) for one in questions]
    scores = answer_log_probs(trained, asked)
    right = [share_right(of[:, 0], slice(q.right)) for q, of in zip(questions, scores)]
    figures = {}
    for kind in dict.fromkeys(question.kind for question in questions):
        of_kind = [k for k, question in enumerate(questions) if question.kind == kind]
        share, chance, known = (
            float(np.mean([values[k] for k in of_kind]))
            for values in (
                right,
                [question.chance for question in questions],
                [question.known for question in questions],
            )
        )
        note = f"{len(of_kind)} questions, {known:.2f} for a reader who knows the synthetic task"
        figures[kind] = Figure(f"{name}/{kind}", share, "share", HIGHER, chance, note)
    return figures
