"""A comparison that trains in seconds, with an eval metric that reads only the parameters."""

import json
import pathlib

import jax
import numpy as np
import pytest

from pretrax.cli import compare
from pretrax.comparison import comparing, trials
from pretrax.comparison.facts import VariantFacts
from pretrax.comparison.figures import LOWER, Figure
from tests.training import tiny

FILE = """
from __gin__ import dynamic_registration
from pretrax import comparison
from pretrax.comparison import budgets
from tests.comparison import small

DIRECTORY = {directory!r}
SEEDS = [0, 1]

comparison.Comparison.directory = %DIRECTORY
comparison.Comparison.question = "Does a larger step help?"
comparison.Comparison.base = [
    {base!r},
    "objectives/causal_lm.gin",
    "DATA = '{data}'",
    "RUN_DIR = 'unused'",
]
comparison.Comparison.variants = {{"small": [], "large/2": ["PEAK = 1e-2"]}}
comparison.Comparison.seeds = %SEEDS
comparison.Comparison.budget = @budgets.text_tokens
budgets.text_tokens.number = 1500
comparison.Comparison.eval_metrics = [@small.norm]
"""


FILES: list[str] = []  # needed by `counted_files`


def write(folder: pathlib.Path, *lines: str) -> str:
    """Writes a comparison of four runs of six steps, and returns the path of its file."""
    folder.mkdir(parents=True, exist_ok=True)
    base = folder / "base.gin"
    base.write_text(tiny.CONFIG)
    data = tiny.write_documents(folder / "data")
    text = FILE.format(directory=str(folder / "compared"), base=str(base), data=data)
    (folder / "small.gin").write_text(text + "\n".join(lines) + "\n")
    return str(folder / "small.gin")


def append(file: str, text: str) -> None:
    """Appends lines to a comparison's file."""
    with open(file, "a") as out:
        out.write(text)


def norm(subject, *, power: int = 2) -> list[Figure]:
    """The norm of the parameters, which depends on every bit of training."""
    leaves = jax.tree.leaves(jax.device_get(subject.saved.params))
    total = sum(float(np.sum(np.abs(x).astype(np.float64) ** power)) for x in leaves)
    return [Figure("norm", total ** (1 / power), "units", LOWER)]


def layers(subject) -> list[Figure]:
    """A figure whose unit depends on the run."""
    unit = "layers" if "small" in subject.directory else "blocks"
    return [Figure("layers", 2.0, unit, LOWER), Figure("layers/part", 1.0, "share", LOWER)]


def named(subject, *, first: str = "", second: str = "") -> list[Figure]:
    """Two settings that a report can distinguish only by their texts."""
    return [Figure("named", 1.0, "units", LOWER)]


def refusing(subject) -> list[Figure]:
    raise ValueError("no such model can be measured")


def counted_files(subject) -> list[Figure]:
    if not FILES:
        raise ValueError("no files yet")
    return [Figure("counted_files", float(len(FILES)), "files", LOWER)]


def broken(subject) -> list[Figure]:
    raise KeyError("a slip")


def facts(steps: int) -> VariantFacts:
    """Returns the VariantFacts of a variant of which only the steps matter."""
    return VariantFacts("", "", steps, 1, 1, 1, "cpu")


class Done:
    """A process that has ended, whose work was done in this process."""

    def __init__(self, status: int):
        self.poll = self.wait = lambda: status
        self.kill = self.terminate = lambda: None


def run_trials_in_process(monkeypatch) -> list[str]:
    """Makes `pretrax compare` do the work of its processes in this process.

    Returns the list of the runs that it starts.
    """
    tiny.on_one_device(monkeypatch)  # the same number as in those processes
    started: list[str] = []

    def start_trial(trial, cores):
        started.append(pathlib.Path(trial.run.run_dir).relative_to(trial.directory).as_posix())
        return Done(trials.train_and_measure(trial))

    def start_process(log, cores, function, *arguments):
        return Done(function(*arguments))

    monkeypatch.setattr(comparing, "start_trial", start_trial)
    monkeypatch.setattr(comparing, "start_process", start_process)
    return started


def compare_in_process(file: str, *arguments: str) -> int:
    """Runs `pretrax compare` in this process and returns its exit status.

    Call `run_trials_in_process` first.
    """
    with pytest.raises(SystemExit) as end:
        compare.main([file, *arguments])
    return end.value.code


def results(directory: pathlib.Path) -> list[dict]:
    """Returns the lines of results.jsonl."""
    return [json.loads(line) for line in (directory / "results.jsonl").read_text().splitlines()]


def figures(directory: pathlib.Path) -> list[dict]:
    """Returns the lines without the seconds of training and without checksums.

    The seconds differ between runs, and the checksum of a line includes them.
    """
    varying = ("seconds", "crc32")
    return [{k: x for k, x in one.items() if k not in varying} for one in results(directory)]
