"""Trains a model on a pre-training objective.

    pretrax train                                              the quickstart, on any laptop
    pretrax train --gin_file=gin_configs/runs/own_text.gin --gin.FILES="'data/*.txt'"

The story, downwards: configure, read the corpus, solve the lengths, create or resume the state,
take steps, and finish with held-out figures, a plot and a few passages filled in. A run directory
holds all of it, and the same command started again goes on where it stopped.
"""

import contextlib
import functools
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import gin
import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh
from rich.console import Console
from rich.text import Text

from pretrax import verbs
from pretrax.inference import Decoding, Options, Trained, show_passages
from pretrax.inference.task_scores import EvaluationTask, score_task, short_answers
from pretrax.objectives import Objective, TokenIds
from pretrax.training.batches import Batches
from pretrax.training.checkpoints import Checkpoints, MismatchError
from pretrax.training.configuration import (
    changed_values,
    check_counts,
    check_directories,
    configure,
    mistakes_in_words,
    parse_command_line,
    save_config,
    unused_models,
)
from pretrax.training.console import (
    StepProgress,
    make_console,
    print_plan,
    print_scores,
    print_task_scores,
)
from pretrax.training.data import Corpus
from pretrax.training.evaluation import Evaluator, Score
from pretrax.training.mesh import batch_shards, join_processes, make_mesh, placed_on
from pretrax.training.metrics import MetricsWriter
from pretrax.training.monitor import Monitor
from pretrax.training.packing import resolve
from pretrax.training.plots import plot_losses
from pretrax.training.runs import objective_names
from pretrax.training.setup import (
    Setup,
    abstract_batch,
    compiled_step,
    make_setup,
    padded_vocabulary,
)
from pretrax.training.state import Abstract, State, abstract_state, new_state, parameter_count
from pretrax.training.step import Recipe
from pretrax.training.warm_start import check_same_vocabulary, warm_start

QUICKSTART = "gin_configs/runs/quickstart.gin"


def main(argv: Sequence[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    files, bindings, traceback = parse_command_line("train", argv, __doc__, QUICKSTART)
    stopped = "\nInterrupted; the same command goes on from the last checkpoint."
    with mistakes_in_words(traceback, stopped):
        config = configure(files, bindings)
        gin.get_configurable(train)(config=config)


def train(
    *,
    config: str,
    run_dir: str,
    corpus: Callable[[str], Corpus],
    objective: Callable[[TokenIds], Objective],
    model: Callable,
    optimizer: Callable,
    sequence_lengths: Mapping[str, int] | Sequence[Mapping[str, int]],
    batch_size: int,
    steps: int,
    mesh: Callable[[], Mesh] = make_mesh,
    microbatches: int = 1,
    data_shards: int = 1,
    packing: str | None = None,
    max_documents: int = 16,
    vocabulary_rows: int | None = None,
    z_loss: float = 0.0,
    mark_document_ends: bool | None = None,
    seed: int = 0,
    log_every: int = 10,
    evaluate_every: int | None = None,
    checkpoint_every: int | None = None,
    checkpoint_dir: str | None = None,
    keep_checkpoints: int = 3,
    initial_run: str | None = None,
    heldout_tokens: int = 20_000,
    evaluation_tasks: Callable[[str], Sequence[EvaluationTask]] | None = None,
    distributed: bool = False,
) -> None:
    """Trains, or goes on training, in `run_dir`.

    Args:
      config: the configuration as text, to be kept in the run directory.
      run_dir: where everything goes; a directory on disk.
      corpus: run_dir -> Corpus.
      objective: TokenIds -> Objective.
      model: (vocabulary size, heads that the objective asks for) -> Model.
      optimizer: number of steps -> optax transformation.
      sequence_lengths: lengths of the model's stacks, {"encoder": 512, "decoder": 128}; or several
        of those, smallest first, for row groups with shapes of their own.
      batch_size: rows of a step, over all devices and row groups.
      steps: when to stop.
      mesh: () -> Mesh.
      microbatches: into how many parts a step's rows are split, to save memory.
      data_shards: into how many streams the corpus is split; the rows of each row group are a
        multiple of it. At least the number of hosts that read; the data order depends on it, and
        not on the hosts.
      packing: how documents become rows, see `training.packing`: "concatenate", "isolate", "whole"
        or "single"; None: as the objective is made for.
      max_documents: of a row, where packing is "isolate" or "whole".
      vocabulary_rows: of the model's embedding; None: as many as there are ids, rounded up to 128.
      z_loss: weight of the squared log-partition in the loss.
      mark_document_ends: put end-of-sequence after every document; None: where the objective does
        not close documents itself.
      seed: of the initial parameters, the noise and dropout; the order of the data is the corpus's.
      log_every: steps between lines of metrics.
      evaluate_every, checkpoint_every: in steps; None: only at the end.
      keep_checkpoints: how many of the latest are kept.
      checkpoint_dir: None: in run_dir. On several hosts a place that all of them can write, such as
        "gs://my-bucket/NAME"; their run_dir may be on their own disks.
      initial_run: a run, or an imported model, whose latest parameters this one starts with, as far
        as names agree; which do not is printed. Its vocabulary must be the same. None: initialise
        all.
      heldout_tokens: how much held-out text every member of the objective is evaluated on.
      evaluation_tasks: run_dir -> downstream tasks that are scored at every evaluation, by a single
        process; `tasks.seqio_evaluation.evaluation_tasks` makes them.
      distributed: several processes, see `training.mesh.join_processes`.

    Raises ValueError for what cannot work, saying what to change, and FloatingPointError when the
    loss is no longer finite.
    """
    check_counts(
        batch_size=batch_size,
        steps=steps,
        microbatches=microbatches,
        data_shards=data_shards,
        max_documents=max_documents,
        vocabulary_rows=vocabulary_rows,
        log_every=log_every,
        evaluate_every=evaluate_every,
        checkpoint_every=checkpoint_every,
        keep_checkpoints=keep_checkpoints,
        heldout_tokens=heldout_tokens,
    )
    check_directories(run_dir, checkpoint_dir)
    if distributed:
        join_processes()
    elif jax.process_count() > 1:
        raise ValueError(
            f"There are {jax.process_count()} processes: set train.train.distributed = True, so "
            "that they save and stop together."
        )
    if evaluation_tasks is not None and jax.process_count() > 1:
        raise ValueError(
            "evaluation_tasks are scored by a single process: leave them out, and use evaluate.py."
        )
    console = make_console()
    if (warning := unused_models(config)) is not None:
        console.print("[bold red]warning[/]:", Text(warning))
    mesh = mesh()
    data = first_process_first(lambda: corpus(run_dir))
    console.print(data.summary, markup=False)
    learned = objective(data.ids)
    setup = make_setup(
        objective=learned,
        model=model(padded_vocabulary(data.ids, vocabulary_rows), learned.heads),
        optimizer=optimizer(steps),
        ids=data.ids,
        sequence_lengths=sequence_lengths,
        batch_size=batch_size,
        microbatches=microbatches,
        data_shards=data_shards,
        packing=packing,
        max_documents=max_documents,
        z_loss=z_loss,
        batch_shards=batch_shards(mesh),
        longest=data.longest,
    )
    print_plan(console, setup)

    recipe = setup.recipe
    _, marked = resolve(learned, packing, mark_document_ends)
    end = data.ids.eos if marked else None
    abstract = abstract_state(recipe.model, recipe.optimizer, abstract_batch(setup), mesh)
    batches = Batches(
        data.train,
        recipe.groups,
        setup.schedules,
        data_shards=data_shards,
        mesh=mesh,
        end_of_document=end,
        packing=setup.packing,
    )
    checkpoints = Checkpoints(checkpoint_dir or f"{run_dir}/checkpoints", keep_checkpoints)
    state = resume(console, run_dir, config, checkpoints, abstract, batches)
    if state is None:
        state = new_state(abstract, seed, mesh)
        if initial_run is not None:
            check_same_vocabulary(initial_run, run_dir)
            start = warm_start(initial_run, state)
            state = start.state
            console.print(start.describe(), markup=False)
    elif int(state.step) >= steps and reported(run_dir):
        checkpoints.close()
        console.print(
            f"\nThis run is finished: {int(state.step)} of {steps} steps, results in {run_dir}.\n"
            f"To go on, raise its steps (--gin.STEPS={2 * steps}), which stretches the learning "
            "rate's schedule to the new length; to start anew, give another directory "
            f"(--gin.RUN_DIR=\"'{run_dir.rstrip('/')}_2'\").",
            markup=False,
        )
        return
    if jax.process_index() == 0:
        save_config(run_dir, config)
    console.print(
        f"{parameter_count(state):,} parameters, {batch_size} rows a step, "
        f"mesh {dict(mesh.shape)} of {jax.devices()[0].device_kind}"
    )

    evaluator = Evaluator(
        recipe,
        setup.packing,
        mesh,
        data.heldout(heldout_tokens),
        data.train(0, 1),
        tokens=heldout_tokens,
        end_of_document=end,
    )
    score_tasks = functools.partial(
        downstream_scores,
        [] if evaluation_tasks is None else evaluation_tasks(run_dir),
        recipe,
        data,
    )
    writer = MetricsWriter(run_dir, int(state.step))
    with contextlib.closing(writer), contextlib.closing(checkpoints):
        state, scores = run_steps(
            Tools(
                *(console, checkpoints, batches, evaluator, score_tasks),
                *(writer, setup, abstract.shapes, mesh),
            ),
            state,
            steps=steps,
            seed=seed,
            log_every=log_every,
            evaluate_every=evaluate_every or steps,
            checkpoint_every=checkpoint_every or steps,
        )
    step = int(state.step)
    if step < steps:
        console.print(
            f"\nStopped at step {step} of {steps} as asked; a checkpoint is saved. "
            "The same command goes on from there."
        )
        return
    scores = scores or evaluator(state.params)  # none yet if it was killed after its last step
    print_scores(console, scores, step)
    if jax.process_index() == 0:
        plot_losses(run_dir, scores)
    if data.codec is not None:
        show_passages(
            *(console, recipe.objective, recipe.model, state.params, data.ids, data.codec.decode),
            [piece.tokens for piece in data.heldout(4000)],
            whole=setup.packing.policy == "single",
        )
    console.print(
        f"\nDone. {run_dir} holds loss.png, metrics.jsonl, tensorboard/, checkpoints/ and "
        f"config.gin. Next: `tensorboard --logdir={run_dir}` for the curves, or "
        f"`--gin.STEPS={2 * steps}` with the same command to train on, which stretches the "
        "learning rate's schedule to the new length.",
        markup=False,
    )


def first_process_first(prepare: Callable):
    """Hosts that share a disk find prepared what the first one left there."""
    if jax.process_count() == 1:
        return prepare()
    result = prepare() if jax.process_index() == 0 else None
    multihost_utils.sync_global_devices("prepared by the first process")
    return prepare() if result is None else result


def reported(run_dir: str) -> bool:
    """Whether the first process, which draws the plot, has done so; the same on all of them."""
    here = np.array(os.path.exists(f"{run_dir}/loss.png"))
    return bool(multihost_utils.broadcast_one_to_all(here))


def resume(
    console: Console,
    run_dir: str,
    config: str,
    checkpoints: Checkpoints,
    abstract: Abstract,
    batches: Batches,
) -> State | None:
    """The latest sound checkpoint's state, with `batches` put where it stood; None: start anew."""
    changed = changed_values(run_dir, config)
    try:
        restored = checkpoints.restore(abstract.shapes)
    except MismatchError as error:
        raise ValueError(
            f"The checkpoints in {run_dir} do not fit this configuration.\n"
            f"Values that differ from the run's config.gin:\n{_indented(changed or ['none'])}\n"
            f"Arrays that differ:\n{_indented(_first(str(error).splitlines(), 12))}\n"
            "Set the values back, or start anew in another run directory."
        ) from None
    if restored is None:
        return None
    for message in restored.damaged:
        console.print("[bold red]warning[/]:", Text(message))
    step = int(restored.state.step)
    try:
        batches.restore(step, restored.read)
    except (ValueError, OSError, KeyError) as error:
        raise ValueError(
            f"The data position of checkpoint {step} in {run_dir} does not fit: {error}\n"
            f"Values that differ from the run's config.gin:\n{_indented(changed or ['none'])}"
        ) from error
    console.print(f"Going on from the checkpoint of step {step}.")
    if changed:
        console.print(f"Values changed since:\n{_indented(changed)}", markup=False)
    return restored.state


def _first(lines: Sequence[str], most: int) -> list[str]:
    more = len(lines) - most
    return [*lines[:most], *([f"and {more} more"] if more > 0 else [])]


def _indented(lines: Sequence[str]) -> str:
    return "\n".join(f"  {line}" for line in lines)


class Tools(NamedTuple):
    """What the training loop works with."""

    console: Console
    checkpoints: Checkpoints
    batches: Batches
    evaluator: Evaluator
    score_tasks: Callable[[dict], dict[str, float]]
    writer: MetricsWriter
    setup: Setup
    shapes: State
    mesh: Mesh


def run_steps(
    tools: Tools,
    state: State,
    *,
    steps: int,
    seed: int,
    log_every: int,
    evaluate_every: int,
    checkpoint_every: int,
) -> tuple[State, list[Score]]:
    """Takes steps until `steps`, or until asked to stop by SIGTERM; logs, evaluates and saves."""
    take_step = compiled_step(tools.setup, seed, tools.shapes, tools.mesh)
    asked_to_stop = stop_on_sigterm()
    scores: list[Score] = []
    step = int(state.step)
    with StepProgress(tools.console, step, steps) as progress, placed_on(tools.mesh):
        monitor = Monitor(tools.setup, tools.writer, progress)
        while step < steps:
            state, metrics = take_step(state, next(tools.batches))
            step += 1
            monitor.add(step, metrics)
            stopping = asked_to_stop(step)
            saving = stopping or step == steps or step % checkpoint_every == 0
            # A checkpoint ends a line: a resumed run then writes the lines of an uninterrupted one.
            if saving or step % log_every == 0:
                monitor.report(step)
            if step == steps or step % evaluate_every == 0:
                scores = tools.evaluator(state.params)
                held_out = {f"heldout/{s.name}": s.loss for s in scores}
                baselines = {f"baseline/{s.name}": s.baseline for s in scores}
                with_tasks = tools.score_tasks(state.params)
                tools.writer.write(step, held_out | baselines | with_tasks)
                print_task_scores(tools.console, with_tasks, step)
                monitor.restart_clock()
            if saving:
                monitor.check()
                tools.checkpoints.save(state, tools.batches.state())
                monitor.restart_clock()
            if stopping:
                break
    tools.checkpoints.wait()
    return state, scores


def downstream_scores(
    tasks: Sequence[EvaluationTask], recipe: Recipe, data: Corpus, params
) -> dict[str, float]:
    """{"task/NAME/METRIC": figure, and "baseline/task/…"} of every task; nothing where there is none."""
    figures: dict[str, float] = {}
    if not tasks:
        return figures
    trained = Trained(
        *(recipe.model, params, data.ids, data.codec.encode, data.codec.decode),
        objective_names(),
        data.classes,
    )
    for task in tasks:
        options = Options(decoding=Decoding(max_new=short_answers(task, trained.encode)))
        found = score_task(trained, task, options=options)
        figures |= {f"task/{task.name}/{key}": value for key, value in found.metrics.items()}
        figures |= {f"baseline/task/{task.name}/{k}": v for k, v in found.baseline.items()}
    return figures


def stop_on_sigterm() -> Callable[[int], bool]:
    """A function of the step that says whether to save and stop; all processes agree on it."""
    if jax.process_count() > 1:
        return multihost_utils.reached_preemption_sync_point
    received = []
    signal.signal(signal.SIGTERM, lambda *_: received.append(True))
    return lambda step: bool(received)


if __name__ == "__main__":
    verbs.run("train")
