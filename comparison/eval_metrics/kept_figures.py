"""Figures of a run, kept in its directory with the settings and versions of the eval metrics.

`RUN/evaluation/eval_metrics.jsonl` has a line for each measurement; the latest counts. A line has
the eval metric's settings, the checkpoint's step, and the versions of the eval metric and of the
run's synthetic task, if any. If they change, the run is measured again.
"""

import functools
import math
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...inference.prompting.windows import BeyondTraining
from ...settings import atomic_writes, run_directory
from ...settings.partial import as_partial
from ..figures import HIGHER, LOWER, NEITHER, Figure, settings_of_eval_metric
from ..results import from_fields, read_lines, write_lines
from .subject import Subject


class Measured(NamedTuple):
    """The result of an eval metric on a run: figures, or why the run was rejected."""

    figures: tuple[Figure, ...]
    refusal: str  # why the eval metric cannot measure the run, or ""


def measure(eval_metric: Callable, subject: Subject) -> tuple[Figure, ...]:
    """Returns the figures of an eval metric.

    If texts were longer than training rows, the first figure's note gives the lengths.

    Raises ValueError if the eval metric cannot measure the run or returns wrong names.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        first, *parts = _checked(as_partial(eval_metric).function.__name__, eval_metric(subject))
    beyond = []
    for warning in caught:
        if isinstance(warning.message, BeyondTraining):
            beyond.append(warning.message)
        else:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
    if beyond:
        longest = max(beyond, key=lambda message: message.slots)
        lengths = (
            f"texts have up to {longest.slots} slots of the {longest.stack}, but training rows had "
            f"{longest.trained}"
        )
        first = first._replace(note="; ".join(filter(None, (first.note.rstrip("."), lengths))))
    return (first, *parts)


def _checked(name: str, figures: Any) -> list[Figure]:
    """Returns an eval metric's figures; raises ValueError if reports would misread them."""
    if not isinstance(figures, list | tuple) or not figures:
        raise ValueError(f"{name} returned {figures!r}, expected a list of figures, at least one.")
    for figure in figures:
        if not isinstance(figure, Figure) or figure.better not in (LOWER, HIGHER, NEITHER):
            raise ValueError(
                f"{name} returned {figure!r}, expected a comparison.figures.Figure whose `better` "
                f"is {LOWER!r}, {HIGHER!r} or {NEITHER!r}."
            )
    names = [figure.name for figure in figures]
    below = all(part.startswith(f"{name}/") for part in names[1:])
    if names[0] != name or not below or len(set(names)) < len(names):
        raise ValueError(
            f"{name} returned figures named {', '.join(names)}, expected {name} first, and parts "
            f"such as {name}/first, each once."
        )
    baselines = [math.nan if f.baseline is None else float(f.baseline) for f in figures]
    return [
        f._replace(value=float(f.value), baseline=baseline if math.isfinite(baseline) else None)
        for f, baseline in zip(figures, baselines)
    ]


class KeptFigures(NamedTuple):
    """The measurements that the directory of a run keeps."""

    run_dir: str
    corpus: Callable | None = None  # the factory of the run's corpus

    @property
    def _path(self) -> Path:
        return Path(self.run_dir) / run_directory.EVALUATION / run_directory.FIGURES

    def read(
        self, steps: Iterable[int], eval_metrics: Sequence[Callable]
    ) -> dict[int, list[Measured | None]]:
        """Returns the latest measurement of each checkpoint by each eval metric.

        A measurement is None if the eval metric's current version and settings have not measured
        the checkpoint. Raises ValueError, naming the file and the line, for a damaged file.
        """
        kept = self._lines()[::-1]

        def latest(step: int, eval_metric: Callable) -> Measured | None:
            wanted = self._key(step, eval_metric).items()
            return next((measured for line, measured in kept if wanted <= line.items()), None)

        return {step: [latest(step, eval_metric) for eval_metric in eval_metrics] for step in steps}

    def write(self, step: int | None, eval_metric: Callable, measured: Measured) -> None:
        figures = [figure._asdict() for figure in measured.figures]
        line = self._key(step, eval_metric) | {"figures": figures, "refusal": measured.refusal}
        write_lines(self._path, [*(kept for kept, _ in self._lines()), line])

    def forget_refusals(self) -> None:
        """Drops rejections, whose cause may be gone, such as missing files."""
        kept = self._lines()
        if any(measured.refusal for _, measured in kept):
            write_lines(self._path, [line for line, measured in kept if not measured.refusal])

    def _lines(self) -> list[tuple[Mapping[str, Any], Measured]]:
        def with_measured(line: Mapping[str, Any]) -> tuple[Mapping[str, Any], Measured]:
            figures = (from_fields(Figure, fields, "value") for fields in line["figures"])
            return line, Measured(tuple(figures), line["refusal"])

        return read_lines(self._path, with_measured) if self._path.exists() else []

    def _key(self, step: int | None, eval_metric: Callable) -> dict[str, Any]:
        """Returns the fields of a line that a measurement depends on.

        The versions are those of the eval metric and of the corpus's synthetic task, if it has one.
        """
        function = as_partial(eval_metric).function
        key = {
            "eval_metric": function.__name__,
            "step": step,
            "settings": settings_of_eval_metric(eval_metric),
            "version": version_of(function),
        }
        task = None if self.corpus is None else as_partial(self.corpus).settings.get("task")
        return (
            key if task is None else key | {"task_version": version_of(as_partial(task).function)}
        )


def version_of(function: Callable) -> int | None:
    """Returns the version of the code of an eval metric or a synthetic task.

    The version is the module's `FIGURES_VERSION`, or else the checksum of its file. Increase
    `FIGURES_VERSION` if the same checkpoint would give other figures.
    """
    module = sys.modules.get(function.__module__)
    version = getattr(module, "FIGURES_VERSION", None)
    return module_checksum(function.__module__) if version is None else version


@functools.lru_cache(maxsize=64)
def module_checksum(module: str) -> int | None:
    """Returns the checksum of a module's file, as it was when this process first asked for it."""
    path = getattr(sys.modules.get(module), "__file__", None)
    return atomic_writes.checksum(path) if path and Path(path).exists() else None
