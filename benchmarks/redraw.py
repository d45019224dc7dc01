"""Times the pictures of `pretrax explore`: the first, after a change of a setting, and again.

    python benchmarks/redraw.py                      # all objectives; some minutes on two cores
    python benchmarks/redraw.py ul2 masked_lm        # only these

A new shape or setting compiles a program. The columns "first" and "change" include this. The column
"again" is the median of three more draws of a setting that was drawn before. No compiled program is
read from disk, so a second start of `pretrax explore` is faster than "first". Times are those of
the server, without the browser's.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / ".ci/links")]

from benchmarks.common import make_parser, plain_table, shown
from pretrax.explorer import gallery
from pretrax.explorer.objective_views import Objectives, choice_of
from pretrax.objectives.catalog import CATALOG


class Redraw(NamedTuple):
    """Times of an objective's pictures in milliseconds; None for an objective without settings."""

    first: float
    change: float | None
    again: float


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    jax.config.update("jax_disable_most_optimizations", True)  # as `pretrax explore` does
    console = Console(highlight=False)
    found = {}
    for name in options.names or CATALOG:
        found[name] = timed(name)
        console.print(f"{name}: {', '.join(map(shown, found[name]))} ms", style="dim")
    console.print(table(found))


def timed(name: str) -> Redraw:
    """Draws an objective with its settings, with another setting, and with other seeds."""
    drawing = Objectives()
    variants = gallery.variants(choice_of(name).build)
    vocabulary = gallery.vocabulary_of(drawing, name)
    jax.clear_caches()  # programs of this objective and of others

    def milliseconds(variant: gallery.ShownSettings) -> float:
        view = gallery.view_of(name, variant, vocabulary)
        began = time.perf_counter()
        drawing.show(view)
        return 1000 * (time.perf_counter() - began)

    changes = [variant for variant in variants if variant.values]
    first = milliseconds(gallery.PUBLISHED)
    change = milliseconds(changes[0]) if changes else None
    again = [milliseconds(gallery.PUBLISHED._replace(seed=seed)) for seed in (1, 2, 3)]
    return Redraw(first, change, statistics.median(again))


def table(found: dict[str, Redraw]) -> Table:
    """Returns a table with a line for each objective, and the median and the worst of all."""
    made = plain_table("objective", *Redraw._fields, title="Milliseconds of a picture")
    for name, times in found.items():
        made.add_row(name, *map(shown, times))
    columns = [[x for x in column if x is not None] for column in zip(*found.values())]
    made.add_row("median", *(shown(statistics.median(x)) if x else "–" for x in columns))
    made.add_row("worst", *(shown(max(x)) if x else "–" for x in columns))
    return made


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("names", nargs="*", help="names of objectives; by default all")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.names) - set(CATALOG)):
        parser.error(f"unknown objectives {unknown}, expected one or more of {sorted(CATALOG)}")
    return options


if __name__ == "__main__":
    main()
