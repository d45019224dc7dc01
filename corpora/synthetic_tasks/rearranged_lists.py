"""A synthetic task of lists that are copied, reversed or sorted: which is learned, and how soon?

    sort 7 2 9 = 2 7 9
    reverse 7 2 9 = 9 2 7
    copy 7 2 9 = 7 2 9

Delétang et al. 2022, "Neural Networks and the Chomsky Hierarchy" (arXiv:2207.02098), use such tasks
with lists that are longer than the training lists. Here all lists have the same length. The items
of a copied or reversed list follow from their positions alone. The first item of a sorted list
requires a comparison of all items, and each later item a comparison of the remaining items. A model
that predicts masks may begin at either end. Only sorted lists show the order of the items.
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

Asked = tuple[str, tuple[int, ...]]  # A task and a list


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
    """Lists that are sorted, reversed or copied, in turn, with questions about the resulting list.

        corpora.synthetic_documents.task = @synthetic_tasks.rearranging

    The kinds of questions are the tasks: `sort`, `reverse` and `copy`. No document has the task and
    the list of a question. In a wrong answer, two neighbors of the correct answer are exchanged. A
    model that knows only which items a list has therefore scores at chance.

    For `sort`, every second wrong answer is in ascending order, too, but has an item that is not in
    the list (if there are other items). With four answers, a model that knows only the order of the
    items can exclude two answers. A model that knows only the items of the list can exclude one.

    Args:
      documents: number of training documents; a twentieth more is held out.
      length: number of items of a list, which are all different.
      items: number of items to draw from.
      questions: number of questions of each task.
      choices: number of answers of a question.

    Raises ValueError if `length` is above `items` or below `choices`, and if the questions need
    more than half of all lists.
    """
    if not choices <= length <= items:
        raise ValueError(
            f"Got a length of {length}, {items} items and {choices} choices, expected at least "
            f"{length} items and at most {length} choices: change the settings of "
            "synthetic_tasks.rearranging."
        )
    if questions > (lists := math.perm(items, length)) // 2:
        raise ValueError(
            f"Got {questions} questions of each task, but there are only {lists} lists of {length} "
            f"of {items} items, expected at most {lists // 2} questions, so that other lists "
            "remain for training: raise synthetic_tasks.rearranging.items, or lower its questions."
        )
    rng = np.random.default_rng(seed)

    def drawn() -> tuple[int, ...]:
        return tuple(rng.permutation(items)[:length].tolist())

    asked = [(task, drawn()) for task in TASKS for _ in range(questions)]
    taken = {*asked}
    unread = (
        f"{_beginning(new)}{written(TASKS[task](new[1]))}"
        for task in itertools.cycle(TASKS)
        if (new := (task, drawn())) not in taken
    )
    return SyntheticTask(
        *train_and_heldout(unread, documents),
        [_question(rng, task_and_list, choices, items) for task_and_list in asked],
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
