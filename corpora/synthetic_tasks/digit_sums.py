"""A synthetic task of additions, with sums written from the first or from the last digit.

    3 4 5 + 1 2 9 = 0 4 7 4        plain
    3 4 5 + 1 2 9 = 4 7 4 0        reversed

Lee et al. 2023, "Teaching Arithmetic to Small Transformers" (arXiv:2307.03381): the last digit of a
sum depends on two digits, and every other digit also on a carry. Causal models therefore learn sums
from fewer examples if the last digit is written first. Masked models may write in any order. The
paper's numbers have no leading zeros; here all numbers have the same number of digits.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Le

from ...constraints import AtLeastTwo, Count, checked
from .task import SyntheticQuestion, SyntheticTask, heldout_count, train_and_heldout

DigitOrder = Literal["plain", "reversed"]


def sum_text(one: int, other: int, total: int, digits: int, order: DigitOrder) -> str:
    """Returns the text of two numbers with `digits` digits, and of their sum with one more digit.

    >>> sum_text(345, 129, 474, 3, "plain"), sum_text(45, 9, 54, 2, "reversed")
    ('3 4 5 + 1 2 9 = 0 4 7 4', '4 5 + 0 9 = 4 5 0')
    """
    written = f"{total:0{digits + 1}d}"
    sides = f"{one:0{digits}d}", f"{other:0{digits}d}", written[:: 1 if order == "plain" else -1]
    return "{} + {} = {}".format(*map(" ".join, sides))


def long_carry(rng: np.random.Generator, digits: int) -> tuple[int, int]:
    """Returns two numbers with a pair of digits that add up to 9 and propagate a carry.

    long_carry(np.random.default_rng(0), 3)    # (256, 149): 5 + 4 passes on the carry of 6 + 9
    """
    pairs = rng.integers(10, size=(digits, 2))  # from the last digits to the first digits
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
    digits: Annotated[int, Ge(2), Le(18)] = 3,  # at most 18, so that sums fit into 64 bits
    order: DigitOrder = "plain",
    sums: Count = 10_000,
    questions: Count = 200,
    choices: AtLeastTwo = 4,
) -> SyntheticTask:
    """Sums of two numbers, whose digits are written from the first or from the last digit.

        corpora.synthetic_documents.task = @synthetic_tasks.arithmetic
        synthetic_tasks.arithmetic.order = "reversed"

    Kinds of questions: `sum` for random numbers, and `long_carry` for numbers in which a pair of
    digits that add up to 9 propagates a carry. No document has the two numbers of a question, in
    either order. In a wrong answer, one digit of the sum is off by 1. Tasks that differ only in
    `order` have the same numbers and answers.

    Args:
      digits: number of digits of each number. A sum has one more digit.
      order: order of the digits of a sum. "plain" begins with the first digit, and "reversed" with
        the last digit.
      sums: number of training sums, which are all different; a twentieth more is held out.
      questions: number of questions of each kind.
      choices: number of answers of a question.

    Raises ValueError if the sums and questions would need more than half of all pairs of numbers,
    and if some sums have too few wrong answers for `choices`.
    """
    most = 10**digits
    heldout = heldout_count(sums)
    if (wanted := sums + heldout + 2 * questions) > most**2 // 4:
        raise ValueError(
            f"Got {sums} training sums, {heldout} held-out sums and {2 * questions} questions, "
            f"which are {wanted} pairs of numbers with {digits} digits, expected at most "
            f"{most**2 // 4}, which is half of all pairs: lower synthetic_tasks.arithmetic.sums, "
            "or raise its digits."
        )
    if choices > digits + 2:
        raise ValueError(
            f"Got {choices} choices for sums of numbers with {digits} digits, expected at most "
            f"{digits + 2}: lower synthetic_tasks.arithmetic.choices, or raise its digits."
        )
    rng = np.random.default_rng(seed)
    asked = {
        "sum": rng.integers(most, size=(questions, 2)).tolist(),
        "long_carry": [long_carry(rng, digits) for _ in range(questions)],
    }
    taken = {(min(pair), max(pair)) for pairs in asked.values() for pair in pairs}
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
    """Yields different pairs of numbers below `most`, in any order, that are not in `taken`."""
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
