"""What a process of a comparison does: plan its variants, or train and measure one run."""

import dataclasses
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
from rich.console import Console

from pretrax import train
from pretrax.comparing.budgets import tokens_of
from pretrax.comparing.directory import (
    FAILURE,
    SHARED,
    Facts,
    Measured,
    budget_text,
    forget_refusals,
    is_trained,
    link_shared,
    read_facts,
    read_measured,
    settings_text,
    write_facts,
    write_measured,
)
from pretrax.comparing.subject import Subject
from pretrax.training import run_directory
from pretrax.training.bound import bound
from pretrax.training.command_line import explanation
from pretrax.training.planning import abstract_state_of, plan
from pretrax.training.run import Run
from pretrax.training.state import parameter_count
from pretrax.training.throughput import step_flops

FAILED, STOPPED = 1, 75  # exit statuses; 75: it was asked to stop, and can go on


class Cell(NamedTuple):
    """One run of a comparison, with what is measured of it."""

    directory: str  # of the comparison
    run: Run
    yardsticks: Sequence[Callable]
    trusted: tuple[str, ...] = ()


def plan_variants(directory: str, runs: Mapping[str, Run], budgets: Mapping[str, Callable]) -> int:
    """Plans the variants that have not been: their data, once for all, their steps and their size.

    Returns an exit status; what went wrong is in the directory's `failure.txt`.
    """
    shared = str(Path(directory) / SHARED)
    with _failures(directory) as failed:
        for variant, run in runs.items():
            if read_facts(directory, variant) is None:
                try:
                    write_facts(directory, variant, _facts(run, budgets[variant], shared))
                except ValueError as error:
                    raise ValueError(f"The variant {variant!r}: {error}") from error
    return failed.status


def _facts(run: Run, budget: Callable, shared: str) -> Facts:
    planned = plan(dataclasses.replace(run, run_dir=shared))
    steps = budget(planned)
    final = plan(dataclasses.replace(run, run_dir=shared, steps=steps))  # with its schedules
    return Facts(
        settings=settings_text(run),
        budget=budget_text(budget),
        steps=steps,
        text_tokens=tokens_of(final, steps),
        parameters=parameter_count(abstract_state_of(final).shapes),
        flops_per_step=step_flops(final.recipe, final.schedules),
        platform=jax.default_backend(),
    )


def train_and_measure(cell: Cell) -> int:
    """Trains a run, or goes on, then takes the measures that it lacks. Returns an exit status.

    A yardstick that cannot measure such a model says so by a ValueError, whose words are kept for the
    report. It is asked again each time, since the cause may have been another, such as missing files.
    """
    run = cell.run
    with _failures(run.run_dir) as failed:
        if not is_trained(run):
            link_shared(cell.directory, run.run_dir)
            console = Console(width=120, highlight=False)
            if not train.train(run, console, cell.trusted).finished:
                return STOPPED
        forget_refusals(run.run_dir)
        subject = Subject(run.run_dir, trusted=cell.trusted)
        for yardstick in cell.yardsticks:
            if read_measured(run.run_dir, yardstick) is None:
                print(f"Measuring {bound(yardstick).function.__name__} …", flush=True)
                try:
                    measured = Measured(tuple(yardstick(subject)), "")
                except ValueError as error:
                    traceback.print_exc()
                    measured = Measured((), str(error))
                write_measured(run.run_dir, yardstick, measured)
    return failed.status


class _failures:
    """A context that writes what went wrong in it to a folder's `failure.txt`, and prints it."""

    def __init__(self, folder: str):
        self._path, self.status = Path(folder) / FAILURE, 0

    def __enter__(self) -> "_failures":
        self._path.unlink(missing_ok=True)
        return self

    def __exit__(self, kind, error, trace) -> bool:
        if not isinstance(error, Exception):
            return False
        traceback.print_exc()
        words = explanation(error) or f"{type(error).__name__}: {error}"
        run_directory.write_text(self._path, words + "\n")
        self.status = FAILED
        return True
