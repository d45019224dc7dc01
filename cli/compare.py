"""Compares objectives, models or settings: trains and measures variants of a run over seeds.

    pretrax compare masking_rate
    pretrax compare masking_rate --power
    pretrax compare my_comparison.gin --seeds="[0, 1, 2]" --workers=2
    pretrax compare masking_rate --report       writes the report of the existing results again

A comparison is a file of gin_configs/comparisons, or your own file. It names a base run, variants
of it, seeds, a budget that is equal for all, and eval metrics. Or it names model sizes, each on
several budgets, to fit the law of their loss. If the command is killed at any moment, start it
again to continue. If you add seeds, variants or eval metrics, only the missing parts run.
"""

import argparse
import contextlib
import dataclasses
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from ..comparison import results
from ..comparison.collecting import results_of
from ..comparison.comparison import Comparison, check, trained_variants
from ..comparison.facts import (
    VariantFacts,
    check_unchanged,
    facts_of,
    plan_variants,
    planned_runs,
    runs_with,
)
from ..comparison.failures import LOG, failure_of
from ..comparison.looks import check_looks, ends_early, keep_looks
from ..comparison.pilot import SEEDS, check_pilot, pilot_of, pilot_seeds
from ..comparison.pilot_tables import print_pilot
from ..comparison.report import write as write_report
from ..comparison.report.equality import print_facts
from ..comparison.report.summary import summary
from ..comparison.trials import Trial, trials_of
from ..comparison.tuning_trials import tune
from ..comparison.variants import (
    comparison_file,
    comparison_text,
    named_comparisons,
    read_comparison,
)
from ..comparison.workers.cluster import JobOptions, check_budgets, starter
from ..comparison.workers.progress import ComparisonProgress
from ..comparison.workers.worker_processes import (
    Start,
    cores_of_workers,
    run_trials,
    sigterm_as_interrupt,
    start_process,
    start_trial,
)
from ..settings import atomic_writes, run_directory
from ..settings.command_line import GinArguments, add_gin_arguments, at_least, parse_with_gin
from ..settings.extras import install_command
from ..settings.printable import PrintableConsole
from ..settings.user_errors import report_user_errors
from ..training.reporting.console import print_warning
from . import make_parser

LOCK = ".lock"  # held by the command that compares
ENOUGH = 5  # number of seeds of most comparisons in gin_configs
ONE_SEED = (
    "One seed gives no intervals, so it does not show whether a difference would hold for another "
    "seed: give {}. Existing runs are kept."
)


def main(argv: Sequence[str] | None = None) -> None:
    options, given = parse(argv)
    stopped = "\nStopped; the same command continues each run from its last checkpoint."
    with report_user_errors(options.traceback, stopped), sigterm_as_interrupt():
        succeeded = compare(options, given)
    raise SystemExit(0 if succeeded else 1)


def parse(argv: Sequence[str] | None) -> tuple[argparse.Namespace, GinArguments]:
    parser = make_parser("compare", __doc__, allow_abbrev=False)
    names = (
        "a name in gin_configs/comparisons, or your own gin file; with --report, also a directory"
    )
    name = parser.add_argument("comparison", metavar="NAME", help=names)
    name.completer = lambda **_: named_comparisons()
    workers = (
        "number of runs at a time, each on its share of the cores (default: one for each core; 1 "
        "with accelerators)"
    )
    parser.add_argument("--workers", type=at_least(1), metavar="N", help=workers)
    pilot = (
        f"train {SEEDS} seeds, or use complete ones, and show which eval metrics can distinguish "
        "variants and how many seeds that needs"
    )
    parser.add_argument("--power", action="store_true", help=pilot)
    least = (
        "the smallest difference that matters, in the unit of its figure, such as "
        "classify=0.02; repeatable. For --power, and for looks"
    )
    parser.add_argument(
        "--wanted", type=wanted, action="append", default=[], metavar="FIGURE=SIZE", help=least
    )
    report = "write the report of the existing results again; run nothing"
    parser.add_argument("--report", action="store_true", help=report)
    cluster = parser.add_argument_group("a Slurm cluster", f"needs {install_command('slurm')}")
    cluster.add_argument("--slurm", action="store_true", help="start each run as a job")
    cluster.add_argument("--partition", metavar="NAME", help="partition of the jobs")
    for name in ("minutes", "cpus", "gpus"):
        default = getattr(JobOptions(), name)
        kind = at_least(0 if name == "gpus" else 1)
        about = f"{name} of a job (default: {default})"
        cluster.add_argument(f"--{name}", type=kind, default=default, metavar="N", help=about)
    add_gin_arguments(parser)
    options, given = parse_with_gin(parser, argv, Comparison, _named(argv))
    if given.files:
        parser.error("--gin_file: a comparison is one file, which may include others")
    return options, given


def wanted(text: str) -> tuple[str, float]:
    """
    >>> wanted("norm (power=4)=0.5")
    ('norm (power=4)', 0.5)
    """
    figure, _, size = text.rpartition("=")
    try:
        return figure, float(size)
    except ValueError:
        message = f"expected FIGURE=SIZE, such as classify=0.02, got {text!r}"
        raise argparse.ArgumentTypeError(message) from None


def _named(argv: Sequence[str] | None) -> list[str]:
    """Returns the file of the comparison that a command line names; [] if it names none."""
    for word in sys.argv[1:] if argv is None else argv:
        with contextlib.suppress(ValueError):
            if not word.startswith("-"):
                return [comparison_file(word)]
    return []


def compare(options: argparse.Namespace, given: GinArguments) -> bool:
    """Runs the missing parts of a comparison and writes its report; a pilot is only printed.

    Returns whether every run succeeded.
    """
    console = PrintableConsole(highlight=False)  # `make_console` would take the runs' devices
    if not console.is_terminal:
        console.width = 120
    _, *settings = given
    check_options(options)
    if options.report:
        kept = reported(options.comparison, settings)
        write_report(kept, console)
        console.print(f"\n{kept} holds report.html and report.md.", markup=False)
        return True
    comparison = read_comparison(options.comparison, *settings)
    if options.wanted:
        if not (options.power or comparison.looks):
            raise ValueError(
                "--wanted is for --power, and for a comparison that may end early "
                "(comparison.Comparison.looks), and this command has neither: leave it out, or add "
                "--power."
            )
        both = {**(comparison.wanted or {}), **dict(options.wanted)}
        comparison = check(dataclasses.replace(comparison, wanted=both))
    if options.power:
        check_pilot(comparison)
    if options.slurm:
        check_budgets(comparison)
    directory = comparison.directory
    paths = given.search_paths
    if options.slurm:
        starter(directory, job_options(options))  # raises before anything is planned
    cores, *_ = cores_of_workers(None if options.slurm else options.workers)
    known = facts_of(comparison)
    runs = planned_runs(known, comparison, paths)
    with atomic_writes.locked(Path(directory) / LOCK, f"{directory} is compared"):
        check_unchanged(comparison, runs, known)
        check_looks(comparison)
        atomic_writes.write_text(
            Path(directory) / run_directory.COMPARISON,
            atomic_writes.sealed_text(comparison_text(comparison)),
        )
        console.print(f"[bold]{escape(comparison.question)}[/]")
        if len(comparison.seeds) == 1 and not isinstance(comparison.budget, Mapping):
            print_warning(console, ONE_SEED.format(more_seeds(comparison.seeds)))
        facts = planned(console, comparison, paths, cores)
        print_facts(console, facts)

        def run(some: Sequence[Trial]) -> list[Trial]:
            return run_missing(console, options, directory, facts, some)

        facts = tune(comparison, facts, paths, given.trusted, run)
        trials = trials_of(comparison, runs_with(facts, comparison, paths), facts, given.trusted)
        if options.power:
            seeds = pilot_seeds(trials)
            trials = [trial for trial in trials if trial.seed in seeds]
            failed = run(trials)
            print_failed(console, failed)
            keep_looks(comparison)
            pilot = pilot_of(summary(results_of(comparison, trials)), len(comparison.seeds))
            print_pilot(console, pilot, comparison.seeds)
            return not failed
        trials, failed = run_to_the_last_look(comparison, trials, run)
        results.write(directory, results_of(comparison, trials))
        write_report(directory, console)
        print_failed(console, failed)
        print_end(console, comparison, failed)
    return not failed


def check_options(options: argparse.Namespace) -> None:
    """Raises ValueError for options that would have no effect."""
    idle = [
        f"--{name}" for name in ("power", "wanted", "slurm", "workers") if getattr(options, name)
    ]
    if options.report and idle:
        raise ValueError(
            f"--report runs nothing, and so has no use for {', '.join(idle)}: leave it out, or "
            "them."
        )
    if job_options(options) != JobOptions() and not options.slurm:
        needs = ", ".join(f"--{name}" for name in JobOptions._fields)
        raise ValueError(f"{needs} are of jobs: add --slurm, or leave them out.")


def reported(asked: str, settings: Sequence[Sequence[str]]) -> str:
    """Returns the directory of the results that a name, a file or a directory asks for.

    A directory may have the name of a comparison, as the folder objectives of a checkout has.
    """
    is_name = asked.endswith(".gin") or asked in named_comparisons()
    has_results = (Path(asked) / results.COMPARISON).exists()
    if has_results or (Path(asked).is_dir() and not is_name):
        return asked
    return read_comparison(asked, *settings).directory


def run_to_the_last_look(
    comparison: Comparison, trials: Sequence[Trial], run: Callable[[Sequence[Trial]], list[Trial]]
) -> tuple[list[Trial], list[Trial]]:
    """Runs trials up to the first look without failures that decides all wanted differences.

    Returns the trials up to that look, and the trials that failed.
    """
    failed: list[Trial] = []
    begun = 0
    for look in comparison.planned_looks or (len(comparison.seeds),):
        failed += run([trial for trial in trials if trial.seed in comparison.seeds[begun:look]])
        some = [trial for trial in trials if trial.seed in comparison.seeds[:look]]
        if comparison.looks and not failed and ends_early(comparison, some):
            return some, failed
        begun = look
    return list(trials), failed


def run_missing(
    console: Console,
    options: argparse.Namespace,
    directory: str,
    facts: Mapping[str, VariantFacts],
    trials: Sequence[Trial],
) -> list[Trial]:
    """Runs the missing parts of trials; returns the trials that failed."""
    states = [trial.state for trial in trials]
    missing = [one.trial for one in states if not one.is_complete or one.refusals]
    start, shares = how_to_start(options, directory, facts, max(len(missing), 1))
    if not missing:
        return []
    with ComparisonProgress(console, missing, len(trials) - len(missing)) as watch:
        return run_trials(missing, start, shares, watch)


def job_options(options: argparse.Namespace) -> JobOptions:
    return JobOptions(options.partition, options.minutes, options.cpus, options.gpus)


def how_to_start(
    options: argparse.Namespace, directory: str, facts: Mapping[str, VariantFacts], runs: int
) -> tuple[Start, list[list[int]]]:
    """Returns the function that starts a run, and the cores of each concurrent run."""
    if options.slurm:
        start = starter(directory, job_options(options))
        return start, [[0]] * (options.workers or runs)  # the cluster's cores
    on_accelerators = any(one.platform != "cpu" for one in facts.values())
    alone = options.workers is None and on_accelerators  # a run uses all accelerators
    return start_trial, cores_of_workers(1 if alone else options.workers)


def planned(
    console: Console, comparison: Comparison, search_paths: Sequence[str], cores: Sequence[int]
) -> dict[str, VariantFacts]:
    """Returns the facts of each variant. Missing facts are computed by another process.

    That process has a worker's cores to itself, so that it can measure step times. This process
    does not use any device.
    """
    directory = comparison.directory
    log = Path(comparison.directory) / LOG
    if facts_of(comparison).keys() != trained_variants(comparison).keys():
        console.print("Preparing the text, and planning the variants …")
        process = start_process(log, cores, plan_variants, comparison, search_paths)
        try:
            status = process.wait()
        finally:
            process.kill()
        if status:
            raise ValueError(failure_of(directory) or f"Planning ended with {status}: see {log}.")
    return facts_of(comparison)


def print_failed(console: Console, failed: Sequence[Trial]) -> None:
    """Prints why runs failed, and the paths of their logs."""
    for trial in failed:
        failure = failure_of(trial.run.run_dir)
        log = Path(trial.run.run_dir) / LOG
        message = f"\nFailed: {trial.name}: {failure}\n  (its full output: {log})"
        console.print(message, markup=False)


def print_end(console: Console, comparison: Comparison, failed: Sequence[Trial]) -> None:
    """Prints where the results are, and how to continue."""
    more = (
        f"To continue: add seeds ({more_seeds(comparison.seeds)}), variants or eval metrics; only "
        "the missing parts run."
    )
    if comparison.looks:
        more = ""  # seeds beyond the planned seeds would be further looks
    again = "The same command runs the failed parts again." if failed else more
    holds = f"{comparison.directory} holds report.html, report.md, results.jsonl and runs/."
    console.print(f"\n{holds} {again}", markup=False)


def more_seeds(seeds: Sequence[int]) -> str:
    """Returns the option for more seeds: `ENOUGH` seeds in total, or at least two more.

    >>> more_seeds([0, 7]), more_seeds([0, 1, 2, 3, 4])
    ('--seeds="[0, 7, 1, 2, 3]"', '--seeds="[0, 1, 2, 3, 4, 5, 6]"')
    """
    others = (seed for seed in itertools.count() if seed not in seeds)
    added = itertools.islice(others, max(2, ENOUGH - len(seeds)))
    return f'--seeds="{[*seeds, *added]}"'
