"""Runs a comparison, for Python and `pretrax compare`.

    compared = compare("masking_rate", ["SEEDS = [0, 1]"])
    compared.records                    # a dictionary for each figure of each run

Every run is a separate process. Only missing parts are run, so the same call continues a stopped
comparison.
"""

import dataclasses
import functools
import io
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.markup import escape

from ..settings import atomic_writes, run_directory
from ..settings.printable import PrintableConsole
from ..training.reporting.console import print_warning
from . import results
from .collecting import results_of
from .comparison import Comparison, check, trained_variants
from .facts import (
    VariantFacts,
    check_unchanged,
    facts_of,
    plan_variants,
)
from .failures import LOG, failure_of
from .looks import check_looks, ends_early, keep_looks
from .pilot import check_pilot, pilot_of, pilot_seeds
from .pilot_tables import print_pilot
from .report import write as write_report
from .report.equality import print_facts
from .report.markdown_report import markdown
from .report.summary import Summary, summary_of
from .report.terminal_report import print_summary
from .results import Results
from .trials import Trial, trials_of
from .tuning_trials import tune
from .variants import comparison_text, read_comparison
from .workers.cluster import JobOptions, check_budgets, starter
from .workers.progress import ComparisonProgress
from .workers.worker_processes import (
    Start,
    cores_of_workers,
    run_trials,
    start_process,
    start_trial,
)

LOCK = ".lock"  # locked by the process that compares
WIDTH = 120  # characters per line if the output is not a terminal
ENOUGH = 5  # recommended number of seeds
ONE_SEED = (
    "One seed gives no intervals and does not show whether a difference holds for other seeds: "
    "give {}. Existing runs are kept."
)


RunTrials = Callable[[Sequence[Trial]], list[Trial]]  # runs missing parts, returns failed trials


class Machines(NamedTuple):
    """Where the runs of a comparison are trained.

    Attributes:
      workers: number of concurrent runs, each on its share of the cores. None: one per core, one
        with accelerators, or all on a cluster.
      jobs: options of Slurm jobs. None: runs are processes of this machine.
    """

    workers: int | None = None
    jobs: JobOptions | None = None


@dataclasses.dataclass(frozen=True, repr=False)
class Compared:
    """The results of a comparison, displayed as a report.

    Attributes:
      directory (str): Directory of the comparison, with the runs and report.html.
      results (Results): The runs with their costs and learning curves, and all figures.
    """

    directory: str
    results: Results

    @property
    def records(self) -> list[dict[str, Any]]:
        """A dict for each figure at the end of each run, for example for pandas.

        The keys are `variant`, `seed`, and the fields of a figure, such as `name` and `value`.
        """
        return [
            {"variant": m.variant, "seed": m.seed, **m.figure._asdict()}
            for m in self.results.measurements
        ]

    @functools.cached_property
    def summary(self) -> Summary:
        """The means of the figures over seeds, and the differences with their intervals."""
        return summary_of(self.results)

    def __repr__(self) -> str:
        text = io.StringIO()
        print_summary(make_console(text), self.summary)
        return text.getvalue()

    def _repr_markdown_(self) -> str:
        return markdown(self.summary)


def compare(
    comparison: str | Path | Comparison,
    bindings: Sequence[str] = (),
    *,
    workers: int | None = None,
    console: Console | None = None,
) -> Compared:
    """Runs the missing parts of a comparison, and returns its results.

        pretrax.compare("masking_rate")                    # of gin_configs/comparisons
        pretrax.compare("mine.gin", ["SEEDS = [0, 1]"])    # your own gin file

    It also writes the report into the comparison's directory. The same call runs failed runs
    (`results.runs`) again.

    Args:
      comparison: a name of `gin_configs/comparisons`, the path of a gin file, or a `Comparison`.
      bindings: lines of gin, which override the file. They cannot be given with a `Comparison`.
      workers: number of concurrent runs, see `Machines.workers`.
      console: console for the progress and the report. None: the terminal.

    Raises:
      ValueError: if the comparison cannot be read, cannot be planned, or differs from the results
        that its directory already holds.
    """
    if isinstance(comparison, Comparison):
        if bindings:
            raise ValueError(
                f"Got the bindings {list(bindings)} and a Comparison, expected bindings only for a "
                "gin file: use dataclasses.replace."
            )
        checked = check(comparison)
    else:
        checked = read_comparison(str(comparison), bindings)
    run_comparison(checked, console or make_console(), Machines(workers))
    return Compared(checked.directory, results.read(checked.directory))


def make_console(file: Any = None) -> Console:
    """Returns a console for a comparison.

    Unlike `training.reporting.console.make_console`, it does not start JAX, which would occupy the
    accelerators.
    """
    # In a notebook, rich would display the text instead of writing it to the file.
    in_notebook = None if file is None else False
    console = PrintableConsole(file=file, force_jupyter=in_notebook)
    if not console.is_terminal:
        console.width = WIDTH
    return console


def run_comparison(
    comparison: Comparison,
    console: Console,
    machines: Machines,
    trusted: Sequence[str] = (),
    only_pilot: bool = False,
) -> list[Trial]:
    """Runs the missing parts of a comparison and writes its report. Returns the failed trials.

    With `only_pilot`, only a pilot is run and printed (`comparison.pilot`).
    """
    if only_pilot:
        check_pilot(comparison.variants, comparison.seeds, comparison.has_budgets)
    directory = comparison.directory
    start = start_trial
    if machines.jobs:
        check_budgets(comparison)
        start = starter(directory, machines.jobs)
    cores, *_ = cores_of_workers(None if machines.jobs else machines.workers)
    check_unchanged(comparison, facts_of(comparison))
    with atomic_writes.locked(Path(directory) / LOCK, f"{directory} is compared"):
        check_looks(comparison)
        atomic_writes.write_text(
            Path(directory) / run_directory.COMPARISON,
            atomic_writes.sealed_text(comparison_text(comparison)),
        )
        console.print(f"[bold]{escape(comparison.question)}[/]")
        if len(comparison.seeds) == 1 and not comparison.has_budgets:
            print_warning(console, ONE_SEED.format(more_seeds(comparison.seeds)))
        facts = planned(console, comparison, cores)
        print_facts(console, facts)
        run = functools.partial(run_missing, console, machines, start)
        facts = tune(comparison, facts, trusted, run)
        trials = trials_of(comparison, facts, trusted)
        if only_pilot:
            return run_pilot(comparison, console, trials, run)
        trials, failed = run_to_the_last_look(comparison, trials, run)
        results.write(directory, results_of(comparison, trials))
        write_report(directory, console)
        print_failed(console, failed)
    return failed


def run_pilot(
    comparison: Comparison, console: Console, trials: Sequence[Trial], run: RunTrials
) -> list[Trial]:
    seeds = pilot_seeds(trials)
    trials = [trial for trial in trials if trial.seed in seeds]
    failed = run(trials)
    print_failed(console, failed)
    keep_looks(comparison)
    pilot = pilot_of(summary_of(results_of(comparison, trials)), len(comparison.seeds))
    print_pilot(console, pilot, comparison.seeds)
    return failed


def print_kept_pilot(
    directory: str, console: Console, smallest_effects: Mapping[str, float]
) -> None:
    """Prints what the kept results of a comparison say as a pilot. No run is needed.

    Raises ValueError for a directory without results, and for a comparison that has no pilot.
    """
    kept = results.read(directory)
    seeds = sorted({run.seed for run in kept.runs})
    check_pilot(kept.setup.variants, seeds, kept.setup.scaling)
    both = {**kept.setup.smallest_effects, **smallest_effects}
    setup = kept.setup._replace(smallest_effects=both)
    console.print(f"[bold]{escape(setup.question)}[/]")
    pilot = pilot_of(summary_of(kept._replace(setup=setup)), len(seeds))
    print_pilot(console, pilot, seeds)


def run_to_the_last_look(
    comparison: Comparison, trials: Sequence[Trial], run: RunTrials
) -> tuple[list[Trial], list[Trial]]:
    """Runs trials up to the first look that decides all differences.

    Returns these trials, and the failed trials.
    """
    failed: list[Trial] = []
    begun = 0
    for look in comparison.planned_looks or (len(comparison.seeds),):
        failed += run([trial for trial in trials if trial.seed in comparison.seeds[begun:look]])
        tested = [trial for trial in trials if trial.seed in comparison.seeds[:look]]
        if comparison.looks and not failed and ends_early(comparison, tested):
            return tested, failed
        begun = look
    return list(trials), failed


def run_missing(
    console: Console, machines: Machines, start: Start, trials: Sequence[Trial]
) -> list[Trial]:
    """Runs the missing parts of trials. Returns the failed trials."""
    states = [trial.state for trial in trials]
    missing = [state.trial for state in states if not state.is_complete or state.refusals]
    if not missing:
        return []
    shares = cores_of_runs(machines, missing)
    with ComparisonProgress(console, missing, len(trials) - len(missing)) as progress:
        return run_trials(missing, start, shares, progress)


def cores_of_runs(machines: Machines, trials: Sequence[Trial]) -> list[list[int]]:
    """Returns the cores of each concurrent run.

    Raises ValueError if several runs would share TPUs.
    """
    if machines.jobs:
        return [[0]] * (machines.workers or len(trials))  # the cluster's cores
    platforms = {trial.facts.platform for trial in trials}
    if "tpu" in platforms and (machines.workers or 1) > 1:
        raise ValueError(
            f"Got --workers={machines.workers}, expected 1, since a TPU belongs to one process: "
            "leave the option out."
        )
    if machines.workers is None and platforms - {"cpu"}:
        return cores_of_workers(1)  # a run uses all accelerators
    return cores_of_workers(machines.workers)


def planned(
    console: Console, comparison: Comparison, cores: Sequence[int]
) -> dict[str, VariantFacts]:
    """Returns the facts of each variant.

    Another process computes missing facts, on the cores of one worker, so that it measures step
    times as in training.
    """
    directory = comparison.directory
    log = Path(comparison.directory) / LOG
    if facts_of(comparison).keys() != trained_variants(comparison).keys():
        console.print("Preparing the text and planning the variants …")
        process = start_process(log, cores, plan_variants, comparison)
        try:
            status = process.wait()
        finally:
            process.kill()
        if status:
            raise ValueError(failure_of(directory) or f"Planning ended with {status}: see {log}.")
    return facts_of(comparison)


def print_failed(console: Console, failed: Sequence[Trial]) -> None:
    for trial in failed:
        failure = failure_of(trial.run.run_dir)
        log = Path(trial.run.run_dir) / LOG
        message = f"\nFailed: {trial.name}: {failure}\n  (its full output: {log})"
        console.print(message, markup=False)


def more_seeds(seeds: Sequence[int]) -> str:
    """Returns the option for `ENOUGH` seeds in total, or at least two more.

    >>> more_seeds([0, 7]), more_seeds([0, 1, 2, 3, 4])
    ('--seeds="[0, 7, 1, 2, 3]"', '--seeds="[0, 1, 2, 3, 4, 5, 6]"')
    """
    others = (seed for seed in itertools.count() if seed not in seeds)
    added = itertools.islice(others, max(2, ENOUGH - len(seeds)))
    return f'--seeds="{[*seeds, *added]}"'
