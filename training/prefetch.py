"""Batches that are read while steps are computed, with the data position of the step in hand."""

import collections
import concurrent.futures
from collections.abc import Callable
from typing import NamedTuple

from ..objectives import Row
from .batches import Batches

AHEAD = 2  # batches that wait at most: one hides reading, two the stall of a file that is opened


class _Read(NamedTuple):
    """A batch, and where the data stood after it."""

    rows: tuple[Row, ...]
    state: Callable[[], dict[str, bytes]]
    progress: dict[str, float]


class Prefetcher:
    """Reads the batches of a number of steps on a thread, two ahead of the step that is computed.

        with contextlib.closing(Prefetcher(batches, steps)) as ahead:
            rows = next(ahead)
            ahead.state()    # the data position after these rows, though more have been read

    What reading raises, `next` raises when it comes to that batch. Nothing is read beyond the last
    step. Nobody else may read `batches` meanwhile.
    """

    def __init__(self, batches: Batches, steps: int):
        self._batches = batches
        self._unread = steps
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "prefetch")
        self._last = _Read((), batches.position(), batches.progress())
        self._waiting: collections.deque[concurrent.futures.Future[_Read]] = collections.deque()
        self._read_more()

    def __next__(self) -> tuple[Row, ...]:
        self._last = self._waiting.popleft().result()
        self._read_more()
        return self._last.rows

    def state(self) -> dict[str, bytes]:
        """Returns the data position after the last batch that was returned, as `Batches.state`."""
        return self._last.state()

    def progress(self) -> dict[str, float]:
        """Returns what was read up to that batch, as `Batches.progress`."""
        return self._last.progress

    def close(self) -> None:
        """Ends the thread; a batch that it is reading is read to its end."""
        self._thread.shutdown(cancel_futures=True)

    def _read_more(self) -> None:
        while self._unread and len(self._waiting) < AHEAD:
            self._waiting.append(self._thread.submit(self._read))
            self._unread -= 1

    def _read(self) -> _Read:
        rows = next(self._batches)
        return _Read(rows, self._batches.position(), self._batches.progress())
