"""The hooks of every run: its metrics, evaluations, checkpoints and local copies."""

import dataclasses
import time
from collections.abc import Callable

import jax

from .buckets import push_or_warn
from .heldout_evaluation import Evaluation
from .hooks import AfterStep, Hook
from .prefetch import Prefetcher
from .processes import as_the_first
from .reporting.monitor import Monitor
from .reporting.reports import Reports
from .saved.resuming import ResumableParts


@dataclasses.dataclass
class BuiltInHooks:
    """The work of every run between its steps."""

    parts: ResumableParts
    ahead: Prefetcher  # the batches that are being prefetched
    monitor: Monitor
    evaluate: Callable[[int, dict], Evaluation]  # from a step and its parameters
    reports: Reports
    evaluation: Evaluation | None = None  # the last evaluation
    evaluated: int = 0  # step of the last evaluation
    saved: float = dataclasses.field(default_factory=time.monotonic)  # time of the last checkpoint
    copied: float = 0.0  # time of the last local copy

    def hooks(self) -> list[Hook]:
        """Returns the hooks, in the order in which they are called after a step."""
        run = self.parts.run
        # The clock is read only after steps that `log_every` divides.
        by_the_clock = run.log_every if run.checkpoint_minutes is not None else None
        copies = run.log_every if self.parts.copies else None
        return [
            Hook(self._report, run.log_every),
            Hook(self._report, run.checkpoint_every),  # the metrics have a line for each checkpoint
            Hook(self._evaluate_heldout, run.evaluate_every),
            Hook(self._save, run.checkpoint_every, at_stop=True),
            Hook(self._save_in_time, by_the_clock, at_end=False),
            Hook(self._copy_in_time, copies, at_end=False),
        ]

    def finish(self) -> None:
        """Waits until all saves are complete, and removes the local copies."""
        with self.reports.wall_time.of("saving"):
            self.parts.checkpoints.wait()
            self._settle_copies()
            if self.parts.copies:
                self.parts.copies.remove_after(-1)

    def _report(self, at: AfterStep) -> None:
        self.monitor.report(at.step, self.ahead.progress())

    def _evaluate_heldout(self, at: AfterStep) -> None:
        self.evaluation = self.evaluate(at.step, at.state.eval_params)
        self.evaluated = at.step

    def _save(self, at: AfterStep) -> None:
        self.saved = time.monotonic()
        with self.reports.wall_time.of("saving"):
            is_new = self.evaluated == at.step
            loss = self.evaluation.loss if self.evaluation and is_new else None
            position = self._position()
            self.reports.writer.flush()
            # The metrics go first: a resumed run drops metrics that are later than the checkpoint.
            if jax.process_index() == 0:
                push_or_warn(self.parts.run.run_dir, self.reports.warn)
            self._settle_copies()  # Orbax can run only one save at a time
            self.parts.checkpoints.save(at.state, position, heldout_loss=loss)

    def _save_in_time(self, at: AfterStep) -> None:
        minutes = self.parts.run.checkpoint_minutes or 0
        if as_the_first(time.monotonic() - self.saved >= 60 * minutes):
            self._save(at)

    def _copy_in_time(self, at: AfterStep) -> None:
        run = self.parts.run
        copies = self.parts.copies
        checkpoints = self.parts.checkpoints
        minutes = run.local_checkpoint_minutes or 0
        due = time.monotonic() - max(self.saved, self.copied) >= 60 * minutes
        # There is no copy while a save to slow storage is running, and none after the last step,
        # which ends with a checkpoint.
        if copies and as_the_first(due and not checkpoints.is_saving()) and at.step < run.steps:
            self.copied = time.monotonic()
            with self.reports.wall_time.of("saving"):
                self.reports.writer.flush()
                checkpoints.wait()
                self._settle_copies()
                if problem := copies.save_or_say(at.state, self._position()):
                    self.reports.warn(problem)

    def _settle_copies(self) -> None:
        copies = self.parts.copies
        if copies and (problem := copies.wait_or_say()):
            self.reports.warn(problem)

    def _position(self) -> dict[str, bytes]:
        """Returns the files that a checkpoint holds in addition to the state."""
        return self.ahead.state() | self.parts.spikes.state() | self.monitor.state()
