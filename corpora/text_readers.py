"""Reads documents to train on, long ones in parts, and counts what is left out.

`data.reading` says what a file is by its name. Plain text of more than 128 kB is read in parts, cut
at line ends, so that no file is in memory whole.
"""

import collections
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ..data.reading import (
    BOM,
    Bad,
    DocumentOf,
    FileRange,
    MalformedLine,
    Record,
    decoded,
    is_plain_text,
    malformed,
    opened,
    records,
)

BLOCK = 1 << 17  # bytes of plain text in a part; tokenisers slow down on longer ones
_SHOWN = 5  # malformed lines named in a summary
_MALFORMED = "malformed lines skipped"
# Words for the rules of `data.reading.LEFT_OUT`.
_WELL_FORMED = {"blank": "blank lines", "http_status": "web pages without HTTP status 200"}


class TextPart(NamedTuple):
    """A document, or a part of a long one."""

    text: Any  # a string; of a line's object or a row what `document_of` makes of it
    ends: bool = True  # the document ends with it; else the next part follows


class LeftOut(collections.Counter[str]):
    """Counts of what reading and tokenising leave out, by the words for it."""

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
        """The counts in words; "" for nothing."""
        more = ["…"] if self[_MALFORMED] > len(self.first_malformed) else []
        shown = {_MALFORMED: f" ({'; '.join(self.first_malformed + more)})"}
        counts = [f"{n:,} {what}{shown.get(what, '')}" for what, n in self.items() if n]
        return ", ".join(counts)


def read_documents(
    path: str,
    document_of: str | DocumentOf = "text",
    *,
    on_malformed: str = "error",
    left_out: LeftOut | None = None,
    advance: Callable[[int], object] = lambda size: None,
) -> Iterator[TextPart]:
    """The documents of one file, in order; memory use does not depend on its size.

    A long plain text file comes in parts, of which the last one ends the document.

    Args:
        document_of, advance: as for `data.reading.records`.
        on_malformed: "error" raises at the first malformed line, "skip" counts it in `left_out`.

    Raises MalformedLine for bad JSON, no such field, no string in it, text that is not UTF-8, or
    what is no file, such as a named pipe, and, whatever `on_malformed`, for a damaged file; OSError
    for a file that cannot be opened.
    """
    left_out = LeftOut() if left_out is None else left_out
    plain = is_plain_text(path)
    for one in _parts(path, advance) if plain else records(FileRange(path), document_of, advance):
        if isinstance(one, TextPart):
            yield one
        elif isinstance(one, Record):
            yield TextPart(one.text)
        elif one.rule == "damaged":
            raise malformed(one, "Get it again.")
        elif one.rule == "malformed" and on_malformed == "error":
            raise malformed(one, "Mend it, or set on_malformed = 'skip'.")
        else:
            left_out.count(one)


def _parts(path: str, advance: Callable[[int], object]) -> Iterator[TextPart | Bad]:
    number = 1  # of the block's first line
    try:
        with opened(path, advance) as file:
            while block := file.read(BLOCK):
                # Whole lines; a line of many megabytes is cut between two characters.
                block += file.readline(BLOCK)
                for _ in range(3):  # the bytes, after its first, of a character that is cut
                    if block[-1] >= 0x80 and b"\x80" <= file.peek(1)[:1] < b"\xc0":
                        block += file.read(1)
                if number == 1:
                    block = block.removeprefix(BOM)
                try:
                    text = block.decode("utf-8")
                except UnicodeDecodeError:
                    text, bad = _decodable_lines(block, path, number)
                    yield from bad
                yield TextPart(text, ends=not file.peek(1))
                number += block.count(b"\n")
    except MalformedLine as error:
        yield error.bad


def _decodable_lines(block: bytes, path: str, number: int) -> tuple[str, list[Bad]]:
    """The lines of a block, whose first has this number, that are text; and the others."""
    lines = []
    bad = []
    for line in block.splitlines(keepends=True):
        try:
            lines.append(decoded(line))
        except ValueError as error:
            bad.append(Bad(f"{path}:{number}", "malformed", str(error)))
        number += line.endswith(b"\n")
    return "".join(lines), bad
