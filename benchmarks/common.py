"""Command lines, tables and child processes that the benchmarks share."""

import argparse
import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from rich.table import Table


def read_options(
    arguments: Sequence[str] | None,
    description: str | None,
    names: Collection[str] = (),
    **defaults: Any,
) -> argparse.Namespace:
    """Returns the options of a benchmark, each with the type of its default.

    >>> read_options(["b", "--rows=2"], "Measures …", names=("a", "b"), rows=16, slots=[512, 2048])
    Namespace(names=['b'], rows=2, slots=[512, 2048])

    Args:
      arguments: arguments of the command line. None: those of the process.
      description: docstring of the benchmark, which explains the options.
      names: the positional arguments that are allowed. Without any of them, all are chosen.
      defaults: default of each option. A list takes one or more values; to an empty list, each use
        of the option adds some. False is a flag without a value. None stands for a text.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if names:
        parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(names)}")
    for name, default in defaults.items():
        if default is False:
            parser.add_argument(f"--{name}", action="store_true")
            continue
        value = next(iter(default), None) if isinstance(default, list) else default
        parser.add_argument(
            f"--{name}",
            type=str if value is None else type(value),
            nargs="+" if isinstance(default, list) else None,
            action="extend" if default == [] else "store",
            default=default,
            help=f"default: {default}",
        )
    options = parser.parse_args(arguments)
    if names:
        if unknown := [name for name in options.names if name not in names]:
            parser.error(f"got {unknown}, expected one or more of {', '.join(names)}")
        options.names = options.names or list(names)
    return options


def plain_table(*columns: str, left: int = 1, title: str | None = None) -> Table:
    """Returns a table whose first `left` columns are text, and whose other columns are numbers."""
    table = Table(title=title, title_justify="left", box=None)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < left else "right")
    return table


def shown(figure: object) -> str:
    """Returns a figure as a cell of a table.

    >>> shown(12345), shown(1234.5), shown(0.12345), shown(None), shown("too many")
    ('12,345', '1,234', '0.123', '–', 'too many')
    """
    if not isinstance(figure, float):
        return f"{figure:,}" if isinstance(figure, int) else "–" if figure is None else str(figure)
    return f"{figure:,.0f}" if abs(figure) >= 100 else f"{figure:.3g}"


def rows_of_process(
    command: list[str], seconds: float | None = None, environment: dict[str, str] | None = None
) -> tuple[list[dict], str | None]:
    """Runs a command that prints JSON objects, one per line.

    Args:
      command: the command and its arguments.
      seconds: time limit, after which the command is killed.
      environment: environment variables of the command.

    Returns:
      The printed objects, and an error message or None.
    """
    problem = None
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        try:
            process = subprocess.run(
                command, env=environment, stdout=out, stderr=err, timeout=seconds
            )
        except subprocess.TimeoutExpired:
            problem = f"cut off after {seconds:.0f} seconds, at the time limit"
        else:
            if process.returncode:
                err.seek(0)
                last = err.read().strip()[-2000:] or "it printed no error"
                problem = f"ended with status {process.returncode}: {last}"
        out.seek(0)
        lines = [line for line in out if line.startswith("{") and line.endswith("}\n")]
    return [json.loads(line) for line in lines], problem


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """Pins this process and the threads of its libraries to one core."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    os.environ["RAYON_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
