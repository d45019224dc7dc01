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
_MOST = SIDE**2 - 4  # cells that may have to be given
_AT_ONCE = 500  # puzzles that are drawn
_DRAWS = 20  # of a puzzle for a question


@functools.cache
def grids() -> np.ndarray:
    """Returns all grids there are, i8[288, 16], their cells row by row.

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
    """Returns the puzzle that a grid is where only some cells are `given`, as text.

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
    """Returns grids i8[count, 16], and which of their cells are given, bool[count, 16]: so many in
    a drawn order that no other grid has them, and `least` or more."""
    every = grids()
    chosen = every[rng.integers(len(every), size=count)]
    order = rng.permuted(np.tile(np.arange(SIDE**2), (count, 1)), axis=1)
    others = np.take_along_axis(every[None], order[:, None], axis=2)
    agrees = others == np.take_along_axis(chosen, order, axis=1)[:, None]
    alone = np.logical_and.accumulate(agrees, axis=2).sum(1) == 1  # up to each cell in the order
    needed = np.maximum(np.argmax(alone, axis=1) + 1, least)
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
    """Sudoku of four rows with their solutions; asked is the solution of a puzzle.

        corpora.synthetic_documents.task = @synthetic_tasks.sudoku

    The kind of questions is `solution`, of all cells, those that are given as well. Each puzzle has
    one solution. Wrong answers are the right one with two cells exchanged that differ and are not
    given, so that they have the digits of the right one.

    Args:
      puzzles: how many there are to train on; a twentieth more is held out.
      given: cells of a puzzle, at least; more where others would do as well.
      questions: how many.
      choices: answers of a question.

    No puzzle that is asked is trained on or held out.

    Raises ValueError where fewer than four cells are left, and for more choices than there are
    pairs of cells to exchange.
    """
    if given > _MOST:
        raise ValueError(
            f"Got {given} given cells of {SIDE**2}, expected {_MOST} at most, so that some are "
            "left to fill: lower synthetic_tasks.sudoku.given."
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
        able = [
            pair
            for pair in itertools.combinations(np.flatnonzero(~given).tolist(), 2)
            if grid[pair[0]] != grid[pair[1]]
        ]
        if len(able) >= choices - 1:
            break
    else:
        raise ValueError(
            f"Got {choices} choices, expected fewer: in {_DRAWS} puzzles with {least} cells given, "
            "too few pairs of other cells differ: lower synthetic_tasks.sudoku.choices or given."
        )
    wrong = []
    for k in rng.permutation(len(able))[: choices - 1].tolist():
        i, j = able[k]
        exchanged = grid.copy()
        exchanged[[i, j]] = grid[[j, i]]
        wrong.append(solution(exchanged))
    return SyntheticQuestion("solution", written(grid, given), (solution(grid), *wrong))
