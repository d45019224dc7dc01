"""Options that all commands share: gin files, and their macros and settings.

    pretrax train --gin_file=runs/own_text.gin --files='texts/*.txt' --steps=500

`--gin_file` may be repeated; later files override earlier files. Each macro of the files, such as
STEPS, is also an option that overrides its value. `--gin.NAME=VALUE` overrides any setting. T5X's
spellings `--gin_bindings="NAME = VALUE"` and `--gin_search_paths=DIR,DIR` work too. Of two bindings
of one name, in either spelling, the later one wins.
"""

import argparse
import contextlib
import difflib
import functools
import glob
import os
import re
import shlex
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..constraints import selector_of
from .gin_reader import GIN_CONFIGS, GinReader, Macro, named_gin_files, value_in_gin
from .partial import parameters
from .printable import printable
from .run_directory import is_run
from .setting_help import setting_help
from .system_errors import system_error_message

_EMPTY = "got an empty value, expected a value: give one, or leave the option out"
_NEGATIVE = re.compile(r"-[\d.]+")


class GinFiles:
    """The bindings of a command and its gin files, each read once.

    The help and the options of a command need the files before its errors are reported. If a file
    cannot be read, the error is kept, and `reader` raises it.
    """

    def __init__(
        self,
        configured: Callable,
        search_paths: Sequence[str] = (),
        trusted: Sequence[str] = (),
    ):
        self.configured = configured
        self.search_paths = search_paths
        self.trusted = trusted
        self.files: tuple[str, ...] = ()
        self.implied: tuple[str, ...] = ()  # bindings that names on the command line stand for
        self.bindings: tuple[str, ...] = ()  # all bindings, the implied ones first
        self.failure: Exception | None = None
        self._reader = GinReader(configured, search_paths, trusted)

    def unread(self) -> "GinFiles":
        """Returns a copy without files and bindings, to read other files first."""
        return GinFiles(self.configured, self.search_paths, self.trusted)

    def read(self, files: Sequence[str]) -> "GinFiles":
        """Reads files, which override what was read before. Returns itself."""
        self.files += tuple(files)
        if self.failure is None:
            try:
                self._reader.read(files)
            except (ValueError, OSError) as error:
                self.failure = error
        return self

    def macros(self) -> dict[str, Macro]:
        """Returns the macros of the files; {} if they cannot be read."""
        return {} if self.failure else self._reader.macros()

    def origin(self, name: str) -> tuple[Path | None, Any] | None:
        """Returns the file that sets a setting, and its value there; None if no file sets it."""
        with contextlib.suppress(KeyError):
            return None if self.failure else self._reader.origin(name)
        return None

    def reader(self) -> GinReader:
        """Returns the reader of the files and bindings. Raises the error of an unreadable file."""
        if self.failure:
            raise self.failure
        return self._reader.read((), self.bindings)


class OneValue(argparse.Action):
    """Stores the value of an option, and rejects a repeated option with a different value.

    argparse keeps only the last value, so `--run=A --run=B` would silently ignore A. Options that
    take several values have the action "append" or "extend". An empty value is rejected too, since
    commands would use their default, as if the option were absent.
    """

    may_be_empty = False

    # The namespace of the current parse, and the value stored in it.
    _stored: tuple[argparse.Namespace, object] | None = None

    def __call__(self, parser, namespace, values, option_string=None):
        if self.option_strings and self._stored and self._stored[0] is namespace:
            first = self._stored[1]
            if first != values:
                raise argparse.ArgumentError(
                    self, f"given twice, with {first!r} and {values!r}: give it once"
                )
        if values == "" and not self.may_be_empty:
            raise argparse.ArgumentError(self, _EMPTY)
        self._stored = namespace, values
        setattr(namespace, self.dest, values)


class AnyText(OneValue):
    """Stores a text that may be empty, such as the text after a middle."""

    may_be_empty = True


def refuse_repeated_options(parser: argparse.ArgumentParser) -> None:
    """Makes `OneValue` the default action of a parser's options."""
    for name in (None, "store"):
        parser.register("action", name, OneValue)


def add_gin_arguments(
    parser: argparse.ArgumentParser, default: str | None = None, takes_files: bool = True
) -> None:
    """Adds the options that `parse_with_gin` reads.

    Args:
      default: the gin file that the help shows as the default.
      takes_files: whether the help shows --gin_file, and messages suggest it.
    """
    shown_default = f" (default: {default})" if default else ""
    files = f"a gin file: a path or a name in pretrax's gin_configs; may be repeated{shown_default}"
    files = files if takes_files else argparse.SUPPRESS
    _add_repeatable(parser, "--gin_file", "FILE", files).completer = _complete_gin_file
    parser.add_argument(
        "--gin.NAME",
        dest="unused",
        metavar="VALUE",
        help="override a setting of the gin files, e.g. --gin.training.Run.seed=1",
    )
    syntax = 'the same in gin syntax, e.g. --gin_bindings="training.Run.seed = 1"'
    _add_repeatable(parser, "--gin_bindings", "BINDING", syntax)
    folders = "further folders that are searched for gin files, separated by commas"
    _add_repeatable(parser, "--gin_search_paths", "DIRS", folders)
    add_trust_argument(parser)


def add_trust_argument(parser: argparse.ArgumentParser) -> None:
    """Adds --trust, which names modules that a run directory may use, see `settings.trust`."""
    modules = (
        "a module that the config.gin of a run directory may name, such as the module of your own "
        "objective; may be repeated"
    )
    _add_repeatable(parser, "--trust", "MODULE", modules)


def _add_repeatable(parser: argparse.ArgumentParser, name: str, metavar: str, text: str) -> Any:
    """Adds an option that may be repeated. argcomplete reads `completer` of the returned action."""
    return parser.add_argument(name, action="append", default=[], metavar=metavar, help=text)


def _complete_gin_file(prefix: str, **_) -> list[str]:
    paths = (path for end in ("*.gin", "*/") for path in glob.glob(glob.escape(prefix) + end))
    return [*named_gin_files(), *paths]


def parse_with_gin(
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    configured: Callable,
    files: Sequence[str] = (),
) -> tuple[argparse.Namespace, GinFiles]:
    """Returns the options of a command line, and its gin files and bindings.

    `parser` has the options of `add_gin_arguments`. Each macro of the gin files, such as STEPS, is
    an option as well: --steps=500. Abbreviations are not accepted. An unknown argument ends the
    program with a message.

    Args:
      files: gin files to read if the command line does not name any.
    """
    words = with_values_joined(parser, sys.argv[1:] if argv is None else argv)
    gin, named = gin_files_of(words, configured)
    return parse_settings(parser, words, gin.read(named or files)), gin


def parse_settings(
    parser: argparse.ArgumentParser, words: Sequence[str], gin: GinFiles
) -> argparse.Namespace:
    """Returns the options of a command line, and gives `gin` its bindings.

    Args:
      words: the command line with joined values (`with_values_joined`).
      gin: files whose macros are options.
    """
    macros = gin.macros()
    error = gin.failure
    failure = printable(system_error_message(error) or str(error)) if error else ""
    _add_macros(parser, macros, f"cannot be listed: {failure}" if failure else None)
    offer_completions(parser)

    takes_files = parser._option_string_actions["--gin_file"].help != argparse.SUPPRESS

    def hint(option: str) -> str:
        if failure:  # the argument may be a setting of the files that cannot be read
            parser.exit(2, f"\nerror: {failure}\n")
        if option.endswith(".gin") and takes_files:
            return f"; did you mean --gin_file={option}?"
        if not option.startswith("--") or not takes_files:
            return ""
        return _files_with_option(option, gin.files)

    prefix = f"--gin.{selector_of(gin.configured)}"
    options = parse_options(
        parser,
        [_as_binding(word, macros) for word in words],
        hint=hint,
        settings={name: f"{prefix}.{name}" for name in parameters(gin.configured) or {}},
        otherwise="; other settings are --gin.NAME=VALUE",
    )
    gin.bindings = (*gin.implied, *options.gin_bindings)
    return options


def parse_options(
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    *,
    hint: Callable[[str], str] = lambda option: "",
    settings: Mapping[str, str] = MappingProxyType({}),
    otherwise: str = "",
) -> argparse.Namespace:
    """Returns the options of a command line.

    An unknown argument ends the program with a message, which suggests an option of similar name.

    Args:
      argv: the command line. None: the program's own command line.
      hint: returns what to say about an unknown option instead of a suggestion, or "".
      settings: {name of a setting: the option that sets it}, for settings without their own option.
      otherwise: what to say if no option or setting is similar.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    known = parser._option_string_actions

    def is_unknown(word: str) -> bool:
        name = word.partition("=")[0]
        is_option = re.fullmatch(r"--[\w.-]+", name) is not None
        return is_option and name not in known

    options = words[: words.index("--")] if "--" in words else words
    wants_help = not {"-h", "--help"}.isdisjoint(options)
    # Before argparse reports that a required option is missing, whose name may be misspelled.
    unknown = [] if wants_help else list(filter(is_unknown, options))
    if not unknown:
        if not wants_help and (run := _run_without_option(parser, options)):
            parser.error(f"got the run directory {run!r} as a word: give it as --run={run}")
        parsed, unknown = parser.parse_known_args(words)
    if unknown:
        name = unknown[0].partition("=")[0]
        # Without dashes, which would make any two short options similar.
        names = {**settings, **{option.lstrip("-"): option for option in known}}
        similar = difflib.get_close_matches(name.lstrip("-").lower(), names, 1)
        if not name.startswith("-"):
            otherwise = ": the command takes no further word, and options begin with --"
        suggestion = f"; did you mean {names[similar[0]]!r}?" if similar else otherwise
        parser.error(f"unknown argument {unknown[0]!r}{hint(name) or suggestion}")
    return parsed


def _run_without_option(parser: argparse.ArgumentParser, words: Sequence[str]) -> str | None:
    """Returns the word that is a run directory, if the required option --run is missing."""
    run = parser._option_string_actions.get("--run")
    if not (run and run.required) or any(word.partition("=")[0] == "--run" for word in words):
        return None
    return next(filter(is_run, words), None)


def _files_with_option(option: str, named: Collection[str]) -> str:
    """Returns a hint which gin files have an option that the `named` files lack; "" if none has.

    _files_with_option("--store", [])
    # ", which takes a --gin_file that has it: corpora/token_store.gin"
    """
    macro = re.compile(rf"%{re.escape(option.removeprefix('--').upper())}\b")
    files = [name for name in named_gin_files() if name.startswith(("corpora/", "objectives/"))]
    having = [name for name in files if macro.search((GIN_CONFIGS / name).read_text("utf-8"))]
    if overridden := [name for name in having if name in named]:
        return (
            f": --gin_file={overridden[0]} has it, but a later file replaces what uses it. Name "
            f"{overridden[0]} last."
        )
    return f", which takes a --gin_file that has it: {', '.join(having)}" if having else ""


def offer_completions(parser: argparse.ArgumentParser) -> None:
    """Prints completions and ends the program if a shell runs it to ask for completions."""
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete  # not at the top: other calls do not need it

        argcomplete.autocomplete(parser, always_complete_options="long")


def with_values_joined(parser: argparse.ArgumentParser, argv: Sequence[str]) -> list[str]:
    """Returns a command line with `--name VALUE` written as `--name=VALUE`.

    Every remaining word without a dash is then a positional argument. An option that the parser
    does not know is a setting of a gin file, which takes a value. An empty value ends the program.

    >>> with_values_joined(argparse.ArgumentParser(), ["--steps", "5", "decoder", "-h"])
    ['--steps=5', 'decoder', '-h']
    """
    flags = {
        option
        for action in parser._actions
        if action.nargs == 0
        for option in action.option_strings
    }
    words: list[str] = []
    for word in argv:
        previous = words[-1] if words else ""
        takes_value = previous.startswith("--") and "=" not in previous and previous not in flags
        if takes_value and (not word.startswith("-") or _NEGATIVE.fullmatch(word)):
            words[-1] = f"{previous}={word}"
        else:
            words.append(word)
    empty = next((word for word in words if re.fullmatch("--[^=]+=", word)), None)
    if empty and "_ARGCOMPLETE" not in os.environ:
        parser.error(f"argument {empty[:-1]}: {_EMPTY}")
    return words


def gin_files_of(words: Sequence[str], configured: Callable) -> tuple[GinFiles, tuple[str, ...]]:
    """Returns the `GinFiles` of a command line, which are not read yet, and the files it names."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_gin_arguments(parser)
    options, _ = parser.parse_known_args(words)
    paths = [path for paths in options.gin_search_paths for path in paths.split(",") if path]
    return GinFiles(configured, paths, options.trust), tuple(options.gin_file)


def _add_macros(
    parser: argparse.ArgumentParser, macros: Mapping[str, Macro], about: str | None
) -> None:
    """Adds an option for each macro, unless the parser already has an option of that name."""
    group = parser.add_argument_group("settings of the gin files", about)
    for name, macro in macros.items():
        texts = filter(None, (setting_help(*setting) for setting in macro.settings))
        text = next(texts, "".join(f"{selector_of(f)}.{x}" for f, x in macro.settings[:1]))
        value = f"{name} = {macro.value!r}" if macro.is_given else f"{name}, required"
        with contextlib.suppress(argparse.ArgumentError):
            group.add_argument(
                f"--{name.lower()}",
                dest="gin_bindings",
                action="append",
                type=functools.partial(_binding, macros, name),
                metavar="VALUE",
                help=f"{text} ({value})".replace("%", "%%"),
            )


def _as_binding(argument: str, macros: Mapping[str, Macro]) -> str:
    """Rewrites --gin.NAME=VALUE as --gin_bindings, so that all bindings are in one list."""
    name, equals, value = argument.removeprefix("--gin.").partition("=")
    if not argument.startswith("--gin.") or not equals or not name:
        return argument
    return f"--gin_bindings={_binding(macros, name, value)}"


def _binding(macros: Mapping[str, Macro], name: str, text: str) -> str:
    return f"{name} = {value_in_gin(text, macros[name].value if name in macros else None)}"


def as_option(binding: str) -> str:
    """Returns the shell option for a binding.

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
    """Returns the names of the options that a command line gives, even with their default value."""
    absent = argparse.Namespace(**dict.fromkeys(vars(options)))
    parsed, _ = parser.parse_known_args(argv, absent)
    return {name for name, value in vars(parsed).items() if value is not None}


def add_device_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the batch size and the mesh axes with which a trained model is applied."""
    large = "rows are sharded over all devices; --fsdp and --tensor are for larger models"
    add = parser.add_argument_group("devices", large).add_argument
    add("--batch_size", type=at_least(1), metavar="N", default=32, help="number of texts at once")
    number: dict = dict(type=at_least(1), default=1, metavar="N")
    add("--fsdp", **number, help="shard the parameters over N devices")
    add("--tensor", **number, help="shard matrix products over N devices")


def opening(options: argparse.Namespace) -> str:
    """Returns the options with which another command opens the run."""
    return shlex.join([f"--run={options.run}", *(f"--trust={name}" for name in options.trust)])


def at_least(least: int) -> Callable[[str], int]:
    """Returns the type of an option whose value is a whole number, `least` or more."""

    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            message = f"expected a whole number, {least} or more, got {text!r}"
            raise argparse.ArgumentTypeError(message)
        return int(text)

    return number
