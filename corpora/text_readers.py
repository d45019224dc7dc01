"""Reads training documents, long files in parts, and counts what is left out.

`data.reading` chooses the format of a file by its name.
"""

import collections
from collections.abc import Callable, Iterator, Sequence

from ..data.reading import Bad, DocumentOf, RawDocument, malformed, raw_documents

_SHOWN = 5  # largest number of malformed lines in a summary
_MALFORMED = "malformed lines skipped"
# Descriptions of the rules of `data.reading.LEFT_OUT`.
_WELL_FORMED = {"blank": "blank lines", "http_status": "web pages without HTTP status 200"}


class LeftOut(collections.Counter[str]):
    """Counts of what reading and tokenizing leave out, by description."""

    def __init__(self) -> None:
        super().__init__()
        self.first_malformed: list[str] = []

    def count(self, bad: Bad) -> None:
        if bad.rule in _WELL_FORMED:
            self[_WELL_FORMED[bad.rule]] += 1
            return
        self[_MALFORMED] += 1
        if len(self.first_malformed) < _SHOWN:
            self.first_malformed.append(f"{bad.place}: {bad.reason}")

    def describe(self) -> str:
        """Returns the counts as text; "" if nothing was left out."""
        more = ["…"] if self[_MALFORMED] > len(self.first_malformed) else []
        shown = {_MALFORMED: f" ({'; '.join(self.first_malformed + more)})"}
        counts = [f"{n:,} {what}{shown.get(what, '')}" for what, n in self.items() if n]
        return ", ".join(counts)


def read_documents(
    paths: Sequence[str],
    document_of: str | DocumentOf = "text",
    advance: Callable[[int], object] = lambda size: None,
    left_out: LeftOut | None = None,
    *,
    on_malformed: str = "error",
) -> Iterator[RawDocument]:
    """Yields the documents of files, in order; memory use does not depend on the files' sizes.

    A long plain-text file is read in parts, and the last part ends the document.

    Args:
        paths: the files.
        document_of: field or column with the text, or a function that makes a document of a line's
            object or a row.
        advance: called with the number of bytes read since the last call.
        left_out: counts what is left out, or None to discard the counts.
        on_malformed: "error" to raise at the first malformed line, or "skip" to count such lines
            in `left_out`.

    Raises MalformedLine for invalid JSON, a missing field, a field that is not a string, text that
    is not UTF-8, and a path that is not a file, such as a named pipe. A damaged file raises
    MalformedLine even if `on_malformed` is "skip". Raises OSError for a file that cannot be opened.
    """
    left_out = LeftOut() if left_out is None else left_out
    for path in paths:
        for record in raw_documents(path, document_of, advance, text_in_parts=True):
            if isinstance(record, RawDocument):
                yield record
            elif record.rule == "damaged":
                raise malformed(record, "Download or copy the file again.")
            elif record.rule == "malformed" and on_malformed == "error":
                raise malformed(record, "Fix it, or set on_malformed = 'skip'.")
            else:
                left_out.count(record)
