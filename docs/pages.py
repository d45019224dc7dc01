"""Writes generated pages and tables of docs/, and generated parts of mkdocs.yml's navigation.

    python docs/pages.py

It fills the tables between `<!-- begin NAME -->` and `<!-- end NAME -->`, copies pages from the
root, and writes the reference pages. The results are committed, so that every page is complete as a
plain file, and MkDocs needs no hooks. docs/objective_pages.py and docs/guide.py write the pages of
objectives and comparisons.
"""

import argparse
import contextlib
import importlib
import re
import unittest.mock
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tables import cell, family_file, filled, table  # in the same folder

from pretrax.cli import SUBCOMMANDS
from pretrax.models.heads import HEADS
from pretrax.objectives.catalog import FAMILIES
from pretrax.settings.t5x_names import NAMES

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
NAVIGATION = "mkdocs.yml"

COPIES = {
    "security.md": "SECURITY.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}


def main() -> None:
    for file, text in (pages() | {"cli.md": commands_page()}).items():
        (DOCS / file).write_text(text, encoding="utf-8")
        print(f"docs/{file}")
    (ROOT / NAVIGATION).write_text(navigation(), encoding="utf-8")
    print(NAVIGATION)


def pages() -> dict[str, str]:
    """Returns {file: text} of all pages that this program writes, without the page of commands."""
    written = {page: copy_of(source) for page, source in COPIES.items()}
    written["run_settings.md"] = run_settings_page()
    for page, tables in TABLES.items():
        text = (DOCS / page).read_text(encoding="utf-8")
        for name, generate in tables.items():
            text = filled(text, name, generate(), page)
        written[page] = text
    return written


# --- copies ---------------------------------------------------------------------------------------


def copy_of(source: str) -> str:
    """Returns a page of the root with links that are relative to docs/."""
    text = (ROOT / source).read_text(encoding="utf-8").replace("](docs/", "](")
    for page, file in COPIES.items():
        text = text.replace(f"]({file}", f"]({page}")
    title, rest = text.split("\n", 1)
    return f"{title}\n\n{_generated(source)}\n{rest}"


def _generated(source: str) -> str:
    """Returns a comment that says where a generated page comes from."""
    return f"<!-- docs/pages.py writes this page from {source}. -->"


# --- gin files and settings -----------------------------------------------------------------------

FOLDERS = {  # folder of gin_configs -> heading, and a sentence about its files
    "runs": ("Runs", "A run names a corpus, an objective, a model and a size."),
    "objectives": (
        "Objectives",
        "Each file chooses an objective. [All objectives](objectives.md) has a page for each.",
    ),
    "corpora": ("Corpora", "Each file chooses the text that a run reads."),
    "models": ("Models", "Each file chooses a model and its size."),
    "comparisons": (
        "Comparisons",
        "`pretrax compare NAME` runs a comparison. Those with results are listed under Evidence.",
    ),
    "budgets": ("Budgets", "Each file gives a comparison another budget."),
    "preprocessing": ("Preprocessing", "`pretrax prepare` reads these files."),
    "trackers": ("Trackers", "Each file sends the metrics of a run to a service."),
}


def gin_files() -> list[str]:
    """Returns the section of all gin files that come with the package."""
    parts = [
        "## Gin files",
        "These files come with the package. Name them by folder and file, such as "
        "`--gin_file=runs/decoder.gin`, from any working directory. "
        "[Runs, settings and checkpoints](runs.md) explains how to combine them.",
    ]
    for folder, (heading, about) in FOLDERS.items():
        parts += [f"### {heading}", about, configs(folder)]
    return parts


def configs(folder: str) -> str:
    """Returns a table of the gin files of a folder, with the first sentence of their comments."""
    paths = sorted((ROOT / "gin_configs" / folder).glob("*.gin"))
    return table(["file", "about"], [[f"`{folder}/{p.name}`", head(p)] for p in paths])


def head(path: Path) -> str:
    """Returns the first sentence of the comment at the start of a gin file, without commands."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    paragraphs = [p.replace("\n", " ") for p in "\n".join(lines).split("\n\n")]
    prose = [p for p in paragraphs if not p.startswith(("python ", "pretrax "))]
    return re.split(r"(?<=\.)(?<!al\.)\s", prose[0])[0] if prose else ""


def run_settings_page() -> str:
    """Returns the page of the fields of training.Run, and of the gin files.

    The fields have a table for each group of their source.
    """
    groups: dict[str, list[list[str]]] = {}
    for group, cells in run_fields():
        groups.setdefault(group, []).append(cells)
    parts = [
        "# Run settings and gin files",
        _generated("training/run.py and gin_configs/"),
        "## Settings",
        "A run has these settings. On the command line, write `--gin.training.Run.NAME=VALUE`; in "
        "a gin file, `training.Run.NAME = VALUE`. A setting without a default must be given. "
        "[Runs, settings and checkpoints](runs.md) shows the common ones in use.",
    ]
    for group, rows in groups.items():
        parts += [f"### {group}", table(["setting", "type", "default", "meaning"], rows)]
    return "\n\n".join([*parts, *gin_files()]) + "\n"


def run_fields() -> Iterator[tuple[str, list[str]]]:
    """Yields the group and the cells of each field of training.Run, in the order of its source."""
    text = (ROOT / "training" / "run.py").read_text(encoding="utf-8")
    body = text[text.index("class Run:") :].split("\n\n\n")[0]
    fields = re.findall(r"^      (\w+) \((.*?)\): (.*(?:\n {8}.*)*)", body, re.MULTILINE)
    kinds = {name: kind.partition("; default ") for name, kind, _ in fields}
    about = {name: cell(" ".join(words.split())) for name, _, words in fields}
    group = ""
    for heading, name in re.findall(r"^    (?:# (.*)|(\w+): .*)", body, re.MULTILINE):
        if heading:
            group = heading
        else:
            kind, _, default = kinds[name]
            yield group, [f"`{name}`", kind, f"`{default}`" if default else "", about[name]]


def t5x_names() -> str:
    """Returns a table of T5X's names of settings, from settings/t5x_names.py."""
    rows = [[f"`{name}`", cell(ours)] for name, ours in NAMES.items()]
    return table(["in T5X", "in pretrax"], rows)


def heads() -> str:
    """Returns a table of the heads that models can have, from models/heads.py."""
    ahead = "hidden states for the token after the next; `ahead_3`, … for those after it"
    depth = "hidden states after 20% of the layers; also other percentages from 1 to 100"
    rows = [["`ahead_2`", ahead, "`decoder`"], ["`depth_20`", depth, "`decoder`"]]
    for head in HEADS.values():
        models = ", ".join(f"`{name}`" for name in head.builders)
        rows.append([f"`{head.name}`", head.about, models])
    return table(["head", "what it gives", "models"], rows)


# --- commands -------------------------------------------------------------------------------------


def commands_page() -> str:
    """Returns the page of all commands and their options, from their parsers."""
    parts = [
        "# Command line",
        _generated("the parsers in cli/"),
        "`pretrax COMMAND --help` prints the options of a command. Options in gin files, such as "
        "`--steps`, are listed in [Run settings and gin files](run_settings.md).",
        table(
            ["command", "what it does"],
            [[f"[`pretrax {v}`](#pretrax-{v})", cell(about)] for v, about in SUBCOMMANDS.items()],
        ),
    ]
    for subcommand in SUBCOMMANDS:
        parts += [f"## pretrax {subcommand}", *_command(_parser_of(subcommand))]
    return "\n\n".join(parts) + "\n"


def _parser_of(subcommand: str) -> argparse.ArgumentParser:
    """Returns the parser of a command, which is complete when it prints its help."""
    parsers = []

    def keep(parser: argparse.ArgumentParser, file: Any = None) -> None:
        parsers.append(parser)

    module = importlib.import_module(f"pretrax.cli.{subcommand}")
    with (
        unittest.mock.patch.object(argparse.ArgumentParser, "print_help", keep),
        contextlib.suppress(SystemExit),
    ):
        module.main(["--help"])
    (parser,) = parsers
    return parser


def _command(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yields the description of a command, and a table for each group of its options."""
    about = (parser.description or "").strip()
    yield re.sub(r"(?:^    .*\n?|\n(?=    ))+", _as_block, about, flags=re.MULTILINE).strip()
    for group in parser._action_groups:
        rows = [
            _option(parser, action)
            for action in group._group_actions
            if action.help != argparse.SUPPRESS
        ]
        if rows:
            if group.title not in ("options", "positional arguments"):
                about = f": {cell(group.description)}" if group.description else ""
                yield f"**{_capitalized(group.title or '')}**{about}"
            yield table(["option", "meaning"], rows)


def _capitalized(title: str) -> str:
    """Returns a title that begins with a capital; names within it keep theirs."""
    return title[:1].upper() + title[1:]


def _as_block(match: re.Match) -> str:
    lines = [line.removeprefix("    ") for line in match[0].strip("\n").split("\n")]
    return "\n".join(["", "```text", *lines, "```", ""])


def _option(parser: argparse.ArgumentParser, action: argparse.Action) -> list[str]:
    formatter = parser._get_formatter()
    name = ", ".join(action.option_strings) or str(action.metavar or action.dest)
    value = ""
    if action.option_strings and action.nargs != 0:
        value = " " + formatter._format_args(action, action.dest.upper())
    text = cell(formatter._expand_help(action) if action.help else "")
    has_default = (
        action.default not in (None, False, argparse.SUPPRESS, "", []) and action.nargs != 0
    )
    if has_default and "default" not in text:
        text += f" (default: `{action.default}`)"
    code = f"{name}{value}".replace("|", "&#124;")  # a pipe in backticks would end the cell
    return [f"<code>{cell(code)}</code>" if "&" in code else f"`{code}`", text]


# --- navigation -----------------------------------------------------------------------------------


def navigation() -> str:
    """Returns mkdocs.yml with the pages of objectives and comparisons in its navigation."""
    text = (ROOT / NAVIGATION).read_text(encoding="utf-8")
    for name, lines in {"objectives": objective_lines(), "reports": report_lines()}.items():
        pattern = re.compile(f"( *)# begin {name}\n.*?( *# end {name})", re.DOTALL)
        match = pattern.search(text)
        assert match, f"{NAVIGATION} lacks the part {name}."
        part = "".join(f"{match[1]}{line}\n" for line in lines)
        begin = f"{match[1]}# begin {name}\n"
        text = text[: match.start()] + begin + part + match[2] + text[match.end() :]
    return text


def objective_lines() -> Iterator[str]:
    """Yields the lines of the navigation for each family of objectives, and its objectives."""
    for family, entries in FAMILIES.items():
        yield f"- {family.capitalize()}:"
        yield f"    - {family_file(family)}"
        for name, entry in entries.items():
            yield f"    - {entry.title}: objectives/{name}.md"


def report_lines() -> Iterator[str]:
    """Yields the line of the navigation for each page that docs/guide.py writes."""
    for path in sorted((DOCS / "comparisons").glob("*.md")):
        yield f"- comparisons/{path.name}"  # The question in its heading is its title.


TABLES = {  # page -> name of a table in it -> function that returns the table
    "t5x.md": {"t5x_names": t5x_names},
    "own_objective.md": {"heads": heads},
}


if __name__ == "__main__":
    main()
