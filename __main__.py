"""The command `pretrax`: looks its verb up and hands the rest of the line to it."""

import os
import sys
from collections.abc import Sequence

from . import cli
from .settings.command_terminal import in_terminal, say, show


def main(argv: Sequence[str] | None = None) -> None:
    with in_terminal():
        _main(sys.argv[1:] if argv is None else argv)


def _main(argv: Sequence[str]) -> None:
    if "_ARGCOMPLETE" in os.environ:
        cli.complete()
    if not argv or argv[0] in ("-h", "--help") or list(argv) == ["help"]:
        show(usage())
        return
    if argv[0] == "--version":
        from importlib.metadata import version  # takes longer than to print the usage

        show(f"pretrax {version('pretrax')}")
        return
    verb, *rest = [argv[1], "--help"] if argv[0] == "help" else argv
    if verb not in cli.VERBS:
        say(unknown(verb))
        raise SystemExit(2)
    cli.run(verb, rest)


def usage() -> str:
    commands = "\n".join(f"  {verb:10}{about}" for verb, about in cli.VERBS.items())
    return f"usage: pretrax COMMAND …\n\n{commands}\n\n`pretrax help COMMAND` lists its options."


def unknown(verb: str) -> str:
    """Returns the message for an unknown command, with the nearest known one."""
    from .constraints import near  # only for this message, so that every command starts sooner

    expected = f"Expected one of {', '.join(cli.VERBS)}."
    return f"error: there is no command {verb!r}{near(verb, cli.VERBS)} {expected}"


if __name__ == "__main__":
    main()
