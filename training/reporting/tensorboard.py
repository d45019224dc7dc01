"""Writes the metrics of a run as TensorBoard's files, without TensorFlow."""

import contextlib
import os
import platform
import re
import time
from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.plugins.text.metadata import create_summary_metadata
from tensorboard.summary.writer.record_writer import RecordWriter

from .trackers import Tracker

_VERSION = "brain.Event:2"  # the first event of a file names its format
_PREFIX = "events.out.tfevents."  # TensorBoard's file names begin with this and a time in seconds


def _next_prefix(folder: Path) -> str:
    """Returns the prefix of the next file's name.

    TensorBoard reads files in the order of their names. The clock may be set back between two
    starts, so the time in the prefix is always later than the last file's.
    """
    times = (re.match(rf"{re.escape(_PREFIX)}(\d+)", path.name) for path in folder.glob("*"))
    last = max((int(match[1]) for match in times if match), default=0)
    return f"{_PREFIX}{max(int(time.time()), last + 1):010}"


def _write_event(writer: RecordWriter, event: Event) -> None:
    event.wall_time = time.time()
    writer.write(event.SerializeToString())


class TensorBoard(Tracker):
    """Writes TensorBoard's files to a folder. After a failure it begins another file."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._step: int | None = None  # the step from which the next file continues
        self._writer: RecordWriter | None = None

    def start(self, step: int) -> None:
        self._step = step

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._write(
            step, [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        )

    def write_text(self, step: int, name: str, text: str) -> None:
        indented = "".join(f"    {line}\n" for line in text.splitlines())  # Markdown for code
        tensor = TensorProto(dtype="DT_STRING", string_val=[indented.encode()])
        metadata = create_summary_metadata(display_name=name, description="")
        self._write(step, [Summary.Value(tag=name, metadata=metadata, tensor=tensor)])

    def _write(self, step: int, values: list[Summary.Value]) -> None:
        with self._another_file_after_a_failure():
            if self._writer is None:
                self._writer = self._new_file()
            _write_event(self._writer, Event(step=step, summary=Summary(value=values)))

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

    def _new_file(self) -> RecordWriter:
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"{_next_prefix(self._folder)}.{platform.node()}.{os.getpid()}"
        writer = RecordWriter(open(self._folder / name, "xb"))  # noqa: SIM115  (closed by `_end_file`)
        _write_event(writer, Event(file_version=_VERSION))
        # The log hides points of later steps in earlier files. A new run writes a log too, since
        # TensorBoard's reader in Python ignores the first log of a folder.
        if self._step is not None:
            log = SessionLog(status=SessionLog.START)
            _write_event(writer, Event(step=self._step + 1, session_log=log))
            self._step = None
        return writer

    @contextlib.contextmanager
    def _another_file_after_a_failure(self):
        try:
            yield
        except OSError:
            self._end_file()
            self._writer = None
            raise
