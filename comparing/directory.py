"""The files of a comparison's directory.

comparison.gin            the comparison
shared/                   its vocabulary and tokens, of which each run has hard links
runs/VARIANT/facts.json   a variant's settings, the steps that the budget gave, its size and cost
runs/VARIANT/seed_S/      a run directory, and beside the run's own files:
    compare.log           what it printed
    evaluation/           what each yardstick measured, see `kept_figures`
    failure.txt           why it failed when it was last in work; absent if it did not
results.jsonl …           what `comparing.results` writes, and the report
"""

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..data import whole_files
from ..training import run_directory
from ..training.reporting.metrics import read_metrics
from ..training.settings.bound import bound
from ..training.settings.config_file import gin_text
from ..training.settings.run import Run, fields_of
from .comparison import Comparison, folder_of, trained_variants
from .results import ComparisonSetup, Measurement, Results, TrainedRun, learning_curves, read_record
from .variants import RUNS, Key, run_dir_of
from .yardsticks.kept_figures import Measured, read_measured

SHARED = "shared"
FACTS, LOG, FAILURE = "facts.json", "compare.log", "failure.txt"
Named = tuple[str, int, str]  # variant, seed, run directory within that of the comparison
_SET = ("run_dir", "steps", "seed")  # fields of a run that the comparison sets


class Facts(NamedTuple):
    """What is known of a variant before it is trained."""

    settings: str  # of its run, as a gin file
    budget: str  # with its settings, which gave the steps
    steps: int
    text_tokens: int  # that these steps read
    parameters: int
    flops_per_step: int  # of the forward and backward pass
    platform: str  # that it was planned on: "cpu", "gpu", "tpu"
    solved: str = ""  # a line that gives the number which makes it equal to another variant
    equal_to: str = ""  # that variant


# --- before training -------------------------------------------------------------------------------


def read_facts(directory: str, variant: str) -> Facts | None:
    """Returns the facts of a variant; None where it has not been planned.

    Raises ValueError, naming the file, where it is damaged or of another version.
    """
    path = Path(directory) / RUNS / folder_of(variant) / FACTS
    return read_record(path, _facts) if path.exists() else None


def _facts(record: Mapping[str, Any]) -> Facts:
    facts = Facts(**record)
    for name, kind in Facts.__annotations__.items():
        if type(getattr(facts, name)) is not kind:
            raise TypeError(f"{name} is {getattr(facts, name)!r}")
    return facts


def solved_lines(comparison: Comparison) -> dict[str, str]:
    """Returns the line with the number that was solved, of each variant that has one."""
    facts = {v: read_facts(comparison.directory, v) for v in trained_variants(comparison)}
    return {variant: one.solved for variant, one in facts.items() if one and one.solved}


def write_facts(directory: str, variant: str, facts: Facts) -> None:
    path = Path(directory) / RUNS / folder_of(variant) / FACTS
    whole_files.write_json(path, facts._asdict())


def settings_text(run: Run) -> str:
    """Returns what a variant sets, as a gin file, without what the comparison sets."""
    return gin_text({k: v for k, v in fields_of(run).items() if k not in _SET}).text


def budget_words(budget: Callable | Mapping[str, Callable]) -> str:
    """Returns a budget in words: "400,000 text tokens"; of several all."""
    if isinstance(budget, Mapping):
        return ", ".join(map(budget_words, budget.values()))
    one = bound(budget)
    if [*one.settings] != ["number"]:
        return budget_text(budget)
    number = one.settings["number"]
    name = one.function.__name__.replace("_", " ").replace("flops", "FLOPs")
    return f"{number:,} {name}" if number < 1e9 else f"{number:.4g} {name}".replace("e+", "e")


def budget_text(budget: Callable) -> str:
    """Returns a budget with its settings in a line: "text_tokens(number=400,000)"."""
    one = bound(budget)
    settings = (
        f"{name}={value:,}" if type(value) in (int, float) else f"{name}={value!r}"
        for name, value in one.settings.items()
    )
    return f"{one.function.__name__}({', '.join(settings)})"


def check_unchanged(comparison: Comparison, runs: Mapping[str, Run]) -> None:
    """Raises ValueError where the directory holds runs of another budget, or of other settings.

    Seeds, variants and yardsticks may be added or left out.
    """
    given = trained_variants(comparison)
    for variant, run in runs.items():
        facts = read_facts(comparison.directory, variant)
        if facts is None:
            continue
        changed = []
        if (budget := budget_text(given[variant].budget)) != facts.budget:
            changed.append(f"the budget was {facts.budget}, is {budget}")
        if facts.equal_to not in ("", comparison.reference):
            changed.append(
                f"its size was solved to equal {facts.equal_to!r}, is to equal {comparison.reference!r}"
            )
        if (text := settings_text(run)) != facts.settings:
            before, now = facts.settings.splitlines(), text.splitlines()
            changed += [f"was {line}" for line in before if line not in now]
            changed += [f"is {line}" for line in now if line not in before]
        if changed:
            lines = "".join(f"\n  {line}" for line in changed[:12])
            raise ValueError(
                f"{comparison.directory} holds runs of the variant {variant!r} with other values:{lines}\n"
                "Seeds, variants and yardsticks can be added to a comparison. Set the others back, give "
                "the variant another name, or the comparison another directory "
                "(--gin.DIRECTORY=\"'comparisons/NAME'\")."
            )


def link_shared(directory: str, run_dir: str) -> None:
    """Gives a run the vocabulary and tokens that all runs share: hard links, copies where need be."""
    shared = Path(directory) / SHARED
    for file in sorted(path for path in shared.rglob("*") if path.is_file()):
        own = Path(run_dir) / file.relative_to(shared)
        if own.exists() or file.name.startswith("."):
            continue
        own.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(file, own)
        except OSError:  # a disk without hard links
            part = own.with_name(f".{own.name}-part")
            shutil.copyfile(file, part)
            os.replace(part, own)


# --- what was measured -----------------------------------------------------------------------------


def is_trained(run_dir: str, steps: int) -> bool:
    """Returns whether a run has taken its steps and been evaluated."""
    path = Path(run_dir) / run_directory.RESULT
    if not path.exists():
        return False
    record = whole_files.read_json(path)
    return record["finished"] and record["step"] == steps


def is_complete(run_dir: str, steps: int, yardsticks: Sequence[Callable]) -> bool:
    """Returns whether a run is trained, and all yardsticks have measured it or said why they cannot."""
    return is_trained(run_dir, steps) and all(
        read_measured(run_dir, steps, y) is not None for y in yardsticks
    )


def refusals(run_dir: str, step: int, yardsticks: Sequence[Callable]) -> dict[str, str]:
    """Returns why yardsticks could not measure a run, by their names."""
    found = {}
    for yardstick in yardsticks:
        measured = read_measured(run_dir, step, yardstick)
        if measured is not None and measured.refusal:
            label = _label(settings_in_words(yardstick, yardsticks))
            found[bound(yardstick).function.__name__ + label] = measured.refusal
    return found


def failure_of(run_dir: str) -> str:
    """Returns why a run failed when it was last in work, in words; "" where it did not.

    A run that is complete may have a failure, of a yardstick that has been left out since.
    """
    path = Path(run_dir) / FAILURE
    return path.read_text(encoding="utf-8").strip() if path.exists() else ""


# --- results ---------------------------------------------------------------------------------------


def results_of(comparison: Comparison) -> Results:
    """Returns what the directory holds of a comparison: its runs, and all of their figures."""
    c, solved = comparison, solved_lines(comparison)
    asked = ComparisonSetup(
        name=Path(c.directory).name,
        question=c.question,
        budget=budget_words(c.budget),
        variants={
            variant: (*one.lines, *([solved[variant]] if variant in solved else []))
            for variant, one in trained_variants(c).items()
        },
        reference=c.reference,
        about=c.about,
        scaling=isinstance(c.budget, Mapping),
    )
    runs: list[TrainedRun] = []
    found: list[tuple[Named, Callable, Measured]] = []
    for variant in asked.variants:
        facts = read_facts(c.directory, variant)
        for seed in c.seeds:
            run_dir = run_dir_of(c.directory, Key(variant, seed))
            if facts is None or not (failure_of(run_dir) or is_trained(run_dir, facts.steps)):
                continue  # it has not been trained, or not to its end
            named = variant, seed, Path(run_dir).relative_to(c.directory).as_posix()
            complete = is_complete(run_dir, facts.steps, c.yardsticks)
            error = "" if complete else failure_of(run_dir)
            why = refusals(run_dir, facts.steps, c.yardsticks)
            runs.append(_trained_run(named, run_dir, facts, error, why))
            for yardstick in c.yardsticks:
                measured = read_measured(run_dir, facts.steps, yardstick)
                if measured is not None and measured.figures:
                    found.append((named, yardstick, measured))
    return Results(asked, runs, _measurements(c.yardsticks, found))


def _measurements(
    yardsticks: Sequence[Callable], found: Sequence[tuple[Named, Callable, Measured]]
) -> list[Measurement]:
    """Returns the figures of runs, of which those of one name can be compared.

    Where a yardstick gives several units, as the bits per byte of a masked model are others than those
    of a causal one, or comes with several settings, its name says which: "norm (power=4)".
    """
    units: dict[str, set[str]] = {}
    for _, _, (figures, _) in found:
        units.setdefault(figures[0].name, set()).add(figures[0].unit)
    measurements = []
    for named, yardstick, (figures, _) in found:
        words = settings_in_words(yardstick, yardsticks)
        words += [figures[0].unit] if len(units[figures[0].name]) > 1 else []
        label = _label(words)
        for figure in figures:
            whole, slash, part = figure.name.partition("/")
            renamed = figure._replace(name=f"{whole}{label}{slash}{part}")
            measurements.append(Measurement(*named, renamed))
    return measurements


def settings_in_words(yardstick: Callable, yardsticks: Sequence[Callable]) -> list[str]:
    """Returns what tells a yardstick from others of the same function; nothing where it is the only one."""
    one = bound(yardstick)
    several = [bound(other).function for other in yardsticks].count(one.function) > 1
    return [_in_words(name, value) for name, value in one.settings.items()] if several else []


def _in_words(name: str, value: Any) -> str:
    """Returns a setting in words: a name, or several, by themselves, others as "power=4"."""
    names = [value] if isinstance(value, str) else value
    if isinstance(names, list | tuple) and all(isinstance(one, str) for one in names):
        return ", ".join(names)
    return f"{name}={value}"


def _label(words: Sequence[str]) -> str:
    return f" ({', '.join(words)})" if words else ""


def _trained_run(
    named: Named, run_dir: str, facts: Facts, error: str, refusals: Mapping[str, str]
) -> TrainedRun:
    tokens, seconds = _tokens_and_seconds(run_dir)
    return TrainedRun(
        *named,
        parameters=facts.parameters,
        flops_per_token=facts.flops_per_step * facts.steps / facts.text_tokens,
        text_tokens=tokens,
        steps=facts.steps,
        seconds=seconds,
        curves=learning_curves(run_dir),
        error=error,
        refusals=refusals,
    )


def _tokens_and_seconds(run_dir: str) -> tuple[int, float]:
    """Returns the tokens of text that a run has read, and the time of its steps at their mean speed."""
    tokens = timed = seconds = 0.0
    step = 0
    for entry in read_metrics(run_dir):
        if "text_tokens" not in entry:
            continue
        read = entry["text_tokens"] * (entry["step"] - step)
        tokens, step = tokens + read, int(entry["step"])
        if speed := entry.get("tokens_per_second"):
            timed, seconds = timed + read, seconds + read / speed
    return round(tokens), seconds * tokens / timed if timed else 0.0


def last_step(run_dir: str) -> int:
    """Returns the last step that a run has logged; 0 before the first."""
    entries = read_metrics(run_dir)
    return int(entries[-1]["step"]) if entries else 0
