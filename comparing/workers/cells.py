"""What a process of a comparison does: plan its variants, or train and measure one run."""

import dataclasses
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
from rich.console import Console

from ...data import whole_files
from ...models.builders import abstract_params
from ...training import trainer
from ...training.devices.compiled_programs import keep_compiled
from ...training.planning import abstract_state_of, open_corpus, plan
from ...training.settings.bound import bound
from ...training.settings.command_line import explanation
from ...training.settings.run import Run, padded_vocabulary
from ...training.state import parameter_count, unboxed
from ...training.throughput import step_flops
from ..budgets import tokens_of
from ..comparison import Comparison, trained_variants
from ..directory import (
    FAILURE,
    SHARED,
    Facts,
    budget_text,
    is_trained,
    link_shared,
    read_facts,
    settings_text,
    write_facts,
)
from ..matching import FLOPS, PARAMETERS, WHAT, macro_of, nearest, solved_line
from ..variants import runs_of_variants
from ..yardsticks.kept_figures import (
    Measured,
    forget_refusals,
    measure,
    read_measured,
    write_measured,
)
from ..yardsticks.subject import Subject

COUNTED = 200  # steps whose tokens are counted, for FLOPs a token while a size is solved
FAILED, STOPPED = 1, 75  # exit statuses; 75: it was asked to stop, and can go on


class Cell(NamedTuple):
    """One run of a comparison, with what is measured of it."""

    directory: str  # of the comparison
    run: Run
    yardsticks: Sequence[Callable]
    trusted: tuple[str, ...] = ()


def plan_variants(comparison: Comparison, search_paths: Sequence[str]) -> int:
    """Plans the variants that have not been: their data, once for all, their steps and their size.

    The reference comes first, which the sizes of others may be solved to equal.

    Returns an exit status; what went wrong is in the directory's `failure.txt`.
    """
    c = comparison
    keep_compiled()
    trained = trained_variants(c)

    def work() -> int:
        for variant in sorted(trained, key=lambda variant: variant != c.reference):
            if read_facts(c.directory, variant) is None:
                try:
                    write_facts(c.directory, variant, _facts(c, variant, search_paths))
                except Exception as error:
                    raise ValueError(f"The variant {variant!r}: {_words(error)}") from error
        return 0

    return _status(c.directory, work)


def _facts(comparison: Comparison, variant: str, search_paths: Sequence[str]) -> Facts:
    one, shared = trained_variants(comparison)[variant], str(Path(comparison.directory) / SHARED)

    def run_with(solved: str) -> Run:
        run = runs_of_variants(comparison, search_paths, {variant: solved})[variant]
        return dataclasses.replace(run, run_dir=shared)

    solved = ""
    if macro := macro_of(one.lines):
        assert comparison.reference is not None  # `comparison.check` has looked
        reference = read_facts(comparison.directory, comparison.reference)
        assert reference is not None  # it was planned before
        solved = solved_line(macro, _matched(macro, run_with, reference))
    run = run_with(solved)
    corpus = open_corpus(run)
    steps = one.budget(plan(run, corpus))
    final = plan(dataclasses.replace(run, steps=steps), corpus)  # with its schedules
    return Facts(
        settings=settings_text(run),
        budget=budget_text(one.budget),
        steps=steps,
        text_tokens=tokens_of(final, steps),
        parameters=parameter_count(abstract_state_of(final).shapes),
        flops_per_step=step_flops(final.recipe, final.schedules),
        platform=jax.default_backend(),
        solved=solved,
        equal_to=comparison.reference or "" if solved else "",
    )


def _matched(macro: str, run_with: Callable[[str], Run], reference: Facts) -> int:
    """Returns the number for which a variant is nearest to the reference, by its model's shapes."""
    run = run_with(solved_line(macro, 1))
    first = plan(run, open_corpus(run))
    rows = padded_vocabulary(first.recipe.ids, first.run.vocabulary_rows)
    tokens = tokens_of(first, COUNTED) / COUNTED

    def cost(number: int) -> float:
        model = run_with(solved_line(macro, number)).model(rows, first.recipe.objective.heads)
        if macro == PARAMETERS:
            return sum(x.size for x in jax.tree.leaves(unboxed(abstract_params(model))))
        return step_flops(first.recipe._replace(model=model), first.schedules) / tokens

    of_reference = {
        PARAMETERS: float(reference.parameters),
        FLOPS: reference.flops_per_step * reference.steps / reference.text_tokens,
    }
    try:
        return nearest(cost, of_reference[macro])
    except ValueError as error:
        raise ValueError(f"No {macro} makes its {WHAT[macro]} equal. {error}") from error


def train_and_measure(cell: Cell) -> int:
    """Trains a run, or goes on, then takes the measures that it lacks.

    Returns an exit status; what went wrong is in the run's `failure.txt`.
    """
    keep_compiled()

    def work() -> int:
        if not _train(cell):
            return STOPPED
        _measure(cell)
        return 0

    return _status(cell.run.run_dir, work)


def _train(cell: Cell) -> bool:
    """Returns whether the run is trained; it is not when it was asked to stop."""
    run = cell.run
    if is_trained(run.run_dir, run.steps):
        return True
    link_shared(cell.directory, run.run_dir)
    return trainer.train(run, Console(width=120, highlight=False), cell.trusted).finished


def _measure(cell: Cell) -> None:
    """Takes the measures that a run lacks.

    A yardstick that cannot measure such a model says so by a ValueError, whose words are kept for the
    report. It is asked again each time, since the cause may have been another, such as missing files.

    Raises ValueError, once the others have measured it, naming yardsticks that raised anything else.
    """
    run, broken = cell.run, []
    forget_refusals(run.run_dir)
    subject = Subject(run.run_dir, trusted=cell.trusted)
    for yardstick in cell.yardsticks:
        if read_measured(run.run_dir, run.steps, yardstick) is not None:
            continue
        name = bound(yardstick).function.__name__
        print(f"Measuring {name} …", flush=True)
        try:
            measured = Measured(measure(yardstick, subject), "")
        except ValueError as error:
            traceback.print_exc()
            measured = Measured((), _words(error))
        except Exception as error:
            traceback.print_exc()
            broken.append(f"The yardstick {name}: {_words(error)}")
            continue
        write_measured(run.run_dir, run.steps, yardstick, measured)
    if broken:
        raise ValueError(" ".join(broken))


def _status(folder: str, work: Callable[[], int]) -> int:
    """Returns the exit status of work; what it raised is printed, and kept in `failure.txt` of a folder."""
    path = Path(folder) / FAILURE
    path.unlink(missing_ok=True)
    try:
        return work()
    except Exception as error:
        traceback.print_exc()
        whole_files.write_text(path, _words(error) + "\n")
        return FAILED


def _words(error: Exception) -> str:
    return explanation(error) or f"{type(error).__name__}: {error}"
