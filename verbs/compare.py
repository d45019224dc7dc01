"""Compares objectives, models or settings: trains variants of a run with several seeds, and measures.

    pretrax compare masking_rate
    pretrax compare my_comparison.gin --gin.SEEDS="[0, 1, 2]" --workers=2

A comparison is a file of gin_configs/comparisons, or one of yours: a base run, named variants of it,
seeds, a budget that is equal for all, and yardsticks; or sizes, each on several budgets, and the law of
their loss. Killed at any moment and started again, the same command goes on; seeds, variants and
yardsticks that are added run what is missing.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from ..comparing import results
from ..comparing.comparison import Comparison, trained_variants
from ..comparing.directory import (
    LOG,
    Facts,
    check_unchanged,
    failure_of,
    is_complete,
    read_facts,
    refusals,
    results_of,
    solved_lines,
)
from ..comparing.report import write as write_report
from ..comparing.report.variant_costs import print_facts
from ..comparing.variants import Key, comparison_text, read_comparison, runs_of, runs_of_variants
from ..comparing.workers.cells import Cell, plan_variants
from ..comparing.workers.cluster import JobOptions, check_budgets, starter
from ..comparing.workers.progress import ComparisonProgress, name_of
from ..comparing.workers.worker_processes import (
    Start,
    cores_of_workers,
    run_cells,
    sigterm_as_interrupt,
    start_cell,
    start_process,
)
from ..data import whole_files
from ..training import run_directory
from ..training.reporting.console import print_warning
from ..training.settings import trust
from ..training.settings.command_line import (
    GinArguments,
    add_gin_arguments,
    at_least,
    mistakes_in_words,
    parse_with_gin,
)
from ..training.settings.run import Run, fields_of

LOCK = ".lock"  # held by the command that compares
MORE = (
    'To go on: more seeds (--gin.SEEDS="[0, 1, 2, 3, 4, 5]"), variants or yardsticks; only what is missing '
    "is run."
)
ONE_SEED = (
    "One seed gives no intervals, and says of no difference whether another seed would give it too: "
    'give --gin.SEEDS="[0, 1, 2, 3, 4]". Runs that are there are kept.'
)


def main(argv: Sequence[str] | None = None) -> None:
    options, given = parse(argv)
    stopped = "\nStopped; the same command goes on from where each run was saved."
    with mistakes_in_words(options.traceback, stopped), sigterm_as_interrupt():
        failed = compare(options, given)
    raise SystemExit(1 if failed else 0)


def parse(argv: Sequence[str] | None) -> tuple[argparse.Namespace, GinArguments]:
    parser = argparse.ArgumentParser(
        prog="pretrax compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "comparison",
        metavar="NAME",
        help="a name of gin_configs/comparisons, or a gin file of yours",
    )
    workers = (
        "runs at a time, each on its share of the cores (default: one a core; 1 with accelerators)"
    )
    parser.add_argument("--workers", type=at_least(1), metavar="N", help=workers)
    cluster = parser.add_argument_group("a Slurm cluster", "needs pip install -e '.[slurm]'")
    cluster.add_argument("--slurm", action="store_true", help="each run is a job of the cluster")
    cluster.add_argument("--partition", metavar="NAME", help="of the jobs")
    asked = JobOptions()
    for name in ("minutes", "cpus", "gpus"):
        default = getattr(asked, name)
        kind = at_least(0 if name == "gpus" else 1)
        words = f"of a job (default: {default})"
        cluster.add_argument(f"--{name}", type=kind, default=default, metavar="N", help=words)
    add_gin_arguments(parser)
    options, given = parse_with_gin(parser, argv)
    if given.files:
        parser.error("--gin_file: a comparison is one file, which may include others")
    return options, given


def compare(options: argparse.Namespace, given: GinArguments) -> dict[Key, str]:
    """Runs what a comparison lacks, and writes its report. Returns {run: why it failed}."""
    console = Console(highlight=False)  # `make_console` would take the devices, which the runs need
    if not console.is_terminal:
        console.width = 120
    comparison = read_comparison(
        options.comparison, given.bindings, given.search_paths, given.trusted
    )
    if options.slurm:
        check_budgets(comparison)
    paths = given.search_paths
    variants = runs_of_variants(comparison, paths, solved_lines(comparison))
    directory = comparison.directory
    with whole_files.locked(Path(directory) / LOCK, f"{directory} is compared"):
        check_unchanged(comparison, variants)
        whole_files.write_text(
            Path(directory) / run_directory.COMPARISON, comparison_text(comparison)
        )
        console.print(f"[bold]{escape(comparison.question)}[/]")
        if len(comparison.seeds) == 1 and not isinstance(comparison.budget, Mapping):
            print_warning(console, ONE_SEED)
        cores, *_ = cores_of_workers(None if options.slurm else options.workers)
        facts = planned(console, comparison, paths, cores)
        print_facts(console, facts)
        steps = {variant: one.steps for variant, one in facts.items()}
        variants = runs_of_variants(comparison, paths, solved_lines(comparison))
        runs = runs_of(comparison, variants, steps)
        cells = {
            key: Cell(directory, run, tuple(comparison.yardsticks), trusted_by(run, given))
            for key, run in runs.items()
            if not is_complete(run.run_dir, run.steps, comparison.yardsticks)
            or refusals(run.run_dir, run.steps, comparison.yardsticks)
        }
        work = {
            key: float(facts[key.variant].flops_per_step * run.steps) for key, run in runs.items()
        }
        start, shares = how_to_start(options, directory, facts, max(len(cells), 1))
        failed: dict[Key, str] = {}
        if cells:
            with ComparisonProgress(console, cells, work, len(runs) - len(cells)) as watch:
                failed = run_cells(cells, start, shares, watch)
        report(console, comparison, runs, failed)
    return failed


def how_to_start(
    options: argparse.Namespace, directory: str, facts: Mapping[str, Facts], runs: int
) -> tuple[Start, list[list[int]]]:
    """Returns what starts a run, and the cores of each of those that run at a time."""
    if options.slurm:
        asked = JobOptions(options.partition, options.minutes, options.cpus, options.gpus)
        return starter(directory, asked), [[0]] * (options.workers or runs)  # the cluster's cores
    on_accelerators = any(one.platform != "cpu" for one in facts.values())
    alone = options.workers is None and on_accelerators  # a run takes all of them
    return start_cell, cores_of_workers(1 if alone else options.workers)


def trusted_by(run: Run, given: GinArguments) -> tuple[str, ...]:
    """Returns the modules that the run's own directory may name: the comparison named them."""
    return tuple(sorted({*given.trusted, *trust.modules_of(fields_of(run))}))


def planned(
    console: Console, comparison: Comparison, search_paths: Sequence[str], cores: Sequence[int]
) -> dict[str, Facts]:
    """Returns the facts of each variant, of which a process plans those that are missing.

    It is alone on a worker's cores, so that it can time steps; this process leaves devices alone.
    """
    c, variants = comparison, trained_variants(comparison)
    log = Path(c.directory) / LOG
    if any(read_facts(c.directory, variant) is None for variant in variants):
        console.print("Preparing the text, and planning the variants …")
        process = start_process(log, cores, plan_variants, c, search_paths)
        try:
            status = process.wait()
        finally:
            process.kill()
        if status:
            raise ValueError(failure_of(c.directory) or f"Planning ended with {status}: see {log}.")
    facts = {variant: read_facts(c.directory, variant) for variant in variants}
    return {variant: one for variant, one in facts.items() if one is not None}


def report(
    console: Console, comparison: Comparison, runs: Mapping[Key, Run], failed: Mapping[Key, str]
) -> None:
    """Writes results and report, and prints what there is to read."""
    directory = comparison.directory
    found = results_of(comparison)
    results.write(directory, found)
    write_report(directory, console)
    for key, words in failed.items():
        log = Path(runs[key].run_dir) / LOG
        console.print(
            f"\nFailed: {name_of(key)}: {words}\n  (all that it printed: {log})", markup=False
        )
    again = "The same command runs what failed again." if failed else MORE
    console.print(
        f"\n{directory} holds report.html, report.md, results.jsonl and runs/. {again}",
        markup=False,
    )
