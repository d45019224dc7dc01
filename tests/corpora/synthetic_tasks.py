"""Checks of a synthetic task's questions that the tests of all tasks share."""

from collections.abc import Callable

import numpy as np

from pretrax.corpora.synthetic_tasks import SyntheticQuestion, SyntheticTask


def shares_of_reader(
    task: SyntheticTask, read: Callable[[SyntheticQuestion], str | None]
) -> dict[str, float]:
    """Returns {kind: how often a reader is right}, which returns an answer, or None to guess."""
    right: dict[str, list[float]] = {}
    for question in task.questions:
        answer = read(question)
        told = question.chance if answer is None else answer in question.answers[: question.right]
        right.setdefault(question.kind, []).append(float(told))
    return {kind: float(np.mean(told)) for kind, told in right.items()}
