"""Prepares text for training: cleans, filters, deduplicates, tokenizes and writes a token store.

    pretrax prepare --files='raw/*.jsonl' --out=stores/mine
    pretrax prepare --gin_file=preprocessing/fineweb.gin --files='crawl/*.warc.gz' \\
        --out=stores/web

The steps are in gin_configs/preprocessing/default.gin, or in your own gin file. OUT then has the
store, report.json and report.html. The report shows how many documents each step read, how many
each rule dropped, and examples. If the command is killed at any moment, start it again to continue.
"""

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..preprocessing.preparation import (
    DEFAULT,
    Preparation,
    out_path,
    plain_settings,
    preparation_of,
    setting_differences,
)
from ..settings import atomic_writes
from ..settings.command_line import add_gin_arguments, at_least, parse_with_gin
from ..settings.printable import PrintableConsole, print_note
from ..settings.user_errors import report_user_errors
from . import make_parser

LOCK = ".lock"  # locked by the process that prepares the text


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser("prepare", __doc__)
    workers = (
        "number of tasks at a time, which does not change the result (default: one for each core, "
        "or what a cluster provides)"
    )
    parser.add_argument("--workers", type=at_least(1), metavar="N", help=workers)
    add_gin_arguments(parser, default=DEFAULT)
    options, gin = parse_with_gin(parser, argv, Preparation, [DEFAULT])
    stopped = "\nStopped; the same command continues after the complete tasks."
    with report_user_errors(options.traceback, stopped):
        preparation = preparation_of(gin.reader().settings())
        held = out_path(preparation, LOCK)
        with atomic_writes.locked(held, f"{preparation.out} is prepared"):
            prepare(preparation, options.workers)


def prepare(preparation: Preparation, workers: int | None) -> None:
    """Prepares text, if necessary, and prints a summary."""
    # These modules import datatrove, which --help does not need.
    from ..preprocessing import preparation_page, preparation_report, running

    console = PrintableConsole()
    if not console.is_terminal:
        console.width = 120
    p = preparation
    out = out_path(preparation)
    source, steps, output = running.parts_of(p)
    settings: dict[str, str] = {}
    for name in ("source", "steps", "output"):
        settings |= plain_settings(name, getattr(p, name))
    fingerprint = running.stages_of(p, source, steps, output)[-1].fingerprint
    if os.path.exists(file := os.path.join(out, preparation_report.REPORT)):
        check_unchanged(p.out, atomic_writes.read_json(file), settings, fingerprint)
        running.finish(out)
        console.print(f"{p.out} is prepared already: nothing to do.", markup=False)
    else:
        check_is_own(out)
        console.print(f"Preparing {source.about}", markup=False)
        watch = functools.partial(progress_of, console)
        reports = running.run(p, source, steps, output, workers, watch)
        report = preparation_report.PreparationReport(source.about, reports, settings, fingerprint)
        preparation_report.print_table(console, reports)
        output.end(out, source.tasks, {"made_by": "pretrax prepare", "settings": settings})
        preparation_report.write(out, report, preparation_page.page(report))
        running.finish(out)
        console.print(f"\n{report.summary}. {p.out} holds report.html.", markup=False)
    print_note(console, f"Next: {output.next_command(p.out, source.alphabet)}")


def check_unchanged(out: str, before: Any, settings: dict[str, str], fingerprint: str) -> None:
    """Raises ValueError if a folder was prepared from other text or with other settings."""
    # Other programs write reports too.
    if not isinstance(before, dict) or not {"made_of", "settings"} <= before.keys():
        raise ValueError(f"{out} has another program's report.json: set OUT to a new folder.")
    if before["made_of"] == fingerprint:
        return
    changed = setting_differences(before["settings"], settings) or [
        "files of the source or of a step have changed"
    ]
    raise ValueError(
        f"{out} was prepared with other settings: {'; '.join(changed)}. Give another OUT, or "
        "delete it."
    )


def check_is_own(out: str) -> None:
    """Raises ValueError for a folder with files that do not belong to a preparation."""
    from ..preprocessing.running import WORK

    others = [name for name in os.listdir(out) if name != LOCK]
    if others and WORK not in others:
        raise ValueError(f"{out} has other files, such as {others[0]}: set OUT to a new folder.")


@contextlib.contextmanager
def progress_of(console: Console, what: str, tasks: int) -> Iterator[Callable[[int], None]]:
    """Shows the progress of a pass as a bar. If the output is a log, prints a line at its start."""
    is_log = not console.is_terminal
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=is_log,
    )
    if is_log:
        console.print(f"{what} ({tasks:,} task{'s' * (tasks != 1)})", markup=False)
    with bar:
        number = bar.add_task(what, total=tasks)
        yield lambda done: bar.advance(number, done)
