"""The tuning trials of a comparison: shorter trials, scored by their loss.

The directory of a tuning trial is tuning/VARIANT/VALUE/round_N/seed_S. Its result is kept in
tuning.jsonl, so a killed command can be continued.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from .. import corpora
from ..settings.partial import Partial
from ..training.heldout_scores import total_loss
from ..training.run import Run
from .comparison import Comparison, folder_of
from .facts import VariantFacts, planned_runs, write_facts
from .failures import failure_of, has_diverged
from .results import TuningTrial, read_tuning_trials, write_tuning_trials
from .trials import Trial, seeded, trusted_modules
from .tuning import Tuning, best_values, tuning_trial_steps, values_for, with_value
from .variants import TUNING


def tune(
    comparison: Comparison,
    facts: Mapping[str, VariantFacts],
    trusted: Sequence[str],
    run_all: Callable[[Sequence[Trial]], Any],
) -> dict[str, VariantFacts]:
    """Returns the facts of the variants, each with the value that its tuning trials have chosen.

    `run_all` trains the incomplete trials of a sequence, and waits for them.

    Raises ValueError if a tuning trial failed without divergence, or all trials of a variant
    diverged.
    """
    directory = comparison.directory
    pending = [variant for variant, planned in facts.items() if planned.tuned is None]
    if comparison.tuning is None or not pending:
        return dict(facts)
    tuning: Tuning = comparison.tuning()
    runs = planned_runs(facts, comparison)
    left = {variant: values_for(tuning, runs[variant]) for variant in pending}
    for number, _ in enumerate(tuning.shares):
        undecided = {variant: values for variant, values in left.items() if len(values) > 1}
        tuning_trials = [
            TuningTrial(variant, value, number, seed)
            for seed in tuning.seeds
            for variant, values in undecided.items()
            for value in values
        ]
        losses = _kept_losses(directory)
        missing = [
            _with_trial(directory, tuning, t, runs[t.variant], facts[t.variant], trusted)
            for t in tuning_trials
            if t[:4] not in losses
        ]
        if missing:
            run_all([trial for _, trial in missing])
            _keep(directory, missing)
            losses = _kept_losses(directory)
        for variant, values in undecided.items():
            means = {
                value: fmean(losses[variant, value, number, seed] for seed in tuning.seeds)
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
    return {tuning_trial[:4]: tuning_trial.loss for tuning_trial in read_tuning_trials(directory)}


def _with_trial(
    directory: str,
    tuning: Tuning,
    tuning_trial: TuningTrial,
    run: Run,
    facts: VariantFacts,
    trusted: Sequence[str],
) -> tuple[TuningTrial, Trial]:
    """Returns the tuning trial with its directory and steps, and the trial that trains it."""
    variant, value, number, seed, *_ = tuning_trial
    values = f"{TUNING}/{folder_of(variant)}/{folder_of(repr(value))}"
    folder = f"{values}/round_{number + 1}/seed_{seed}"
    steps = tuning_trial_steps(tuning.shares[number], facts.steps)
    name = f"{variant}, {value:g}, round {number + 1}"
    run = dataclasses.replace(
        with_value(tuning, run, value),
        corpus=Partial(corpora.validation_split, corpus=run.corpus),
        steps=steps,
        # A tuning trial is evaluated at its end, and its checkpoints are not used.
        evaluate_every=None,
        evaluation_tasks=None,
        keep_checkpoints=1,
        keep_every=None,
        keep_best=None,
    )
    run = seeded(run, seed, Path(directory, folder))
    trial = Trial(directory, name, seed, run, facts, (), trusted_modules(run, trusted))
    return tuning_trial._replace(run=folder, steps=steps), trial


def _keep(directory: str, tuning_trials: Sequence[tuple[TuningTrial, Trial]]) -> None:
    """Stores the results of tuning trials; raises ValueError naming the trials that failed."""
    ended = []
    failed = []
    for tuning_trial, trial in tuning_trials:
        run_dir = trial.run.run_dir
        state = trial.state
        if state.result is not None and state.is_trained:
            ended.append(tuning_trial._replace(loss=total_loss(state.result.scores)))
        elif has_diverged(run_dir):
            ended.append(tuning_trial._replace(error=failure_of(run_dir)))
        else:
            failed.append(f"\n  {trial.name}: {failure_of(run_dir)} ({run_dir})")
    write_tuning_trials(directory, [*read_tuning_trials(directory), *ended])
    if failed:
        raise ValueError(
            f"{len(failed)} of {len(tuning_trials)} tuning trials failed, so no value can be "
            f"chosen. The same command runs them again:{''.join(failed)}"
        )
