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


Line = Mapping[str, Any]


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
    """Returns an eval metric's figures.

    Raises ValueError if reports would misread them.
    """
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


def read_measured(
    run_dir: str,
    steps: Iterable[int],
    eval_metrics: Sequence[Callable],
    corpus: Callable | None = None,
) -> dict[int, list[Measured | None]]:
    """Returns the latest measurement of each checkpoint by each eval metric.

    A measurement is None if the eval metric's current version and settings have not measured the
    checkpoint.

    Args:
      corpus: the factory of the run's corpus.

    Raises ValueError, naming the file and the line, if it is damaged.
    """
    kept = _kept(run_dir)[::-1]

    def latest(step: int, eval_metric: Callable) -> Measured | None:
        wanted = _line(step, eval_metric, corpus).items()
        return next((measured for line, measured in kept if wanted <= line.items()), None)

    return {step: [latest(step, eval_metric) for eval_metric in eval_metrics] for step in steps}


def write_measured(
    run_dir: str,
    step: int | None,
    eval_metric: Callable,
    measured: Measured,
    corpus: Callable | None = None,
) -> None:
    """Adds the measurement of a checkpoint by an eval metric to the file of the run."""
    figures = [figure._asdict() for figure in measured.figures]
    line = _line(step, eval_metric, corpus) | {"figures": figures, "refusal": measured.refusal}
    write_lines(_path(run_dir), [*(kept for kept, _ in _kept(run_dir)), line])


def forget_refusals(run_dir: str) -> None:
    """Drops rejections, whose cause may be gone, such as missing files."""
    kept = _kept(run_dir)
    if any(measured.refusal for _, measured in kept):
        write_lines(_path(run_dir), [line for line, measured in kept if not measured.refusal])


def _line(step: int | None, eval_metric: Callable, corpus: Callable | None) -> dict[str, Any]:
    line = {
        "eval_metric": as_partial(eval_metric).function.__name__,
        "step": step,
        "settings": settings_of_eval_metric(eval_metric),
    }
    return line | _versions(eval_metric, corpus)


def _versions(eval_metric: Callable, corpus: Callable | None) -> dict[str, int | None]:
    """Returns the versions of the eval metric and of the corpus's synthetic task, if it has one."""
    versions = {"version": version_of(as_partial(eval_metric).function)}
    task = None if corpus is None else as_partial(corpus).settings.get("task")
    if task is not None:
        versions["task_version"] = version_of(as_partial(task).function)
    return versions


def _path(run_dir: str) -> Path:
    return Path(run_dir) / run_directory.EVALUATION / run_directory.FIGURES


def _kept(run_dir: str) -> list[tuple[Line, Measured]]:
    def measured(line: Line) -> tuple[Line, Measured]:
        return line, Measured(
            tuple(from_fields(Figure, fields, "value") for fields in line["figures"]),
            line["refusal"],
        )

    return read_lines(_path(run_dir), measured) if _path(run_dir).exists() else []


def remember_versions(eval_metrics: Iterable[Callable], corpus: Callable | None) -> None:
    """Reads the versions that `write_measured` will keep.

    Call it before training, during which files of modules may change.
    """
    for eval_metric in eval_metrics:
        _versions(eval_metric, corpus)


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
