"""The check of refusals can fail."""

import pytest

from tests.refusals import refuses


def refused(message="rate must be at most 1, got 1.5.", error=ValueError):
    raise error(message)


def test_a_refusal_names_its_setting_and_values():
    with refuses(ValueError, "rate", 1, 1.5) as caught:
        refused()
    assert "at most" in str(caught.value)


@pytest.mark.parametrize("values", [("rat",), ("rates",), (5,), (1.55,), ("rate", 2)])
def test_a_refusal_without_a_value_fails(values):
    with pytest.raises(AssertionError, match="not named in"), refuses(ValueError, *values):
        refused()


def test_an_error_of_another_type_is_not_caught():
    with pytest.raises(KeyError), refuses(ValueError):
        refused(error=KeyError)


def test_a_block_without_an_error_fails():
    with pytest.raises(pytest.fail.Exception), refuses(ValueError, "rate"):
        pass
