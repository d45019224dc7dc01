"""The command `pretrax`, which runs the subcommand that its first argument names."""

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
    command, *rest = [argv[1], "--help"] if argv[0] == "help" else argv
    if command not in cli.SUBCOMMANDS:
        say(unknown(command))
        raise SystemExit(2)
    cli.run(command, rest)


def usage() -> str:
    commands = "\n".join(f"  {name:10}{about}" for name, about in cli.SUBCOMMANDS.items())
    return f"usage: pretrax COMMAND …\n\n{commands}\n\n`pretrax help COMMAND` lists its options."


def unknown(command: str) -> str:
    """Returns the message for an unknown command, with the nearest known one."""
    from .constraints import near  # only for this message, so that every command starts sooner

    expected = f"Expected one of {', '.join(cli.SUBCOMMANDS)}."
    return f"error: unknown command {command!r}{near(command, cli.SUBCOMMANDS)} {expected}"


if __name__ == "__main__":
    main()
