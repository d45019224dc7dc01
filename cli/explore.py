"""Opens pages in the browser that show objectives, runs and comparisons.

    pretrax explore
    pretrax explore --objective=ul2
    pretrax explore --objective=my_objectives.mine     your own, reloaded when its file changes
    pretrax explore --run=runs/quickstart              a trained model, in any directory
    pretrax explore --export=gallery                   pages that need no server

The pages show runs below `runs` and comparisons below `comparisons` of this folder, in addition to
those that are named. The server listens only to this machine. Ctrl-C ends it.
"""

import argparse
import os
import shlex
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path

import jax

from ..comparison.report import PAGE as REPORT
from ..explorer import gallery
from ..explorer.pages import Explorer
from ..explorer.server import LOCAL, LOOPBACK, Server
from ..objectives.catalog import CATALOG, find
from ..settings.command_line import (
    add_trust_argument,
    given_options,
    offer_completions,
    parse_options,
)
from ..settings.command_terminal import say
from ..settings.printable import PrintableConsole, print_note
from ..settings.progress_bar import progress_bar
from ..settings.run_directory import check_is_run
from ..settings.user_errors import report_user_errors
from ..training.devices.compilation_cache import enable_compilation_cache
from . import make_parser


def main(argv: Sequence[str] | None = None) -> None:
    options = parse(argv)
    console = PrintableConsole()
    with report_user_errors(options.traceback):
        # A page compiles many small programs, each of which runs a few times.
        jax.config.update("jax_disable_most_optimizations", True)
        enable_compilation_cache()
        if options.export:
            export_gallery(console, options.export)
            return
        server = Server(explorer_of(options).site(), options.port, options.host)
        with server:
            print_note(console, f"Open {server.address}")
            if options.host not in LOCAL:
                console.print(
                    "Other machines can reach these pages, without encryption. Anyone who knows "
                    "the address can read the runs and run the objectives that the pages show.",
                    soft_wrap=True,
                )
            console.print("Ctrl-C ends it.")
            if options.browser:
                webbrowser.open(server.address)
            serve(server)


def serve(server: Server) -> None:
    """Serves until Ctrl-C, which ends the process at once, even if a thread computes.

    If Python ended as usual, it would abort in the C++ code of the computation.
    """
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        say("\nThe pages are closed.")
        sys.stdout.flush()
        os._exit(130)


def explorer_of(options: argparse.Namespace) -> Explorer:
    """Returns the pages of a command line. Raises ValueError for an unknown objective or run."""
    objective = options.objective if "." in options.objective else find(options.objective)
    for run in options.run:
        check_is_run(run)
    for directory in options.comparison:
        if not (Path(directory) / REPORT).exists():
            raise ValueError(
                f"{directory} has no {REPORT}: give the directory of a comparison. If its report "
                f"is missing, write it with `pretrax compare {shlex.quote(directory)} --report`."
            )
    return Explorer(options.run, options.comparison, objective, options.trust)


def export_gallery(console: PrintableConsole, folder: str) -> None:
    """Writes the pages that need no server, and says where they are."""
    with progress_bar("Drawing objectives", len(CATALOG)) as advance:
        gallery.export(folder, CATALOG, on_page=lambda name: advance(1))
    console.print(
        f"{len(CATALOG)} pages are in {folder}: open {folder}/index.html in a browser.",
        markup=False,
        soft_wrap=True,
    )


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser("explore", __doc__)
    add = parser.add_argument
    objective = (
        "the objective that is shown first: a name that `pretrax show --list` prints, or your "
    )
    objective += "own MODULE.BUILDER (default: span_corruption)"
    shown = add("--objective", metavar="NAME", default="span_corruption", help=objective)
    shown.completer = lambda **_: list(CATALOG)
    add("--run", action="append", default=[], metavar="RUN", help="a run directory; repeatable")
    reports = "the directory of a comparison; repeatable"
    add("--comparison", action="append", default=[], metavar="DIR", help=reports)
    static = "write pages that need no server, with a few settings of each objective, and stop"
    add("--export", metavar="DIR", help=static)
    add("--port", type=int, default=0, metavar="N", help="the port (default: a free one)")
    host = f"the address to listen on (default: {LOOPBACK}, which only this machine reaches)"
    add("--host", default=LOOPBACK, metavar="ADDRESS", help=host)
    browser = "print the address without opening a browser"
    add("--no_browser", dest="browser", action="store_false", help=browser)
    add_trust_argument(parser)
    offer_completions(parser)
    options = parse_options(parser, argv)
    unused = given_options(parser, options, argv) & {"objective", "run", "comparison"}
    if options.export and unused:
        parser.error(f"--export shows all of pretrax's objectives: leave out --{min(unused)}")
    return options
