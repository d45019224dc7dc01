"""Checks an objective against the laws of all objectives, and prints a table.

    pretrax check my_objectives.mine                       a builder: token ids -> objective
    pretrax check my_objectives.mine noise_density=0.3     with settings as Python literals
    pretrax check ul2                                      an objective of `pretrax show --list`

The check uses small rows of random text, including packed rows and mixtures. Nothing is trained.
The exit status is 1 if a law is broken, and 2 if the objective cannot be checked or needs heads
that no model has.
"""

import argparse
import ast
import functools
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

from ..constraints import listed, selector_of
from ..inference.trained import check_modes
from ..models.heads import check_heads
from ..objectives import Objective, contract, members_of
from ..objectives.catalog import CATALOG, run_of
from ..objectives.laws import LAWS, USUAL, broken
from ..objectives.token_ids import specimen_ids
from ..settings.command_line import offer_completions, parse_options
from ..settings.partial import Partial, as_partial, parameters
from ..settings.printable import PrintableConsole, print_note
from ..settings.user_errors import report_user_errors
from ..settings.user_modules import function_of, import_module
from ..training.run_choices import part_named
from ..training.run_configuration import read_fields
from . import make_parser

SPECIMEN = specimen_ids(1000)


def main(argv: Sequence[str] | None = None) -> None:
    options = parse(argv)
    console = PrintableConsole()
    with report_user_errors(options.traceback):
        objective = built(options.objective, options.settings)
        check_heads(objective.facts.heads)
        check_modes(objective.facts.prompt_forms)
        count = print_laws(console, objective)
        builder = options.objective
        if "." not in builder:
            builder = selector_of(builder_named(builder).function)
        words = [f"--objective={options.objective}"]
        words += [f"--gin.{builder}.{setting}" for setting in options.settings]
        print_note(console, f"To see it: {shlex.join(['pretrax', 'show', *words])}")
    if count:
        sys.exit(1)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser("check", __doc__)
    add = parser.add_argument
    about = "your own MODULE.BUILDER, or a name that `pretrax show --list` prints; then "
    about += "NAME=VALUE for its other arguments"
    words = add("words", metavar="OBJECTIVE [NAME=VALUE ...]", nargs="*", help=about)
    option = add(
        "--objective", metavar="OBJECTIVE", help="name of the objective, in place of the first word"
    )
    for argument in (words, option):
        argument.completer = lambda **_: list(CATALOG)
    offer_completions(parser)
    options = parse_options(
        parser, argv, otherwise="; a setting of the objective is NAME=VALUE, without dashes"
    )
    options.settings = options.words if options.objective else options.words[1:]
    options.objective = options.objective or next(iter(options.words), None)
    if options.objective is None:
        parser.error("expected OBJECTIVE, such as my_objectives.mine or ul2")
    return options


def built(name: str, settings: Sequence[str]) -> Objective:
    """Returns the objective that the builder `name` creates for the token ids `SPECIMEN`."""
    build = builder_named(name)
    pairs = [_setting(text) for text in settings]
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [setting for setting, _ in pairs]
        again = next(setting for setting in names if names.count(setting) > 1)
        given = " and ".join(text for text in settings if text.startswith(f"{again}="))
        raise ValueError(f"Got {given}: give the setting {again} once.")
    accepted = parameters(build.function)
    known = list(values) if accepted is None else list(accepted)[1:]  # the first is the token ids
    if unknown := [setting for setting in values if setting not in known]:
        raise ValueError(
            f"{name} has no setting {listed(unknown)}; its settings: {', '.join(known) or 'none'}."
        )
    return contract.build(functools.partial(build, **values), SPECIMEN)


def builder_named(name: str) -> Partial:
    """Returns the builder MODULE.BUILDER, or the builder of an objective's gin file."""
    module, _, builder = name.rpartition(".")
    if module:
        return as_partial(function_of(import_module(module), builder))
    part = part_named("objective", name)
    # The objective's file may set parameters that only the model of its small run has.
    run = [f"runs/{run_of(Path(file).stem)}.gin" for file in part.files]
    return as_partial(read_fields([*run, *part.files], part.bindings)["objective"])


def _setting(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"Got {text!r}, expected NAME=VALUE.")
    if value in ("true", "false", "none", "null"):
        python = {"null": "None"}.get(value, value.capitalize())
        raise ValueError(f"Got {text!r}, expected a value as Python writes it: {name}={python}.")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value
    except (TypeError, RecursionError, MemoryError) as error:  # for example, a list as a key
        raise ValueError(f"Got {text!r}, expected a value as Python writes it: {error}.") from error


def print_laws(console: Console, objective: Objective) -> int:
    """Prints which laws hold for each member. Returns the number of broken mandatory laws."""
    names = [escape(m.name) for m in objective.facts.members] or ["this objective"]
    table = Table("law", *names, box=None)
    reasons = []
    count = 0
    laws = (LAWS | USUAL).items()
    quiet = not console.is_terminal
    for name, law in track(laws, "Checking", console=console, transient=True, disable=quiet):
        accepted = [broken(law, m.objective, SPECIMEN) for m in members_of(objective)]
        no = "no (allowed)" if name in USUAL else "BROKEN"
        table.add_row(name, *("holds" if reason is None else no for reason in accepted))
        count += sum(reason is not None for reason in accepted if name not in USUAL)
        reasons += [f"{name}: {reason}" for reason in dict.fromkeys(accepted) if reason]
        if name in ("lengths never decrease", "features are as planned") and any(accepted):
            break  # the other laws would read missing features
    console.print(table)
    for line in reasons:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if not count:
        made_for = objective.facts.rows.description
        console.print(f"All laws hold. The objective reads {made_for}.", soft_wrap=True)
    return count
