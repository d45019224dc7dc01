"""What a preparation did: report.json, and what of it is printed."""

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..settings.atomic_writes import write_bytes, write_json

REPORT = "report.json"  # written last: a folder that holds it is finished
PAGE = "report.html"
LOG = "prepare.log"  # of all tasks, by datatrove


class StepReport(NamedTuple):
    """What a step did."""

    name: str
    taken: int  # documents that went in; of the source records
    given: int  # documents that came out
    dropped: Mapping[str, int]  # by rule
    changed: int | None = None  # documents whose text it changed; None: it changes none
    tokens: int = 0  # that it wrote
    unknown: int = 0  # of these, which stand for what the vocabulary does not know
    examples: Mapping[str, Sequence[Mapping[str, str]]] = {}  # by rule: {"id": …, "text": …}


class PreparationReport(NamedTuple):
    """What a preparation did."""

    source: str  # in words
    steps: Sequence[StepReport]
    settings: Mapping[str, str]
    made_of: str  # a fingerprint of settings and source

    @property
    def documents(self) -> int:
        return self.steps[-1].given

    @property
    def tokens(self) -> int:
        return self.steps[-1].tokens


def write(out: str, report: PreparationReport, page: str) -> None:
    """Writes the page, then the report, which says that the preparation is finished."""
    # A file's name or a record's id may hold half a surrogate pair.
    write_bytes(os.path.join(out, PAGE), page.encode("utf-8", "backslashreplace"))
    steps = [
        {"name": s.name, "in": s.taken, "out": s.given, "dropped": dict(s.dropped)}
        | ({"changed": s.changed} if s.changed is not None else {})
        for s in report.steps
    ]
    values = {
        "source": report.source,
        "steps": steps,
        "documents": report.documents,
        "tokens": report.tokens,
        "unknown_tokens": report.steps[-1].unknown,
        "settings": dict(report.settings),
        "made_of": report.made_of,
    }
    write_json(os.path.join(out, REPORT), values)


def print_table(console: Console, steps: Sequence[StepReport]) -> None:
    """Prints a line for each step: what went in, what came out, what was dropped by which rule."""
    table = Table("step", "in", "out", "dropped", box=None, header_style="bold")
    for column in table.columns[:3]:
        column.no_wrap = True
    for column in table.columns[1:3]:
        column.justify = "right"
    for step in steps:
        # a user's names are no markup
        name = Text(step.name)
        dropped = Text(words_of(step))
        table.add_row(name, f"{step.taken:,}", f"{step.given:,}", dropped)
    console.print(table)


def words_of(step: StepReport) -> str:
    """Returns what a step dropped, changed and did not know, in words.

    >>> words_of(StepReport("clean", 9, 7, {"empty": 2}, changed=3))
    'empty 2; 3 changed'
    """
    dropped = ", ".join(f"{rule} {number:,}" for rule, number in step.dropped.items())
    changed = "" if step.changed is None else f"{step.changed:,} changed"
    unknown = f"{step.unknown:,} tokens unknown to the vocabulary" if step.unknown else ""
    return "; ".join(filter(None, (dropped, changed, unknown)))
