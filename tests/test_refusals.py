"""The checks of messages can fail, and tests use no others."""

import functools
import pathlib
import warnings

import pytest

from tests.refusals import assert_named, refuses, warns


def refused(message="rate must be at most 1, got 1.5.", error=ValueError):
    raise error(message)


def test_refuses_accepts_a_message_with_all_values():
    with refuses(ValueError, "rate", 1, 1.5) as caught:
        refused()
    assert caught.type is ValueError


@pytest.mark.parametrize("values", [("rat",), ("rates",), (5,), (1.55,), ("rate", 2)])
def test_refuses_fails_if_a_value_is_missing(values):
    with refuses(AssertionError, values[-1]), refuses(ValueError, *values):
        refused()


def test_refuses_rejects_sentences_as_values():
    refused_words = functools.partial(assert_named, "The colors are 'dark green' and red.")
    refused_words("'dark green'", "red")
    with refuses(AssertionError, "reworded"):
        refused_words("The colors")


def test_refuses_matches_values_across_line_breaks():
    assert_named("got\nsteps =\n  5.", "steps = 5")


def test_warns_accepts_a_message_with_all_values():
    with warns(UserWarning, "rate", 1.5):
        warnings.warn("unrelated", stacklevel=1)
        warnings.warn("rate = 1.5", stacklevel=1)
    with pytest.raises(AssertionError), warns(UserWarning, "rate", 2):
        warnings.warn("rate = 1.5", stacklevel=1)


def test_no_test_matches_a_sentence():
    """`pytest.raises` and `pytest.warns` would match words, which may be reworded freely."""
    option = "match" + "="
    files = pathlib.Path(__file__).parent.rglob("*.py")
    assert not [str(file) for file in files if option in file.read_text("utf-8")]
