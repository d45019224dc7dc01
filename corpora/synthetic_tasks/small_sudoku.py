"""A synthetic task of small Sudoku. The given cells determine others, and those determine the rest.

    3 _ _ 1 _ _ _ _ _ 4 _ _ _ _ 2 _ = 3 2 4 1 4 1 3 2 2 4 1 3 1 3 2 4

A grid has four rows, four columns and four boxes, with the digits 1 to 4 in each of them. A model
that writes cells from left to right must often know the whole grid before it begins. A model that
writes the most certain cell first can fill one cell after another, as people do. Shah et al. 2024
(arXiv:2409.10502) train causal models on grids of nine rows, written in the order of a solver; Ye
et al. 2024 (arXiv:2410.14157) and Kim et al. 2025 (arXiv:2502.06768) find that masked diffusion
solves them in the order of its own certainty, whereas causal models that write from left to right
fail.
"""

import functools
import itertools

import numpy as np

from ...constraints import AtLeastTwo, Count, checked
from .task import SyntheticQuestion, SyntheticTask, train_and_heldout

SIDE = 4
BOX = 2
EMPTY = "_"
_MAX_GIVEN = SIDE**2 - 4  # Largest allowed number of given cells
_AT_ONCE = 500  # Number of puzzles that are drawn together
_DRAWS = 20  # Largest number of puzzles that are drawn for a question


@functools.cache
def grids() -> np.ndarray:
    """Returns all possible grids, i8[288, 16], with the cells row by row.

    >>> len(grids()), grids()[0].tolist()
    (288, [1, 2, 3, 4, 3, 4, 1, 2, 2, 1, 4, 3, 4, 3, 2, 1])
    """
    rows = [*itertools.permutations(range(1, SIDE + 1))]

    def fits(grid: np.ndarray) -> bool:
        boxes = grid.reshape(-1, BOX, BOX, BOX).swapaxes(1, 2).reshape(-1, SIDE)
        columns = grid.T if len(grid) == SIDE else grid.T[:, :0]
        return all(len({*one.tolist()}) == one.size for one in (*boxes, *columns))

    halves = [h for h in map(np.array, itertools.product(rows, rows)) if fits(h)]
    pairs = itertools.product(halves, halves)
    whole = [np.concatenate(pair).ravel() for pair in pairs if fits(np.concatenate(pair))]
    return np.array(whole, np.int8)


def written(grid: np.ndarray, given: np.ndarray) -> str:
    """Returns the puzzle in which only the `given` cells of a grid are shown, as text.

    >>> written(np.array([1, 2, 3]), np.array([True, False, True]))
    '1 _ 3 ='
    """
    cells = (str(x) if is_given else EMPTY for x, is_given in zip(grid.tolist(), given))
    return f"{' '.join(cells)} ="


def solution(grid: np.ndarray) -> str:
    return "".join(f" {x}" for x in grid.tolist())


def drawn_puzzles(
    rng: np.random.Generator, count: int, least: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns random grids i8[count, 16], and which of their cells are given, bool[count, 16].

    Cells are given in a random order until only one grid has them, and at least `least` cells.
    """
    possible = grids()
    chosen = possible[rng.integers(len(possible), size=count)]
    order = rng.permuted(np.tile(np.arange(SIDE**2), (count, 1)), axis=1)
    ordered = np.take_along_axis(possible[None], order[:, None], axis=2)
    agrees = ordered == np.take_along_axis(chosen, order, axis=1)[:, None]
    # Whether the cells up to each cell, in this order, determine the grid.
    is_unique = np.logical_and.accumulate(agrees, axis=2).sum(1) == 1
    needed = np.maximum(np.argmax(is_unique, axis=1) + 1, least)
    return chosen, np.argsort(order, axis=1) < needed[:, None]


@checked
def sudoku(
    *,
    seed: int,
    puzzles: Count = 20_000,
    given: Count = 4,
    questions: Count = 200,
    choices: AtLeastTwo = 4,
) -> SyntheticTask:
    """Sudoku puzzles of four rows with their solutions, and questions about the solution.

        corpora.synthetic_documents.task = @synthetic_tasks.sudoku

    The kind of questions is `solution`. An answer has all cells, including the given ones. Each
    puzzle has one solution. In a wrong answer, two different cells of the solution that are not
    given are exchanged, so that it has the same digits.

    Args:
      puzzles: number of training puzzles; a twentieth more is held out.
      given: smallest number of given cells. A puzzle has more given cells if it would otherwise
        have several solutions.
      questions: number of questions.
      choices: number of answers of a question.

    The puzzles of questions are not trained on or held out.

    Raises ValueError if fewer than four cells would be left to fill, and if puzzles have too few
    pairs of cells to exchange for `choices`.
    """
    if given > _MAX_GIVEN:
        raise ValueError(
            f"Got {given} given cells of {SIDE**2}, expected at most {_MAX_GIVEN}, so that some "
            "cells are left to fill: lower synthetic_tasks.sudoku.given."
        )
    rng = np.random.default_rng(seed)
    asked = [_question(rng, given, choices) for _ in range(questions)]
    taken = {question.text for question in asked}
    drawn = (zip(*drawn_puzzles(rng, _AT_ONCE, given)) for _ in itertools.count())
    texts = (
        text + solution(grid)
        for grid, known in itertools.chain.from_iterable(drawn)
        if (text := written(grid, known)) not in taken
    )
    return SyntheticTask(*train_and_heldout(texts, puzzles), asked)


def _question(rng: np.random.Generator, least: int, choices: int) -> SyntheticQuestion:
    for _ in range(_DRAWS):
        (grid,), (given,) = drawn_puzzles(rng, 1, least)
        exchangeable = [
            pair
            for pair in itertools.combinations(np.flatnonzero(~given).tolist(), 2)
            if grid[pair[0]] != grid[pair[1]]
        ]
        if len(exchangeable) >= choices - 1:
            break
    else:
        raise ValueError(
            f"Got {choices} choices, but {_DRAWS} puzzles with at least {least} given cells have "
            "too few pairs of different cells to exchange, expected fewer choices or fewer given "
            "cells: lower synthetic_tasks.sudoku.choices or given."
        )
    wrong = []
    for k in rng.permutation(len(exchangeable))[: choices - 1].tolist():
        i, j = exchangeable[k]
        exchanged = grid.copy()
        exchanged[[i, j]] = grid[[j, i]]
        wrong.append(solution(exchanged))
    return SyntheticQuestion("solution", written(grid, given), (solution(grid), *wrong))
