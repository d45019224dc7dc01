"""The trials of a comparison that is tuned: cells that are shorter, and scored by their own loss.

A trial's directory is tuning/VARIANT/VALUE/round_N/seed_S. What it came to is kept in tuning.jsonl,
from which a command that was killed continues.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from .. import corpora
from ..settings import run_directory, whole_files
from ..settings.bound import Bound
from ..training.evaluation import Score, total_loss
from ..training.run import Run
from .cells import Cell, cell_of
from .comparison import Comparison, folder_of
from .facts import Facts, runs_with, write_facts
from .failures import failure_of, has_diverged
from .results import Trial, read_trials, write_trials
from .tuning import Standing, Tuning, standing, trial_steps, values_for, with_value
from .variants import TUNING


def tune(
    comparison: Comparison,
    facts: Mapping[str, Facts],
    search_paths: Sequence[str],
    trusted: Sequence[str],
    run_all: Callable[[Sequence[Cell]], Any],
) -> dict[str, Facts]:
    """Returns the facts of the variants, each with the value that its trials have chosen.

    Args:
      run_all: trains those of some cells that are not complete, and returns once they have ended.

    Raises ValueError where a trial failed otherwise than by diverging, and for a variant all of
    whose trials diverged.
    """
    c = comparison
    directory = comparison.directory
    pending = {variant: one for variant, one in facts.items() if one.tuned is None}
    if c.tuning is None or not pending:
        return dict(facts)
    tuning: Tuning = c.tuning()
    runs = runs_with(facts, c, search_paths)
    values = {variant: values_for(tuning, runs[variant]) for variant in pending}

    def trials_of(stands: Mapping[str, Standing]) -> list[tuple[Trial, Cell]]:
        """Returns the trials of the rounds that are open, but those that were kept."""
        kept = {trial[:4] for trial in read_trials(directory)}
        trials = [
            Trial(variant, value, stand.round, seed)
            for seed in tuning.seeds
            for variant, stand in stands.items()
            if stand.chosen is None
            for value in stand.values
        ]
        return [
            _with_cell(directory, tuning, one, runs[one.variant], facts[one.variant], trusted)
            for one in trials
            if one[:4] not in kept
        ]

    while trials := trials_of(stands := _standings(directory, tuning, values)):
        run_all([cell for _, cell in trials])
        _keep(directory, trials)
    chosen = dict(facts)
    for variant, stand in stands.items():
        chosen[variant] = facts[variant]._replace(tuned=stand.chosen)
        write_facts(directory, variant, chosen[variant])
    return chosen


def _standings(
    directory: str, tuning: Tuning, values: Mapping[str, Sequence[float]]
) -> dict[str, Standing]:
    """Returns how far the choice of each variant has come, by the trials that were kept."""
    losses: dict[str, dict[tuple[int, float], list[float]]] = {variant: {} for variant in values}
    for one in read_trials(directory):
        if one.variant in losses:
            losses[one.variant].setdefault((one.round, one.value), []).append(one.loss)
    stands = {}
    for variant, some in losses.items():
        means = {k: fmean(x) for k, x in some.items() if len(x) == len(tuning.seeds)}
        try:
            stands[variant] = standing(tuning, values[variant], means)
        except ValueError as error:
            raise ValueError(f"The variant {variant!r}: {error}") from error
    return stands


def _with_cell(
    directory: str, tuning: Tuning, trial: Trial, run: Run, facts: Facts, trusted: Sequence[str]
) -> tuple[Trial, Cell]:
    """Returns a trial with its directory and steps, and its cell."""
    variant = trial.variant
    value = trial.value
    seed = trial.seed
    parts = folder_of(variant), folder_of(repr(value)), f"round_{trial.round + 1}", f"seed_{seed}"
    folder = "/".join((TUNING, *parts))
    steps = trial_steps(tuning.shares[trial.round], facts.steps)
    name = f"{variant}, {value:g}, round {trial.round + 1}"
    run = with_value(tuning, run, value)
    cell = cell_of(directory, folder, name, seed, run, facts, (), trusted)
    run = dataclasses.replace(
        cell.run,
        corpus=Bound(corpora.validation_split, corpus=cell.run.corpus),
        steps=steps,
        # It is evaluated at its end, and of no use after.
        evaluate_every=None,
        evaluation_tasks=None,
        keep_checkpoints=1,
        keep_every=None,
        keep_best=None,
    )
    return trial._replace(run=folder, steps=steps), cell._replace(run=run)


def _keep(directory: str, trials: Sequence[tuple[Trial, Cell]]) -> None:
    """Keeps what trials came to; raises ValueError naming those that came to nothing."""
    ended = []
    failed = []
    for trial, cell in trials:
        run_dir = cell.run.run_dir
        if cell.state.is_trained:
            ended.append(trial._replace(loss=heldout_loss(run_dir)))
        elif has_diverged(run_dir):
            ended.append(trial._replace(error=failure_of(run_dir)))
        else:
            failed.append(f"\n  {cell.name}: {failure_of(run_dir)} ({run_dir})")
    write_trials(directory, [*read_trials(directory), *ended])
    if failed:
        raise ValueError(
            f"{len(failed)} of {len(trials)} trials failed, without which nothing is chosen; the "
            f"same command runs them again:{''.join(failed)}"
        )


def heldout_loss(run_dir: str) -> float:
    """Returns the loss that a run trained, on held-out text: see `total_loss`."""

    def loss(record: Mapping[str, Any]) -> float:
        return total_loss([Score(**score) for score in record["scores"]])

    return whole_files.read_record(f"{run_dir}/{run_directory.RESULT}", loss)
