"""The metrics of runs while they train, and the reports of comparisons."""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..comparison.report import PAGE
from ..settings import run_directory
from ..settings.printable import printable
from ..training.reporting.metrics import read_metrics

DEPTH = 3  # levels of folders below the working folder in which runs are found
POINTS = 400  # largest number of points of a curve


def find_runs() -> list[str]:
    """Returns the run directories below `runs`, the most recently changed first."""
    runs = [str(path.parent) for path in _below(Path("runs"), run_directory.CONFIG)]
    return sorted(runs, key=os.path.getmtime, reverse=True)


def find_comparisons() -> list[str]:
    """Returns the directories of comparisons below `comparisons` that have a report."""
    return sorted(str(path.parent) for path in _below(Path("comparisons"), PAGE))


def curves(runs: Iterable[str]) -> list[dict[str, Any]]:
    """Returns all metrics of runs as curves, in the order in which the runs wrote them.

    A curve is {"run": …, "name": …, "steps": […], "values": […]}, thinned to `POINTS`.
    """
    return [curve for run in runs for curve in _curves(run)]


def _below(folder: Path, name: str) -> Iterator[Path]:
    for depth in range(1, DEPTH + 1):
        yield from folder.glob("*/" * depth + name)


def _curves(run: str) -> Iterator[dict[str, Any]]:
    points: dict[str, list[tuple[int, float]]] = {}
    for entry in read_metrics(run):
        for name, value in entry.items():
            if name != "step" and isinstance(value, int | float):
                points.setdefault(name, []).append((int(entry["step"]), float(value)))
    for name, pairs in points.items():
        steps, values = zip(*_thinned(pairs))
        yield {"run": run, "name": printable(name), "steps": steps, "values": values}


def _thinned(pairs: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Returns at most about `POINTS` of the pairs, with the last one.

    >>> len(_thinned([(step, 0.0) for step in range(1001)]))
    335
    """
    stride = -(-len(pairs) // POINTS)
    kept = list(pairs[::stride])
    return kept if kept[-1] == pairs[-1] else [*kept, pairs[-1]]
