"""Checks of refusals: the type of an error, and the settings and values that its message names."""

import contextlib
import re
from collections.abc import Iterator

import pytest


@contextlib.contextmanager
def refuses(error: type[BaseException], *values: object) -> Iterator[pytest.ExceptionInfo]:
    """Fails unless its block raises `error` with a message that names each value as a whole word.

    >>> with refuses(ValueError, "noise_density", 1.5):
    ...     raise ValueError("noise_density must be in (0, 1), got 1.5.")

    The sentences of a message may be reworded freely, since no test has to match one.
    """
    with pytest.raises(error) as caught:
        yield caught
    message = str(caught.value)
    absent = [value for value in map(str, values) if not is_named(value, message)]
    assert not absent, f"{absent} not named in: {message}"


def is_named(value: str, message: str) -> bool:
    """Returns whether a message has a value that is not a part of a longer word or number.

    >>> is_named("2", "got 2."), is_named("2", "got 12."), is_named("2", "got 0.2 or 2.5")
    (True, False, False)
    """
    before = r"(?<!\w)(?<!\d\.)" if re.match(r"\w", value) else ""
    after = r"(?!\w|\.\d)" if re.search(r"\w$", value) else ""
    return re.search(before + re.escape(value) + after, message) is not None
