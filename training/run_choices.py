"""The run that a command line names: a run file, and its model, corpus and objective.

    pretrax train decoder --objective=fill_in_the_middle --steps=4

is short for

    pretrax train --gin_file=runs/decoder.gin --gin_file=objectives/fill_in_the_middle.gin \\
        --run_dir=runs/decoder-fill_in_the_middle --steps=4

`parse_run` replaces the names by gin files and bindings. The order is fixed: the run, its model,
its corpus or data, its objective, then other gin files, then bindings.
"""

import argparse
import contextlib
import inspect
import os
import re
import shlex
import sys
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from .. import objectives
from ..constraints import near
from ..objectives.catalog import ALIASES, CATALOG, find, run_of
from ..settings.command_line import (
    GinFiles,
    add_gin_arguments,
    as_option,
    gin_files_of,
    parse_settings,
    with_values_joined,
)
from ..settings.gin_reader import GIN_CONFIGS, find_gin_file, named_gin_files, value_in_gin
from ..settings.printable import printable
from ..settings.run_directory import CONFIG, is_run
from .run import Run

QUICKSTART = "runs/quickstart.gin"
# What an option or the positional argument RUN names, and its folder of gin_configs.
FOLDERS = {"run": "runs", "model": "models", "corpus": "corpora", "objective": "objectives"}
CHOICES = ("model", "corpus", "data", "objective")  # options, in the order of their gin files
_SETS_RUN_DIR = re.compile(
    r"--(gin\.|gin_bindings=)?(training\.Run\.run_dir|run_dir)\s*=", re.IGNORECASE
)


class GinPart(NamedTuple):
    """The gin files and bindings that a name stands for."""

    files: tuple[str, ...] = ()
    bindings: tuple[str, ...] = ()


# --- names ----------------------------------------------------------------------------------------


def part_named(kind: str, name: str) -> GinPart:
    """Returns the gin files and bindings of a run, model, corpus or objective.

    >>> part_named("model", "t5_1_1_small")
    GinPart(files=('models/t5_1_1_small.gin',), bindings=())
    >>> part_named("objective", "my_objectives.mine").bindings
    ('import my_objectives', 'training.Run.objective = @my_objectives.mine')

    Args:
      kind: one of `FOLDERS`.
      name: a name in that folder of gin_configs, or the path of a gin file. An objective may also
        be a short name (`objectives.catalog.ALIASES`), a builder of `pretrax.objectives`, or the
        user's own MODULE.BUILDER.

    Raises ValueError for an unknown name.
    """
    if name.endswith(".gin"):
        return GinPart((name,))
    if kind == "objective":
        return _objective(name)
    known = names_of(kind)
    if name not in known:
        raise ValueError(
            f"There is no {kind} {name!r}{near(name, known, count=3)}{other_use(name)} All "
            f"{FOLDERS[kind]} are in {GIN_CONFIGS / FOLDERS[kind]}."
        )
    return GinPart((f"{FOLDERS[kind]}/{name}.gin",))


def _objective(name: str) -> GinPart:
    module, _, builder = name.rpartition(".")
    if builder == "py":
        raise ValueError(
            f"Got the file {name!r}, expected one of its functions: {module}.FUNCTION."
        )
    if module:
        return GinPart((), (f"import {module}", f"training.Run.objective = @{name}"))
    if name not in CATALOG and name in _builders():
        bindings = "from pretrax import objectives", f"training.Run.objective = @objectives.{name}"
        return GinPart((), bindings)
    return GinPart((f"objectives/{find(name)}.gin",))


def _builders() -> list[str]:
    return [
        name
        for name, function in vars(objectives).items()
        if inspect.isfunction(function)
        and typing.get_type_hints(function).get("return") is objectives.Objective
    ]


def other_use(name: str) -> str:
    """Returns a sentence with other ways to use a word of the command line; "" if there is none.

    >>> other_use("masking_rate"), other_use("gpt2")
    (' To use masking_rate: `pretrax compare masking_rate`.', ' To use gpt2: --model=gpt2.')
    """
    uses = {
        "comparisons": f"`pretrax compare {name}`",
        "runs": f"`pretrax train {name}`",
        **{FOLDERS[kind]: f"--{kind}={name}" for kind in FOLDERS if kind in CHOICES},
    }
    found = [use for folder, use in uses.items() if f"{folder}/{name}.gin" in named_gin_files()]
    if is_run(name):
        found.append(f"`pretrax train {name}/{CONFIG}` or `pretrax show --run={name}`")
    elif os.path.exists(name):
        found.append(f"--data={name}")
    elif "=" in name:
        found.append(f"--{name}")
    return f" To use {name}: {' or '.join(found)}." if found else ""


def names_of(kind: str) -> list[str]:
    """Returns the names in a folder of `gin_configs`, such as "decoder" for runs."""
    return sorted(path.stem for path in (GIN_CONFIGS / FOLDERS[kind]).glob("*.gin"))


# --- the command line -----------------------------------------------------------------------------


def add_run_arguments(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """Adds RUN, the options of `CHOICES`, and the options of `add_gin_arguments`.

    An option that the parser has already is left as it is.
    """
    about = "the run: a name in gin_configs/runs, such as decoder, or your own gin file"
    about += f" (default: {default})" if default else ""
    run = parser.add_argument("run_file", nargs="?", metavar="RUN", help=about)
    run.completer = _completer("run")  # type: ignore[attr-defined]
    files = "your own files as the corpus (text, JSONL, Parquet, Arrow, WARC or FASTA): patterns "
    files += "separated by commas, which set the macro FILES"
    objective = (
        "the objective: a name that `pretrax show --list` prints, or your own MODULE.BUILDER"
    )
    about_parts = {
        "model": "the model: a name in gin_configs/models",
        "corpus": "the corpus: a name in gin_configs/corpora",
        "data": files,
        "objective": objective,
    }
    group = parser.add_argument_group("parts of the run")
    for name in CHOICES:
        metavar = "FILES" if name == "data" else "NAME"
        with contextlib.suppress(argparse.ArgumentError):
            option = group.add_argument(f"--{name}", metavar=metavar, help=about_parts[name])
            if name in FOLDERS:
                option.completer = _completer(name)  # type: ignore[attr-defined]
    add_gin_arguments(parser)


def _completer(kind: str) -> Callable[..., list[str]]:
    def complete(prefix: str, **_: object) -> list[str]:
        short = ALIASES if kind == "objective" else ()
        paths = [str(path) for path in Path().glob("*.gin")]
        return [name for name in (*names_of(kind), *short, *paths) if name.startswith(prefix)]

    return complete


class NamedWords(NamedTuple):
    """The names on a command line, and its other words."""

    names: dict[str, str]  # "run", "model", … -> name
    words: list[str]

    @property
    def text(self) -> str:
        """The names and gin files as they were typed; "" if there are only gin files.

        >>> NamedWords({"run": "decoder", "data": "*.txt"}, ["--gin_file=my.gin", "--steps=4"]).text
        "decoder --data='*.txt' --gin_file=my.gin"
        """
        shown = [
            shlex.quote(value) if kind == "run" else f"--{kind}={shlex.quote(value)}"
            for kind, value in self.names.items()
        ]
        files = [shlex.quote(word) for word in self.words if word.startswith("--gin_file=")]
        return " ".join([*shown, *files]) if shown else ""

    @property
    def combined(self) -> str:
        """The names of a run's parts, and the run that the objective is usually trained with.

        >>> print(NamedWords({"objective": "masked_lm"}, []).combined)
        The command line chose: --objective=masked_lm
        The usual run of this objective: `pretrax train encoder --objective=masked_lm`.

        "" if no parts are named.
        """
        names = dict(self.names)
        run = names.pop("run", Path(QUICKSTART).stem)
        if not names:
            return ""
        text = f"The command line chose: {self.text}"
        has_file = any(word.startswith("--gin_file=") for word in self.words)
        try:
            usual = run_of(find(names.get("objective", "")))
        except ValueError:  # no objective of the catalog is named
            return text
        if run == usual or "model" in names or has_file:
            return text
        command = NamedWords({"run": usual, **names}, []).text
        return f"{text}\nThe usual run of this objective: `pretrax train {command}`."


def parse_run(
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    *,
    default: Callable[[Mapping[str, str]], str | None] = lambda names: QUICKSTART,
    required: bool = False,
) -> tuple[argparse.Namespace, GinFiles, NamedWords]:
    """Returns the options of a command line, its gin files and bindings, and its names.

    An unknown name ends the program with a message. `parser` has the options of
    `add_run_arguments`.

    Args:
      default: from the names by kind, such as {"objective": "ul2"}, the gin file of the run whose
        parts they are, if the command line gives no run. None: no run is read.
      required: whether gin files without such names must be a run.
    """
    words = with_values_joined(parser, sys.argv[1:] if argv is None else argv)
    typed = NamedWords({}, [])
    gin = GinFiles(Run)
    try:
        typed = typed_names(words)
        gin = chosen_files(typed, default(typed.names), required)
    except ValueError as error:
        if "_ARGCOMPLETE" not in os.environ:  # a shell completes names that are not yet whole
            parser.exit(2, printable(f"\nerror: {error}\n"))
    others = [word for word in typed.words if not word.startswith("--gin_file=")]
    options = parse_settings(parser, others, gin)
    if overridden := [x for x in options.gin_bindings if _overrides(x, typed, gin.implied)]:
        parser.error(f"got {typed.text} and also {as_option(overridden[0])}: leave one of them out")
    for kind in CHOICES:
        setattr(options, kind, typed.names.get(kind))
    return options, gin, typed


def _overrides(binding: str, typed: NamedWords, implied: Sequence[str]) -> bool:
    """Returns whether a binding gives another value to a setting that a name stands for."""
    setting = _setting_of(binding)
    if setting.removeprefix("Run.") in typed.names:
        return binding not in implied
    return any(_setting_of(x) == setting and x != binding for x in implied)


def _setting_of(binding: str) -> str:
    return binding.partition("=")[0].strip().removeprefix("training.")


def typed_names(words: Sequence[str]) -> NamedWords:
    """Separates the names of a command line from its other words.

    >>> typed_names(["decoder", "--steps=4", "--objective=ul2"])
    NamedWords(names={'run': 'decoder', 'objective': 'ul2'}, words=['--steps=4'])

    Raises ValueError for two names of one kind.
    """
    names: dict[str, str] = {}
    others = []
    for word in words:
        option, equals, value = word.partition("=")
        kind = option.removeprefix("--")
        if not word.startswith("-"):
            kind = "run"
            value = word
        elif not (equals and option.startswith("--") and kind in CHOICES):
            others.append(word)
            continue
        if names.setdefault(kind, value) != value:
            if kind != "run":
                raise ValueError(
                    f"{option} is given twice, with {names[kind]!r} and {value!r}: give it once."
                )
            raise ValueError(
                f"Got {names[kind]!r} and {value!r}, expected one run. Its parts are options, such "
                "as --objective=NAME, and patterns of files need quotes: --data='texts/*.txt'."
            )
    return NamedWords(names, others)


def chosen_files(
    typed: NamedWords, default: str | None = QUICKSTART, required: bool = False
) -> GinFiles:
    """Returns all gin files of a command line, and the bindings that its names stand for.

    >>> gin = chosen_files(NamedWords({"run": "decoder", "model": "gpt2_tiny"}, ["--steps=4"]))
    >>> gin.files, gin.implied
    (('runs/decoder.gin', 'models/gpt2_tiny.gin'), ("RUN_DIR = 'runs/decoder-gpt2_tiny'",))

    `default` and `required` are those of `parse_run`. Raises ValueError for an unknown name, and
    for gin files that are not a run.
    """
    gin, given = gin_files_of(typed.words, Run)
    names = dict(typed.names)
    run_files = part_named("run", names.pop("run")).files if "run" in names else ()
    macros = gin.read((*run_files, *given)).macros()
    # A macro of the files is meant, for example DATA by --data.
    for kind in [kind for kind in names if kind.upper() in macros]:
        value = value_in_gin(names.pop(kind), macros[kind.upper()].value)
        gin.implied += (f"{kind.upper()} = {value}",)
    if required and gin.files and (run_files or not names):
        _check_is_run(gin, typed.words)
    if not gin.files and default:
        gin.read([default])
        run_files = (default,)
    if not names or not gin.files:
        return gin
    if not run_files:
        run_files = _leading_run(gin, given)
        given = given[len(run_files) :]
        run_files = run_files or tuple(filter(None, [default]))
    return _with_parts(gin, run_files, names, given, typed.words)


def _leading_run(gin: GinFiles, files: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the first of these files that together give a number of steps; () if none do."""
    gin = gin.unread()
    return next((gin.files for file in files if gin.read([file]).origin("steps")), ())


def _with_parts(
    gin: GinFiles,
    run_files: Sequence[str],
    names: Mapping[str, str],
    others: Sequence[str],
    words: Sequence[str],
) -> GinFiles:
    """Returns the files of a run, of its parts, and other files, with the bindings of the parts.

    The run directory is named after the parts, unless the other files or the words set it.
    """
    whole = gin.unread().read(run_files)
    macros = whole.macros()
    run_dir = whole.origin("run_dir")
    parts = _parts(names, macros)
    whole.read((*parts.files, *others))
    whole.implied = (*gin.implied, *parts.bindings)
    is_set = any(_SETS_RUN_DIR.match(word) for word in words)
    if run_dir and run_dir == whole.origin("run_dir") and not is_set:
        setting = "RUN_DIR" if "RUN_DIR" in macros else "training.Run.run_dir"
        whole.implied += (f"{setting} = {_run_dir(str(run_dir[1]), names)!r}",)
    return whole


def _parts(names: Mapping[str, str], macros: Collection[str]) -> GinPart:
    """Returns the gin files and bindings of the parts of a run whose own files have these macros.

    `--data` is the macro FILES of the chosen corpus, or of the run's own corpus if it has that
    macro, otherwise of `corpora/text_files.gin`.
    """
    named = dict(names)
    data = named.pop("data", None)
    if data is not None and "FILES" not in macros:
        named.setdefault("corpus", "text_files")
    parts = [part_named(kind, named[kind]) for kind in CHOICES if kind in named]
    bindings = [binding for part in parts for binding in part.bindings]
    if data is not None:
        bindings.append(f"FILES = {value_in_gin(data, current='')}")
    return GinPart(tuple(file for part in parts for file in part.files), tuple(bindings))


def _run_dir(directory: str, names: Mapping[str, str]) -> str:
    """Returns a run directory that is named after the parts of a run.

    >>> _run_dir("runs/decoder", {"objective": "mlm", "data": "texts/*.txt"})
    'runs/decoder-texts_txt-masked_lm'
    """
    words = [directory]
    for kind in [kind for kind in CHOICES if kind in names]:
        name = names[kind]
        if kind == "objective" and (files := part_named(kind, name).files):
            name = files[0].removeprefix("objectives/")
        words.append(re.sub(r"\W+", "_", name.removesuffix(".gin")).strip("_")[:40])
    return "-".join(words)


def lines_in_gin(lines: Sequence[str]) -> list[str]:
    """Returns lines of a comparison with its options rewritten as gin files and bindings.

    >>> lines_in_gin(["--objective=mlm", "objectives.masked_lm.rate = 0.4"])
    ['objectives/masked_lm.gin', 'objectives.masked_lm.rate = 0.4']

    Raises ValueError for an unknown option or name.
    """
    written: list[str] = []
    for line in lines:
        option, _, value = line.partition("=")
        kind = option.strip().removeprefix("--")
        if not line.startswith("--"):
            written.append(line)
        elif kind in CHOICES:
            part = _parts({kind: value.strip()}, ())
            written += [*part.files, *part.bindings]
        else:
            known = ", ".join(f"--{name}=" for name in CHOICES)
            raise ValueError(
                f"Got the line {line!r}, expected one of {known}, a gin file or a binding, such as "
                "STEPS = 500."
            )
    return written


# --- gin files ------------------------------------------------------------------------------------


def _check_is_run(gin: GinFiles, words: Sequence[str]) -> None:
    """Raises ValueError if the gin files of a command line are only parts of a run."""
    if gin.failure or gin.origin("steps") or any("Run.steps" in word for word in words):
        return
    kinds = {GIN_CONFIGS / folder: kind for kind, folder in FOLDERS.items()}
    paths = [find_gin_file(file, gin.search_paths) for file in gin.files]
    parts = [(kinds.get(path.parent, "part of a run"), path.stem) for path in paths]
    described = [
        f"{file} is {'an' if kind[0] in 'aeiou' else 'a'} {kind}, not a run"
        for file, (kind, _) in zip(gin.files, parts)
    ]
    options = " ".join(f"--{kind}={name}" for kind, name in parts if kind in CHOICES)
    hint = f"`pretrax train {options}`" if options else "`pretrax train RUN --gin_file=FILE`"
    raise ValueError(
        f"{'; '.join(described)}. Expected a run, which gives a number of steps: {hint}, or a run "
        "of your own that includes it."
    )
