"""Collects the results of a comparison from the directories of its trials."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from ..settings.partial import flattened
from ..training.optimizers import learning_rate_of
from .budgets import budget_words
from .comparison import Comparison, trained_variants
from .facts import VariantFacts
from .failures import failure_of
from .figures import Figure, labeled, settings_in_words
from .results import (
    HELDOUT,
    METRIC,
    ComparisonSetup,
    Curve,
    Measurement,
    Results,
    TrainedRun,
    TrainingCost,
    read_tuning_trials,
)
from .trials import Trial, TrialState
from .tuning import line_of

POINTS = 60  # maximum number of points of a learning curve
DIGITS = 5  # number of significant digits of a learning curve


def results_of(comparison: Comparison, trials: Sequence[Trial]) -> Results:
    """Returns the trained and failed runs of trials, and their figures."""
    variants = trained_variants(comparison)
    rates = {trial.variant: peak_learning_rate(trial.run.optimizer) for trial in trials}
    tuning = None if comparison.tuning is None else comparison.tuning()
    lines = {name: [*variant.lines] for name, variant in variants.items()}
    for variant, facts in {trial.variant: trial.facts for trial in trials}.items():
        if tuning is not None and facts.tuned is not None:
            lines[variant].append(line_of(tuning, facts.tuned))
        if facts.solved:
            lines[variant].append(facts.solved)
    setup = ComparisonSetup(
        name=Path(comparison.directory).name,
        question=comparison.question,
        budget=budget_words(comparison.budget),
        variants=lines,
        reference=comparison.reference,
        about=comparison.about,
        scaling=comparison.has_budgets,
        tuned=tuning.parameter if tuning else "",
        shares=tuple(tuning.shares) if tuning else (),
        learning_rates={name: rate for name, rate in rates.items() if rate is not None},
        looks=comparison.planned_looks,
        smallest_effects=comparison.smallest_effects or {},
    )
    states = [trial.state for trial in trials]
    ended = [s for s in states if failure_of(s.trial.run.run_dir) or s.is_trained]
    ended.sort(key=lambda state: list(variants).index(state.trial.variant))
    runs = [_trained_run(state) for state in ended]
    measured = _measurements(ended, runs)
    return Results(
        setup,
        runs,
        [m for m in measured if m.cost is None],
        read_tuning_trials(comparison.directory),
        tuple(m for m in measured if m.cost is not None),
    )


def peak_learning_rate(optimizer: Callable) -> float | None:
    """Returns the (peak) learning rate of an optimizer, or None if unknown.

    >>> from pretrax.training.run_configuration import read_run
    >>> peak_learning_rate(read_run(["runs/decoder.gin"]).optimizer)
    0.1
    """
    settings = dict(flattened("rate", learning_rate_of(optimizer)))
    peaks = (settings.get(path) for path in ("rate", "rate.peak", "rate.scale"))
    return next((peak for peak in peaks if isinstance(peak, int | float)), None)


def _measurements(states: Sequence[TrialState], runs: Sequence[TrainedRun]) -> list[Measurement]:
    """Returns the figures of trials. Figures of the same name can be compared.

    If an eval metric has several units or settings, they are part of the figures' names, such as
    "norm (power=4)".
    """
    measures = [measure for state, run in zip(states, runs) for measure in _measured(state, run)]
    units: dict[str, set[str]] = {}
    for *_, figures in measures:
        units.setdefault(figures[0].name, set()).add(figures[0].unit)
    measurements = []
    for trial, cost, eval_metric, figures in measures:
        words = settings_in_words(eval_metric, trial.eval_metrics)
        words += [figures[0].unit] if len(units[figures[0].name]) > 1 else []
        for figure in figures:
            named = figure._replace(name=labeled(figure.name, words))
            measurements.append(Measurement(trial.variant, trial.seed, trial.folder, named, cost))
    return measurements


def _measured(
    state: TrialState, run: TrainedRun
) -> Iterator[tuple[Trial, TrainingCost | None, Callable, Sequence[Figure]]]:
    """Yields the figures of each eval metric at each checkpoint, with the cost before the end."""
    trial = state.trial
    for step, step_results in state.measured.items():
        cost = None if step == trial.run.steps else cost_at(run, state.metrics, step)
        for eval_metric, measured in zip(trial.eval_metrics, step_results):
            if measured is not None and measured.figures:
                yield trial, cost, eval_metric, measured.figures


def cost_at(run: TrainedRun, entries: Sequence[Mapping[str, float]], step: int) -> TrainingCost:
    logged = tokens_by_step(entries)
    tokens = float(np.interp(step, [*logged], [*logged.values()]))
    until = [entry for entry in entries if entry["step"] <= step]
    return TrainingCost(
        step, round(tokens), run.flops * step / run.steps, tokens * seconds_per_token(until)
    )


def _trained_run(state: TrialState) -> TrainedRun:
    trial = state.trial
    facts = trial.facts
    logged = tokens_by_step(state.metrics)
    tokens = max(logged.values())
    return TrainedRun(
        trial.variant,
        trial.seed,
        trial.folder,
        parameters=facts.parameters,
        flops_per_token=run_flops_per_token(facts, logged),
        text_tokens=round(tokens),
        steps=facts.steps,
        seconds=tokens * seconds_per_token(state.metrics),
        curves=learning_curves(state.metrics, state.evaluation_metrics),
        error="" if state.is_complete else failure_of(trial.run.run_dir),
        refusals=state.refusals,
    )


def run_flops_per_token(facts: VariantFacts, logged: Mapping[float, float]) -> float:
    """Returns the FLOPs of a run per token that it logged, or else per planned token."""
    step, tokens = max(logged.items())
    return facts.flops_per_step * step / tokens if tokens else facts.flops_per_token


def tokens_by_step(entries: Sequence[Mapping[str, float]]) -> dict[float, float]:
    """Returns the number of text tokens that a run has read, by logged step.

    The `text_tokens` of an entry are the mean number per step since the previous entry.

    >>> tokens_by_step([{"step": 2, "text_tokens": 10}, {"step": 3, "text_tokens": 8}])
    {0.0: 0.0, 2: 20.0, 3: 28.0}
    """
    tokens = {0.0: 0.0}
    for entry, read in _tokens_read(entries):
        tokens[entry["step"]] = tokens[max(tokens)] + read
    return tokens


def seconds_per_token(entries: Sequence[Mapping[str, float]]) -> float:
    """Returns the mean seconds per text token of the steps with a logged speed, or 0."""
    tokens = 0.0
    seconds = 0.0
    for entry, read in _tokens_read(entries):
        if speed := entry.get("tokens_per_second"):
            tokens += read
            seconds += read / speed
    return seconds / tokens if tokens else 0.0


def _tokens_read(
    entries: Sequence[Mapping[str, float]],
) -> Iterator[tuple[Mapping[str, float], float]]:
    """Yields each entry that counts text tokens, with the tokens since the previous such entry."""
    step = 0.0
    for entry in entries:
        if "text_tokens" in entry:
            yield entry, entry["text_tokens"] * (entry["step"] - step)
            step = entry["step"]


def learning_curves(
    entries: Sequence[Mapping[str, float]], evaluation_metrics: Collection[str] = ()
) -> dict[str, Curve]:
    """Returns the learning curves of a run over the number of text tokens read.

    "loss" is the training loss, "heldout/…" a held-out loss that was evaluated more than once, and
    "metric/…" a held-out metric, such as an accuracy. Long curves are reduced to the means of
    `POINTS` equal groups of finite points.

    Args:
      entries: the logged metrics of the run, oldest first.
      evaluation_metrics: the logged names of held-out metrics.
    """
    tokens = tokens_by_step(entries)
    names = dict.fromkeys(
        name for entry in entries for name in entry if name == "loss" or name.startswith(HELDOUT)
    )
    curves = {
        METRIC + name.removeprefix(HELDOUT) if name in evaluation_metrics else name: [
            (tokens[e["step"]], e[name])
            for e in entries
            if math.isfinite(e.get(name, math.nan)) and e["step"] in tokens
        ]
        for name in names
    }
    return {name: _thinned(points) for name, points in curves.items() if len(points) > 1}


def _thinned(points: Sequence[tuple[float, float]]) -> Curve:
    bins = np.array_split(np.array(points), min(POINTS, len(points)))
    means = [np.mean(group, axis=0) for group in bins]
    return tuple((float(round(x)), float(f"{y:.{DIGITS}g}")) for x, y in means)
