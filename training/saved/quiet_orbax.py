"""Hides repeated output about a failed save, whose error is raised."""

import functools
import logging
import sys
from collections.abc import Callable
from typing import Any


@functools.cache
def hide_repeated_errors() -> None:
    """Acts on the whole process, and only at the first call."""
    # Python logs errors of tasks that a failed save of Orbax leaves behind when it deletes the
    # tasks.
    logging.getLogger("asyncio").addFilter(lambda record: "orbax" not in record.getMessage())
    # Orbax logs errors of its threads with tracebacks, although it raises them as well.
    logging.getLogger("absl").addFilter(
        lambda record: "orbax" not in record.pathname or record.levelno < logging.ERROR
    )
    sys.unraisablehook = _without_closed_loops(sys.unraisablehook)


@functools.cache
def hide_primary_host_warnings() -> None:
    """Hides Orbax's warning about `primary_host=None`, which local copies use."""
    logging.getLogger("absl").addFilter(
        lambda record: "disabled for `primary_host=None`" not in record.getMessage()
    )


def _without_closed_loops(show: Callable[[Any], None]) -> Callable[[Any], None]:
    """Returns a `sys.unraisablehook` that hides what is left of a failed save.

    Threads of tensorstore and coroutines of Orbax use an event loop that Orbax has closed. The
    error of the save itself is raised.
    """

    def show_others(unraisable: Any) -> None:
        code = getattr(unraisable.object, "cr_code", None)  # the code of a coroutine
        is_left = unraisable.object is None or (code and "orbax" in code.co_filename)
        if not is_left or str(unraisable.exc_value) != "Event loop is closed":
            show(unraisable)

    return show_others
