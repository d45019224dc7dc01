"""Trains a model on a pre-training objective.

    pretrax train                                         the quickstart, on any laptop
    pretrax train decoder --objective=fill_in_the_middle  a named run with another objective
    pretrax train --data='texts/*.txt' --steps=500        your own text
    pretrax train my_run.gin                              your own gin file
    pretrax train ul2_20b_c4 --compile=v5p:4x4x8          only compile the step

The run directory has everything that a run writes. To continue a run from its last checkpoint, run
the same command again.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from ..settings.user_errors import report_user_errors
from ..training.compile_check import check
from ..training.devices.compilation_cache import enable_compilation_cache
from ..training.devices.topologies import EXAMPLE, read_topology, use_cpu
from ..training.processes import without_shutdown
from ..training.reporting.compile_report import print_check
from ..training.reporting.console import make_console
from ..training.reporting.profiling import read_steps
from ..training.run_choices import QUICKSTART, add_run_arguments, parse_run
from ..training.run_configuration import run_in
from ..training.trainer import train
from . import make_parser


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser("train", __doc__)
    about = f"only compile the step, for devices that this machine may lack, such as {EXAMPLE}"
    add = parser.add_mutually_exclusive_group().add_argument
    add("--compile", metavar="TOPOLOGY", help=about)
    add("--profile", metavar="FIRST:LAST", help="trace these steps for TensorBoard")
    add_run_arguments(parser, default=Path(QUICKSTART).stem)
    options, gin, typed = parse_run(parser, argv, required=True)
    resumes = "" if options.compile else "; the same command continues from the last checkpoint"
    interrupted = f"\nInterrupted{resumes}."
    with (
        without_shutdown(),
        report_user_errors(options.traceback, interrupted, typed.combined),
    ):
        if options.compile is not None:
            topology = read_topology(options.compile)
            use_cpu()
            run = run_in(gin.reader())
            console = make_console()
            console.print(f"Compiling for {topology}, a minute or more …")
            fits = print_check(console, check(run, topology))
            sys.exit(0 if fits else 1)
        run = run_in(gin.reader())
        if not run.distributed:
            enable_compilation_cache()
        train(run, trusted=gin.trusted, profiled=read_steps(options.profile))
