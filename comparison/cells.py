"""`Cell`: one variant with one seed, trained and measured.

Its run's directory, runs/VARIANT/seed_S, also has `compare.log`, `failure.txt` (see `failures`) and
`evaluation/`, what each yardstick measured (see `kept_figures`).
"""

import dataclasses
import os
import shutil
import statistics
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ..settings import run_directory, trust, whole_files
from ..settings.bound import Bound, bound, parameters
from ..settings.printable import PrintableConsole
from ..training import trainer
from ..training.devices.compiled_programs import keep_compiled
from ..training.reporting.metrics import read_metrics
from ..training.run import Run, fields_of
from .comparison import Comparison, folder_of
from .facts import Facts
from .failures import STOPPED, exit_status, failure_words
from .figures import labelled, settings_in_words
from .measured_checkpoints import measured_steps, with_checkpoints
from .variants import RUNS, SHARED
from .yardsticks import kept_figures
from .yardsticks.kept_figures import Measured
from .yardsticks.subject import Subject


class Cell(NamedTuple):
    directory: str  # of the comparison
    variant: str
    seed: int
    run: Run  # that trains it
    facts: Facts  # of the variant
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
    def last_step(self) -> int:
        """The last step that its run has logged; 0 before the first."""
        entries = read_metrics(self.run.run_dir)
        return int(entries[-1]["step"]) if entries else 0

    @property
    def is_trained(self) -> bool:
        """Whether its run has taken its steps and been evaluated."""
        path = Path(self.run.run_dir) / run_directory.RESULT
        if not path.exists():
            return False
        return whole_files.read_record(
            path, lambda record: record["finished"] and record["step"] == self.run.steps
        )

    @property
    def measured_steps(self) -> tuple[int, ...]:
        """The steps of the checkpoints that are measured, its end first: it says the most."""
        return (self.run.steps, *self.earlier)

    def measured(self, step: int) -> list[Measured | None]:
        """Returns what each yardstick has measured of a checkpoint; None of one that has not."""
        run = self.run
        return kept_figures.read_measured(run.run_dir, step, self.yardsticks, run.corpus)

    @property
    def measured_share(self) -> float:
        """The share of its measurements that are taken; of a trial, which has none, of its own
        evaluation."""
        taken = [one is not None for step in self.measured_steps for one in self.measured(step)]
        return statistics.fmean(taken or [self.is_trained])

    @property
    def unmeasured(self) -> list[str]:
        """The names of the yardsticks that have not measured all of its checkpoints."""
        by_step = [self.measured(step) for step in self.measured_steps]
        return [
            bound(yardstick).function.__name__
            for yardstick, *measured in zip(self.yardsticks, *by_step)
            if None in measured
        ]

    @property
    def changed_code(self) -> str:
        """Why it can be measured no more as it was planned, since code has changed on disk, and
        what to do; "" where none has."""
        changed = kept_figures.changed_code(self.yardsticks, self.run.corpus)
        if not changed:
            return ""
        return (
            f"The code that measures has changed while the comparison ran: {'; '.join(changed)}. "
            "Start the comparison again: it goes on from the runs that there are, and measures "
            "again what the changed code measures."
        )

    @property
    def is_complete(self) -> bool:
        """Whether it is trained, and all yardsticks have measured it or refused."""
        return self.is_trained and self.measured_share == 1

    @property
    def refusals(self) -> dict[str, str]:
        """Why yardsticks could not measure it, by their names; of one that measured its end with
        the step of the first checkpoint that it could not."""
        found, by_step = {}, {step: self.measured(step) for step in self.measured_steps}
        for k, yardstick in enumerate(self.yardsticks):
            name = bound(yardstick).function.__name__
            name = labelled(name, settings_in_words(yardstick, self.yardsticks))
            for step, of_yardsticks in by_step.items():
                measured = of_yardsticks[k]
                if measured is not None and measured.refusal:
                    at = "" if step == self.run.steps else f" at step {step}"
                    found[name + at] = measured.refusal
                    break
        return found


def cells_of(
    comparison: Comparison,
    runs: Mapping[str, Run],
    facts: Mapping[str, Facts],
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
            one, folder = facts[variant], f"{RUNS}/{folder_of(variant)}/seed_{seed}"
            run = dataclasses.replace(run, steps=one.steps)
            *earlier, _ = measured_steps(run.steps, one.checkpoints, run.checkpoint_every)
            run = with_checkpoints(run, one.checkpoints)
            of = comparison.directory, folder, variant, seed, run, one
            cell = cell_of(*of, comparison.yardsticks, trusted)
            cells.append(cell._replace(earlier=tuple(earlier)))
    return cells


def cell_of(
    directory: str,
    folder: str,
    variant: str,
    seed: int,
    run: Run,
    facts: Facts,
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
        kept_figures.read_code(cell.yardsticks, cell.run.corpus)
        if not cell.is_trained:
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
    run, broken = cell.run, []
    kept_figures.forget_refusals(run.run_dir)
    for step in cell.measured_steps:
        subject = Subject(run.run_dir, step, cell.trusted)
        for yardstick, measured in zip(cell.yardsticks, cell.measured(step)):
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
