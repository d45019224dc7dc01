"""`RawDocument` and `Bad`: what reading a file yields."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

# Rules that leave out well-formed records: blank lines of JSONL, and responses of a server with a
# status other than 200, such as pages that were not found.
LEFT_OUT = ("blank", "http_status")


class RawDocument(NamedTuple):
    """A document as a file holds it, or a part of a long plain-text file or sequence."""

    text: Any  # a string, or the value that `DocumentOf` makes of a line's object or a row
    path: str = ""
    at: int = 0  # first byte of the line, or number of the row or record, from 0
    # Number of the line, from 1. In a byte range, lines are counted from its start.
    line: int | None = None
    fields: dict[str, Any] = {}  # all fields of the line's object, the row or the web page
    ends_document: bool = True  # whether the document ends here; otherwise its next part follows

    @property
    def place(self) -> str:
        return f"{self.path}:{self.line}" if self.line else f"{self.path}@{self.at}"


class Bad(NamedTuple):
    """A record that is not a document."""

    place: str  # the file and the line, row or record
    rule: str  # `malformed`, `empty` or `damaged`, or one of `LEFT_OUT`
    reason: str


class MalformedLine(ValueError):
    """A line or a file that cannot be read; the message names its place."""

    bad: Bad


# (a line's object or a row) -> document; raises ValueError, with the reason, if there is none.
DocumentOf = Callable[[dict[str, Any]], Any]
# read(file, path, document_of) yields the documents and the bad records of an open file.
Reader = Callable[..., Iterator[RawDocument | Bad]]


def malformed(bad: Bad, change: str = "Fix it.") -> MalformedLine:
    """Returns the error of a bad record, with the reason and what to change."""
    error = MalformedLine(f"{bad.place}: {bad.reason}. {change}")
    error.bad = bad
    return error


def valid_documents(
    records: Iterable[RawDocument | Bad], change: str = "Fix it."
) -> Iterator[RawDocument]:
    """Yields the documents. Raises MalformedLine, with what to change, at the first bad record."""
    for record in records:
        if isinstance(record, RawDocument):
            yield record
        elif record.rule == "damaged":
            raise malformed(record, "Download or copy the file again.")
        elif record.rule not in LEFT_OUT:
            raise malformed(record, change)


def text_of_field(field: str, value: dict) -> str:
    """Returns the string in a field of an object or a row.

    Raises ValueError, with the reason, if there is none.
    """
    if field not in value:
        fields = ", ".join(map(repr, list(value)[:8])) or "none"
        raise ValueError(f"no field {field!r}, but the line has {fields} (see text_field)")
    text = value[field]
    if not isinstance(text, str):
        raise ValueError(f"field {field!r} is {type(text).__name__}, expected a string")
    check_is_text(text, f"field {field!r}")
    return text


def check_is_text(text: str, what: str) -> None:
    """Raises ValueError for a string that cannot be written as UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"{what} has half a surrogate pair, which is not valid text") from None
