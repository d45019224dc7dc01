"""The training loop: takes the steps and calls hooks for metrics, evaluations and checkpoints."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

import jax

from .built_in_hooks import BuiltInHooks
from .devices.mesh import placed_on
from .heldout_evaluation import Evaluation
from .hooks import AfterStep, user_hooks
from .prefetch import Prefetcher
from .processes import must_stop_together
from .reporting.console import StepProgress
from .reporting.monitor import Monitor
from .reporting.reports import Reports
from .resuming import ResumableParts, resume
from .spikes import LossSpike, Rollback
from .state import State
from .step_program import StepPrograms


def take_steps(
    parts: ResumableParts,
    state: State,
    evaluate: Callable[[int, dict], Evaluation],
    reports: Reports,
) -> tuple[State, Evaluation | None]:
    """Trains a run for its remaining steps.

    At SIGTERM, it saves a checkpoint and stops early. After a loss spike, it rolls back to a
    checkpoint if the run has `rollback_sigmas`. At the end, it removes the local copies, since the
    last checkpoint is newer.

    Args:
      parts: the run's plan, checkpoints, batches and metrics, at the same step as the state.
      state: the state to start from. Its buffers are donated.
      evaluate: (step, params) -> `Evaluation`. It measures its own wall time.

    Returns the last state, and the last evaluation or None.

    Raises FloatingPointError at a loss spike if the run cannot be rolled back.
    """
    plan = parts.plan
    run = plan.run
    steps_taken = int(state.step)
    wall_time = reports.wall_time
    run_hooks = user_hooks(plan)
    with (
        StepProgress(reports.console, steps_taken, run.steps) as progress,
        placed_on(plan.mesh),
        stop_at_sigterm() as should_stop,
        reports.profiler as profiler,
        contextlib.closing(Prefetcher(parts.batches, run.steps - steps_taken)) as prefetcher,
    ):
        monitor = Monitor(parts, reports, progress)
        built_in = BuiltInHooks(parts, prefetcher, monitor, evaluate, reports)
        hooks = [*built_in.hooks(), *run_hooks]
        programs = StepPrograms(plan, parts.abstract.shapes)
        while steps_taken < run.steps:
            with wall_time.measure("compile"):
                take_step = programs.at(steps_taken)
            step = steps_taken + 1
            profiler.before(step)
            with jax.profiler.StepTraceAnnotation("train", step_num=step):
                with wall_time.measure("data"):
                    rows = next(prefetcher)
                with wall_time.measure("step"):
                    state, metrics = take_step(state, rows)
            last = step == run.steps
            stopping = should_stop()
            due = [hook for hook in hooks if hook.is_due(step, last, stopping)]
            try:
                with wall_time.measure("step"):
                    profiler.after(step, metrics)
                    monitor.add(step, metrics)
                    if due:
                        monitor.check()
            except LossSpike as spike:
                prefetcher.close()
                del state  # frees the memory that the checkpoint's state needs
                state = _roll_back(spike, parts, reports)
                monitor.discard()
                steps_taken = int(state.step)
                prefetcher.start(run.steps - steps_taken)
            else:
                steps_taken = step
                for hook in due:
                    hook.call(AfterStep(step, state, metrics))
            if stopping:
                break
        built_in.finish()  # inside the block, so that another SIGTERM does not end the process
    return state, built_in.evaluation


def _roll_back(spike: LossSpike, parts: ResumableParts, reports: Reports) -> State:
    """Restores the checkpoint before a spike, and skips the batches that were read since.

    The roll-back is saved only with the next checkpoint. A run that is killed before meets the
    spike again.

    Raises FloatingPointError if there is no checkpoint to roll back to.
    """
    spikes = parts.spikes
    checkpoints = parts.checkpoints
    checkpoints.wait()
    before = spikes.checkpoint_before(spike, checkpoints.steps(), parts.plan.run.checkpoint_every)
    checkpoints.remove_after(before)
    if parts.copies:
        parts.copies.remove_after(before)
    rollbacks = spikes.rollbacks
    resumed = resume(parts)
    assert resumed is not None  # there is a checkpoint
    for message in resumed.damaged:
        reports.warn(message)
    step = int(resumed.state.step)
    spikes.rollbacks = [*rollbacks, Rollback(spike.step, step)]
    reports.writer.rewind(step)
    for rollback in spikes.since(step):
        parts.batches.skip(rollback.skipped)
        # Written at the first step after the checkpoint, so that a run that resumes from the
        # checkpoint drops the line.
        values = {f"rollback/{name}": x for name, x in rollback._asdict().items()}
        reports.writer.write(step + 1, values)
    skipped = sum(rollback.skipped for rollback in spikes.since(step))
    reports.warn(
        f"{spike} The run goes back to the checkpoint of step {step}, and skips the {skipped} "
        "batches that were read since."
    )
    return resumed.state


@contextlib.contextmanager
def stop_at_sigterm() -> Iterator[Callable[[], bool]]:
    """Yields a function that returns whether to save and stop. Call it after each step.

    The function returns the same on all processes. In a single process, signals arrive only in the
    main thread; in any other thread the function returns False.
    """
    if jax.process_count() > 1:
        yield must_stop_together
        return
    received: list[bool] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.signal(signal.SIGTERM, lambda *_: received.append(True))
    try:
        yield lambda: bool(received)
    finally:
        signal.signal(signal.SIGTERM, before)
