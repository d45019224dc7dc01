"""What the command lines of all verbs share: gin files, and what they name.

    pretrax train --gin_file=runs/own_text.gin --files='data/*.txt' --steps=500

`--gin_file` may be repeated, later files override earlier ones. What they name in capitals, such as
STEPS, is an option of its own, which overrides them, as `--gin.NAME=VALUE` does for any setting.
T5X's spellings `--gin_bindings="NAME = VALUE"` and `--gin_search_paths=DIR,DIR` are taken too; of
two bindings of one name, in either spelling, the later one holds.
"""

import argparse
import contextlib
import functools
import glob
import os
import re
import shlex
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from ..constraints import selector_of
from .gin_reader import GIN_CONFIGS, GinReader, Macro, named_gin_files, near, value_in_gin
from .meanings import meaning
from .printable import printable
from .system_errors import words_of


class GinArguments(NamedTuple):
    """Gin files and bindings of a command line, the arguments of `gin_reader.read_settings`."""

    files: tuple[str, ...]
    bindings: tuple[str, ...]
    search_paths: tuple[str, ...]
    trusted: tuple[str, ...]


class OneValue(argparse.Action):
    """Stores the value of an option, and refuses the same option with another value.

    argparse keeps the last value alone, so that `--run=A --run=B` would do nothing with A. Options
    that take several values have the action "append" or "extend".
    """

    _stored: tuple[argparse.Namespace, object] | None = None  # by the parse that goes on

    def __call__(self, parser, namespace, values, option_string=None):
        if self.option_strings and self._stored and self._stored[0] is namespace:
            first = self._stored[1]
            if first != values:
                raise argparse.ArgumentError(
                    self, f"given twice, with {first!r} and {values!r}: give it once"
                )
        self._stored = namespace, values
        setattr(namespace, self.dest, values)


def refuse_repeated_options(parser: argparse.ArgumentParser) -> None:
    """Makes `OneValue` the action of the options that are added to a parser without an action."""
    for name in (None, "store"):
        parser.register("action", name, OneValue)


def add_gin_arguments(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """Adds what `parse_with_gin` reads; `default` is for the help."""
    standard = f" (default: {default})" if default else ""
    files = f"a gin file: a path, or a name within pretrax's gin_configs; may be repeated{standard}"
    _add_repeatable(parser, "--gin_file", "FILE", files).completer = _gin_files_from
    parser.add_argument(
        "--gin.NAME",
        dest="unused",
        metavar="VALUE",
        help="overrides a value of the gin files, e.g. --gin.training.Run.seed=1",
    )
    spelling = 'the same in gin\'s own spelling, e.g. --gin_bindings="training.Run.seed = 1"'
    _add_repeatable(parser, "--gin_bindings", "BINDING", spelling)
    folders = "folders, separated by commas, in which gin files are looked for as well"
    _add_repeatable(parser, "--gin_search_paths", "DIRS", folders)
    add_trust_argument(parser)


def add_trust_argument(parser: argparse.ArgumentParser) -> None:
    """Adds --trust, the modules that a run directory may name, see `settings.trust`."""
    modules = (
        "a module that the config.gin of a run directory may name, such as that of your own "
        "objective; repeatable"
    )
    _add_repeatable(parser, "--trust", "MODULE", modules)


def _add_repeatable(parser: argparse.ArgumentParser, name: str, metavar: str, text: str) -> Any:
    """Returns the action, of which argcomplete reads `completer`."""
    return parser.add_argument(name, action="append", default=[], metavar=metavar, help=text)


def _gin_files_from(prefix: str, **_) -> list[str]:
    """Returns how a name of a gin file may go on: within pretrax's own, and from here."""
    here = (found for end in ("*.gin", "*/") for found in glob.glob(glob.escape(prefix) + end))
    return [*named_gin_files(), *here]


def parse_with_gin(
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    configured: Callable,
    files: Sequence[str] = (),
) -> tuple[argparse.Namespace, GinArguments]:
    """Returns the options of a command line (None: the program's own), and its gin arguments.

    Each macro of the gin files, such as STEPS, is an option as well: --steps=500. The parser takes
    no abbreviations. Exits with a message for any other argument.

    Args:
      configured: what the gin files configure.
      files: that are read where the command line names none.
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    macros: Mapping[str, Macro] = {}
    unread = ""
    try:
        macros = _macros(argv, configured, files)
    except (ValueError, OSError) as error:  # it is raised again when the files are read in full
        unread = words_of(error) or str(error)
    _add_macros(parser, macros, f"cannot be listed: {printable(unread)}" if unread else None)
    offer_completions(parser)
    options, others = parser.parse_known_args([_as_binding(one, macros) for one in argv])
    if others and unread:  # in which the others may be settings
        parser.exit(2, printable(f"\nerror: {unread}\n"))
    if others:
        known = [f"--{name.lower()}" for name in macros]
        unknown = others[0].partition("=")[0]
        hint = _where_it_is(unknown, _given_gin(argv).files) or near(
            unknown, known, "; other settings are --gin.NAME=VALUE"
        )
        parser.error(f"unknown argument {others[0]!r}{hint}")
    return options, _gin_arguments(options)


def _where_it_is(option: str, given: Collection[str]) -> str:
    """Returns which gin files have an option that is unknown to the `given` files, "" if none has.

    _where_it_is("--store", [])  # ", which takes a --gin_file that has it: corpora/token_store.gin"
    """
    macro = re.compile(rf"%{re.escape(option.removeprefix('--').upper())}\b")
    files = [name for name in named_gin_files() if name.startswith(("corpora/", "objectives/"))]
    having = [name for name in files if macro.search((GIN_CONFIGS / name).read_text("utf-8"))]
    if overridden := [name for name in having if name in given]:
        return (
            f": --gin_file={overridden[0]} has it, but a later file replaces what uses it. Name "
            f"{overridden[0]} last."
        )
    return f", which takes a --gin_file that has it: {', '.join(having)}" if having else ""


def offer_completions(parser: argparse.ArgumentParser) -> None:
    """Ends the program with completions where it is a shell that runs it, to ask for them."""
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete  # here, as no other call needs it

        argcomplete.autocomplete(parser, always_complete_options="long")


def _given_gin(argv: Sequence[str]) -> GinArguments:
    """Returns the gin arguments of a command line whose other arguments are not known yet."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_gin_arguments(parser)
    return _gin_arguments(parser.parse_known_args(argv)[0])


def _macros(argv: Sequence[str], configured: Callable, files: Sequence[str]) -> dict[str, Macro]:
    """Returns the macros of the gin files that a command line names, else of `files`."""
    given = _given_gin(argv)
    reader = GinReader(configured, given.search_paths, given.trusted)
    return reader.read(given.files or files).macros()


def _gin_arguments(options: argparse.Namespace) -> GinArguments:
    paths = [path for paths in options.gin_search_paths for path in paths.split(",") if path]
    lists = options.gin_file, options.gin_bindings, paths, options.trust
    return GinArguments(*map(tuple, lists))


def _add_macros(
    parser: argparse.ArgumentParser, macros: Mapping[str, Macro], about: str | None
) -> None:
    """Adds an option for each macro, but for those of which the parser has one of its own."""
    group = parser.add_argument_group("settings of the gin files", about)
    for name, macro in macros.items():
        meanings = filter(None, (meaning(*setting) for setting in macro.settings))
        words = next(meanings, "".join(f"{selector_of(f)}.{x}" for f, x in macro.settings[:1]))
        value = f"{name} = {macro.value!r}" if macro.is_given else f"{name}, to be given"
        with contextlib.suppress(argparse.ArgumentError):
            group.add_argument(
                f"--{name.lower()}",
                dest="gin_bindings",
                action="append",
                type=functools.partial(_binding, macros, name),
                metavar="VALUE",
                help=f"{words} ({value})".replace("%", "%%"),
            )


def _as_binding(argument: str, macros: Mapping[str, Macro]) -> str:
    """Returns --gin.NAME=VALUE in gin's own spelling, so that all bindings are in one list."""
    name, equals, value = argument.removeprefix("--gin.").partition("=")
    if not argument.startswith("--gin.") or not equals or not name:
        return argument
    return f"--gin_bindings={_binding(macros, name, value)}"


def _binding(macros: Mapping[str, Macro], name: str, text: str) -> str:
    return f"{name} = {value_in_gin(text, macros[name].value if name in macros else None)}"


def as_option(binding: str) -> str:
    """Returns the option that makes a binding, as it is typed into a shell.

    >>> print(as_option("training.Run.packing = 'single'"))
    --gin.training.Run.packing=single
    >>> print(as_option("training.Run.sequence_lengths = {'decoder': 64}"))
    --gin.training.Run.sequence_lengths="{'decoder': 64}"
    """
    name, _, value = binding.partition(" = ")
    text = value.strip("'\"")
    typed = text if value_in_gin(text) == value else value
    quotes_double = "'" in typed and not set('"$`\\!') & set(typed)
    return f"--gin.{name}=" + (f'"{typed}"' if quotes_double else shlex.quote(typed))


def given_options(
    parser: argparse.ArgumentParser, options: argparse.Namespace, argv: Sequence[str] | None
) -> set[str]:
    """Returns the names of the options that a command line gives, also of one given as its default.

    `options` is what the parser made of it; None: the program's own command line.
    """
    absent = argparse.Namespace(**dict.fromkeys(vars(options)))
    parsed, _ = parser.parse_known_args(argv, absent)
    return {name for name, value in vars(parsed).items() if value is not None}


def add_device_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds how a trained model is applied: texts at once, and the mesh of its parameters."""
    large = "rows are sharded over all devices; for a model too large for one of them:"
    add = parser.add_argument_group("devices", large).add_argument
    add("--batch_size", type=at_least(1), metavar="N", default=32, help="texts at once")
    number: dict = dict(type=at_least(1), default=1, metavar="N")
    add("--fsdp", **number, help="shard the parameters over N devices")
    add("--tensor", **number, help="and matrix products over N")


def opening(options: argparse.Namespace) -> str:
    """Returns the options with which another verb opens the run."""
    return shlex.join([f"--run={options.run}", *(f"--trust={name}" for name in options.trust)])


def at_least(least: int) -> Callable[[str], int]:
    """The type of an option whose value is a whole number, `least` or more."""

    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            words = f"expected a whole number, {least} or more, got {text!r}"
            raise argparse.ArgumentTypeError(words)
        return int(text)

    return number
