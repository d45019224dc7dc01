"""The hooks of every run: its metrics, evaluations, checkpoints and local copies."""

import dataclasses
import time
from collections.abc import Callable

import jax

from .buckets import push_or_warn
from .heldout_evaluation import Evaluation
from .hooks import AfterStep, Hook
from .prefetch import Prefetcher
from .processes import broadcast_from_first
from .reporting.monitor import Monitor
from .reporting.reports import Reports
from .resuming import ResumableParts


@dataclasses.dataclass
class BuiltInHooks:
    """The work of every run between its steps."""

    parts: ResumableParts
    prefetcher: Prefetcher
    monitor: Monitor
    evaluate: Callable[[int, dict], Evaluation]  # from a step and its parameters
    reports: Reports
    evaluation: Evaluation | None = None  # the last evaluation
    evaluated_step: int = 0  # step of the last evaluation
    # times of the last checkpoint and the last local copy
    saved_at: float = dataclasses.field(default_factory=time.monotonic)
    copied_at: float = 0.0

    def hooks(self) -> list[Hook]:
        """Returns the hooks, in the order in which they are called after a step."""
        run = self.parts.plan.run
        # The clock is read only after steps that `log_every` divides.
        saves_by_clock = run.log_every if run.checkpoint_minutes is not None else None
        copies_by_clock = run.log_every if self.parts.copies else None
        return [
            Hook(self._report, run.log_every),
            Hook(self._report, run.checkpoint_every),  # the metrics have a line for each checkpoint
            Hook(self._evaluate_heldout, run.evaluate_every),
            Hook(self._save, run.checkpoint_every, at_stop=True),
            Hook(self._save_by_clock, saves_by_clock, at_end=False),
            Hook(self._copy_by_clock, copies_by_clock, at_end=False),
        ]

    def finish(self) -> None:
        """Waits until all saves are complete, and removes the local copies."""
        with self.reports.wall_time.measure("saving"):
            self.parts.checkpoints.wait()
            self._finish_copies()
            if self.parts.copies:
                self.parts.copies.remove_after(-1)

    def _report(self, after: AfterStep) -> None:
        self.monitor.report(after.step, self.prefetcher.progress())

    def _evaluate_heldout(self, after: AfterStep) -> None:
        self.evaluation = self.evaluate(after.step, after.state.eval_params)
        self.evaluated_step = after.step

    def _save(self, after: AfterStep) -> None:
        self.saved_at = time.monotonic()
        with self.reports.wall_time.measure("saving"):
            is_new = self.evaluated_step == after.step
            loss = self.evaluation.loss if self.evaluation and is_new else None
            files = self._extra_files()
            self.reports.writer.flush()
            # The metrics go first: a resumed run drops metrics that are later than the checkpoint.
            if jax.process_index() == 0:
                push_or_warn(self.parts.plan.run.run_dir, self.reports.warn)
            self._finish_copies()  # Orbax can run only one save at a time
            self.parts.checkpoints.save(after.state, files, heldout_loss=loss)

    def _save_by_clock(self, after: AfterStep) -> None:
        minutes = self.parts.plan.run.checkpoint_minutes or 0
        if broadcast_from_first(time.monotonic() - self.saved_at >= 60 * minutes):
            self._save(after)

    def _copy_by_clock(self, after: AfterStep) -> None:
        run = self.parts.plan.run
        copies = self.parts.copies
        checkpoints = self.parts.checkpoints
        minutes = run.local_checkpoint_minutes or 0
        due = time.monotonic() - max(self.saved_at, self.copied_at) >= 60 * minutes
        # No copy while a save to slow storage is running, or after the last step, which is a
        # checkpoint.
        if (
            copies
            and broadcast_from_first(due and not checkpoints.is_saving())
            and after.step < run.steps
        ):
            self.copied_at = time.monotonic()
            with self.reports.wall_time.measure("saving"):
                self.reports.writer.flush()
                checkpoints.wait()
                self._finish_copies()
                if problem := copies.try_save(after.state, self._extra_files()):
                    self.reports.warn(problem)

    def _finish_copies(self) -> None:
        copies = self.parts.copies
        if copies and (problem := copies.try_wait()):
            self.reports.warn(problem)

    def _extra_files(self) -> dict[str, bytes]:
        return self.prefetcher.state() | self.parts.spikes.state() | self.monitor.state()
