"""`Results`: the runs of a comparison and what was measured of them, as a value and as files.

    DIR/comparison.json   what was asked: the question, the variants, the budget
    DIR/runs.jsonl        a line for each run: its cost, its learning curves, or why it failed
    DIR/results.jsonl     a line for each figure of each run

Reports are drawn from these three alone, so that a comparison can be kept without its runs.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ..data import whole_files
from ..training import run_directory
from ..training.reporting.metrics import read_metrics
from .figures import Figure

COMPARISON, RUNS, RESULTS = "comparison.json", "runs.jsonl", "results.jsonl"
POINTS = 60  # of a learning curve that is kept, at most
DIGITS = 5  # significant ones of a learning curve
HELDOUT, METRIC = "heldout/", "metric/"  # what the names of curves begin with: losses, and metrics

# Errors of what takes apart a value of JSON that is other than expected.
UNLIKE = (ValueError, TypeError, KeyError, AttributeError)

One = TypeVar("One")

Curve = tuple[tuple[float, float], ...]  # (text tokens seen, value), in order


class ComparisonSetup(NamedTuple):
    """What a comparison asks, in words and names."""

    name: str
    question: str  # a sentence
    budget: str  # what was equal, in words: "400,000 text tokens"; several, if `scaling`
    variants: Mapping[str, Sequence[str]]  # by name, in order: what each changes of the base run
    reference: str | None = None  # the variant that others are compared with; None: all pairs
    about: str = ""  # what it follows, and what it cannot prove
    scaling: bool = False  # variants differ in budget: a law is asked for, not which is better


class TrainedRun(NamedTuple):
    """One variant trained with one seed: what it cost, or why it failed."""

    variant: str
    seed: int
    run: str  # its directory, relative to that of the comparison, with "/"
    parameters: int = 0
    flops_per_token: float = 0.0  # of training, forward and backward, per token of text
    text_tokens: int = 0  # seen in training
    steps: int = 0
    seconds: float = 0.0  # of training
    curves: Mapping[str, Curve] = {}  # by name, see `learning_curves`
    error: str = ""  # why it failed; "": it did not
    refusals: Mapping[str, str] = {}  # by the names of yardsticks: why they could not measure it


class Measurement(NamedTuple):
    """One figure of one run."""

    variant: str
    seed: int
    run: str  # as in `TrainedRun`
    figure: Figure


class Results(NamedTuple):
    asked: ComparisonSetup
    runs: Sequence[TrainedRun]
    measurements: Sequence[Measurement]


def write(directory: str | Path, results: Results) -> None:
    """Writes the three files of `results`, sorted, each whole or not at all.

    Lines come by variant in the comparison's order, then by seed; the figures of a run keep theirs.
    """
    folder = Path(directory)
    order = {name: k for k, name in enumerate(results.asked.variants)}

    def key(one: TrainedRun | Measurement) -> tuple[int, int]:
        return order[one.variant], one.seed

    _check_variants(results)
    whole_files.write_json(folder / COMPARISON, results.asked._asdict())
    runs = [one._asdict() for one in sorted(results.runs, key=key)]
    _write_lines(folder / RUNS, runs)
    lines = [
        {"variant": m.variant, "seed": m.seed, "run": m.run}
        | m.figure._asdict()
        | {"value": m.figure.value if math.isfinite(m.figure.value) else None}
        for m in sorted(results.measurements, key=key)
    ]
    _write_lines(folder / RESULTS, lines)


def read(directory: str | Path) -> Results:
    """Returns what `write` wrote; a figure that was no finite number is nan.

    Raises ValueError, naming the file, where one is missing or damaged, and for runs of other variants
    than those that were asked for.
    """
    folder = Path(directory)
    if not (folder / COMPARISON).exists():
        raise ValueError(
            f"{directory} holds no {COMPARISON}: expected the directory of a comparison, which "
            "`pretrax compare` writes."
        )
    asked = read_record(folder / COMPARISON, _question)
    runs, measurements = read_lines(folder / RUNS, _run), read_lines(folder / RESULTS, _measured)
    found = Results(asked, runs, measurements)
    try:
        _check_variants(found)
    except ValueError as error:
        raise whole_files.damaged(folder / RESULTS, error) from error
    return found


def _check_variants(results: Results) -> None:
    """Raises ValueError for runs and figures of variants that were not asked for."""
    unknown = {one.variant for one in results.runs} | {m.variant for m in results.measurements}
    if unknown := unknown - set(results.asked.variants):
        raise ValueError(
            f"Got a run of {', '.join(sorted(unknown))}, expected one of "
            f"{', '.join(results.asked.variants)}."
        )


def read_record(path: Path, build: Callable[[Any], One]) -> One:
    """Returns what `build` makes of the value of a JSON file.

    Raises ValueError, naming the file, where it is damaged, or holds what `build` cannot take, as one
    that another version wrote may.
    """
    value = whole_files.read_json(path)
    try:
        return build(value)
    except UNLIKE as error:
        raise whole_files.damaged(path, error) from error


def read_figure(record: Mapping[str, Any]) -> Figure:
    """Returns the figure of its fields; None as its value, which was no finite number, becomes nan."""
    figure = Figure(**record)
    return figure._replace(value=math.nan if figure.value is None else float(figure.value))


def learning_curves(run_dir: str | Path) -> dict[str, Curve]:
    """Returns what a run logged while it trained, over the tokens of text it had seen.

    "loss" is its training loss; "heldout/…" is there where held-out text was evaluated more than once,
    and "metric/…" of what is no loss, such as an accuracy. Curves of many points are means over
    `POINTS` stretches of equally many points, so that little noise and few bytes remain. Points that are
    not finite are left out.
    """
    entries, metrics = read_metrics(run_dir), _metrics(run_dir)
    tokens, seen, step = {0.0: 0.0}, 0.0, 0.0
    for entry in entries:  # an entry's text tokens are those of a step, on average since the last
        if "text_tokens" in entry:
            seen += entry["text_tokens"] * (entry["step"] - step)
            step = entry["step"]
            tokens[step] = seen
    names = dict.fromkeys(
        name for entry in entries for name in entry if name == "loss" or name.startswith(HELDOUT)
    )
    curves = {
        METRIC + name.removeprefix(HELDOUT) if name in metrics else name: [
            (tokens[e["step"]], e[name])
            for e in entries
            if math.isfinite(e.get(name, math.nan)) and e["step"] in tokens
        ]
        for name in names
    }
    return {name: _thinned(points) for name, points in curves.items() if len(points) > 1}


def _metrics(run_dir: str | Path) -> set[str]:
    """Returns what a run that is finished has logged of held-out text that is no loss."""
    path = Path(run_dir) / run_directory.RESULT
    scores = whole_files.read_json(path)["scores"] if path.exists() else []
    return {f"{HELDOUT}{one['member']}/{one['term']}" for one in scores if one["metric"]}


def _thinned(points: Sequence[tuple[float, float]]) -> Curve:
    bins = np.array_split(np.array(points), min(POINTS, len(points)))
    means = [np.mean(one, axis=0) for one in bins]
    return tuple((float(round(x)), float(f"{y:.{DIGITS}g}")) for x, y in means)


def _question(record: Mapping[str, Any]) -> ComparisonSetup:
    asked = ComparisonSetup(**record)
    for name in ("name", "question", "budget", "about"):
        if not isinstance(getattr(asked, name), str):
            raise TypeError(f"{name} is {getattr(asked, name)!r}")
    if type(asked.scaling) is not bool:
        raise TypeError(f"scaling is {asked.scaling!r}")
    return asked._replace(variants={name: [*lines] for name, lines in asked.variants.items()})


def _run(line: Mapping[str, Any]) -> TrainedRun:
    curves = {name: tuple((x, y) for x, y in points) for name, points in line["curves"].items()}
    return TrainedRun(**{**line, "curves": curves})


def _measured(line: Mapping[str, Any]) -> Measurement:
    figure = read_figure({name: line[name] for name in Figure._fields})
    return Measurement(line["variant"], line["seed"], line["run"], figure)


def _write_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    whole_files.write_text(path, "".join(lines))


def read_lines(path: Path, build: Callable[[Mapping[str, Any]], One]) -> list[One]:
    """Raises ValueError, naming the file and the line, where one is missing or damaged."""
    if not path.exists():
        raise whole_files.damaged(path, "it is missing")
    built = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            built.append(build(json.loads(line)))
        except UNLIKE as error:
            raise whole_files.damaged(path, f"line {number}: {error}") from error
    return built
