"""The subcommands of `pretrax`. Each is a thin module on top of the other packages.

`pretrax train`, `python -m pretrax train` and, in a checkout, `python train.py` are equivalent.
"""

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from ..settings.command_terminal import in_terminal, say, undecoded

SUBCOMMANDS = {
    "prepare": "clean, filter, deduplicate and tokenize raw text into a token store",
    "train": "train a model on a pre-training objective",
    "check": "test your own objective against the laws of all objectives",
    "show": "show what an objective does to text",
    "explore": "explore objectives, runs and comparisons in the browser",
    "teach": "write a model's predictions into a token store, to train another model on them",
    "predict": "generate, fill in, classify, embed or score text with a trained model",
    "evaluate": "score a run on downstream tasks, or its objective on held-out text",
    "plan": "plan the model size and tokens of a budget, or the memory and time of a run",
    "compare": "compare objectives, models or settings over seeds, with confidence intervals",
    "convert": "convert models from Hugging Face or T5X, and to Hugging Face",
}


def make_parser(subcommand: str, about: str | None, **settings: Any):
    """Returns an `argparse.ArgumentParser` with the option that all subcommands share.

    An option with a single value is rejected if it is repeated with a different value. Options
    cannot be abbreviated: --step of one subcommand would be --steps of another.

    Args:
      about: text of the help, printed without changes to its lines.
    """
    import argparse  # not at the top, so that `pretrax --help` does not wait for it

    from ..settings.command_line import refuse_repeated_options

    parser = argparse.ArgumentParser(
        prog=f"pretrax {subcommand}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        **settings,
    )
    refuse_repeated_options(parser)
    traceback = "print the full traceback of an error"
    parser.add_argument("--traceback", action="store_true", help=traceback)
    return parser


def complete() -> None:
    """Prints completions of a shell's line (see `register-python-argcomplete pretrax`)."""
    import argparse

    import argcomplete

    line = os.environ["COMP_LINE"]
    point = int(os.environ["COMP_POINT"])
    _, begun, _, words, _ = argcomplete.split_line(line, point)
    if words[1:] and words[1] in SUBCOMMANDS:
        os.environ["_ARGCOMPLETE"] = "2"  # number of words of the line that name the program
        run(words[1], [*words[2:], begun])
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("subcommand", choices=SUBCOMMANDS)
    argcomplete.autocomplete(parser)


def run(subcommand: str, argv: Sequence[str] | None = None) -> None:
    """Imports a subcommand and runs it with `argv`, or with the program's arguments."""
    with in_terminal():
        if problem := undecoded(sys.argv[1:] if argv is None else argv) or _without_folder():
            say(f"error: {problem}")
            raise SystemExit(2)
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())  # for users' modules that a gin file imports
        importlib.import_module(f"pretrax.cli.{subcommand}").main(argv)


def _without_folder() -> str | None:
    """Returns an error message if the working folder was removed; None if it exists."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return "The current folder was removed: change to another one (cd)."
    return None
