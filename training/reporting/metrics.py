"""Writes the metrics of a run as JSON lines, to TensorBoard without TensorFlow, and to trackers."""

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

    If files cannot be written, for example on a full disk, `warn` is called once, and lines wait in
    memory until writing works again.

    Args:
      step: the step from which a run resumes. Entries of later steps are removed, so that the files
        equal the files of a run that was not interrupted.
      trackers: other receivers of the metrics. Trackers that cannot start are left out.
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
            warn(f"{path}, line {line} cannot be read and is left out.")
        from .tensorboard import TensorBoard

        lines = _Lines(path)
        lines.start(step)  # not in the loop below, since the run directory must be writable
        self._trackers.append(lines)
        for tracker in (TensorBoard(Path(run_dir) / run_directory.TENSORBOARD), *trackers):
            with self._warn_of_failures():
                tracker.start(step)
                self._trackers.append(tracker)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Writes one entry. Steps must not decrease, except after `rewind`."""
        self._all(lambda tracker: tracker.write(step, values))

    def write_text(self, step: int, name: str, text: str) -> None:
        """Shows a text in TensorBoard and other trackers, unless it is empty."""
        if text:
            self._all(lambda tracker: tracker.write_text(step, name, text))

    def flush(self) -> None:
        """Writes lines that wait in memory. It is called with each checkpoint."""
        self._all(lambda tracker: tracker.flush())

    def rewind(self, step: int) -> None:
        """Removes the entries of later steps, as if the run had resumed from this step."""
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
            with self._warn_of_failures():
                act(tracker)

    @contextlib.contextmanager
    def _warn_of_failures(self):
        try:
            yield
        except OSError as error:
            if not self._failed:
                message = system_error_message(error) or error
                self._warn(f"Training continues, but metrics cannot be written: {message}")
            self._failed = True


class _Lines(Tracker):
    """Appends whole lines to a file. Lines that could not be written are tried again later."""

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
                os.truncate(self._path, size)  # removes a partly written line
            raise
        self._waiting = ""

    def rewind(self, step: int) -> None:
        earlier = [entry for entry in _read(self._path)[0] if entry["step"] <= step]
        atomic_writes.write_text(self._path, "".join(json.dumps(entry) + "\n" for entry in earlier))


def read_metrics(run_dir: str | Path) -> list[dict[str, float]]:
    """Returns the entries of `RUN/metrics.jsonl`, oldest first; [] if there is no such file.

    Damaged lines are left out.
    """
    return _read(Path(run_dir) / run_directory.METRICS)[0]


def set_aside(run_dir: str | Path) -> int:
    """Moves the metrics of a run that starts over to `RUN/metrics.until_STEP.jsonl`.

    STEP is the last step of the metrics, so that metrics of earlier starts are kept apart. Returns
    this step, or 0 if there are no metrics.
    """
    last = int(max((entry["step"] for entry in read_metrics(run_dir)), default=0))
    if last:
        path = Path(run_dir) / run_directory.METRICS
        os.replace(path, path.with_name(run_directory.METRICS_UNTIL.format(last)))
    return last


def _read(path: Path) -> tuple[list[dict[str, float]], list[int]]:
    """Returns the entries of a file, and the numbers of its damaged lines.

    A damaged last line does not count, since a kill may have truncated it.
    """
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
