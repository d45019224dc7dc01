"""The training loop: steps, with metrics, evaluations and checkpoints at their intervals."""

import contextlib
import functools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
from jax.experimental import multihost_utils
from rich.console import Console

from . import run_directory
from .batches import Batches
from .devices.mesh import batch_sharding, placed_on
from .heldout import Evaluation
from .planning import Plan, abstract_rows, compiled_step
from .read_ahead import ReadAhead
from .reporting.console import StepProgress, print_warning
from .reporting.metrics import MetricsWriter
from .reporting.monitor import Monitor
from .reporting.profiling import Profiler, Steps
from .reporting.wall_time import WallTime
from .saved.checkpoints import Checkpoints
from .saved.resuming import resume
from .spikes import LossSpike, Rollback, Spikes
from .state import Abstract, State


class Stopped(NamedTuple):
    """The end of the loop."""

    state: State
    evaluation: Evaluation | None  # the last one; None if there was none


def take_steps(
    plan: Plan,
    state: State,
    abstract: Abstract,
    batches: Batches,
    spikes: Spikes,
    checkpoints: Checkpoints,
    evaluate: Callable[[int, dict], Evaluation],
    writer: MetricsWriter,
    console: Console,
    wall_time: WallTime,
    profiled: Steps | None = None,
) -> Stopped:
    """Takes the remaining steps of a run; at SIGTERM it saves a checkpoint and stops early, and after a
    loss spike, where the run says so, it goes back to a checkpoint.

    Args:
      plan: of the run.
      state: to start from; its buffers are donated.
      abstract: shapes and shardings of the state.
      batches: the rows of the steps after the state's, which a thread reads ahead.
      spikes: which losses are spikes.
      checkpoints: for the state and the data position.
      evaluate: (step, params) -> what was found; called at every evaluation.
      writer: for metrics.
      console: for progress.
      wall_time: counts what the loop does, but for `evaluate`, which counts itself.
      profiled: steps to trace, into the run's folder of TensorBoard.

    Raises FloatingPointError at a loss spike after which the run is not, or no more, rolled back.
    """
    run = plan.run
    evaluation, step = None, int(state.step)
    with (
        StepProgress(console, step, run.steps) as progress,
        placed_on(plan.mesh),
        stop_at_sigterm() as should_stop,
        Profiler(
            profiled,
            os.path.join(run.run_dir, run_directory.TENSORBOARD),
            wall_time,
            functools.partial(print_warning, console),
        ) as profiler,
        contextlib.ExitStack() as reading,
    ):
        ahead = reading.enter_context(contextlib.closing(ReadAhead(batches, run.steps - step)))
        monitor = Monitor(plan, writer, progress, spikes, wall_time)
        with wall_time.of("compile"):
            rows = abstract_rows(plan, batch_sharding(plan.mesh))
            take_step = compiled_step(plan, abstract.shapes).lower(abstract.shapes, rows).compile()
        while step < run.steps:
            step += 1
            profiler.before(step)
            with jax.profiler.StepTraceAnnotation("train", step_num=step):
                with wall_time.of("data"):
                    rows = next(ahead)
                with wall_time.of("step"):
                    state, metrics = take_step(state, rows)
            last, stopping = step == run.steps, should_stop(step)
            saving = last or stopping or _is_due(step, run.checkpoint_every)
            evaluating = last or _is_due(step, run.evaluate_every)
            # A checkpoint ends an interval of metrics, so that a resumed run writes the same intervals.
            logging = saving or _is_due(step, run.log_every)
            try:
                with wall_time.of("step"):
                    profiler.after(step, metrics)
                    monitor.add(step, metrics)
                    if saving or evaluating or logging:
                        monitor.check()
            except LossSpike as spike:
                reading.close()
                del state  # its memory is needed for that of the checkpoint
                state = _roll_back(
                    spike, plan, abstract, batches, spikes, checkpoints, writer, console
                )
                monitor.forget()
                step = int(state.step)
                ahead = reading.enter_context(
                    contextlib.closing(ReadAhead(batches, run.steps - step))
                )
                if stopping:
                    break
                continue
            if logging:
                monitor.report(step, ahead.progress())
            if evaluating:
                evaluation = evaluate(step, state.params)
            if saving:
                with wall_time.of("saving"):
                    loss = evaluation.loss if evaluation and evaluating else None
                    position = ahead.state() | spikes.state()
                    checkpoints.save(state, position, heldout_loss=loss)
                    writer.flush()
            if stopping:
                break
    with wall_time.of("saving"):
        checkpoints.wait()
    return Stopped(state, evaluation)


def _roll_back(
    spike: LossSpike,
    plan: Plan,
    abstract: Abstract,
    batches: Batches,
    spikes: Spikes,
    checkpoints: Checkpoints,
    writer: MetricsWriter,
    console: Console,
) -> State:
    """Restores the checkpoint before a spike, and has `batches` skip those that were read since.

    Nothing of this is saved: a run that is killed before its next checkpoint meets the spike again.

    Raises FloatingPointError as `Spikes.checkpoint_before` does.
    """
    checkpoints.wait()
    before = spikes.checkpoint_before(spike, checkpoints.steps(), plan.run.checkpoint_every)
    checkpoints.remove_after(before)
    rollbacks = spikes.rollbacks
    resumed = resume(plan.run, checkpoints, abstract, batches, spikes, ())
    assert resumed is not None  # there is a checkpoint
    for message in resumed.damaged:
        print_warning(console, message)
    step = int(resumed.state.step)
    spikes.rollbacks = [*rollbacks, Rollback(spike.step, step)]
    writer.rewind(step)
    for one in spikes.since(step):
        batches.skip(one.skipped)
        # As of the first step that is taken again: where a run resumes from the checkpoint, it is removed.
        writer.write(step + 1, {f"rollback/{name}": x for name, x in one._asdict().items()})
    skipped = sum(one.skipped for one in spikes.since(step))
    print_warning(
        console,
        f"{spike} The run goes back to the checkpoint of step {step}, and skips the {skipped} batches "
        "that were read since.",
    )
    return resumed.state


def _is_due(step: int, every: int | None) -> bool:
    return every is not None and step % every == 0


@contextlib.contextmanager
def stop_at_sigterm() -> Iterator[Callable[[int], bool]]:
    """Yields a function of the step: whether to save and stop. All processes agree on it.

    Outside the main thread of a single process no signal arrives, and it never stops.
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
