"""Questions of a run's synthetic task, and the model's accuracy."""

import re
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from ...constraints import checked
from ...corpora import synthetic_documents
from ...corpora.python_library.python_passages import Tagged
from ...corpora.synthetic_tasks.task import SyntheticQuestion, SyntheticTask, drawn_task
from ...inference import Trained
from ...settings.partial import as_partial
from ..figures import HIGHER, Figure
from .parts.class_tasks import ClassTask
from .parts.ranking import answer_log_probs, share_right
from .subject import Subject

FIGURES_VERSION = 1  # see `kept_figures.version_of`
Example = TypeVar("Example")


@checked
def synthetic_questions(subject: Subject) -> list[Figure]:
    """Share of the synthetic task's questions whose correct answer the model finds most likely.

    - `synthetic_questions`: the share for the task's first kind of questions.
    - `synthetic_questions/KIND`: the share for each kind, such as `synthetic_questions/reversed`.

    As in its training, a model continues the text, fills the blank or predicts masks. The baseline
    is a random answer. The notes give the number of questions and the best possible score.

    Raises ValueError if the run's corpus is not a synthetic task or has changed, and for a model
    that does not give text a probability.
    """
    questions = synthetic_task_of(subject).questions
    by_kind = figures_of_questions("synthetic_questions", subject.trained, questions)
    first = by_kind[questions[0].kind]
    return [first._replace(name="synthetic_questions"), *by_kind.values()]


# Optional fields of synthetic tasks -> their contents, and the gin file of a task with them.
FIELDS = {
    "accepts": ("a function that says whether a text may be a document", "corpora/grammar.gin"),
    "classes": ("texts with classes", "runs/proteins.gin"),
    "pairs": ("pairs of texts that follow one another", "runs/processes.gin"),
    "sites": ("exact likelihoods of letters", "runs/proteins.gin"),
    "tags": ("texts whose words have tags", "runs/genes.gin"),
}


def synthetic_task_of(subject: Subject, needs: str | None = None) -> SyntheticTask:
    """Returns the synthetic task that a run was trained on.

    Raises ValueError without such a task, if it has changed, or if it lacks the field `needs`.
    """
    corpus = None if subject.corpus is None else as_partial(subject.corpus)
    if corpus is None or corpus.function is not synthetic_documents:
        raise ValueError(
            f"Got a run whose corpus is {'none' if corpus is None else corpus.function.__name__}, "
            "expected corpora.synthetic_documents, whose synthetic tasks have questions: measure a "
            "run of a synthetic task, such as runs/reversal.gin."
        )
    _ = subject.plan  # Planning rejects a corpus that has changed.
    task = drawn_task(corpus.settings["task"], corpus.settings.get("seed", 0))
    if needs is not None and not getattr(task, needs):
        having, example = FIELDS[needs]
        raise ValueError(
            f"Got a synthetic task without `{needs}`, expected one with {having}: measure a run of "
            f"such a task, for example {example}."
        )
    return task


def synthetic_classes(subject: Subject) -> ClassTask:
    """Returns the texts with classes of a run's synthetic task. The last fifth is held out.

    Raises ValueError as `synthetic_task_of`, and for a synthetic task without classes.
    """
    parts = _parts(synthetic_task_of(subject, "classes").classes)
    return ClassTask(
        texts={part: [text for text, _ in examples] for part, examples in parts.items()},
        labels={part: [label for _, label in examples] for part, examples in parts.items()},
    )


def synthetic_tags(subject: Subject) -> dict[str, list[Tagged]]:
    """Returns the texts with tags of a run's synthetic task. The last fifth is held out.

    Raises ValueError as `synthetic_task_of`, and for a synthetic task without tags.
    """
    tagged = []
    for text, tags in synthetic_task_of(subject, "tags").tags:
        words = [word.span() for word in re.finditer(r"\S+", text)]
        tagged.append(Tagged(text, tuple(words), tuple(tags)))
    return _parts(tagged)


def _parts(examples: Sequence[Example]) -> dict[str, list[Example]]:
    kept = len(examples) * 4 // 5
    return {"train": [*examples[:kept]], "validation": [*examples[kept:]]}


def figures_of_questions(
    name: str, trained: Trained, questions: Sequence[SyntheticQuestion]
) -> dict[str, Figure]:
    values: dict[str, list[tuple[float, float, float]]] = {}
    for question, scores_Ax2 in zip(questions, answer_log_probs(trained, questions)):
        right = share_right(scores_Ax2[:, 0], slice(question.right))
        values.setdefault(question.kind, []).append((right, question.chance, question.known))
    figures = {}
    for kind, kind_values in values.items():
        share, chance, known = (float(np.mean(column)) for column in zip(*kind_values))
        note = f"{len(kind_values)} questions; the best possible score is {known:.2f}"
        figures[kind] = Figure(f"{name}/{kind}", share, "share", HIGHER, chance, note)
    return figures
