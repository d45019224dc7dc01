"""Command line and gin: what every verb takes, and errors in words.

    pretrax train --gin_file=gin_configs/runs/own_text.gin --gin.FILES="'data/*.txt'"

`--gin_file` may be repeated, later files override earlier ones; `--gin.NAME=VALUE` overrides both.
Gin files, and those that they include, are looked for here and then in the repository.
"""

import argparse
import contextlib
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import gin
import jax

from pretrax.verbs import as_typed

ROOT = Path(__file__).resolve().parent.parent
UNKNOWN_FUNCTION = """
A function that no gin file of this run imports needs a gin file of yours that imports it, given
after the run's own (--gin_file=RUN.gin --gin_file=mine.gin); of four lines, say:
  from __gin__ import dynamic_registration
  from pretrax import train
  from pretrax.training import optimizers
  train.train.optimizer = @optimizers.adamw"""
OUT_OF_MEMORY = """
Out of memory: lower batch_size, raise microbatches, use the model's remat_policy = 'full', or
spread the parameters over devices with mesh.make_mesh.fsdp."""


def parse_command_line(
    verb: str, argv: Sequence[str], description: str, default_file: str
) -> tuple[list[str], list[str], bool]:
    """(gin files, gin bindings, whether to show tracebacks); --help and mistakes exit."""
    parser = argparse.ArgumentParser(
        prog=as_typed(f"pretrax {verb}"),
        description=as_typed(description),
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
    parser.add_argument(
        "--traceback", action="store_true", help="show where in the program an error came up"
    )
    options, others = parser.parse_known_args(argv)
    bindings = []
    for argument in others:
        name, equals, value = argument.removeprefix("--gin.").partition("=")
        if not argument.startswith("--gin.") or not equals or not name:
            parser.error(f"unknown argument {argument!r}; gin values are --gin.NAME=VALUE")
        bindings.append(f"{name} = {value}")
    return options.gin_file or [default_file], bindings, options.traceback


def configure(files: Sequence[str], bindings: Sequence[str]) -> str:
    """Parses gin; returns the configuration as text. Raises ValueError in words."""
    paths = [str(find_gin_file(file)) for file in files]
    gin.add_config_file_search_path(str(ROOT))
    # Plain files only: gin would take an include's folder for a package, and fail as it is none.
    del gin.config._FILE_READERS[1:]
    try:
        parsed = gin.parse_config_files_and_bindings(paths, list(bindings))
    except Exception as error:  # gin raises many kinds, with the place in the message
        if missing := re.search(r"No bindings specified for '(\w+)/gin.macro'", str(error)):
            name = missing[1]
            raise ValueError(
                f"{name} has no value: give --gin.{name}=VALUE (a string is quoted twice: "
                "\"'text'\")."
            ) from error
        words = f"The configuration cannot be read: {in_words(error)}"
        if "Failed to parse token" in words:
            words += (
                "\nValues are Python literals; strings are quoted twice: --gin.NAME=\"'text'\"."
            )
        if "No configurable matching" in words:
            words += UNKNOWN_FUNCTION
        raise ValueError(words) from error
    config = gin.config_str()
    check_macros(config, bindings, list(_texts(parsed)))
    return config


def find_gin_file(name: str) -> Path:
    """The path of a gin file given from here or, failing that, from the repository's root."""
    for path in (Path(name), ROOT / name):
        if path.is_file():
            return path
    near = sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("gin_configs/runs/*.gin"))
    raise ValueError(f"There is no gin file {name!r}. Runs that come with it: {', '.join(near)}.")


def _texts(parsed: Sequence) -> Iterator[str]:
    """What gin files and their includes say."""
    for file in parsed:
        yield find_gin_file(file.filename).read_text()
        yield from _texts(file.includes)


def check_macros(config: str, bindings: Sequence[str], texts: Sequence[str]) -> None:
    """Raises ValueError for a macro that nothing uses, such as a misspelt one.

    A run may override a value that one of its gin files (`texts`) takes from a macro; the macro
    is then idle, and no mistake, unless the command line (`bindings`) gives it.

    >>> check_macros("STEPS = 1\\ntrain.steps = %STEPS\\n", [], [])
    """
    macros = re.findall(r"^(\w+) =", config, re.MULTILINE)
    given = {binding.partition(" = ")[0] for binding in bindings}
    used = set(re.findall(r"%(\w+)", config))
    named = set(re.findall(r"%(\w+)", "\n".join(texts)))
    idle = [m for m in macros if m not in used and (m in given or m not in named)]
    if idle:
        there = sorted((set(macros) | named) - set(idle))
        raise ValueError(
            f"Nothing in this run uses {', '.join(idle)}. The names that it has: "
            f"{', '.join(there) or 'none'}; other values are given as MODULE.FUNCTION.ARGUMENT."
        )


def unused_models(config: str) -> str | None:
    """In words, which of `models` the configuration sets and does not train; None: none.

    >>> unused_models("train.train.model = @models.decoder\nmodels.encoder.emb_dim = 8\n")[:30]
    'models.encoder is set, and not'
    """
    used = re.search(r"^train\.train\.model = @models\.(\w+)", config, re.MULTILINE)
    found = re.findall(r"^models\.(\w+)\.\w+ =", config, re.MULTILINE)
    idle = sorted(set(found) - {used[1]}) if used else []
    if not idle:
        return None
    names = ", ".join(f"models.{name}" for name in idle)
    return (
        f"{names} is set, and not trained: this run's model is models.{used[1]}. A preset of another "
        "architecture needs a run of that architecture."
    )


def in_words(error: BaseException) -> str:
    """An exception's message without gin's notes on who called whom."""
    lines = str(error).rstrip().splitlines()
    lines = [line for line in lines if not line.startswith("  In call to configurable")]
    return "\n".join(lines).strip() or type(error).__name__


def explanation(error: Exception) -> str | None:
    """What to say of an error that people can mend themselves; None: its traceback is needed."""
    if isinstance(error, jax.errors.JaxRuntimeError):
        return in_words(error) + OUT_OF_MEMORY if "RESOURCE_EXHAUSTED" in str(error) else None
    if isinstance(error, TypeError) and "required keyword-only argument" not in str(error):
        return None  # else a value that no gin file gives, by name
    mendable = isinstance(error, ValueError | OSError | FloatingPointError | TypeError)
    return in_words(error) if mendable else None


@contextlib.contextmanager
def mistakes_in_words(traceback: bool, interrupted: str = "\nInterrupted."):
    """Ends the program for a user's mistake with a message, no traceback, and status 2.

    Args:
      traceback: whether to show where an error came up after all.
      interrupted: what to say at Ctrl-C, which gives status 130.
    """
    try:
        yield
    except KeyboardInterrupt:
        print(interrupted, file=sys.stderr)
        raise SystemExit(130) from None
    except Exception as error:
        words = explanation(error)
        if traceback or words is None:
            raise
        print(f"\nerror: {words}\n(--traceback shows where)", file=sys.stderr)
        raise SystemExit(2) from None


def check_counts(**counts: int | None) -> None:
    """Raises ValueError for a count that is no whole number above 0; None is one not set.

    >>> check_counts(steps=10, evaluate_every=None)
    """
    for name, count in counts.items():
        if count is not None and (not isinstance(count, int) or count < 1):
            raise ValueError(f"{name} must be a whole number above 0, got {count!r}.")


def check_directories(run_dir: str, checkpoint_dir: str | None) -> None:
    """Raises ValueError for a run directory in a bucket, and for names that Orbax cannot read.

    >>> check_directories("runs/mine", "gs://my-bucket/mine")
    """
    if "://" in str(run_dir):
        raise ValueError(
            f"run_dir is a directory on disk, got {run_dir}: set checkpoint_dir "
            "(--gin.CHECKPOINT_DIR in the C4 runs) to keep checkpoints in a bucket."
        )
    where = str(checkpoint_dir or run_dir)
    if "[" in where or "]" in where:  # Orbax takes them for a pattern, and finds nothing
        raise ValueError(f"Checkpoints under a name with brackets cannot be read, got {where}.")


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
