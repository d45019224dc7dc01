"""`Results`: the results of a comparison, as a value and as files.

- `DIR/comparison.json`: the question, the variants and the budget.
- `DIR/runs.jsonl`: a line for each run with its cost and learning curves, or the reason of its
  failure.
- `DIR/results.jsonl`: a line for each figure of each measured checkpoint of each run, with the cost
  of the run up to the checkpoint.
- `DIR/tuning.jsonl`: a line for each tuning trial, if the comparison is tuned.

Reports need only these files, so a comparison can be kept without its runs.
"""

import functools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..settings import atomic_writes
from ..settings.atomic_writes import UNLIKE, One, read_record
from .figures import Figure

COMPARISON = "comparison.json"
RUNS = "runs.jsonl"
RESULTS = "results.jsonl"
TRIALS = "tuning.jsonl"
HELDOUT = "heldout/"  # prefix of the names of held-out losses among the learning curves
METRIC = "metric/"  # prefix of the names of held-out metrics

Curve = tuple[tuple[float, float], ...]  # (text tokens read, value), in order


class ComparisonSetup(NamedTuple):
    """The settings of a comparison that its report needs."""

    name: str
    question: str  # the question that the comparison answers, as a sentence
    budget: str  # the equal budget as text, "400,000 text tokens"; all budgets if `scaling`
    variants: Mapping[str, Sequence[str]]  # name of a variant -> lines that change the base run
    # The variant that others are compared with. None: all pairs are compared.
    reference: str | None = None
    about: str = ""  # the papers that it follows, and its limitations
    scaling: bool = False  # whether variants differ in budget, for a scaling law
    tuned: str = ""  # the setting that tuning trials chose for each variant; "" without tuning
    # Share of the variant's steps that a tuning trial takes, by round.
    shares: Sequence[float] = ()
    # The (peak) learning rate by variant, if known.
    learning_rates: Mapping[str, float] = {}
    looks: Sequence[int] = ()  # planned numbers of seeds, including the last; () without looks
    smallest_effects: Mapping[str, float] = {}  # the smallest difference that matters, by figure


class TrainingCost(NamedTuple):
    """The cost of a run's training up to a step."""

    step: int
    text_tokens: int  # number of text tokens read
    flops: float
    seconds: float  # seconds of training, without evaluation


class TrainedRun(NamedTuple):
    variant: str
    seed: int
    run: str  # the run directory, relative to the directory of the comparison, with "/"
    parameters: int = 0
    flops_per_token: float = 0.0  # training FLOPs, forward and backward, per text token
    text_tokens: int = 0  # number of text tokens read in training
    steps: int = 0
    seconds: float = 0.0  # seconds of training
    curves: Mapping[str, Curve] = {}  # the curves of `collecting.learning_curves`, by name
    error: str = ""  # the reason of the failure, or ""
    refusals: Mapping[str, str] = {}  # eval metric -> why it could not measure the run

    @property
    def flops(self) -> float:
        return self.flops_per_token * self.text_tokens

    @property
    def cost(self) -> TrainingCost:
        return TrainingCost(self.steps, self.text_tokens, self.flops, self.seconds)


class TuningTrial(NamedTuple):
    """A short run of a variant with one value of the tuned setting."""

    variant: str
    value: int | float
    round: int  # number of the round, from 0
    seed: int
    run: str = ""  # the run directory, relative to the directory of the comparison, with "/"
    steps: int = 0
    loss: float = math.nan  # loss on its held-out text; nan if training diverged
    error: str = ""  # the reason of the failure, if training diverged


class Measurement(NamedTuple):
    """A figure of a run, at its end or at an earlier checkpoint."""

    variant: str
    seed: int
    run: str  # the run directory, relative to the directory of the comparison, with "/"
    figure: Figure
    cost: TrainingCost | None = (
        None  # the cost up to an earlier checkpoint; None at the end of the run
    )


class Results(NamedTuple):
    setup: ComparisonSetup
    runs: Sequence[TrainedRun]
    measurements: Sequence[Measurement]  # measurements at the ends of runs, which are compared
    tuning_trials: Sequence[TuningTrial] = ()  # in the order in which they were kept
    earlier: Sequence[Measurement] = ()  # measurements at earlier checkpoints


def write(directory: str | Path, results: Results) -> None:
    """Writes the files of `results`, each of them atomically.

    Lines are ordered by variant (in the comparison's order), seed and step. The figures of a
    checkpoint keep their order.
    """
    _check_variants(results)
    folder = Path(directory)
    variants = list(results.setup.variants)
    ends = {(run.variant, run.seed): run.cost for run in results.runs}

    def key(entry: TrainedRun | Measurement) -> tuple[int, int]:
        return variants.index(entry.variant), entry.seed

    atomic_writes.write_record(folder / COMPARISON, results.setup._asdict())
    write_lines(folder / RUNS, [run._asdict() for run in sorted(results.runs, key=key)])
    by_step = sorted(results.earlier, key=lambda m: m.cost.step if m.cost else 0)
    lines = []
    for m in sorted((*by_step, *results.measurements), key=key):
        cost = m.cost or ends[m.variant, m.seed]
        run_fields = {"variant": m.variant, "seed": m.seed, "run": m.run}
        lines.append(run_fields | cost._asdict() | m.figure._asdict())
    write_lines(folder / RESULTS, lines)
    if results.tuning_trials:
        write_tuning_trials(directory, results.tuning_trials)


def write_tuning_trials(directory: str | Path, tuning_trials: Iterable[TuningTrial]) -> None:
    write_lines(
        Path(directory) / TRIALS, [tuning_trial._asdict() for tuning_trial in tuning_trials]
    )


def read_tuning_trials(directory: str | Path) -> list[TuningTrial]:
    path = Path(directory) / TRIALS
    return (
        read_lines(path, lambda record: from_fields(TuningTrial, record, "loss"))
        if path.exists()
        else []
    )


def read(directory: str | Path) -> Results:
    """Returns the results that `write` wrote; a figure that was not finite is nan.

    Raises ValueError, naming the file, if a file is missing or damaged.
    """
    folder = Path(directory)
    setup = read_setup(directory)
    if setup is None:
        raise ValueError(
            f"{directory} has no {COMPARISON}: expected the directory of a comparison (`pretrax "
            "compare`)."
        )
    runs = read_lines(folder / RUNS, _trained_run)
    ends = {(run.variant, run.seed): run.steps for run in runs}
    measured = read_lines(folder / RESULTS, functools.partial(_measurement, ends))
    results = Results(
        setup,
        runs,
        [measurement for measurement in measured if measurement.cost is None],
        tuple(read_tuning_trials(directory)),
        tuple(measurement for measurement in measured if measurement.cost is not None),
    )
    try:
        _check_variants(results)
    except ValueError as error:
        raise atomic_writes.damaged(folder / RESULTS, error) from error
    return results


def read_setup(directory: str | Path) -> ComparisonSetup | None:
    """Returns the setup of a comparison, or None without results.

    Raises ValueError, naming the file, if it is damaged.
    """
    path = Path(directory) / COMPARISON
    return read_record(path, _setup) if path.exists() else None


def _setup(record: Mapping[str, Any]) -> ComparisonSetup:
    setup = from_fields(ComparisonSetup, record)
    variants = {name: [*lines] for name, lines in setup.variants.items()}
    shares = tuple(setup.shares)
    looks = tuple(setup.looks)
    return setup._replace(variants=variants, shares=shares, looks=looks)


def _trained_run(record: Mapping[str, Any]) -> TrainedRun:
    curves = {name: tuple(map(tuple, points)) for name, points in record["curves"].items()}
    return TrainedRun(**{**record, "curves": curves})


def _measurement(ends: Mapping[tuple[str, int], int], record: Mapping[str, Any]) -> Measurement:
    """Returns the measurement of a line. In older files, lines have no step (end of the run)."""
    figure = from_fields(Figure, {name: record[name] for name in Figure._fields}, "value")
    at_end = Measurement(record["variant"], record["seed"], record["run"], figure)
    if "step" not in record:
        return at_end
    cost = from_fields(TrainingCost, {name: record[name] for name in TrainingCost._fields})
    is_end = cost.step == ends.get((at_end.variant, at_end.seed))
    return at_end if is_end else at_end._replace(cost=cost)


def _check_variants(results: Results) -> None:
    names = {run.variant for run in results.runs}
    names |= {measurement.variant for measurement in (*results.measurements, *results.earlier)}
    if unknown := sorted(names - set(results.setup.variants)):
        known = ", ".join(results.setup.variants)
        raise ValueError(f"Got runs of {', '.join(unknown)}, expected variants among {known}.")


def from_fields(kind: type[One], record: Mapping[str, Any], measured: str = "") -> One:
    """Returns the NamedTuple with the fields of a JSON record.

    The number in the field `measured` is null in JSON if it is not finite.

    Raises TypeError for unknown fields, and for a value that is not of its field's plain type.
    """
    if measured:
        number = record[measured]
        record = {**record, measured: math.nan if number is None else float(number)}
    value = kind(**record)
    for name, expected in kind.__annotations__.items():
        if isinstance(expected, type) and type(getattr(value, name)) is not expected:
            raise TypeError(f"{name} is {getattr(value, name)!r}")
    return value


def read_lines(path: Path, build: Callable[[Mapping[str, Any]], One]) -> list[One]:
    """Returns what `build` makes of each line of a file that `write_lines` wrote.

    Raises ValueError, naming the file and the line, if a file is missing or a line is damaged.
    """
    if not path.exists():
        raise atomic_writes.damaged(path, "it is missing")
    built = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            record = atomic_writes.without_checksum(atomic_writes.parse_json(line))
            built.append(build(record))
        except UNLIKE as error:
            raise atomic_writes.damaged(path, f"line {number}: {error}") from error
    return built


def write_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Writes a line for each record, with a checksum that `read_lines` checks.

    Numbers that are not finite are written as null, since JSON does not have them.
    """
    sealed = (atomic_writes.sealed(_finite(record)) for record in records)
    lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in sealed)
    atomic_writes.write_text(path, "".join(lines))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
