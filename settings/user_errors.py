"""Errors that users can mend themselves, in words in place of a traceback."""

import contextlib
import warnings

import jax

from .command_terminal import failed_output_in_words, interrupts_in_words, say
from .extras import words_of_absent
from .printable import printable
from .system_errors import words_of

OUT_OF_MEMORY = """
Out of memory: lower batch_size, raise microbatches, use the model's remat_policy = 'full' or
unroll_scan = False, or shard the parameters over devices with --gin.mesh.make_mesh.fsdp=NUMBER."""


def explanation(error: Exception) -> str | None:
    """The message for an error that users can mend themselves; None: its traceback is needed."""
    if words := words_of(error):
        return words
    if isinstance(error, jax.errors.JaxRuntimeError):
        return str(error) + OUT_OF_MEMORY if "RESOURCE_EXHAUSTED" in str(error) else None
    if isinstance(error, ImportError) and (words := words_of_absent(error)):
        return words
    if isinstance(error, ModuleNotFoundError):
        return None
    # An ImportError: what fsspec says where the package of another kind of bucket is absent.
    mendable = isinstance(error, ValueError | OSError | FloatingPointError | ImportError)
    return (str(error).strip() or type(error).__name__) if mendable else None


@contextlib.contextmanager
def mistakes_in_words(traceback: bool, interrupted: str = "\nInterrupted."):
    """Ends the program for a user's mistake with a message and status 2, without `traceback` unless
    that is True; at Ctrl-C with the message `interrupted` and status 130."""
    try:
        with interrupts_in_words(interrupted), failed_output_in_words(), _warnings_in_words():
            yield
    except Exception as error:
        words = explanation(error)
        if traceback or words is None:
            raise
        say(printable(f"\nerror: {words}\n(--traceback shows where)"))
        raise SystemExit(2) from None


@contextlib.contextmanager
def _warnings_in_words():
    """Prints a `UserWarning` as a line, each text or class once; others as Python does."""
    said: set[type[Warning] | str] = set()
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(message, category, *where):
            what = str(message) if category is UserWarning else category
            if not issubclass(category, UserWarning):
                usual(message, category, *where)
            elif what not in said:
                said.add(what)
                say(printable(f"warning: {message}"))

        warnings.showwarning = show
        yield
