"""The lines that show a picture in the terminal."""

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from pretrax.visualization.picture import (
    FEW,
    AttentionPattern,
    Example,
    Picture,
    Slot,
    StackView,
    Token,
    brief,
    compact,
)
from pretrax.visualization.terminal import RUNS, print_picture, stacked


def test_numbers_are_written_as_runs():
    assert compact([1] * 40 + [2] * 17, RUNS) == "1×40 2×17"
    assert compact([*range(40), *range(17)], RUNS) == "0…39 0…16"
    assert compact([0, 0, 5, 3, 4], RUNS) == "0×2 5 3…4"
    assert compact([7, 3] * 4, most=3) == "3 in 4 slots, 7 in 4 slots"
    assert compact([7, 3, 5, 1] * 2, most=3) == "7 3 5 … and 5 more"
    assert compact([], RUNS) == ""


@given(st.lists(st.integers(0, 3)))
def test_runs_represent_all_values(values):
    decoded = []
    for run in compact(values, most=len(values) + 1).split():
        first, _, last = run.partition("…")
        value, _, times = run.partition("×")
        decoded += range(int(first), int(last) + 1) if last else [int(value)] * int(times or 1)
    assert decoded == values


def test_predictions_are_shown_below_their_slots():
    def slot(given, predicted=None):
        return Slot(Token(given), Token(predicted) if predicted else None)

    lines = stacked([slot("a"), slot(" b", "long"), slot("\n", "c"), slot("d")], 9)
    assert [line.plain.rstrip() for line in lines] == ["a ·b   ⏎", "  long c", "d"]
    ahead = Slot(Token("a"), Token("b"), further=(Token("c"), None))
    assert [line.plain.rstrip() for line in stacked([ahead], 9)] == ["a", "b", "c"]


def test_brief_picture_details_only_the_first_example():
    tokens = [Token("a")]
    stack = StackView("encoder", "", [Slot(Token("a"))], {"segments": [1]}, targets=0)
    pattern = AttentionPattern("encoder", "encoder attends to itself", 1, [0], [1], [1])
    example = Example("", "", [tokens], [stack], [pattern], [], with_loss=1)
    first, second = brief(Picture("few", "encoder", [], [example] * 2)).examples
    assert first == example
    assert not second.text and not second.attentions and not second.stacks[0].tracks
    assert second.stacks[0].slots == stack.slots
    first, *_ = brief(Picture("many", "encoder", [], [example] * (FEW + 1))).examples
    assert first.text and not first.attentions


def test_names_that_look_like_markup_are_shown_unchanged(capsys):
    pools = ["slot 4: class 1, [/swapped]"]
    example = Example(
        "", "[red]", text=[[Token("[a]")]], stacks=[], attentions=[], pools=pools, with_loss=1
    )
    print_picture(Console(), Picture("[mine]", "encoder", ["[fact]"], [example]))
    output = capsys.readouterr().out
    for name in ("[/swapped]", "[red]", "[a]", "[mine]", "[fact]"):
        assert name in output
