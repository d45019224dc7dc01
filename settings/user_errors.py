"""Reports errors that users can fix themselves as a message instead of a traceback."""

import contextlib
import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from types import FrameType

import jax

from .command_terminal import exit_on_failed_output, exit_on_interrupt, say
from .extras import missing_package_message
from .printable import printable
from .system_errors import system_error_message

_OWN_PACKAGE = __name__.partition(".")[0]
OUT_OF_MEMORY = """
Out of memory: lower batch_size, raise microbatches, use the model's remat_policy = 'full' or
unroll_scan = False, or shard the parameters over devices with --gin.mesh.make_mesh.fsdp=NUMBER."""


def explanation(error: Exception) -> str | None:
    """Returns the message for an error that users can fix; None if they need its traceback."""
    if message := system_error_message(error):
        return message
    if isinstance(error, jax.errors.JaxRuntimeError):
        return str(error) + OUT_OF_MEMORY if "RESOURCE_EXHAUSTED" in str(error) else None
    if isinstance(error, ImportError) and (message := missing_package_message(error)):
        return message
    if isinstance(error, ModuleNotFoundError):
        return None
    # fsspec raises an ImportError with a helpful message if a bucket's package is not installed.
    is_fixable = isinstance(error, ValueError | OSError | FloatingPointError | ImportError)
    return (str(error).strip() or type(error).__name__) if is_fixable else None


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error and its causes, each once. Orbax raises errors whose causes form a cycle."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def place_of(error: BaseException) -> str:
    """Returns the innermost line of the user's own code in which an error arose; "" if none.

    place_of(error)  # "/home/me/mine.py:6: jnp.broadcast_to(x, 4)"

    The code of pretrax, of installed packages and of Python is left out.
    """
    for cause in causes(error):
        if isinstance(cause, SyntaxError) and os.path.isfile(cause.filename or ""):
            return f"{cause.filename}:{cause.lineno}"
        lines = traceback.extract_tb(cause.__traceback__)
        frames = traceback.walk_tb(cause.__traceback__)
        own = [line for line, (frame, _) in zip(lines, frames) if _is_of_user(frame)]
        if own:
            return f"{own[-1].filename}:{own[-1].lineno}: {own[-1].line}"
    return ""


def _is_of_user(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    package = frame.f_globals.get("__name__", "").partition(".")[0]
    is_installed = "site-packages" in file or "dist-packages" in file
    is_known = package == _OWN_PACKAGE or package in sys.stdlib_module_names
    return os.path.isfile(file) and not is_installed and not is_known


@contextlib.contextmanager
def report_user_errors(traceback: bool, interrupted: str = "\nInterrupted.", chosen: str = ""):
    """Ends the program with a message and status 2 if an error is one that users can fix.

    If the error arose in the user's own code, the message ends with the line. Ctrl-C ends the
    program with status 130.

    Args:
      traceback: whether errors are raised with their traceback instead.
      interrupted: the message at Ctrl-C.
      chosen: lines about the names on the command line that chose the settings, shown with a
        ValueError, which may be about their combination.
    """
    try:
        with exit_on_interrupt(interrupted), exit_on_failed_output(), _plain_warnings():
            yield
    except Exception as error:
        message = explanation(error)
        if traceback or message is None:
            raise
        if place := place_of(error):
            message += f"\nat {place}"
        if chosen and isinstance(error, ValueError):
            message += f"\n{chosen}"
        say(printable(f"\nerror: {message}\n(--traceback shows where)"))
        raise SystemExit(2) from None


@contextlib.contextmanager
def _plain_warnings():
    """Prints each `UserWarning` as one line; other warnings keep Python's format.

    A text is printed only once. A subclass of `UserWarning` is printed only once, whatever its
    text.
    """
    printed: set[type[Warning] | str] = set()
    with warnings.catch_warnings():
        default_show = warnings.showwarning

        def show(message, category, *location):
            key = str(message) if category is UserWarning else category
            if not issubclass(category, UserWarning):
                default_show(message, category, *location)
            elif key not in printed:
                printed.add(key)
                say(printable(f"warning: {message}"))

        warnings.showwarning = show
        yield
