"""Traces steps of a run, for TensorBoard's profiler."""

import re
from collections.abc import Callable
from typing import NamedTuple

import jax

from .wall_time import WallTime


class Steps(NamedTuple):
    """The first and the last step of a trace."""

    first: int
    last: int


def read_steps(text: str | None) -> Steps | None:
    """Parses "FIRST:LAST"; returns None for None.

    >>> read_steps("10:13")
    Steps(first=10, last=13)

    Raises ValueError for any other text, and if the last step is before the first step.
    """
    if text is None:
        return None
    match = re.fullmatch(r"(\d+):(\d+)", text)
    steps = Steps(*map(int, match.groups())) if match else Steps(0, 0)
    if not 1 <= steps.first <= steps.last:
        raise ValueError(
            f"Got --profile={text!r}, expected the first and the last step of a trace, such as "
            "10:13."
        )
    return steps


def check_steps(steps: Steps | None, done: int, of: int) -> None:
    """Raises ValueError if a run will not take the steps of a trace.

    Args:
      done: number of steps that the run has taken.
      of: total number of steps of the run.
    """
    if steps and not done < steps.first <= steps.last <= of:
        raise ValueError(
            f"--profile={steps.first}:{steps.last} asks for a trace of steps that this start does "
            "not take, expected "
            f"{f'a range in {done + 1}:{of}' if done < of else 'no trace: all are taken'}."
        )


def untraced_message(steps: Steps, taken: int) -> str:
    """Returns a message for a finished run that is asked for a trace."""
    return (
        f"--profile={steps.first}:{steps.last} has no effect, since all {taken} steps are taken: "
        f"raise --steps, and trace steps after {taken}."
    )


class Profiler:
    """Traces steps into a folder. Without steps it does nothing.

    Writing a trace takes seconds, which `wall_time` counts as "rest". If the trace cannot be
    written, `warn` is called with a message and the run continues.
    """

    def __init__(
        self, steps: Steps | None, folder: str, wall_time: WallTime, warn: Callable[[str], None]
    ):
        self._steps = steps
        self._folder = folder
        self._wall_time = wall_time
        self._warn = warn
        self._running = False

    def __enter__(self) -> "Profiler":
        return self

    def before(self, step: int) -> None:
        """Begins the trace before its first step."""
        # A run that is rolled back takes steps again. A running trace continues.
        if self._steps and step == self._steps.first and not self._running:
            jax.profiler.start_trace(self._folder)
            self._running = True

    def after(self, step: int, result) -> None:
        """Ends the trace when the result of its last step is computed."""
        if self._running and self._steps and step == self._steps.last:
            jax.block_until_ready(result)
            self._stop()

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._running:
            self._running = False
            with self._wall_time.measure("rest"):
                try:
                    jax.profiler.stop_trace()
                except jax.errors.JaxRuntimeError as error:
                    self._steps = None  # JAX cannot begin another trace after this error
                    self._warn(f"The trace could not be written ({error}).")
