"""A synthetic task of additions, whose sums are written from their first digit on, or from their
last.

    3 4 5 + 1 2 9 = 0 4 7 4        plain
    3 4 5 + 1 2 9 = 4 7 4 0        reversed

Lee et al. 2023, "Teaching Arithmetic to Small Transformers" (arXiv:2307.03381): the last digit of a
sum depends on two digits, and every other digit on two digits and a carry. Causal models therefore
learn sums from fewer examples if the last digit is written first. In the usual order, all carries
must be known before the first digit. A model that predicts masks may write in any order. In the
paper numbers have no leading zeros; here all numbers have the same number of digits.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Le

from ...constraints import AtLeastTwo, Count, checked
from .task import SyntheticQuestion, SyntheticTask, heldout_count, train_and_heldout

DigitOrder = Literal["plain", "reversed"]


def sum_text(one: int, other: int, total: int, digits: int, order: DigitOrder) -> str:
    """Returns two numbers of so many digits and their sum, which has one more.

    >>> sum_text(345, 129, 474, 3, "plain"), sum_text(45, 9, 54, 2, "reversed")
    ('3 4 5 + 1 2 9 = 0 4 7 4', '4 5 + 0 9 = 4 5 0')
    """
    written = f"{total:0{digits + 1}d}"
    sides = f"{one:0{digits}d}", f"{other:0{digits}d}", written[:: 1 if order == "plain" else -1]
    return "{} + {} = {}".format(*map(" ".join, sides))


def long_carry(rng: np.random.Generator, digits: int) -> tuple[int, int]:
    """Returns two numbers in whose sum a carry runs on, over two digits that make 9.

    long_carry(np.random.default_rng(0), 3)    # (256, 149): 6 and 9, then 5 and 4
    """
    pairs = rng.integers(10, size=(digits, 2))  # the last digits first
    at = rng.integers(digits - 1)
    pairs[at, 0] = rng.integers(1, 10)
    pairs[at, 1] = rng.integers(10 - pairs[at, 0], 10)
    pairs[at + 1, 1] = 9 - pairs[at + 1, 0]
    one, other = 10 ** np.arange(digits) @ pairs
    return int(one), int(other)


@checked
def arithmetic(
    *,
    seed: int,
    digits: Annotated[int, Ge(2), Le(18)] = 3,  # of numbers that 64 bits hold
    order: DigitOrder = "plain",
    sums: Count = 10_000,
    questions: Count = 200,
    choices: AtLeastTwo = 4,
) -> SyntheticTask:
    """Sums of two numbers, whose digits are written from the first on or from the last.

        corpora.synthetic_documents.task = @synthetic_tasks.arithmetic
        synthetic_tasks.arithmetic.order = "reversed"

    Kinds of questions: `sum`, of two numbers, and `long_carry`, of two in whose sum a carry runs on
    over a pair of digits that makes 9. No document adds the two, in either order. Wrong answers are
    the sum with one more or less at one digit. Synthetic tasks that differ in `order` alone have
    the same numbers in the same order, and the same answers.

    Args:
      digits: of each number; a sum has one more.
      order: of the digits of a sum: "plain", or "reversed", the last one first.
      sums: to train on, all different; a twentieth more is held out.
      questions: of each kind.
      choices: answers of a question.

    Raises ValueError for sums and questions that take more than half of the pairs that there are,
    and for more choices than wrong answers are sure of.
    """
    most = 10**digits
    heldout = heldout_count(sums)
    if (wanted := sums + heldout + 2 * questions) > most**2 // 4:
        raise ValueError(
            f"Got {sums} sums, {heldout} more that are held out and {2 * questions} questions, of "
            f"numbers of {digits} digits, expected {most**2 // 4} together at most, half of all "
            f"pairs and not {wanted}: lower synthetic_tasks.arithmetic.sums, or raise its digits."
        )
    if choices > digits + 2:
        raise ValueError(
            f"Got {choices} choices among sums of numbers of {digits} digits, expected "
            f"{digits + 2} at most: lower synthetic_tasks.arithmetic.choices, or raise its digits."
        )
    rng = np.random.default_rng(seed)
    asked = {
        "sum": rng.integers(most, size=(questions, 2)).tolist(),
        "long_carry": [long_carry(rng, digits) for _ in range(questions)],
    }
    taken = {(min(pair), max(pair)) for some in asked.values() for pair in some}
    unread = (
        sum_text(*pair, sum(pair), digits, order) for pair in _different_pairs(rng, most, taken)
    )
    return SyntheticTask(
        *train_and_heldout(unread, sums),
        [
            _question(rng, kind, one, other, digits, order, choices)
            for kind, pairs in asked.items()
            for one, other in pairs
        ],
    )


def _different_pairs(
    rng: np.random.Generator, most: int, taken: set[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """Yields pairs of numbers below `most`, each once in either order, without those taken."""
    taken = {*taken}
    while True:
        for one, other in rng.integers(most, size=(1024, 2)).tolist():
            if (pair := (min(one, other), max(one, other))) not in taken:
                taken.add(pair)
                yield one, other


def _question(
    rng: np.random.Generator,
    kind: str,
    one: int,
    other: int,
    digits: int,
    order: DigitOrder,
    choices: int,
) -> SyntheticQuestion:
    total = one + other
    near = [total + sign * 10**k for k in range(digits + 1) for sign in (1, -1)]
    near = rng.permutation([x for x in near if 0 <= x < 2 * 10**digits]).tolist()
    texts = [sum_text(one, other, x, digits, order) for x in (total, *near[: choices - 1])]
    text = texts[0].partition(" =")[0] + " ="
    return SyntheticQuestion(kind, text, tuple(whole.removeprefix(text) for whole in texts))
