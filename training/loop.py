"""The training loop: steps, and between them lines of metrics, evaluations and checkpoints."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
from jax.experimental import multihost_utils
from rich.console import Console

from pretrax.training.batches import Batches
from pretrax.training.checkpoints import Checkpoints
from pretrax.training.console import StepProgress
from pretrax.training.mesh import placed_on
from pretrax.training.metrics import MetricsWriter
from pretrax.training.monitor import Monitor
from pretrax.training.planning import Plan, compiled_step
from pretrax.training.state import Abstract, State


class Stopped(NamedTuple):
    """Where the loop ended."""

    state: State
    evaluation: Any  # what `evaluate` returned last; None where no step was left to evaluate after


def take_steps(
    plan: Plan,
    state: State,
    abstract: Abstract,
    batches: Batches,
    checkpoints: Checkpoints,
    writer: MetricsWriter,
    evaluate: Callable[[int, dict], Any],
    console: Console,
) -> Stopped:
    """Takes the steps that are left of a run, or stops early, with a checkpoint, at SIGTERM.

    Args:
      plan: of the run.
      state: where to start; its memory is taken over.
      abstract: shapes and shardings of the state.
      batches: stands at the state's step.
      checkpoints: where the state and the position of `batches` are saved.
      writer: takes the metrics.
      evaluate: (step, params) -> anything; called at every evaluation.
      console: shows the progress.

    Raises FloatingPointError when the loss is no longer finite.
    """
    run = plan.run
    take_step = compiled_step(plan, abstract.shapes)
    evaluation, step = None, int(state.step)
    with (
        StepProgress(console, step, run.steps) as progress,
        placed_on(plan.mesh),
        stop_at_sigterm() as asked_to_stop,
    ):
        monitor = Monitor(plan, writer, progress)
        while step < run.steps:
            state, metrics = take_step(state, next(batches))
            step += 1
            monitor.add(step, metrics)
            last, stopping = step == run.steps, asked_to_stop(step)
            saving = last or stopping or _is_due(step, run.checkpoint_every)
            # A checkpoint ends a line: a resumed run then writes the lines of an uninterrupted one.
            if saving or _is_due(step, run.log_every):
                monitor.report(step)
            if last or _is_due(step, run.evaluate_every):
                evaluation = evaluate(step, state.params)
                monitor.restart_clock()
            if saving:
                monitor.check()
                checkpoints.save(state, batches.state())
                monitor.restart_clock()
            if stopping:
                break
    checkpoints.wait()
    return Stopped(state, evaluation)


def _is_due(step: int, every: int | None) -> bool:
    return every is not None and step % every == 0


@contextlib.contextmanager
def stop_at_sigterm() -> Iterator[Callable[[int], bool]]:
    """A function of the step that says whether to save and stop; all processes agree on it.

    A single process that does not run in its main thread cannot be told by a signal.
    """
    if jax.process_count() > 1:
        yield multihost_utils.reached_preemption_sync_point
        return
    received: list[bool] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda step: False
        return
    before = signal.signal(signal.SIGTERM, lambda *_: received.append(True))
    try:
        yield lambda step: bool(received)
    finally:
        signal.signal(signal.SIGTERM, before)
