"""Numbers that are solved so that variants are equal."""

import pytest

from pretrax.comparison.matching import macro_of_solved, nearest, solved_line


@pytest.mark.parametrize(
    "target, number", [(100, 10), (104, 10), (106, 11), (19, 2), (10, 1), (14, 1)]
)
def test_the_nearest_number_is_found(target, number):
    assert nearest(lambda n: 10.0 * n, target) == number


@pytest.mark.parametrize(
    "cost, said",
    [
        (lambda n: 7.0 * n, "With 1 it has 7 already, more than the 3"),
        (lambda n: 1.0, "Even with 1,0"),
    ],
)
def test_what_no_number_makes_equal_is_said(cost, said):
    with pytest.raises(ValueError, match=said):
        nearest(cost, 3)


def test_a_solved_line_is_known_again():
    assert macro_of_solved(["a.b = %EQUAL_FLOPS", solved_line("EQUAL_FLOPS", 64)]) == "EQUAL_FLOPS"
    assert macro_of_solved(["a.b = %EQUAL_FLOPS"]) is None
