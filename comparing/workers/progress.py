"""Shows how far a comparison is: runs done, the step of each that is in work, and the time left."""

import time
from collections.abc import Mapping

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from ..directory import last_step
from ..variants import Key
from ..yardsticks.kept_figures import read_measured
from .cells import Cell
from .worker_processes import Process

LOOK = 2.0  # seconds between two looks at the files of the runs
MEASURING = 0.3  # of a run's time goes to the yardsticks: a guess, until a run has been seen to end
SECONDS_BETWEEN_LINES = 60.0  # of a log, where there is no terminal


class ComparisonProgress:
    """Bars in a terminal; where the output is a log, a line for each run that begins or ends.

    Args:
      console: to show it on.
      cells: that will be run.
      work: of each, in any unit: FLOPs.
      complete: the number of runs that are complete already.
    """

    def __init__(
        self, console: Console, cells: Mapping[Key, Cell], work: Mapping[Key, float], complete: int
    ):
        self._console, self._cells, self._work, self._before = console, cells, work, complete
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[figures]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._total = self._bars.add_task("all runs", total=1.0, figures="")
        self._tasks: dict[Key, TaskID] = {}  # of those that run
        self._started_runs: list[Key] = []
        self._ended: set[Key] = set()
        self._began = self._said = time.monotonic()
        self._looked = 0.0
        self._first = self._done()
        self._since: dict[Key, float] = {}  # when a run started
        self._trained: dict[Key, float] = {}  # when it was seen to be trained
        self._seen = [0.0, 0.0]  # seconds of training and of measuring, of runs that did both here

    def __enter__(self) -> "ComparisonProgress":
        self._bars.start()
        return self

    def __exit__(self, *_) -> None:
        self._bars.stop()

    def __call__(self, running: Mapping[Key, Process], failed: Mapping[Key, str]) -> None:
        for key in [key for key in running if key not in self._started_runs]:
            self._started_runs.append(key)
            self._since[key] = time.monotonic()
            self._line(f"{name_of(key)}: started")
        ended = [k for k in self._started_runs if k not in running and k not in self._ended]
        for key in ended:
            self._ended.add(key)
            if key in self._tasks:
                self._bars.remove_task(self._tasks.pop(key))
            if key in failed:
                words = escape(f"{name_of(key)}: {failed[key]}")
                self._console.print(f"[bold red]failed[/] {words}")
            else:
                self._line(f"{name_of(key)}: done")
                self._note_seconds(key)
        now = time.monotonic()
        if now - self._looked >= LOOK or ended:
            self._looked = now
            self._look(running, failed, now)

    def _look(self, running: Mapping[Key, Process], failed: Mapping[Key, str], now: float) -> None:
        share, share0 = self._share(self._done(), failed), self._share(self._first, {})
        done = self._before + len(self._ended) - len(failed)
        said = f"{done}/{self._before + len(self._cells)} runs"
        if failed:
            said += f", {len(failed)} failed"
        if share > share0:
            left = (now - self._began) * (1 - share) / (share - share0)
            said += f", {_duration(left)} left"
        self._bars.update(self._total, completed=share, figures=said)
        for key in running:
            run = self._cells[key].run
            step = last_step(run.run_dir)
            words = f"step {step}/{run.steps}" if step < run.steps else "measuring"
            if step >= run.steps:
                self._trained.setdefault(key, now)
            if key not in self._tasks:
                self._tasks[key] = self._bars.add_task(
                    escape(name_of(key)), total=run.steps, figures=""
                )
            self._bars.update(self._tasks[key], completed=step, figures=words)
        if now - self._said >= SECONDS_BETWEEN_LINES:
            self._said = now
            self._line(said)

    def _note_seconds(self, key: Key) -> None:
        """Notes how long a run that has ended was trained and measured, if both were seen."""
        if key in self._trained and self._first[key] == (0.0, 0.0):
            self._seen[0] += self._trained[key] - self._since[key]
            self._seen[1] += time.monotonic() - self._trained[key]

    def _done(self) -> dict[Key, tuple[float, float]]:
        """Returns the shares of each run's steps and of its yardsticks that are done."""
        done = {}
        for key, cell in self._cells.items():
            run = cell.run
            found = [read_measured(run.run_dir, run.steps, y) is not None for y in cell.yardsticks]
            trained = min(last_step(run.run_dir) / run.steps, 1.0)
            done[key] = trained, sum(found) / len(found)
        return done

    def _share(self, done: Mapping[Key, tuple[float, float]], failed: Mapping[Key, str]) -> float:
        """Returns the share of all work that is done; a run that failed has none left."""
        measuring = self._seen[1] / sum(self._seen) if all(self._seen) else MEASURING
        shares = {
            key: 1.0 if key in failed else (1 - measuring) * trained + measuring * measured
            for key, (trained, measured) in done.items()
        }
        total = sum(self._work[key] for key in shares)
        return sum(self._work[key] * share for key, share in shares.items()) / total

    def _line(self, text: str) -> None:
        if not self._console.is_terminal:
            self._console.print(text, markup=False)


def name_of(key: Key) -> str:
    """Returns a run's name for people.

    >>> name_of(Key("15%", 3))
    '15%, seed 3'
    """
    return f"{key.variant}, seed {key.seed}"


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{max(minutes, 1)} min"
