"""`train`: trains a run, or resumes it from its directory.

For example:

    result = train(read_run(["runs/decoder.gin"], ["STEPS = 20"]))
    result.scores[0].loss                                           # nats per target
"""

import contextlib
import functools
import os
from collections.abc import Callable, Collection, Iterator, Sequence

import jax
from rich.console import Console
from rich.text import Text

from ..inference import Trained, show_passages
from ..inference.answering.task_scores import task_figures
from ..settings import run_directory, run_ids
from ..settings.printable import print_note
from .buckets import mirrored
from .devices.compilation_cache import compilation_cache_dir
from .heldout_evaluation import Evaluation, prepare_evaluation
from .loop import take_steps
from .planning import Plan, open_batches, plan_run
from .processes import ends_together, join_processes
from .reporting.console import (
    finished_message,
    make_console,
    model_summary,
    print_closing,
    print_plan,
    print_scores,
    print_stopped,
    print_warning,
    restart_message,
    resumed_message,
    unnamed_message,
)
from .reporting.metrics import MetricsWriter, set_aside
from .reporting.plots import plot_losses
from .reporting.profiling import Profiler, Steps, check_steps, untraced_message
from .reporting.reports import Reports
from .reporting.trackers import make_trackers
from .reporting.wall_time import WallTime
from .resuming import ResumableParts, check_resumable, finished_result, resume
from .run import Run, longest_rows
from .run_checks import check_run
from .run_file import write_run
from .saved.assignment_map import check_assignment_map
from .saved.checkpoints import Checkpoints, Keep, Restored
from .saved.local_copies import open_local_copies
from .saved.result import Result, write_result
from .saved.warm_start import first_state
from .spikes import Spikes
from .state import State
from .step_program import abstract_state_of
from .unreported import Unreported


@ends_together()
def train(
    run: Run,
    console: Console | None = None,
    trusted: Collection[str] = (),
    profiled: Steps | None = None,
) -> Result:
    """Trains a run, or resumes it from its directory.

    Args:
      console: console for progress and scores. None: the terminal.
      trusted: modules that the config.gin of the run directory may name, see `settings.trust`.
        The modules of the run's own functions are always trusted.
      profiled: the steps to trace. None: no steps.

    Returns the held-out scores, and whether the run is finished. It is not finished after SIGTERM.

    Raises ValueError for settings that cannot work, and says what to change. Raises
    FloatingPointError if the loss is NaN or infinite.
    """
    with mirrored(run) as local_run:
        if local_run is not run:
            console = console or make_console()
            note = (
                f"{run.run_dir} is copied to {local_run.run_dir}, and back when a checkpoint is "
                "saved"
            )
            print_note(console, note)
        return _train(local_run, console, trusted, profiled)


def _train(
    run: Run, console: Console | None, trusted: Collection[str], profiled: Steps | None
) -> Result:
    wall_time = WallTime()
    if run.distributed:
        join_processes(run)
    console = console or make_console()
    # These checks come first, since trackers may start services and opening the corpus may write
    # files. A value of a wrong type is not reported as a conflict with the checkpoints.
    check_run(run)
    changed = check_resumable(run, trusted)
    check_assignment_map(run, trusted)
    trackers = make_trackers(run)
    plan = plan_run(run)
    print_plan(console, plan)

    with _open_parts(plan) as parts:
        resumed = resume(parts, changed)
        _warn_of_damage(parts, resumed, console)
        if resumed and (finished := finished_result(run, int(resumed.state.step), changed)):
            print_note(console, finished_message(run, finished.step))
            if profiled:
                print_warning(console, untraced_message(profiled, finished.step))
            return finished
        start = _start(parts, resumed, changed, console)
        check_steps(profiled, int(start.step), run.steps)
        unnamed = write_run(run) if jax.process_index() == 0 else ()
        _print_start(plan, start, unnamed, console)
        warn = functools.partial(print_warning, console)
        with MetricsWriter(run.run_dir, int(start.step), warn, trackers) as writer:
            traces = os.path.join(run.run_dir, run_directory.TENSORBOARD)
            profiler = Profiler(profiled, traces, wall_time, warn)
            reports = Reports(writer, console, wall_time, profiler)
            step, evaluated = _take_remaining_steps(parts, start, reports)
    is_finished = evaluated is not None
    scores, tasks = evaluated or Evaluation((), {})
    result = Result(run.run_dir, step, is_finished, scores, tasks, wall_time.seconds())
    if not is_finished:
        print_stopped(console, run, result)
        return result
    write_result(result)
    failed = plot_losses(run.run_dir, result.scores) if jax.process_index() == 0 else None
    print_closing(console, plan, result, parts.batches.progress(), failed)
    return result


@contextlib.contextmanager
def _open_parts(plan: Plan) -> Iterator[ResumableParts]:
    """Locks the run directory, and opens what a run resumes from: checkpoints and batches.

    Raises ValueError if another run owns the folder of checkpoints.
    """
    run = plan.run
    abstract = abstract_state_of(plan)
    batches = open_batches(plan)
    where = run_directory.checkpoints(run.run_dir, run.checkpoint_dir)
    # The lock comes first: opening checkpoints for writing deletes files of unfinished saves.
    with run_directory.training_lock(run.run_dir):
        run_ids.claim(run.run_dir, where)
        with (
            Checkpoints(where, Keep.of(run)) as checkpoints,
            open_local_copies(run.local_checkpoint_dir, where, checkpoints) as copies,
        ):
            spikes = Spikes(run.rollback_sigmas)
            yield ResumableParts(plan, abstract, batches, spikes, Unreported(), checkpoints, copies)


def _take_remaining_steps(
    parts: ResumableParts, start: State, reports: Reports
) -> tuple[int, Evaluation | None]:
    """Trains from a state to the last step, and evaluates that step.

    Returns the step that was reached, and the evaluation: None if SIGTERM stopped the run.
    """
    plan = parts.plan
    evaluate = prepare_evaluation(plan, task_scorer(plan), reports)
    state, evaluated = take_steps(parts, start, evaluate, reports)
    step = int(state.step)
    if step < plan.run.steps:
        return step, None
    if evaluated is None:  # the run was killed between its last step and the evaluation
        evaluated = evaluate(step, state.eval_params)
    print_scores(reports.console, evaluated.scores, step)
    with reports.wall_time.measure("evaluation"):
        fill_passages(plan, state, reports.writer, reports.console)
    return step, evaluated


def _warn_of_damage(parts: ResumableParts, resumed: Restored | None, console: Console) -> None:
    unused = [parts.copies.unused] if parts.copies and parts.copies.unused else []
    for message in (*unused, *(resumed.damaged if resumed else ())):
        print_warning(console, message)


def _start(
    parts: ResumableParts, resumed: Restored | None, changed: Sequence[str], console: Console
) -> State:
    """Returns the restored state, or the first state of a run, and prints which.

    Before the first state, the metrics of an earlier start are set aside.
    """
    if resumed:
        print_note(console, resumed_message(int(resumed.state.step), changed, resumed.copied))
        return resumed.state
    plan = parts.plan
    run = plan.run
    if jax.process_index() == 0 and (step := set_aside(run.run_dir)):
        where = run_directory.checkpoints(run.run_dir, run.checkpoint_dir)
        print_warning(console, restart_message(where, step))
    state, note = first_state(run, parts.abstract, plan.mesh, plan.corpus.classes)
    print_note(console, note)
    return state


def _print_start(plan: Plan, state: State, unnamed: Sequence[str], console: Console) -> None:
    if unnamed:
        print_warning(console, unnamed_message(unnamed))
    print_note(console, model_summary(plan, state))
    cache = compilation_cache_dir()
    kept = f" Compiled programs are kept in {cache}" if cache else ""
    print_note(console, f"Compiling.{kept}")


def task_scorer(plan: Plan) -> Callable[[dict], dict[str, float]]:
    """Returns a function from parameters to the scores of the run's downstream tasks.

    The function returns {} if the run has no tasks.
    """
    run = plan.run
    tasks = [] if run.evaluation_tasks is None else run.evaluation_tasks(run.run_dir)
    return lambda params: task_figures(trained_on_text(plan, params), tasks) if tasks else {}


def trained_on_text(plan: Plan, params: dict) -> Trained:
    """Returns the model of a run on text, with these parameters."""
    corpus = plan.corpus
    codec = corpus.codec
    assert codec is not None  # a corpus with tasks has text
    return Trained(
        model=plan.recipe.model,
        params=params,
        ids=corpus.ids,
        encode=codec.encode,
        decode=codec.decode,
        prompt_forms=plan.recipe.objective.facts.prompt_forms,
        classes=corpus.classes,
        lengths=longest_rows(plan.run.sequence_lengths),
    )


def fill_passages(plan: Plan, state: State, writer: MetricsWriter, console: Console) -> None:
    """Shows held-out passages that the model fills in, on the console and in TensorBoard."""
    corpus = plan.corpus
    if corpus.codec is None:
        return
    trained = trained_on_text(plan, state.eval_params)
    with console.capture() as captured:
        show_passages(
            console,
            plan.recipe.objective,
            trained,
            lambda member: corpus.text_of(member).heldout(4000),
        )
    shown = Text.from_ansi(captured.get())
    console.print(shown)
    writer.write_text(int(state.step), "held-out passages", shown.plain)
