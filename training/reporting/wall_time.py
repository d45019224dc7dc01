"""The wall time of a run, divided among what the run does."""

import contextlib
import time
from collections.abc import Callable, Iterator

# The step is compiled once. Steps are their computation; data, the time that they wait for rows.
# The rest is what comes before and after, such as opening the corpus.
KINDS = ("compile", "data", "step", "evaluation", "saving", "rest")


class WallTime:
    """Divides the time since it was made among `KINDS`, so that they sum to it.

        wall_time = WallTime()
        with wall_time.of("data"):
            rows = next(batches)
        wall_time.seconds()["data"]    # 0.02

    What is done within something else counts for itself alone. It is for one thread.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic):
        self._now = now
        self._seconds = dict.fromkeys(KINDS, 0.0)
        self._kind = "rest"
        self._since = now()

    @contextlib.contextmanager
    def of(self, kind: str) -> Iterator[None]:
        """Counts what is done in its context for this kind."""
        outer = self._kind
        self._turn_to(kind)
        try:
            yield
        finally:
            self._turn_to(outer)

    def seconds(self) -> dict[str, float]:
        """Returns the seconds of each kind up to now."""
        self._turn_to(self._kind)
        return dict(self._seconds)

    def _turn_to(self, kind: str) -> None:
        now = self._now()
        self._seconds[self._kind] += now - self._since
        self._kind = kind
        self._since = now
