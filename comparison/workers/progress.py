"""Shows finished runs, steps of current runs, and the time left of a comparison."""

import statistics
import time
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from ..failures import failure_of
from ..trials import Trial

REFRESH = 2.0  # seconds between two readings of the runs' files
MEASURING = 0.3  # assumed share of a run's time for eval metrics, until a run has ended
SECONDS_BETWEEN_LINES = 60.0  # seconds between progress lines if the output is not a terminal


class ComparisonProgress:
    """Shows bars in a terminal. In a log, prints a line when a run begins or ends.

    Args:
      trials: the incomplete trials.
    """

    def __init__(self, console: Console, trials: Sequence[Trial], complete: int):
        self._console = console
        self._trials = trials
        self._complete = complete
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[figures]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._total = self._bars.add_task("all runs", total=1.0, figures="")
        self._tasks: dict[str, TaskID] = {}  # name of a running trial -> its bar
        self._began = time.monotonic()
        self._printed = self._began
        self._refreshed = 0.0
        self._done = {trial.name: _done(trial) for trial in trials}
        self._first = dict(self._done)
        self._running: list[Trial] = []
        self._started: dict[str, float] = {}  # name of a trial -> when it started
        self._trained: dict[str, float] = {}  # name of a trial -> when its training ended
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
        names = [trial.name for trial in running]
        for name in [name for name in names if name not in self._started]:
            self._started[name] = now
            self._line(f"{name}: started")
        failures = {trial.name: trial for trial in failed}
        ended = [trial for trial in self._running if trial.name not in names]
        self._running = list(running)
        for name in [trial.name for trial in ended]:
            if name in self._tasks:
                self._bars.remove_task(self._tasks.pop(name))
            if name in failures:
                words = f"{name}: {failure_of(failures[name].run.run_dir)}"
                self._console.print(f"[bold red]failed[/] {escape(words)}")
            else:
                self._line(f"{name}: done")
                if name in self._trained and self._first[name] == (0, 0.0):
                    self._training_seconds += self._trained[name] - self._started[name]
                    self._measuring_seconds += now - self._trained[name]
        if now - self._refreshed >= REFRESH or ended:
            self._refreshed = now
            # Other trials wait or have ended, so their files have not changed.
            self._done |= {trial.name: _done(trial) for trial in (*running, *ended)}
            self._refresh(running, set(failures), now)

    def _refresh(self, running: Sequence[Trial], failed: set[str], now: float) -> None:
        share = self._share(self._done, failed)
        before = self._share(self._first, set())
        done = self._complete + len(self._started) - len(running) - len(failed)
        words = f"{done}/{self._complete + len(self._trials)} runs"
        if failed:
            words += f", {len(failed)} failed"
        if share > before:
            left = (now - self._began) * (1 - share) / (share - before)
            words += f", {_duration(left)} left"
        self._bars.update(self._total, completed=share, figures=words)
        for trial in running:
            name = trial.name
            step = self._done[trial.name][0]
            steps = trial.run.steps
            if step >= steps:
                self._trained.setdefault(name, now)
            if name not in self._tasks:
                self._tasks[name] = self._bars.add_task(escape(name), total=steps, figures="")
            figures = f"step {step}/{steps}" if step < steps else "measuring"
            self._bars.update(self._tasks[name], completed=step, figures=figures)
        if now - self._printed >= SECONDS_BETWEEN_LINES:
            self._printed = now
            self._line(words)

    def _share(self, done: Mapping[str, tuple[int, float]], failed: set[str]) -> float:
        """Returns the share of all FLOPs that is done. A failed run counts as done."""
        measuring = MEASURING
        if self._training_seconds and self._measuring_seconds:
            seconds = self._training_seconds + self._measuring_seconds
            measuring = self._measuring_seconds / seconds
        shares = []
        for trial in self._trials:
            steps = trial.run.steps
            step, measured = (steps, 1.0) if trial.name in failed else done[trial.name]
            shares.append((1 - measuring) * min(step / steps, 1.0) + measuring * measured)
        return statistics.fmean(shares, [trial.facts.flops for trial in self._trials])

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
