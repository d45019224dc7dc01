"""The wall time of a run, divided by kind of work."""

import contextlib
import time
from collections.abc import Callable, Iterator

# "compile" is the compilation of the step, "step" its computation, and "data" the time that steps
# wait for rows. `REST` is all other work, such as opening the corpus.
REST = "rest"
KINDS = ("compile", "data", "step", "evaluation", "saving", REST)


class WallTime:
    """Divides the time since its creation among `KINDS`, whose times sum to it.

        wall_time = WallTime()
        with wall_time.measure("data"):
            rows = next(batches)
        wall_time.seconds()["data"]    # 0.02

    Contexts may be nested; time in an inner context counts only for its own kind. All contexts must
    be on the same thread.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic):
        self._now = now
        self._seconds = dict.fromkeys(KINDS, 0.0)
        self._kind = REST
        self._since = now()

    @contextlib.contextmanager
    def measure(self, kind: str) -> Iterator[None]:
        """Counts the time in this context as a kind of work."""
        outer = self._kind
        self._switch_to(kind)
        try:
            yield
        finally:
            self._switch_to(outer)

    def seconds(self) -> dict[str, float]:
        """Returns the seconds of each kind up to now."""
        self._switch_to(self._kind)
        return dict(self._seconds)

    def _switch_to(self, kind: str) -> None:
        now = self._now()
        self._seconds[self._kind] += now - self._since
        self._kind = kind
        self._since = now
