"""Why a process of a comparison failed: `failure.txt` beside `compare.log`, in which it prints."""

import traceback
from collections.abc import Callable
from pathlib import Path

from ..data import whole_files
from ..training.settings.mistakes import explanation

LOG, FAILURE = "compare.log", "failure.txt"
FAILED, STOPPED = 1, 75  # exit statuses; 75: it was stopped, and can resume


def exit_status(folder: str, work: Callable[[], int]) -> int:
    """Returns the exit status of work; an exception is printed, and kept in a folder."""
    path = Path(folder) / FAILURE
    path.unlink(missing_ok=True)
    try:
        return work()
    except Exception as error:
        traceback.print_exc()
        write_failure(folder, failure_words(error))
        return FAILED


def failure_words(error: Exception) -> str:
    return explanation(error) or f"{type(error).__name__}: {error}"


def write_failure(folder: str, words: str) -> None:
    whole_files.write_text(Path(folder) / FAILURE, words + "\n")


def failure_of(folder: str) -> str:
    """Returns why the latest process of a folder failed; "" where it did not."""
    path = Path(folder) / FAILURE
    return path.read_text(encoding="utf-8").strip() if path.exists() else ""
