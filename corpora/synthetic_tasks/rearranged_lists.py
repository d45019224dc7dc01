"""A synthetic task of lists that are copied, reversed or sorted: what is learned of each, and how
soon?

    sort 7 2 9 = 2 7 9
    reverse 7 2 9 = 9 2 7
    copy 7 2 9 = 7 2 9

The tasks are among those of Delétang et al. 2022, "Neural Networks and the Chomsky Hierarchy"
(arXiv:2207.02098), who ask for lists that are longer than those of training; here all lists have
one length. An item of a copied or reversed list is told by its place alone. The first item of a
sorted list takes a comparison of all, and each later one of those that are left: who predicts masks
may begin with either end. Nothing but sorted lists tells the order of the items.
"""

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np

from ...constraints import AtLeastTwo, Count, checked
from .task import SyntheticQuestion, SyntheticTask, train_and_heldout

TASKS: dict[str, Callable[[Sequence[int]], list[int]]] = {
    "sort": sorted,
    "reverse": lambda items: [*reversed(items)],
    "copy": list,
}

Asked = tuple[str, tuple[int, ...]]  # a task and a list


def written(items: Sequence[int]) -> str:
    """Returns items as text, with a space before each.

    >>> written([7, 2])
    ' 7 2'
    """
    return "".join(f" {item}" for item in items)


@checked
def rearranging(
    *,
    seed: int,
    documents: Count = 40_000,
    length: AtLeastTwo = 8,
    items: AtLeastTwo = 32,
    questions: Count = 200,
    choices: AtLeastTwo = 4,
) -> SyntheticTask:
    """Lists that are sorted, reversed or copied, a third each; asked is what comes of a list.

        corpora.synthetic_documents.synthetic_task = @synthetic_tasks.rearranging

    Kinds of questions are the tasks: `sort`, `reverse` and `copy`. No document has the same list
    with the same task. Wrong answers are the right one with two neighbors exchanged, so that who
    knows only which items a list has is worth chance. Of `sort` every second one goes up as the
    right one does, and has an item that the list has not (where there are others): of four answers
    who knows only the order of the items is left with two, who knows only those of a list with
    three.

    Args:
      documents: how many there are to train on; a twentieth more is held out.
      length: of a list, whose items differ.
      items: that are drawn from.
      questions: of each task.
      choices: answers of a question.

    Raises ValueError for lists that are longer than there are items, or shorter than there are
    choices, and for questions that take more than half of the lists that there are.
    """
    if not choices <= length <= items:
        raise ValueError(
            f"Got lists of {length} of {items} items and {choices} choices, expected at least "
            f"{length} items and at most {length} choices: change synthetic_tasks.rearranging."
        )
    if questions > (lists := math.perm(items, length)) // 2:
        raise ValueError(
            f"Got {questions} questions of each task and {lists} lists of {length} of {items} "
            f"items, expected at most {lists // 2} questions, so that others can be trained on: "
            "raise synthetic_tasks.rearranging.items, or lower its questions."
        )
    rng = np.random.default_rng(seed)

    def drawn() -> tuple[int, ...]:
        return tuple(rng.permutation(items)[:length].tolist())

    asked = [(task, drawn()) for task in TASKS for _ in range(questions)]
    taken = {*asked}
    unread = (
        f"{_beginning(one)}{written(TASKS[one[0]](one[1]))}"
        for task in itertools.cycle(TASKS)
        if (one := (task, drawn())) not in taken
    )
    return SyntheticTask(
        *train_and_heldout(unread, documents),
        [_question(rng, one, choices, items) for one in asked],
    )


def _beginning(asked: Asked) -> str:
    task, items = asked
    return f"{task}{written(items)} ="


def _question(
    rng: np.random.Generator, asked: Asked, choices: int, items: int
) -> SyntheticQuestion:
    task, given = asked
    right = TASKS[task](given)
    others = rng.permutation([item for item in range(items) if item not in given])
    wrong = []
    for number, k in enumerate(rng.permutation(len(right) - 1)[: choices - 1].tolist()):
        if task == "sort" and number % 2 and len(others):
            wrong.append(sorted([*right[:k], int(others[0]), *right[k + 1 :]]))
        else:
            wrong.append([*right[:k], right[k + 1], right[k], *right[k + 2 :]])
    return SyntheticQuestion(task, _beginning(asked), tuple(map(written, (right, *wrong))))
