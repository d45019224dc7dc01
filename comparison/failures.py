"""Reasons of failed processes of a comparison: `failure.txt`, next to their log `compare.log`."""

import traceback
from collections.abc import Callable
from pathlib import Path

from ..settings import atomic_writes
from ..settings.user_errors import explanation

LOG = "compare.log"
FAILURE = "failure.txt"
# Exit statuses. A stopped process can resume.
FAILED = 1
STOPPED = 75
_DIVERGED = "Diverged: "  # prefix of the reason if training was no longer finite


def exit_status(folder: str, work: Callable[[], int]) -> int:
    """Returns the exit status of `work`. Prints an exception and keeps it in the folder."""
    path = Path(folder) / FAILURE
    path.unlink(missing_ok=True)
    try:
        return work()
    except Exception as error:
        traceback.print_exc()
        write_failure(folder, failure_words(error))
        return FAILED


def failure_words(error: Exception) -> str:
    diverged = _DIVERGED if isinstance(error, FloatingPointError) else ""
    return diverged + (explanation(error) or f"{type(error).__name__}: {error}")


def has_diverged(folder: str) -> bool:
    return failure_of(folder).startswith(_DIVERGED)


def write_failure(folder: str, words: str) -> None:
    atomic_writes.write_text(Path(folder) / FAILURE, words + "\n")


def failure_of(folder: str) -> str:
    """Returns why the latest process of a folder failed; "" if it did not fail."""
    path = Path(folder) / FAILURE
    return path.read_text(encoding="utf-8").strip() if path.exists() else ""
