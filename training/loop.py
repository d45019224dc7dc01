"""The training loop: steps, with metrics, evaluations and checkpoints at their intervals."""

import contextlib
import functools
import os
import signal
import threading
from collections.abc import Callable, Iterator

import jax

from ..settings import run_directory
from .devices.mesh import batch_sharding, placed_on
from .duties import Duties, Reports
from .heldout import Evaluation
from .hooks import AfterStep, own_hooks
from .planning import Plan, abstract_rows, compiled, compiled_step
from .processes import must_stop_together
from .prefetch import Prefetcher
from .reporting.console import StepProgress, print_warning
from .reporting.monitor import Monitor
from .reporting.profiling import Profiler, Steps
from .saved.resuming import Training, resume
from .spikes import LossSpike, Rollback
from .state import State


def take_steps(
    plan: Plan,
    training: Training,
    state: State,
    evaluate: Callable[[int, dict], Evaluation],
    reports: Reports,
    profiled: Steps | None = None,
) -> tuple[State, Evaluation | None]:
    """Takes the remaining steps of a run; returns the state, and the last evaluation if there was
    one.

    At SIGTERM it saves a checkpoint and stops early; after a loss spike, where the run has
    `rollback_sigmas`, it goes back to a checkpoint. Local copies are gone once it returns: the last
    checkpoint is later.

    Args:
      training: at the data position of the state.
      state: to start from; its buffers are donated.
      evaluate: (step, params) -> held-out figures; it counts its own wall time.
      profiled: steps to trace, into the run's folder of TensorBoard.

    Raises FloatingPointError at a loss spike after which the run is not, or no more, rolled back.
    """
    run = plan.run
    step = int(state.step)
    writer, console, wall_time = reports
    users = own_hooks(plan)
    traces = os.path.join(run.run_dir, run_directory.TENSORBOARD)
    warn = functools.partial(print_warning, console)
    with (
        StepProgress(console, step, run.steps) as progress,
        placed_on(plan.mesh),
        stop_at_sigterm() as should_stop,
        Profiler(profiled, traces, wall_time, warn) as profiler,
        contextlib.ExitStack() as reading,
    ):
        ahead = reading.enter_context(prefetch(training, step))
        monitor = Monitor(plan, writer, progress, training.spikes, training.unreported, wall_time)
        duties = Duties(training, ahead, monitor, evaluate, reports)
        hooks = [*duties.hooks(), *users]
        with wall_time.of("compile"):
            rows = abstract_rows(plan, batch_sharding(plan.mesh))
            shapes = training.shapes.shapes
            take_step = compiled(plan, compiled_step(plan, shapes).lower(shapes, rows))
        while step < run.steps:
            step += 1
            profiler.before(step)
            with jax.profiler.StepTraceAnnotation("train", step_num=step):
                with wall_time.of("data"):
                    rows = next(ahead)
                with wall_time.of("step"):
                    state, metrics = take_step(state, rows)
            last = step == run.steps
            stopping = should_stop()
            due = [hook for hook in hooks if hook.is_due(step, last, stopping)]
            try:
                with wall_time.of("step"):
                    profiler.after(step, metrics)
                    monitor.add(step, metrics)
                    if due:
                        monitor.check()
            except LossSpike as spike:
                reading.close()
                del state  # its memory is needed for that of the checkpoint
                state = _roll_back(spike, training, reports)
                monitor.forget()
                step = int(state.step)
                ahead = duties.ahead = reading.enter_context(prefetch(training, step))
            else:
                for hook in due:
                    hook.call(AfterStep(step, state, metrics))
            if stopping:
                break
        duties.finish()  # while SIGTERM, the first or another one, ends nothing
    return state, duties.evaluation


def prefetch(training: Training, step: int) -> contextlib.closing[Prefetcher]:
    """Returns the batches of the steps after this one, to be closed."""
    return contextlib.closing(Prefetcher(training.batches, training.run.steps - step))


def _roll_back(spike: LossSpike, training: Training, reports: Reports) -> State:
    """Restores the checkpoint before a spike, and has the batches skip those that were read since.

    Nothing of this is saved: a run that is killed before its next checkpoint meets the spike again.

    Raises FloatingPointError as `Spikes.checkpoint_before` does.
    """
    run, _, batches, spikes, _, checkpoints, copies = training
    checkpoints.wait()
    before = spikes.checkpoint_before(spike, checkpoints.steps(), run.checkpoint_every)
    checkpoints.remove_after(before)
    if copies:
        copies.remove_after(before)
    rollbacks = spikes.rollbacks
    resumed = resume(training)
    assert resumed is not None  # there is a checkpoint
    for message in resumed.damaged:
        print_warning(reports.console, message)
    step = int(resumed.state.step)
    spikes.rollbacks = [*rollbacks, Rollback(spike.step, step)]
    reports.writer.rewind(step)
    for one in spikes.since(step):
        batches.skip(one.skipped)
        # As of the first step that is taken again: a run that resumes from the checkpoint drops it.
        values = {f"rollback/{name}": x for name, x in one._asdict().items()}
        reports.writer.write(step + 1, values)
    skipped = sum(one.skipped for one in spikes.since(step))
    print_warning(
        reports.console,
        f"{spike} The run goes back to the checkpoint of step {step}, and skips the {skipped} "
        "batches that were read since.",
    )
    return resumed.state


@contextlib.contextmanager
def stop_at_sigterm() -> Iterator[Callable[[], bool]]:
    """Yields a function, called after each step: whether to save and stop. All processes agree.

    Outside of the main thread of a single process no signal arrives.
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
