"""The report of a preparation: report.json, and the table that is printed."""

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from ..settings.atomic_writes import write_bytes, write_json
from ..settings.printable import plain_table

REPORT = "report.json"  # written last, so it marks a finished folder
PAGE = "report.html"
LOG = "prepare.log"  # datatrove's logs of all tasks


class StepReport(NamedTuple):
    """The results of a step."""

    name: str
    documents_in: int  # number of documents that went in; for the source, number of records
    documents_out: int  # number of documents that came out
    dropped: Mapping[str, int]  # rule -> number of dropped documents
    # Number of documents with a changed text; None if the step changes no text.
    changed: int | None = None
    tokens: int = 0  # number of tokens that were written
    unknown: int = 0  # number of these tokens that are unknown to the vocabulary
    heldout: int = 0  # number of these tokens that are held out
    examples: Mapping[str, Sequence[Mapping[str, str]]] = {}  # rule -> [{"id": …, "text": …}]


class PreparationReport(NamedTuple):
    """The results of a preparation."""

    source: str  # description of the source
    steps: Sequence[StepReport]
    settings: Mapping[str, str]
    fingerprint: str  # hash of the settings and the source

    @property
    def documents(self) -> int:
        return self.steps[-1].documents_out

    @property
    def tokens(self) -> int:
        return self.steps[-1].tokens

    @property
    def summary(self) -> str:
        """Returns the number of documents and, for a token store, of tokens and held-out tokens.

        >>> step = StepReport("tokenize", 9, 9, {}, tokens=80, heldout=4)
        >>> PreparationReport("1 file", [step], {}, "").summary
        '9 documents, 80 tokens (5.0% held out)'
        """
        documents = f"{self.documents:,} document{'s' * (self.documents != 1)}"
        if not self.tokens:
            return documents
        share = self.steps[-1].heldout / self.tokens
        return f"{documents}, {self.tokens:,} tokens ({share:.1%} held out)"


def write(out: str, report: PreparationReport, page: str) -> None:
    """Writes the page and then the report, which marks the preparation as finished."""
    # The name of a file or the id of a record may contain half a surrogate pair.
    write_bytes(os.path.join(out, PAGE), page.encode("utf-8", "backslashreplace"))
    steps = [
        {"name": s.name, "in": s.documents_in, "out": s.documents_out, "dropped": dict(s.dropped)}
        | ({"changed": s.changed} if s.changed is not None else {})
        for s in report.steps
    ]
    values = {
        "source": report.source,
        "steps": steps,
        "documents": report.documents,
        "tokens": report.tokens,
        "unknown_tokens": report.steps[-1].unknown,
        "heldout_tokens": report.steps[-1].heldout,
        "settings": dict(report.settings),
        "made_of": report.fingerprint,
    }
    write_json(os.path.join(out, REPORT), values)


def print_table(console: Console, steps: Sequence[StepReport]) -> None:
    """Prints a line for each step: documents in, documents out, and dropped documents by rule."""
    table = plain_table("step", "in", "out", "dropped", text=("step", "dropped"))
    for column in table.columns[:3]:
        column.no_wrap = True
    for step in steps:
        # names of the user must not be read as markup
        name = Text(step.name)
        dropped = Text(description_of(step))
        table.add_row(name, f"{step.documents_in:,}", f"{step.documents_out:,}", dropped)
    console.print(table)


def description_of(step: StepReport) -> str:
    """Describes what a step dropped and changed, and its unknown tokens.

    >>> description_of(StepReport("clean", 9, 7, {"empty": 2}, changed=3))
    'empty 2; 3 changed'
    """
    dropped = ", ".join(f"{rule} {number:,}" for rule, number in step.dropped.items())
    changed = "" if step.changed is None else f"{step.changed:,} changed"
    unknown = f"{step.unknown:,} tokens unknown to the vocabulary" if step.unknown else ""
    return "; ".join(filter(None, (dropped, changed, unknown)))
