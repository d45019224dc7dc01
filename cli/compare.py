"""Compares objectives, models or settings: trains and measures variants of a run over seeds.

    pretrax compare masking_rate
    pretrax compare masking_rate --power
    pretrax compare my_comparison.gin --seeds="[0, 1, 2]" --workers=2
    pretrax compare masking_rate --report       rewrites the report of the existing results

A comparison is a file of gin_configs/comparisons, or your own file. It names a base run, variants
of the run, seeds, an equal budget for all variants, and eval metrics. To fit a scaling law, it
names model sizes and several budgets for each. If the command is killed, start it again to
continue. If you add seeds, variants or eval metrics, only the missing parts run.
"""

import argparse
import contextlib
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ..comparison import results
from ..comparison.comparing import (
    Machines,
    make_console,
    more_seeds,
    print_kept_pilot,
    run_comparison,
)
from ..comparison.comparison import Comparison, check
from ..comparison.pilot import SEEDS
from ..comparison.report import write as write_report
from ..comparison.trials import Trial
from ..comparison.variants import comparison_file, named_comparisons, read_comparison
from ..comparison.workers.cluster import JobOptions
from ..comparison.workers.worker_processes import sigterm_as_interrupt
from ..settings.command_line import GinFiles, add_gin_arguments, at_least, parse_with_gin
from ..settings.extras import install_command
from ..settings.user_errors import report_user_errors
from . import make_parser


def main(argv: Sequence[str] | None = None) -> None:
    options, gin = parse(argv)
    stopped = "\nStopped; the same command continues each run from its last checkpoint."
    with report_user_errors(options.traceback, stopped), sigterm_as_interrupt():
        succeeded = compare(options, gin)
    raise SystemExit(0 if succeeded else 1)


def parse(argv: Sequence[str] | None) -> tuple[argparse.Namespace, GinFiles]:
    parser = make_parser("compare", __doc__)
    names = (
        "a name in gin_configs/comparisons, or your own gin file; with --report or --power, also "
        "a directory of results"
    )
    name = parser.add_argument("comparison", metavar="NAME", help=names)
    name.completer = lambda **_: named_comparisons()
    workers = (
        "number of runs at a time, each on its share of the cores (default: one for each core; 1 "
        "with accelerators)"
    )
    parser.add_argument("--workers", type=at_least(1), metavar="N", help=workers)
    pilot = (
        f"power analysis: train {SEEDS} seeds, or use the complete seeds, and show which eval "
        "metrics can distinguish the variants and how many seeds they need"
    )
    parser.add_argument("--power", action="store_true", help=pilot)
    least = (
        "the smallest difference that matters, in the unit of its figure, such as "
        "classify=0.02; may be repeated; for --power, and for a comparison that may end early"
    )
    parser.add_argument(
        "--smallest_effect",
        type=smallest_effect,
        action="append",
        default=[],
        metavar="FIGURE=SIZE",
        help=least,
    )
    report = "rewrite the report of the existing results; run nothing"
    parser.add_argument("--report", action="store_true", help=report)
    cluster = parser.add_argument_group("a Slurm cluster", f"needs {install_command('slurm')}")
    cluster.add_argument("--slurm", action="store_true", help="start each run as a job")
    cluster.add_argument("--partition", metavar="NAME", help="partition of the jobs")
    for name in ("minutes", "cpus", "gpus"):
        default = getattr(JobOptions(), name)
        kind = at_least(0 if name == "gpus" else 1)
        about = f"{name} of a job (default: {default})"
        cluster.add_argument(f"--{name}", type=kind, default=default, metavar="N", help=about)
    add_gin_arguments(parser, takes_files=False)
    options, gin = parse_with_gin(parser, argv, Comparison, _named(argv))
    if options.gin_file:
        parser.error("--gin_file: a comparison is one file, which may include others")
    return options, gin


def smallest_effect(text: str) -> tuple[str, float]:
    """
    >>> smallest_effect("norm (power=4)=0.5")
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


def compare(options: argparse.Namespace, gin: GinFiles) -> bool:
    """Runs the missing parts of a comparison and writes its report; a pilot is only printed.

    Returns whether every run succeeded.
    """
    console = make_console()
    check_options(options)
    if options.report:
        kept = reported(options.comparison, gin)
        write_report(kept, console)
        console.print(f"\n{kept} holds report.html and report.md.", markup=False)
        return True
    if options.power and is_kept(options.comparison):
        print_kept_pilot(options.comparison, console, dict(options.smallest_effect))
        return True
    comparison = comparison_of(options.comparison, gin)
    if options.smallest_effect:
        if not (options.power or comparison.looks):
            raise ValueError(
                "--smallest_effect is for --power, and for a comparison that may end early "
                "(comparison.Comparison.looks), and this command has neither: leave it out, or add "
                "--power."
            )
        both = {**(comparison.smallest_effects or {}), **dict(options.smallest_effect)}
        comparison = check(dataclasses.replace(comparison, smallest_effects=both))
    machines = Machines(options.workers, job_options(options) if options.slurm else None)
    failed = run_comparison(comparison, console, machines, gin.trusted, options.power)
    if not options.power:
        print_end(console, comparison, failed)
    return not failed


def check_options(options: argparse.Namespace) -> None:
    """Raises ValueError for options that would have no effect."""
    running = ("power", "smallest_effect", "slurm", "workers")
    idle = [f"--{name}" for name in running if getattr(options, name)]
    if options.report and idle:
        raise ValueError(
            f"--report runs nothing, so {', '.join(idle)} would have no effect: leave out "
            "--report, or the other options."
        )
    plans = options.slurm or options.workers or options.gin_bindings
    if options.power and is_kept(options.comparison) and plans:
        raise ValueError(
            f"{options.comparison} is a directory of results, and nothing is trained for its "
            "--power, so --slurm, --workers and settings of the comparison (--gin.…) would have no "
            "effect: leave them out, or give the comparison's gin file."
        )
    if job_options(options) != JobOptions() and not options.slurm:
        needs = ", ".join(f"--{name}" for name in JobOptions._fields)
        raise ValueError(f"{needs} are options of Slurm jobs: add --slurm, or leave them out.")


def job_options(options: argparse.Namespace) -> JobOptions:
    return JobOptions(options.partition, options.minutes, options.cpus, options.gpus)


def comparison_of(name: str, gin: GinFiles) -> Comparison:
    return read_comparison(name, gin.bindings, gin.search_paths, gin.trusted)


def reported(asked: str, gin: GinFiles) -> str:
    """Returns the directory of results for a comparison's name, gin file or directory.

    A directory may have the name of a comparison, like the folder objectives of a checkout.

    Raises ValueError for settings that a report of existing results would ignore.
    """
    is_name = asked.endswith(".gin") or asked in named_comparisons()
    is_kept_alone = has_results(asked) or (Path(asked).is_dir() and not is_name)
    directory = asked if is_kept_alone else comparison_of(asked, gin).directory
    if gin.bindings and (is_kept_alone or not _set_only_directory(asked, gin)):
        raise ValueError(
            f"--report shows the results in {directory} as they are, so settings of the comparison "
            "(--gin.…) would have no effect: leave them out, or run the comparison "
            "without --report to add what is missing."
        )
    return directory


def _set_only_directory(asked: str, gin: GinFiles) -> bool:
    """Returns whether the bindings of a command line change nothing but the directory."""
    changed = comparison_of(asked, gin)
    unchanged = read_comparison(asked, (), gin.search_paths, gin.trusted)
    return changed == dataclasses.replace(unchanged, directory=changed.directory)


def is_kept(asked: str) -> bool:
    """Returns whether a comparison is given by its directory of results, and not by its name."""
    return asked not in named_comparisons() and has_results(asked)


def has_results(directory: str) -> bool:
    return (Path(directory) / results.COMPARISON).exists()


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
