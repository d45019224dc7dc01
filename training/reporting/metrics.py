"""Metrics of a run, written as JSON lines, for TensorBoard (without TensorFlow), and for others."""

import contextlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import jax

from ...settings import atomic_writes, run_directory
from ...settings.atomic_writes import parse_json
from ...settings.system_errors import system_error_message
from .trackers import Tracker


class MetricsWriter:
    """Writes `RUN/metrics.jsonl` and `RUN/tensorboard`, on the first process only.

        with MetricsWriter("runs/quickstart") as metrics:
            metrics.write(10, {"loss": 5.1})

    Training does not depend on them: where they cannot be written, as on a full disk, `warn` is
    called once, and lines wait in memory until they can be. All is written by the thread that
    calls, so that none is left to end or to wait for.

    Args:
      step: that a run resumes from; entries of later steps are removed, so that the files equal
        those of a run that was not interrupted.
      trackers: receive the same metrics; one that cannot start now is left out.
    """

    def __init__(
        self,
        run_dir: str | Path,
        step: int = 0,
        warn: Callable[[str], None] = lambda message: None,
        trackers: Sequence[Tracker] = (),
    ):
        self._warn = warn
        self._failed = False
        self._trackers: list[Tracker] = []
        if jax.process_index() != 0:
            return
        path = Path(run_dir) / run_directory.METRICS
        for line in _read(path)[1]:
            warn(f"{path}, line {line} cannot be read, and is left out.")
        from .tensorboard import TensorBoard

        lines = _Lines(path)
        lines.start(step)  # outside of the loop below: a run directory must be writable
        self._trackers.append(lines)
        for tracker in (TensorBoard(Path(run_dir) / run_directory.TENSORBOARD), *trackers):
            with self._failures_in_words():
                tracker.start(step)
                self._trackers.append(tracker)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Writes one entry; `step` must not be lower than the one before, or that of `rewind`."""
        self._all(lambda tracker: tracker.write(step, values))

    def write_text(self, step: int, name: str, text: str) -> None:
        """Shows text, as it is, in TensorBoard and where else; nothing where there is none."""
        if text:
            self._all(lambda tracker: tracker.write_text(step, name, text))

    def flush(self) -> None:
        """Writes to the disk what waits in memory; to be called with each checkpoint."""
        self._all(lambda tracker: tracker.flush())

    def rewind(self, step: int) -> None:
        """Takes back the entries of later steps, as where a run resumes from this one."""
        self.flush()
        self._all(lambda tracker: tracker.rewind(step))

    def __enter__(self) -> "MetricsWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *error) -> None:
        self.close(failed=kind is not None)

    def close(self, failed: bool = False) -> None:
        self.flush()
        self._all(lambda tracker: tracker.close(failed))

    def _all(self, act: Callable[[Tracker], None]) -> None:
        for tracker in self._trackers:
            with self._failures_in_words():
                act(tracker)

    @contextlib.contextmanager
    def _failures_in_words(self):
        try:
            yield
        except OSError as error:
            if not self._failed:
                words = system_error_message(error) or error
                self._warn(f"Training continues, but metrics cannot be written: {words}")
            self._failed = True


class _Lines(Tracker):
    """Appends whole lines to a file; those that could not be written come before the next."""

    def __init__(self, path: Path):
        self._path = path
        self._waiting = ""

    def start(self, step: int) -> None:
        self.rewind(step)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._waiting += json.dumps({"step": step} | dict(values)) + "\n"
        self.flush()

    def flush(self) -> None:
        size = os.path.getsize(self._path) if self._path.exists() else 0
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(self._waiting)
        except OSError:
            with contextlib.suppress(OSError):
                os.truncate(self._path, size)  # of a line that was written in part
            raise
        self._waiting = ""

    def rewind(self, step: int) -> None:
        """Removes the entries of later steps, and lines that are damaged."""
        earlier = [entry for entry in _read(self._path)[0] if entry["step"] <= step]
        atomic_writes.write_text(self._path, "".join(json.dumps(entry) + "\n" for entry in earlier))


def read_metrics(run_dir: str | Path) -> list[dict[str, float]]:
    """Returns the entries of `RUN/metrics.jsonl`, oldest first; none where there is no such file.

    Lines that are damaged are left out.
    """
    return _read(Path(run_dir) / run_directory.METRICS)[0]


def set_aside(run_dir: str | Path) -> int:
    """Moves the metrics of a run that begins anew to `RUN/metrics.until_STEP.jsonl`, where those of
    another such beginning overwrite none; returns the last step that they have, 0 for none."""
    last = int(max((entry["step"] for entry in read_metrics(run_dir)), default=0))
    if last:
        path = Path(run_dir) / run_directory.METRICS
        os.replace(path, path.with_name(run_directory.METRICS_UNTIL.format(last)))
    return last


def _read(path: Path) -> tuple[list[dict[str, float]], list[int]]:
    """Returns the entries of a file, and the numbers of its damaged lines, but for a last one that
    a kill cut short."""
    entries = []
    damaged = []
    lines = path.read_bytes().split(b"\n") if path.exists() else [b""]
    for number, line in enumerate(lines, 1):
        try:
            entry = parse_json(line)
            if not isinstance(entry, dict) or not isinstance(entry["step"], int):
                raise ValueError(f"got {entry!r}, expected an object with a step")
            entries.append(entry)
        except (ValueError, KeyError):
            if number < len(lines):
                damaged.append(number)
    return entries, damaged
