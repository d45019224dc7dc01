"""Reads documents to train on, long ones in parts, and counts what is left out.

`data.reading` says what a file is by its name.
"""

import collections
from collections.abc import Callable, Iterator, Sequence

from ..data.reading import Bad, DocumentOf, RawDocument, malformed, raw_documents

_SHOWN = 5  # malformed lines named in a summary
_MALFORMED = "malformed lines skipped"
# Words for the rules of `data.reading.LEFT_OUT`.
_WELL_FORMED = {"blank": "blank lines", "http_status": "web pages without HTTP status 200"}


class LeftOut(collections.Counter[str]):
    """Counts of what reading and tokenizing leave out, by the words for it."""

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
    *,
    on_malformed: str = "error",
    left_out: LeftOut | None = None,
) -> Iterator[RawDocument]:
    """Yields the documents of files, in order; memory use does not depend on the files' sizes.

    A long plain text file comes in parts, of which the last one ends the document.

    Args:
        document_of, advance: as for `data.reading.raw_documents`.
        on_malformed: "error" raises at the first malformed line, "skip" counts it in `left_out`.

    Raises MalformedLine for bad JSON, no such field, no string in it, text that is not UTF-8, or
    what is not a file, such as a named pipe, and, whatever `on_malformed`, for a damaged file;
    OSError for a file that cannot be opened.
    """
    left_out = LeftOut() if left_out is None else left_out
    for path in paths:
        for one in raw_documents(path, document_of, advance, text_in_parts=True):
            if isinstance(one, RawDocument):
                yield one
            elif one.rule == "damaged":
                raise malformed(one, "Get it again.")
            elif one.rule == "malformed" and on_malformed == "error":
                raise malformed(one, "Mend it, or set on_malformed = 'skip'.")
            else:
                left_out.count(one)
