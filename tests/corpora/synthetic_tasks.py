"""Checks of questions that the tests of all synthetic tasks share."""

from collections.abc import Callable

import numpy as np

from pretrax.corpora.synthetic_tasks import SyntheticQuestion, SyntheticTask


def shares_of_reader(
    task: SyntheticTask, read: Callable[[SyntheticQuestion], str | None]
) -> dict[str, float]:
    """Returns the share correct of a reader by kind. Readers return an answer, or None to guess."""
    right: dict[str, list[float]] = {}
    for question in task.questions:
        answer = read(question)
        share = question.chance if answer is None else answer in question.answers[: question.right]
        right.setdefault(question.kind, []).append(float(share))
    return {kind: float(np.mean(shares)) for kind, shares in right.items()}
