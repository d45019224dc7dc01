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
    trial: Trial
    bar: TaskID
    first: tuple[int, float]  # the last logged step and the share of measurements at the start
    done: tuple[int, float]  # the same at the latest reading
    started: float = math.inf  # time at which its process started
    trained: float = math.inf  # time at which its training ended
    ended: bool = False
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
        self._rows: dict[str, _Row] = {}  # by the name of the trial
        for trial in trials:
            bar = add_bar(escape(trial.name), total=trial.run.steps, visible=False)
            done = _done(trial)
            self._rows[trial.name] = _Row(trial, bar, first=done, done=done)
        self._began = time.monotonic()
        self._printed = self._began
        self._refreshed = self._began
        # Over the runs that were trained and measured since the start.
        self._training_seconds = 0.0
        self._measuring_seconds = 0.0

    def __enter__(self) -> "ComparisonProgress":
        self._bars.start()
        return self

    def __exit__(self, *_) -> None:
        self._bars.stop()

    def stop(self) -> None:
        """Tells that an interrupted comparison waits for its runs."""
        self._console.print("Stopping. The current runs save their state first …")

    def start(self, trial: Trial) -> None:
        row = self._rows[trial.name]
        row.started = time.monotonic()
        self._bars.update(row.bar, visible=True)
        self._line(f"{trial.name}: started")

    def end(self, trial: Trial, failed: bool) -> None:
        row = self._rows[trial.name]
        row.ended = True
        row.failed = failed
        row.done = _done(trial)
        self._bars.update(row.bar, visible=False)
        self._refreshed = -math.inf  # so that the next refresh is not left out
        if failed:
            words = f"{trial.name}: {failure_of(trial.run.run_dir)}"
            self._console.print(f"[bold red]failed[/] {escape(words)}")
            return
        self._line(f"{trial.name}: done")
        if row.trained < math.inf and row.first == (0, 0.0):
            self._training_seconds += row.trained - row.started
            self._measuring_seconds += time.monotonic() - row.trained

    def refresh(self) -> None:
        """Reads the files of the running trials and shows them, at most every `REFRESH` seconds."""
        now = time.monotonic()
        if now - self._refreshed < REFRESH:
            return
        self._refreshed = now
        rows = self._rows.values()
        for row in rows:
            if row.started < math.inf and not row.ended:
                row.done = _done(row.trial)
                step, _ = row.done
                steps = row.trial.run.steps
                if step >= steps:
                    row.trained = min(row.trained, now)
                figures = f"step {step}/{steps}" if step < steps else "measuring"
                self._bars.update(row.bar, completed=step, figures=figures)
        failed = sum(row.failed for row in rows)
        complete = self._complete + sum(row.ended for row in rows) - failed
        words = f"{complete}/{self._complete + len(rows)} runs"
        if failed:
            words += f", {failed} failed"
        share = self._share([(r.trial.run.steps, 1.0) if r.failed else r.done for r in rows])
        before = self._share([row.first for row in rows])
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
        trials = [row.trial for row in self._rows.values()]
        shares = [
            (1 - measuring) * min(step / trial.run.steps, 1.0) + measuring * measured
            for trial, (step, measured) in zip(trials, done)
        ]
        return statistics.fmean(shares, [trial.facts.flops for trial in trials])

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
