"""What tests of all worlds ask of a world's questions."""

from collections.abc import Callable

import numpy as np

from pretrax.corpora.worlds import World, WorldQuestion


def shares_of_reader(world: World, read: Callable[[WorldQuestion], str | None]) -> dict[str, float]:
    """Returns {kind: how often a reader is right}, which returns an answer, or None to guess."""
    right: dict[str, list[float]] = {}
    for question in world.questions:
        answer = read(question)
        told = question.chance if answer is None else answer in question.answers[: question.right]
        right.setdefault(question.kind, []).append(float(told))
    return {kind: float(np.mean(told)) for kind, told in right.items()}
