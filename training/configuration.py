"""Command line and gin: what every verb takes, and errors in words.

    python train.py --gin_file=gin_configs/runs/own_text.gin --gin.FILES="'data/*.txt'"

`--gin_file` may be repeated, later files override earlier ones; `--gin.NAME=VALUE` overrides both.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import gin


def parse_command_line(
    argv: Sequence[str], description: str, default_file: str
) -> tuple[list[str], list[str]]:
    """(gin files, gin bindings) from a command line; --help and mistakes exit."""
    parser = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--gin_file",
        action="append",
        metavar="FILE",
        help=f"a gin file, may be repeated (default: {default_file})",
    )
    parser.add_argument(
        "--gin.NAME",
        dest="unused",
        metavar="VALUE",
        help="overrides a value of the gin files, e.g. --gin.STEPS=1000 or "
        "--gin.RUN_DIR=\"'runs/mine'\"; VALUE is a Python literal, so strings are quoted twice",
    )
    options, others = parser.parse_known_args(argv)
    bindings = []
    for argument in others:
        name, equals, value = argument.removeprefix("--gin.").partition("=")
        if not argument.startswith("--gin.") or not equals or not name:
            parser.error(f"unknown argument {argument!r}; gin values are --gin.NAME=VALUE")
        bindings.append(f"{name} = {value}")
    return options.gin_file or [default_file], bindings


def configure(files: Sequence[str], bindings: Sequence[str]) -> str:
    """Parses gin; returns the configuration as text. Raises ValueError in words."""
    for file in files:
        if not Path(file).is_file():
            near = ", ".join(sorted(str(p) for p in Path("gin_configs/runs").glob("*.gin")))
            raise ValueError(f"There is no gin file {file!r}. Runs that come with it: {near}.")
    gin.add_config_file_search_path(str(Path(__file__).resolve().parent.parent))
    try:
        gin.parse_config_files_and_bindings(list(files), list(bindings))
    except Exception as error:  # gin raises many kinds, with the place in the message
        words = f"The configuration cannot be read: {in_words(error)}"
        if "Failed to parse token" in words:
            words += (
                "\nValues are Python literals; strings are quoted twice: --gin.NAME=\"'text'\"."
            )
        raise ValueError(words) from error
    return gin.config_str()


def in_words(error: BaseException) -> str:
    """An exception's message without gin's notes on who called whom."""
    lines = str(error).rstrip().splitlines()
    lines = [line for line in lines if not line.startswith("  In call to configurable")]
    return "\n".join(lines).strip() or type(error).__name__


def exit_with(error: BaseException) -> None:
    """Ends the program for a user's mistake: a message, no traceback, status 2."""
    print(f"\nerror: {in_words(error)}", file=sys.stderr)
    raise SystemExit(2)


def check_counts(**counts: int | None) -> None:
    """Raises ValueError for a count that is no whole number above 0; None is one not set.

    >>> check_counts(steps=10, evaluate_every=None)
    """
    for name, count in counts.items():
        if count is not None and (not isinstance(count, int) or count < 1):
            raise ValueError(f"{name} must be a whole number above 0, got {count!r}.")


def save_config(run_dir: str | Path, config: str) -> None:
    """Writes `RUN/config.gin`."""
    path = Path(run_dir) / "config.gin"
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".tmp")
    new.write_text(config)
    new.replace(path)


def changed_values(run_dir: str | Path, config: str) -> list[str]:
    """How `config` differs from the one this run directory was last used with, a line each."""
    path = Path(run_dir) / "config.gin"
    return differing_values(path.read_text(), config) if path.exists() else []


def differing_values(before: str, now: str) -> list[str]:
    """The values that differ between two configurations, a line each.

    >>> differing_values("a.b = 1\\n", "a.b = 2\\n")
    ['a.b: was 1, is 2']
    """
    old, new = _values(before), _values(now)
    return [
        f"{name}: was {old.get(name, 'not set')}, is {new.get(name, 'not set')}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]


def _values(text: str) -> dict[str, str]:
    """name -> value of each binding; values may go on over several lines."""
    values: dict[str, str] = {}
    name = None
    for line in text.splitlines():
        if line.startswith("#") or not line.strip() or line.startswith(("import ", "from ")):
            name = None
        elif " = " in line and not line.startswith(" "):
            name, _, value = line.partition(" = ")
            values[name] = value.strip(" \\")
        elif name is not None:
            values[name] += " " + line.strip(" \\")
    return {name: value.strip() for name, value in values.items()}
