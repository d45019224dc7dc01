"""Prefetches batches while steps are computed, and keeps the data position of the current step."""

import collections
import concurrent.futures
from collections.abc import Callable
from typing import NamedTuple

from ..objectives import Row
from .batches import Batches

MAX_PREFETCHED = 2  # batches: the first hides reading, the second the opening of a file


class _Read(NamedTuple):
    rows: tuple[Row, ...]
    state: Callable[[], dict[str, bytes]]
    progress: dict[str, float]


class Prefetcher:
    """Reads the batches of a number of steps on a thread, up to two batches ahead.

        with contextlib.closing(Prefetcher(batches, steps)) as prefetcher:
            rows = next(prefetcher)
            prefetcher.state()    # the data position after these rows, though more have been read

    `close` and `start` read again from another position of `batches`, after a roll-back.

    If reading a batch raises an error, `next` raises it for that batch. Nothing is read beyond the
    last step. No other code may read `batches` at the same time.
    """

    def __init__(self, batches: Batches, steps: int):
        self._batches = batches
        self.start(steps)

    def start(self, steps: int) -> None:
        """Starts to read the batches of a number of steps from the present position."""
        self._unread = steps
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "prefetch")
        self._last = _Read((), self._batches.position(), self._batches.progress())
        self._waiting: collections.deque[concurrent.futures.Future[_Read]] = collections.deque()
        self._read_more()

    def __next__(self) -> tuple[Row, ...]:
        self._last = self._waiting.popleft().result()
        self._read_more()
        return self._last.rows

    def state(self) -> dict[str, bytes]:
        """Returns the data position (`Batches.state`) after the last returned batch."""
        return self._last.state()

    def progress(self) -> dict[str, float]:
        """Returns `Batches.progress` after the last returned batch."""
        return self._last.progress

    def close(self) -> None:
        """Ends the thread, after the batch that it is reading."""
        self._thread.shutdown(cancel_futures=True)

    def _read_more(self) -> None:
        while self._unread and len(self._waiting) < MAX_PREFETCHED:
            self._waiting.append(self._thread.submit(self._read))
            self._unread -= 1

    def _read(self) -> _Read:
        rows = next(self._batches)
        return _Read(rows, self._batches.position(), self._batches.progress())
