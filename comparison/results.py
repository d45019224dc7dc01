"""`Results`: what is kept of a comparison, as a value and as files.

    DIR/comparison.json   the question, the variants, the budget
    DIR/runs.jsonl        a line for each run: its cost, its learning curves, or why it failed
    DIR/results.jsonl     a line for each figure of each run, at its end and at checkpoints before,
                          with what the run had cost by then
    DIR/tuning.jsonl      of a comparison that is tuned, a line for each tuning trial

Reports are drawn from these alone, so that a comparison can be kept without its runs.
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
# what the names of curves begin with: losses, and metrics
HELDOUT = "heldout/"
METRIC = "metric/"

Curve = tuple[tuple[float, float], ...]  # (text tokens read, value), in order


class ComparisonSetup(NamedTuple):
    name: str
    question: str  # a sentence
    budget: str  # what was equal, in words: "400,000 text tokens"; several, if `scaling`
    variants: Mapping[str, Sequence[str]]  # by name, in order: what each changes of the base run
    reference: str | None = None  # the variant that others are compared with; None: all pairs
    about: str = ""  # what it follows, and what it cannot prove
    scaling: bool = False  # variants differ in budget: the question is a law, not which is better
    tuned: str = ""  # the setting that was chosen for each variant by tuning trials; "": none was
    shares: Sequence[float] = ()  # of a variant's steps, that the tuning trials of each round took
    # By variant, the peak or the constant learning rate; none where it is not known.
    learning_rates: Mapping[str, float] = {}
    looks: Sequence[int] = ()  # planned numbers of seeds, the last included; (): all at once
    wanted: Mapping[str, float] = {}  # by figure, the least difference that was worth knowing


class Spent(NamedTuple):
    """What the training of a run had taken by a step."""

    step: int
    text_tokens: int
    flops: float
    seconds: float  # without those of evaluation


class TrainedRun(NamedTuple):
    """What a variant with a seed cost, or why it failed."""

    variant: str
    seed: int
    run: str  # its directory, relative to that of the comparison, with "/"
    parameters: int = 0
    flops_per_token: float = 0.0  # of training, forward and backward, per token of text
    text_tokens: int = 0  # read in training
    steps: int = 0
    seconds: float = 0.0  # of training
    curves: Mapping[str, Curve] = {}  # by name, see `collecting.learning_curves`
    error: str = ""  # why it failed; "": it did not
    refusals: Mapping[str, str] = {}  # by the names of eval metrics: why they could not measure it

    @property
    def flops(self) -> float:
        return self.flops_per_token * self.text_tokens

    @property
    def spent(self) -> Spent:
        """What it took up to its end."""
        return Spent(self.steps, self.text_tokens, self.flops, self.seconds)


class TuningTrial(NamedTuple):
    """A run of a variant with a value of the setting that is tuned."""

    variant: str
    value: int | float
    round: int  # from 0
    seed: int
    run: str = ""  # as in `TrainedRun`
    steps: int = 0
    loss: float = math.nan  # its own, on training text that it held out; nan: training diverged
    error: str = ""  # why it failed, if it diverged


class Measurement(NamedTuple):
    variant: str
    seed: int
    run: str  # as in `TrainedRun`
    figure: Figure
    spent: Spent | None = None  # by a checkpoint before the end of its run; None: at the end


class Results(NamedTuple):
    setup: ComparisonSetup
    runs: Sequence[TrainedRun]
    measurements: Sequence[Measurement]  # at the ends of runs: what is compared
    tuning_trials: Sequence[TuningTrial] = ()  # in the order in which they were kept
    earlier: Sequence[Measurement] = ()  # at checkpoints before


def write(directory: str | Path, results: Results) -> None:
    """Writes the files of `results`, each whole or not at all.

    Lines come by variant in the comparison's order, then by seed, then by step; the figures of a
    checkpoint keep their order.
    """
    _check_variants(results)
    folder = Path(directory)
    variants = list(results.setup.variants)
    ends = {(run.variant, run.seed): run.spent for run in results.runs}

    def key(one: TrainedRun | Measurement) -> tuple[int, int]:
        return variants.index(one.variant), one.seed

    atomic_writes.write_record(folder / COMPARISON, results.setup._asdict())
    write_lines(folder / RUNS, [run._asdict() for run in sorted(results.runs, key=key)])
    by_step = sorted(results.earlier, key=lambda m: m.spent.step if m.spent else 0)
    lines = []
    for m in sorted((*by_step, *results.measurements), key=key):
        spent = m.spent or ends[m.variant, m.seed]
        of_run = {"variant": m.variant, "seed": m.seed, "run": m.run}
        lines.append(of_run | spent._asdict() | m.figure._asdict())
    write_lines(folder / RESULTS, lines)
    if results.tuning_trials:
        write_tuning_trials(directory, results.tuning_trials)


def write_tuning_trials(directory: str | Path, tuning_trials: Iterable[TuningTrial]) -> None:
    write_lines(Path(directory) / TRIALS, [tuning_trial._asdict() for tuning_trial in tuning_trials])


def read_tuning_trials(directory: str | Path) -> list[TuningTrial]:
    """Returns the tuning trials that were kept; none where there were none."""
    path = Path(directory) / TRIALS
    return (
        read_lines(path, lambda record: of_fields(TuningTrial, record, "loss")) if path.exists() else []
    )


def read(directory: str | Path) -> Results:
    """Returns what `write` wrote; a figure that was no finite number is nan.

    Raises ValueError, naming the file, where one is missing or damaged.
    """
    folder = Path(directory)
    setup = read_setup(directory)
    if setup is None:
        raise ValueError(
            f"{directory} holds no {COMPARISON}: expected the directory of a comparison, which "
            "`pretrax compare` writes."
        )
    runs = read_lines(folder / RUNS, _trained_run)
    ends = {(run.variant, run.seed): run.steps for run in runs}
    measured = read_lines(folder / RESULTS, functools.partial(_measurement, ends))
    results = Results(
        setup,
        runs,
        [one for one in measured if one.spent is None],
        tuple(read_tuning_trials(directory)),
        tuple(one for one in measured if one.spent is not None),
    )
    try:
        _check_variants(results)
    except ValueError as error:
        raise atomic_writes.damaged(folder / RESULTS, error) from error
    return results


def read_setup(directory: str | Path) -> ComparisonSetup | None:
    """Returns the setup of a comparison; None where it has no results.

    Raises ValueError, naming the file, where it is damaged.
    """
    path = Path(directory) / COMPARISON
    return read_record(path, _setup) if path.exists() else None


def _setup(record: Mapping[str, Any]) -> ComparisonSetup:
    setup = of_fields(ComparisonSetup, record)
    variants = {name: [*lines] for name, lines in setup.variants.items()}
    shares = tuple(setup.shares)
    looks = tuple(setup.looks)
    return setup._replace(variants=variants, shares=shares, looks=looks)


def _trained_run(record: Mapping[str, Any]) -> TrainedRun:
    curves = {name: tuple(map(tuple, points)) for name, points in record["curves"].items()}
    return TrainedRun(**{**record, "curves": curves})


def _measurement(ends: Mapping[tuple[str, int], int], record: Mapping[str, Any]) -> Measurement:
    """Returns what a line holds; one without a step, as they were first kept, is of the end."""
    figure = of_fields(Figure, {name: record[name] for name in Figure._fields}, "value")
    one = Measurement(record["variant"], record["seed"], record["run"], figure)
    if "step" not in record:
        return one
    spent = of_fields(Spent, {name: record[name] for name in Spent._fields})
    return one if spent.step == ends.get((one.variant, one.seed)) else one._replace(spent=spent)


def _check_variants(results: Results) -> None:
    names = {run.variant for run in results.runs}
    names |= {one.variant for some in (results.measurements, results.earlier) for one in some}
    if unknown := sorted(names - set(results.setup.variants)):
        known = ", ".join(results.setup.variants)
        raise ValueError(f"Got a run of {', '.join(unknown)}, expected one of {known}.")


def of_fields(kind: type[One], record: Mapping[str, Any], measured: str = "") -> One:
    """Returns the NamedTuple of these fields.

    Args:
      measured: the field of a measured number, which is None in JSON if it was not finite.

    Raises TypeError for other fields, and for a value that is not of its field's plain type.
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
    """Raises ValueError, naming the file and the line, where one is missing or damaged."""
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

    JSON has no numbers that are not finite: they are written as None.
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
