"""The trials of a comparison that is tuned: cells that are shorter, and scored by their own loss.

A trial's directory is tuning/VARIANT/VALUE/round_N/seed_S. What it came to is kept in tuning.jsonl,
from which a command that was killed continues.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from .. import corpora
from ..settings.bound import Bound
from ..training.evaluation import total_loss
from ..training.run import Run
from .cells import Cell, cell_of
from .comparison import Comparison, folder_of
from .facts import VariantFacts, runs_with, write_facts
from .failures import failure_of, has_diverged
from .results import Trial, read_trials, write_trials
from .tuning import Tuning, best_values, trial_steps, values_for, with_value
from .variants import TUNING


def tune(
    comparison: Comparison,
    facts: Mapping[str, VariantFacts],
    search_paths: Sequence[str],
    trusted: Sequence[str],
    run_all: Callable[[Sequence[Cell]], Any],
) -> dict[str, VariantFacts]:
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
    left = {variant: values_for(tuning, runs[variant]) for variant in pending}
    for number, _ in enumerate(tuning.shares):
        several = {variant: values for variant, values in left.items() if len(values) > 1}
        trials = [
            Trial(variant, value, number, seed)
            for seed in tuning.seeds
            for variant, values in several.items()
            for value in values
        ]
        kept = _kept_losses(directory)
        missing = [
            _with_cell(directory, tuning, one, runs[one.variant], facts[one.variant], trusted)
            for one in trials
            if one[:4] not in kept
        ]
        if missing:
            run_all([cell for _, cell in missing])
            _keep(directory, missing)
            kept = _kept_losses(directory)
        for variant, values in several.items():
            means = {
                value: fmean(kept[variant, value, number, seed] for seed in tuning.seeds)
                for value in values
            }
            try:
                left[variant] = best_values(tuning, means)
            except ValueError as error:
                raise ValueError(f"The variant {variant!r}: {error}") from error
    chosen = dict(facts)
    for variant, (value,) in left.items():
        chosen[variant] = facts[variant]._replace(tuned=value)
        write_facts(directory, variant, chosen[variant])
    return chosen


def _kept_losses(directory: str) -> dict[tuple[str, float, int, int], float]:
    """Returns the losses that were kept, by variant, value, round and seed."""
    return {trial[:4]: trial.loss for trial in read_trials(directory)}


def _with_cell(
    directory: str, tuning: Tuning, trial: Trial, run: Run, facts: VariantFacts, trusted: Sequence[str]
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
        state = cell.state
        if state.result is not None and state.is_trained:
            ended.append(trial._replace(loss=total_loss(state.result.scores)))
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
