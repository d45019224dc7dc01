"""Trains a model on a pre-training objective.

    pretrax train                                                       the quickstart, on any laptop
    pretrax train --gin_file=runs/own_text.gin --gin.FILES="'data/*.txt'"
    pretrax train --gin_file=runs/ul2_20b_c4.gin --compile=v5p:4x4x8    its step, compiled for that slice

A run directory holds everything that a run leaves. The same command started again continues from the
last checkpoint, or says that the run is finished.
"""

import argparse
import contextlib
import functools
import sys
from collections.abc import Callable, Collection, Sequence

import jax
from rich.console import Console
from rich.text import Text

from pretrax import verbs
from pretrax.inference import Trained, show_passages
from pretrax.inference.task_scores import task_figures
from pretrax.training import results, run_directory
from pretrax.training.checkpoints import Checkpoints, Keep
from pretrax.training.command_line import add_gin_arguments, mistakes_in_words, parse_with_gin
from pretrax.training.compile_check import check
from pretrax.training.compiled_programs import keep_compiled, kept_in
from pretrax.training.config_file import write_run
from pretrax.training.configuration import read_run
from pretrax.training.console import (
    closing_words,
    finished_words,
    make_console,
    model_words,
    print_check,
    print_plan,
    print_scores,
    print_warning,
    resumed_words,
    stopped_words,
    time_words,
    unnamed_words,
)
from pretrax.training.heldout import evaluator_of_training
from pretrax.training.loop import take_steps
from pretrax.training.metrics import MetricsWriter
from pretrax.training.planning import Plan, abstract_state_of, longest_rows, open_batches, plan
from pretrax.training.plots import plot_losses
from pretrax.training.processes import join_processes, others_told, without_shutdown
from pretrax.training.profiling import Steps, check_steps, read_steps
from pretrax.training.results import Result
from pretrax.training.resuming import check_resumable, finished_result, resume
from pretrax.training.run import Run
from pretrax.training.spikes import Spikes
from pretrax.training.state import State
from pretrax.training.topologies import EXAMPLE, read_topology, use_cpu
from pretrax.training.wall_time import WallTime
from pretrax.training.warm_start import first_state
from pretrax.training.weights_and_biases import check_installed, open_trackers

QUICKSTART = "runs/quickstart.gin"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog=verbs.as_typed("pretrax train"),
        description=verbs.as_typed(__doc__),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    words = f"train nothing: compile the step for devices that are elsewhere, such as {EXAMPLE}"
    add = parser.add_mutually_exclusive_group().add_argument
    add("--compile", metavar="TOPOLOGY", help=words)
    add("--profile", metavar="FIRST:LAST", help="trace these steps for TensorBoard")
    add_gin_arguments(parser, default=QUICKSTART)
    options, given = parse_with_gin(parser, argv)
    resumes = "" if options.compile else "; the same command continues from the last checkpoint"
    with without_shutdown(), mistakes_in_words(options.traceback, f"\nInterrupted{resumes}."):
        gin = given.files or [QUICKSTART], given.bindings, given.search_paths, given.trusted
        if options.compile is not None:
            topology = read_topology(options.compile)
            use_cpu()
            run, console = read_run(*gin), make_console()
            console.print(f"Compiling for {topology}, a minute or more …")
            sys.exit(not print_check(console, check(run, topology)))
        run = read_run(*gin)
        if not run.distributed:
            keep_compiled()
        train(run, trusted=given.trusted, profiled=read_steps(options.profile))


@others_told()
def train(
    run: Run,
    console: Console | None = None,
    trusted: Collection[str] = (),
    profiled: Steps | None = None,
) -> Result:
    """Trains a run, or goes on training it, in its directory.

        result = train(read_run(["runs/decoder.gin"], ["STEPS = 20"]))
        result.scores[0].loss                                           # nats per target

    Args:
      run: see `training.run`.
      console: where progress and figures are shown; None: the terminal.
      trusted: modules that the config.gin of its directory may name, see `training.trust`; those of
        the run's own functions are trusted already.
      profiled: steps to trace; None: none.

    Returns:
      the held-out scores, and whether the run is finished: it is not when SIGTERM stopped it.

    Raises ValueError for what cannot work, saying what to change, and FloatingPointError when the
    loss is no longer finite.
    """
    wall_time = WallTime()
    if run.distributed:
        join_processes(run)
    console = console or make_console()
    changed = check_resumable(run, trusted)  # before the corpus is opened, which may write
    check_installed(run)
    planned = plan(run)
    console.print(planned.corpus.summary, markup=False)
    print_plan(console, planned)

    shapes, batches = abstract_state_of(planned), open_batches(planned)
    where = run_directory.checkpoints(run.run_dir, run.checkpoint_dir)
    spikes = Spikes(run.rollback_sigmas)
    # Held first: to open checkpoints for writing clears what a save has left behind.
    with (
        run_directory.held(run.run_dir),
        contextlib.closing(Checkpoints(where, Keep.of(run))) as checkpoints,
    ):
        resumed = resume(run, checkpoints, shapes, batches, spikes, changed)
        if resumed is None:
            state, started = first_state(run, shapes, planned.mesh, planned.corpus.classes)
            console.print(started, markup=False, end="\n" * bool(started))
        else:
            state = resumed.state
            for message in resumed.damaged:
                print_warning(console, message)
            if finished := finished_result(run, resumed):
                console.print(finished_words(run, finished.step), markup=False)
                return finished
            console.print(resumed_words(int(state.step), resumed.changed), markup=False)
        check_steps(profiled, int(state.step), run.steps)
        if jax.process_index() == 0 and (unnamed := write_run(run)):
            print_warning(console, unnamed_words(unnamed))
        console.print(model_words(planned, state))
        if kept := kept_in():
            console.print(f"Compiled programs are kept in {kept}", markup=False, soft_wrap=True)
        warn = functools.partial(print_warning, console)
        trackers = functools.partial(open_trackers, run)
        with MetricsWriter(run.run_dir, int(state.step), warn, trackers) as writer:
            shown = writer, console, wall_time
            evaluate = evaluator_of_training(planned, task_scorer(planned), *shown)
            state, evaluated = take_steps(
                planned, state, shapes, batches, spikes, checkpoints, evaluate, *shown, profiled
            )
            step = int(state.step)
            if step < run.steps:
                seconds = wall_time.seconds()
                console.print(stopped_words(run, step), time_words(seconds), sep="\n")
                return Result(run.run_dir, step, False, (), {}, seconds)
            if evaluated is None:  # it was killed after its last step, before it was evaluated
                evaluated = evaluate(step, state.params)
            print_scores(console, evaluated.scores, step)
            with wall_time.of("evaluation"):
                fill_passages(planned, state, writer, console)
    result = Result(run.run_dir, step, True, evaluated.scores, evaluated.tasks, wall_time.seconds())
    results.write(result)
    if jax.process_index() == 0 and (failed := plot_losses(run.run_dir, result.scores)):
        print_warning(console, failed)
    said = closing_words(run, planned.corpus.codec is not None, batches.progress())
    console.print(time_words(result.seconds), verbs.as_typed(said), sep="\n", markup=False)
    return result


def task_scorer(planned: Plan) -> Callable[[dict], dict[str, float]]:
    """params -> the figures on the run's downstream tasks; none where it has none."""
    run, corpus, codec = planned.run, planned.corpus, planned.corpus.codec
    tasks = [] if run.evaluation_tasks is None else run.evaluation_tasks(run.run_dir)

    def score_tasks(params: dict) -> dict[str, float]:
        if not tasks:
            return {}
        assert codec is not None  # a corpus with tasks reads text
        trained = Trained(
            model=planned.recipe.model,
            params=params,
            ids=corpus.ids,
            encode=codec.encode,
            decode=codec.decode,
            prompt_forms=planned.recipe.objective.prompt_forms,
            classes=corpus.classes,
            lengths=longest_rows(run.sequence_lengths),
        )
        return task_figures(trained, tasks)

    return score_tasks


def fill_passages(planned: Plan, state: State, writer: MetricsWriter, console: Console) -> None:
    """Shows held-out passages that the model fills in, here and in TensorBoard."""
    corpus, recipe = planned.corpus, planned.recipe
    if corpus.codec is None:
        return
    trained = recipe.objective, recipe.model, state.params, corpus.ids
    with console.capture() as captured:
        show_passages(console, *trained, corpus.codec.decode, corpus.heldout(4000))
    shown = Text.from_ansi(captured.get())
    console.print(shown)
    writer.write_text(int(state.step), "held-out passages", shown.plain)


if __name__ == "__main__":
    verbs.run("train")
