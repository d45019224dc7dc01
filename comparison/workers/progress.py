"""Shows finished runs, steps of current runs, and the time left of a comparison."""

import dataclasses
import functools
import math
import statistics
import time
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from ..failures import failure_of
from ..trials import Trial

REFRESH = 2.0  # seconds between two readings of the runs' files
MEASURING = 0.3  # assumed share of a run's time for eval metrics, until a run has ended
SECONDS_BETWEEN_LINES = 60.0  # seconds between progress lines if the output is not a terminal


@dataclasses.dataclass
class _Row:
    """The progress of a trial that was incomplete at the start."""

    trial: Trial
    bar: TaskID
    first: tuple[int, float]  # the last logged step and the share of measurements at the start
    done: tuple[int, float]  # the same at the latest reading
    started: float = math.inf  # time at which its process started
    trained: float = math.inf  # time at which its training ended
    is_running: bool = False
    failed: bool = False


class ComparisonProgress:
    """Shows bars in a terminal. In a log, prints a line when a run begins or ends.

    Args:
      trials: the incomplete trials.
    """

    def __init__(self, console: Console, trials: Sequence[Trial], complete: int):
        self._console = console
        self._complete = complete
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[figures]}"),
            console=console,
            disable=not console.is_terminal,
        )
        add_bar = functools.partial(self._bars.add_task, figures="")
        self._total = add_bar("all runs", total=1.0)
        self._rows = []
        for trial in trials:
            bar = add_bar(escape(trial.name), total=trial.run.steps, visible=False)
            done = _done(trial)
            self._rows.append(_Row(trial, bar, first=done, done=done))
        self._began = time.monotonic()
        self._printed = self._began
        self._refreshed = 0.0
        # Over the runs that were trained and measured since the start.
        self._training_seconds = 0.0
        self._measuring_seconds = 0.0

    def __enter__(self) -> "ComparisonProgress":
        self._bars.start()
        return self

    def __exit__(self, *_) -> None:
        self._bars.stop()

    def __call__(self, running: Sequence[Trial], failed: Sequence[Trial]) -> None:
        now = time.monotonic()
        running_names = {trial.name for trial in running}
        failed_names = {trial.name for trial in failed}
        ended = []
        for row in self._rows:
            name = row.trial.name
            was_running = row.is_running
            row.is_running = name in running_names
            row.failed = name in failed_names
            if row.is_running and not was_running:
                row.started = now
                self._line(f"{name}: started")
            elif was_running and not row.is_running:
                ended.append(row)
                self._end(row, now)
        if now - self._refreshed >= REFRESH or ended:
            self._refreshed = now
            # Other trials wait or have ended, so their files have not changed.
            for row in (*(row for row in self._rows if row.is_running), *ended):
                row.done = _done(row.trial)
            self._refresh(now)

    def _end(self, row: _Row, now: float) -> None:
        name = row.trial.name
        if row.failed:
            words = f"{name}: {failure_of(row.trial.run.run_dir)}"
            self._console.print(f"[bold red]failed[/] {escape(words)}")
            return
        self._line(f"{name}: done")
        if row.trained < math.inf and row.first == (0, 0.0):
            self._training_seconds += row.trained - row.started
            self._measuring_seconds += now - row.trained

    def _refresh(self, now: float) -> None:
        for row in self._rows:
            step, _ = row.done
            steps = row.trial.run.steps
            if row.is_running and step >= steps:
                row.trained = min(row.trained, now)
            figures = f"step {step}/{steps}" if step < steps else "measuring"
            self._bars.update(row.bar, completed=step, figures=figures, visible=row.is_running)
        failed = sum(row.failed for row in self._rows)
        ended = sum(row.started < math.inf and not row.is_running for row in self._rows)
        words = f"{self._complete + ended - failed}/{self._complete + len(self._rows)} runs"
        if failed:
            words += f", {failed} failed"
        share = self._share([(r.trial.run.steps, 1.0) if r.failed else r.done for r in self._rows])
        before = self._share([row.first for row in self._rows])
        if share > before:
            left = (now - self._began) * (1 - share) / (share - before)
            words += f", {_duration(left)} left"
        self._bars.update(self._total, completed=share, figures=words)
        if now - self._printed >= SECONDS_BETWEEN_LINES:
            self._printed = now
            self._line(words)

    def _share(self, done: Sequence[tuple[int, float]]) -> float:
        """Returns the share of all FLOPs that is done, from the progress of each trial."""
        measuring = MEASURING
        if self._training_seconds and self._measuring_seconds:
            seconds = self._training_seconds + self._measuring_seconds
            measuring = self._measuring_seconds / seconds
        shares = [
            (1 - measuring) * min(step / row.trial.run.steps, 1.0) + measuring * measured
            for row, (step, measured) in zip(self._rows, done)
        ]
        return statistics.fmean(shares, [row.trial.facts.flops for row in self._rows])

    def _line(self, text: str) -> None:
        if not self._console.is_terminal:
            self._console.print(text, markup=False)


def _done(trial: Trial) -> tuple[int, float]:
    """Returns the last logged step of a run, and the share of its measurements that are done."""
    state = trial.state
    return state.last_step, state.measured_share


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{max(minutes, 1)} min"
