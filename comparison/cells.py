"""`Cell`: one variant with one seed, trained and measured.

Its run's directory, runs/VARIANT/seed_S, also has `compare.log`, `failure.txt` (see `failures`) and
`evaluation/`, what each yardstick measured (see `kept_figures`).
"""

import dataclasses
import functools
import os
import shutil
import statistics
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ..settings import trust
from ..settings.bound import Bound, bound, parameters
from ..settings.printable import PrintableConsole
from ..training import trainer
from ..training.devices.compiled_programs import keep_compiled
from ..training.reporting.metrics import read_metrics
from ..training.run import Run, fields_of
from ..training.saved.result import Result, local_result
from .comparison import Comparison, folder_of
from .facts import VariantFacts
from .failures import STOPPED, exit_status, failure_words
from .figures import name_of_yardstick
from .measured_checkpoints import measured_steps, with_checkpoints
from .results import HELDOUT
from .variants import RUNS, SHARED
from .yardsticks import kept_figures
from .yardsticks.kept_figures import Measured
from .yardsticks.subject import Subject


class Cell(NamedTuple):
    directory: str  # of the comparison
    variant: str
    seed: int
    run: Run  # that trains it
    facts: VariantFacts  # of the variant
    yardsticks: Sequence[Callable]
    trusted: tuple[str, ...] = ()  # modules that the run's directory may name
    earlier: tuple[int, ...] = ()  # steps of checkpoints before its end that are measured too

    @property
    def name(self) -> str:
        """Such as "15%, seed 3"."""
        return f"{self.variant}, seed {self.seed}"

    @property
    def folder(self) -> str:
        """Its run's directory, relative to that of the comparison, with "/"."""
        return Path(self.run.run_dir).relative_to(self.directory).as_posix()

    @property
    def measured_steps(self) -> tuple[int, ...]:
        """The steps of the checkpoints that are measured, the last one first: it matters most."""
        return (self.run.steps, *self.earlier)

    @property
    def state(self) -> "CellState":
        """What the files of its run say now."""
        return CellState(self)


class CellState:
    """What the files of a cell's run say.

    Each file is read at most once, when something in it is first asked for. To see what a run that
    is still in progress has done since, take `Cell.state` again.
    """

    def __init__(self, cell: Cell):
        self.cell = cell

    @functools.cached_property
    def metrics(self) -> list[dict[str, float]]:
        """The entries that the run has logged, oldest first."""
        return read_metrics(self.cell.run.run_dir)

    @functools.cached_property
    def measured(self) -> Mapping[int, Sequence[Measured | None]]:
        """What each yardstick has measured, by the checkpoint's step; None if it has not yet."""
        cell = self.cell
        return kept_figures.read_measured(
            cell.run.run_dir, cell.measured_steps, cell.yardsticks, cell.run.corpus
        )

    @functools.cached_property
    def result(self) -> Result | None:
        """The result that its training has left; None before the end."""
        return local_result(self.cell.run.run_dir)

    @property
    def last_step(self) -> int:
        """The last step that the run has logged; 0 before the first."""
        return int(self.metrics[-1]["step"]) if self.metrics else 0

    @property
    def is_trained(self) -> bool:
        """Whether the run has taken its steps and been evaluated."""
        result = self.result
        return result is not None and result.finished and result.step == self.cell.run.steps

    @property
    def evaluation_metrics(self) -> Collection[str]:
        """The names of held-out figures that are not losses, such as accuracies."""
        scores = () if self.result is None else self.result.scores
        return {f"{HELDOUT}{score.name}" for score in scores if score.metric}

    @property
    def measured_share(self) -> float:
        """The share of measurements that have been taken.

        A trial has no yardsticks. Its only measurement is its own evaluation.
        """
        taken = [one is not None for of_step in self.measured.values() for one in of_step]
        return statistics.fmean(taken or [self.is_trained])

    @property
    def unmeasured(self) -> list[str]:
        """The names of the yardsticks that have not measured all checkpoints."""
        return [
            bound(yardstick).function.__name__
            for yardstick, *measured in zip(self.cell.yardsticks, *self.measured.values())
            if None in measured
        ]

    @property
    def is_complete(self) -> bool:
        """Whether the run is trained, and every yardstick has measured it or refused to."""
        return self.is_trained and self.measured_share == 1

    @property
    def refusals(self) -> dict[str, str]:
        """Why yardsticks could not measure the run, by their names.

        If a yardstick refused only an earlier checkpoint, the step is part of the name.
        """
        found: dict[str, str] = {}
        yardsticks = self.cell.yardsticks
        for yardstick, *measured in zip(yardsticks, *self.measured.values()):
            name = name_of_yardstick(yardstick, yardsticks)
            for step, one in zip(self.measured, measured):
                if one is not None and one.refusal:
                    at = "" if step == self.cell.run.steps else f" at step {step}"
                    found[name + at] = one.refusal
                    break
        return found


def cells_of(
    comparison: Comparison,
    runs: Mapping[str, Run],
    facts: Mapping[str, VariantFacts],
    trusted: Sequence[str] = (),
) -> list[Cell]:
    """Returns the cells of a comparison, by seed first, so that few seeds are soon complete.

    A corpus that has a seed takes the cell's, so that all variants of a seed read the documents in
    one order.

    Args:
      runs: of `variants.runs_of_variants`; their directory, seed and steps are set here.
      trusted: modules besides those that the comparison names itself.
    """
    cells = []
    for seed in comparison.seeds:
        for variant, run in runs.items():
            one = facts[variant]
            folder = f"{RUNS}/{folder_of(variant)}/seed_{seed}"
            run = dataclasses.replace(run, steps=one.steps)
            *earlier, _ = measured_steps(run.steps, one.checkpoints, run.checkpoint_every)
            run = with_checkpoints(run, one.checkpoints)
            cell = cell_of(
                comparison.directory,
                folder,
                variant,
                seed,
                run,
                facts=one,
                yardsticks=comparison.yardsticks,
                trusted=trusted,
            )
            cells.append(cell._replace(earlier=tuple(earlier)))
    return cells


def cell_of(
    directory: str,
    folder: str,
    variant: str,
    seed: int,
    run: Run,
    facts: VariantFacts,
    yardsticks: Sequence[Callable],
    trusted: Sequence[str],
) -> Cell:
    """Returns the cell of a run with a seed, in a folder of a comparison's directory."""
    where = str(Path(directory) / folder)
    run = dataclasses.replace(run, corpus=_seeded(run.corpus, seed), run_dir=where, seed=seed)
    modules = tuple(sorted({*trusted, *trust.modules_of(fields_of(run))}))
    return Cell(directory, variant, seed, run, facts, tuple(yardsticks), modules)


def _seeded(corpus: Callable, seed: int) -> Callable:
    """Returns a corpus that reads documents in the order of a seed, also where it is one that
    another reads, as within `corpora.validation_split`; as it is where neither has a seed."""
    one = bound(corpus)
    if "seed" in (parameters(one.function) or {}):
        return Bound(one.function, **{**one.settings, "seed": seed})
    if callable(within := one.settings.get("corpus")):
        return Bound(one.function, **{**one.settings, "corpus": _seeded(within, seed)})
    return corpus


def train_and_measure(cell: Cell) -> int:
    """Trains a run, or resumes it, and takes the measures that it lacks; returns an exit status."""
    keep_compiled()

    def work() -> int:
        kept_figures.remember_versions(cell.yardsticks, cell.run.corpus)
        if not cell.state.is_trained:
            _link_shared(cell.directory, cell.run.run_dir)
            console = PrintableConsole(width=120, highlight=False)
            if not trainer.train(cell.run, console, cell.trusted).finished:
                return STOPPED
        _measure(cell)
        return 0

    return exit_status(cell.run.run_dir, work)


def _link_shared(directory: str, run_dir: str) -> None:
    """Gives a run the vocabulary and tokens that all runs share: hard links, or copies."""
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


def _measure(cell: Cell) -> None:
    """Takes the measures that a run lacks, and asks those again that could not measure it.

    Raises ValueError, once the others have measured, naming yardsticks that raised anything else.
    """
    run = cell.run
    broken = []
    kept_figures.forget_refusals(run.run_dir)
    for step, of_step in cell.state.measured.items():
        subject = Subject(run.run_dir, step, cell.trusted)
        for yardstick, measured in zip(cell.yardsticks, of_step):
            if measured is not None:
                continue
            name = bound(yardstick).function.__name__
            print(f"Measuring {name} at step {step} …", flush=True)
            try:
                measured = Measured(kept_figures.measure(yardstick, subject), "")
            except ValueError as error:
                traceback.print_exc()
                measured = Measured((), failure_words(error))
            except Exception as error:
                traceback.print_exc()
                broken.append(f"The yardstick {name}: {failure_words(error)}")
                continue
            kept_figures.write_measured(run.run_dir, step, yardstick, measured, run.corpus)
    if broken:
        raise ValueError(" ".join(dict.fromkeys(broken)))
