"""Numbers that are solved so that variants are equal."""

import pytest

from pretrax.comparison.matching import macro_of_solved, nearest, solved_line
from tests.refusals import refuses


@pytest.mark.parametrize(
    "target, number", [(100, 10), (104, 10), (106, 11), (19, 2), (10, 1), (14, 1)]
)
def test_nearest_number_is_found(target, number):
    assert nearest(lambda n: 10.0 * n, target) == number


@pytest.mark.parametrize(
    "cost, values", [(lambda n: 7.0 * n, ("1", "7", "3")), (lambda n: 1.0, ("1,048,576", "3"))]
)
def test_unreachable_target_is_rejected(cost, values):
    with refuses(ValueError, *values):
        nearest(cost, 3)


def test_solved_line_is_recognized():
    assert macro_of_solved(["a.b = %EQUAL_FLOPS", solved_line("EQUAL_FLOPS", 64)]) == "EQUAL_FLOPS"
    assert macro_of_solved(["a.b = %EQUAL_FLOPS"]) is None
