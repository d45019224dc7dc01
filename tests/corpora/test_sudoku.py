"""Small Sudoku: the given cells of every puzzle determine a single solution."""

import itertools

import numpy as np

from pretrax.corpora.synthetic_tasks import sudoku
from pretrax.corpora.synthetic_tasks.small_sudoku import drawn_puzzles, grids
from tests.corpora.synthetic_tasks import shares_of_reader

TASK = sudoku(seed=0, puzzles=300, questions=40)
CELLS = range(16)


def groups(cell):
    """Returns the row, the column and the box of a cell."""
    row, column = divmod(cell, 4)
    return row, 4 + column, 8 + row // 2 * 2 + column // 2


def is_solved(grid):
    of_groups = [{grid[c] for c in CELLS if group in groups(c)} for group in range(12)]
    return all(of_group == {"1", "2", "3", "4"} for of_group in of_groups)


def solutions(cells):
    """Returns all ways to fill the empty cells, found by brute force."""
    if "_" not in cells:
        return [cells]
    cell = cells.index("_")
    excluded = {cells[c] for c in CELLS if set(groups(c)) & set(groups(cell))}
    able = [digit for digit in "1234" if digit not in excluded]
    return [s for x in able for s in solutions([*cells[:cell], x, *cells[cell + 1 :]])]


def test_all_288_grids_are_generated():
    """The number of grids with four rows is known (OEIS A107739)."""
    assert len({grid.tobytes() for grid in grids()}) == len(grids()) == 288
    assert all(is_solved([*map(str, grid.tolist())]) for grid in grids())


def test_each_puzzle_has_one_solution_which_is_written():
    assert (len(TASK.documents), len(TASK.heldout)) == (300, 15)
    for text in [*TASK.documents[:60], *TASK.heldout]:
        puzzle, _, written = text.partition(" =")
        (found,) = solutions(puzzle.split())
        assert found == written.split() and is_solved(found)
    grids_read = {text.partition(" =")[2] for text in TASK.documents}
    assert len(grids_read) > 150  # There are 288 solved grids.


def test_puzzles_give_the_minimal_or_requested_number_of_cells():
    chosen, given = drawn_puzzles(np.random.default_rng(0), 2000, 1)
    least = min(given.sum(1))
    assert least == 4  # This minimum is known for four rows.
    _, more = drawn_puzzles(np.random.default_rng(0), 2000, 9)
    assert min(more.sum(1)) == 9 and (more >= given).all()
    for grid, known in zip(chosen[:200], given):
        needed = 0
        for left_out in np.flatnonzero(known):
            rest = known.copy()
            rest[left_out] = False
            needed += (grids()[:, rest] == grid[rest]).all(1).sum() > 1
        assert needed >= 1  # At least the last given cell is necessary.


def test_solving_reader_scores_1_and_guessing_scores_chance():
    def solved(question):
        (found,) = solutions(question.text.removesuffix(" =").split())
        return "".join(f" {digit}" for digit in found)

    assert shares_of_reader(TASK, solved) == {"solution": 1.0}
    assert shares_of_reader(TASK, lambda question: None) == {"solution": 1 / 4}
    for question in TASK.questions:
        right, *wrong = (answer.split() for answer in question.answers)
        given = question.text.split()
        for one in wrong:
            assert sorted(one) == sorted(right) and sum(map(str.__ne__, one, right)) == 2
            assert all(cell in ("_", x) for cell, x in zip(given, one))


def test_asked_puzzles_are_neither_trained_on_nor_held_out():
    many = sudoku(seed=0, puzzles=3000, questions=900)
    asked = {question.text for question in many.questions}
    read = {
        text.partition(" =")[0] + " =" for text in itertools.chain(many.documents, many.heldout)
    }
    assert not asked & read
