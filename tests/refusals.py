"""Checks of messages: the type of an error or warning, and the names and values in its text."""

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator

import pytest

QUOTED = re.compile(r"""(['"`]).*?\1""")
SENTENCE = re.compile(r"\b[A-Za-z][a-z]+ [a-z]{2,}\b")  # two consecutive words


@contextlib.contextmanager
def refuses(error: type[BaseException], *values: object) -> Iterator[pytest.ExceptionInfo]:
    """Fails unless its block raises `error` with a message that names each value as a whole word.

    >>> with refuses(ValueError, "noise_density", 1.5):
    ...     raise ValueError("noise_density must be in (0, 1), got 1.5.")

    The sentences of a message may be reworded freely, since no test may match one.
    """
    with pytest.raises(error) as caught:
        yield caught
    assert_named(str(caught.value), *values)


@contextlib.contextmanager
def warns(category: type[Warning], *values: object) -> Iterator[pytest.WarningsRecorder]:
    """Fails unless its block warns of `category` with a message that names each value."""
    with pytest.warns(category) as caught:
        yield caught
    shown = [str(each.message) for each in caught if issubclass(each.category, category)]
    assert_named(next((text for text in shown if not absent(text, values)), str(shown)), *values)


@contextlib.contextmanager
def exits(capsys: pytest.CaptureFixture[str], *values: object) -> Iterator[None]:
    """Fails unless its block exits with status 2 and prints an error that names each value.

    The usage before an error lists all options, so it does not count.
    """
    with refuses(SystemExit, 2):
        yield
    assert_named(_printed_error(capsys), *values)


def error_of(
    capsys: pytest.CaptureFixture[str], command: Callable[[list[str]], object], arguments: Iterable
) -> str:
    """Returns the error that a command prints when it exits with status 2."""
    with refuses(SystemExit, 2):
        command([*map(str, arguments)])
    return _printed_error(capsys)


def _printed_error(capsys: pytest.CaptureFixture[str]) -> str:
    printed = capsys.readouterr().err
    assert "Traceback" not in printed
    return printed.partition("error: ")[2]


def assert_named(message: str, *values: object) -> None:
    """Fails unless a message names each value, none of which may have words outside of quotes."""
    sentences = [value for value in map(str, values) if SENTENCE.search(QUOTED.sub("", value))]
    assert not sentences, f"Not a name or value, but words that may be reworded: {sentences}"
    assert not absent(message, values), f"{absent(message, values)} not named in: {message}"


def absent(message: str, values) -> list[str]:
    return [value for value in map(str, values) if not is_named(value, message)]


def is_named(value: str, message: str) -> bool:
    """Returns whether a message has a value that is not a part of a longer word or number.

    >>> is_named("2", "got 2."), is_named("2", "got 12."), is_named("2", "got 0.2 or 2.5")
    (True, False, False)

    A line may end within the value.
    """
    before = r"(?<!\w)(?<!\d\.)" if re.match(r"\w", value) else ""
    after = r"(?!\w|\.\d)" if re.search(r"\w$", value) else ""
    words = r"\s+".join(map(re.escape, value.split()))
    return re.search(before + words + after, message) is not None
