"""Writes the metrics of a run as TensorBoard's files, without TensorFlow.

Import this module only to write them, since tensorboardX imports PyTorch if it is installed.
"""

import contextlib
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboardX import summary
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog

from .trackers import Tracker

_PREFIX = "events.out.tfevents."  # TensorBoard's file names begin with this and a time in seconds


def _next_prefix(folder: Path) -> str:
    """Returns the prefix of the next file's name.

    TensorBoard reads files in the order of their names. The clock may be set back between two
    starts, so the time in the prefix is always later than the last file's.
    """
    times = (re.match(rf"{re.escape(_PREFIX)}(\d+)", path.name) for path in folder.glob("*"))
    last = max((int(match[1]) for match in times if match), default=0)
    return f"{_PREFIX}{max(int(time.time()), last + 1):010}"


class TensorBoard(Tracker):
    """Writes TensorBoard's files to a folder. After a failure it begins another file."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._step = 0
        self._writer: EventsWriter | None = None

    def start(self, step: int) -> None:
        self._step = step

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._write(step, [summary.scalar(name, value) for name, value in values.items()])

    def write_text(self, step: int, name: str, text: str) -> None:
        indented = "".join(f"    {line}\n" for line in text.splitlines())  # Markdown for code
        self._write(step, [summary.text(name, indented)])

    def _write(self, step: int, summaries: list[Any]) -> None:
        with self._another_file_after_a_failure():
            if self._writer is None:
                self._writer = self._new_file()
            for value in summaries:
                self._writer.write_event(Event(step=step, wall_time=time.time(), summary=value))

    def flush(self) -> None:
        with self._another_file_after_a_failure():
            if self._writer is not None:
                self._writer.flush()

    def rewind(self, step: int) -> None:
        self._end_file()
        self._writer = None
        self._step = step

    def close(self, failed: bool) -> None:
        self._end_file()

    def _end_file(self) -> None:
        if self._writer is not None:
            with contextlib.suppress(OSError):
                self._writer.close()

    def _new_file(self) -> EventsWriter:
        self._folder.mkdir(parents=True, exist_ok=True)
        writer = EventsWriter(str(self._folder / _next_prefix(self._folder)), f".{os.getpid()}")
        if self._step:  # the log hides points of later steps in earlier files
            log = SessionLog(status=SessionLog.START)
            writer.write_event(Event(step=self._step + 1, wall_time=time.time(), session_log=log))
            self._step = 0
        return writer

    @contextlib.contextmanager
    def _another_file_after_a_failure(self):
        try:
            yield
        except OSError:
            self._end_file()
            self._writer = None
            raise
