"""Reads labeled text: TSV with a header, JSONL and other rows with fields; names a wrong line.

    text<TAB>label                      {"text": "A fine film.", "label": "good"}
    A fine film.<TAB>good

A row of a TSV file is a line and a tab ends a column: nothing is quoted, so a text with a tab or a
line break in it needs JSONL. Other columns and fields are not read.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ..data import reading
from ..data.reading import JSONL_SUFFIXES, Bad, RawDocument

FIELDS = ("text", "label")
_EXAMPLE = 'Expected an object such as {"text": "A fine film.", "label": "good"}.'


class Labeled(NamedTuple):
    """A text and its label, which is the name of a class."""

    text: str
    label: str


def read_labeled(
    paths: Sequence[str],
    classes: Sequence[str] | None = None,
    advance: Callable[[int], object] = lambda size: None,
) -> Iterator[Labeled]:
    """The texts and labels of TSV, JSONL, Parquet and Arrow files, in order, without blank lines.

        list(read_labeled(["films.tsv"]))    # [Labeled(text='A fine film.', label='good')]

    Labels may be the `classes`; None: any. `advance` is as for `data.reading.raw_documents`.

    Raises MalformedLine for a line, or a header, that is not as expected, or a damaged file, and
    ValueError for a file of another kind.
    """
    # The first row that is not from a TSV file, in which all labels are strings.
    first: RawDocument | None = None
    for path in paths:
        if reading.has_fields(path):
            rows = reading.good(reading.raw_documents(path, _fields, advance), _EXAMPLE)
        else:
            rows = reading.good(_tsv(path, advance))
        for row in rows:
            first = first or (row if row.fields else None)
            try:
                yield _checked(row, first, classes)
            except ValueError as error:
                bad = Bad(row.place, "malformed", str(error))
                raise reading.malformed(bad, "Mend it, or take it out.") from None


def in_words(classes: Sequence[str]) -> str:
    """The first classes by name, and how many there are if these are not all."""
    more = f", … ({len(classes)} in all)" if len(classes) > 8 else ""
    return ", ".join(classes[:8]) + more


def _fields(row: dict) -> list:
    for name in FIELDS:
        if name not in row:
            raise ValueError(
                f"got the fields {', '.join(map(repr, row)) or 'none'}, expected 'text' and "
                f"'label': {name!r} is missing"
            )
    return [row[name] for name in FIELDS]


def _tsv(path: str, advance: Callable[[int], object]) -> Iterator[RawDocument | Bad]:
    """Yields the values of `FIELDS` in each line."""
    if not reading.unpacked(path).endswith(".tsv"):
        raise ValueError(
            f"{path} is neither TSV (.tsv) nor JSONL ({', '.join(JSONL_SUFFIXES)}), also as .gz or "
            ".zst, by its name: write labeled text as one of them."
        )
    columns: list[str] = []
    with reading.opened(path, advance) as file:
        rows = reading.lines(file) if file.peek(1) else [(1, 0, b"")]  # whose header is empty
        for number, at, line in rows:
            try:
                values = reading.decoded(line).rstrip("\r\n").split("\t")
                if not columns:
                    columns = _checked_header(values)
                elif any(value.strip() for value in values):
                    if len(values) != len(columns):
                        raise ValueError(
                            f"got {len(values)} columns, expected {len(columns)} as in the header: "
                            "a tab ends a column; JSONL may have tabs within a text"
                        )
                    yield RawDocument([values[columns.index(n)] for n in FIELDS], path, at, number)
            except ValueError as error:
                yield Bad(f"{path}:{number}", "malformed", str(error))


def _checked_header(columns: list[str]) -> list[str]:
    got = ", ".join(repr(column[:40]) for column in columns)
    if double := next((name for name in FIELDS if columns.count(name) > 1), None):
        raise ValueError(
            f"got the column {double!r} twice in the header ({got}), expected a name of its "
            "own for each"
        )
    if lacking := [repr(name) for name in FIELDS if name not in columns]:
        raise ValueError(
            f"got the columns {got}, expected a header with 'text' and 'label', separated by tabs: "
            f"{' and '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} missing. Name the "
            "columns so in the first line"
        )
    return columns


def _checked(row: RawDocument, first: RawDocument | None, classes: Sequence[str] | None) -> Labeled:
    """A text and its label, which is a string or a whole number, in all rows as in the `first`, so
    that 1 and "1" are not taken for one class."""
    text, label = row.text
    if type(label) not in (str, int):
        raise ValueError(
            f"got the label {json.dumps(label, default=str)}, expected a string, or a whole "
            "number. To predict numbers, see runs/finetune_regression.gin"
        )
    if row.fields and first and type(label) is not (kind := type(first.text[1])):
        raise ValueError(
            f"got the label {json.dumps(label)}, a {type(label).__name__}, and that of "
            f"{first.place} is a {kind.__name__}: write all labels as strings, or all as numbers"
        )
    if not isinstance(text, str):
        raise ValueError(f"got the text {json.dumps(text, default=str)[:60]}, expected a string")
    found = Labeled(text, str(label))
    for name, value in zip(FIELDS, found):
        if not value.strip():
            raise ValueError(f"got the {name} {value!r}, expected some words")
        reading.check_is_text(value, f"the {name}")
    if found.label != found.label.strip():
        raise ValueError(f"got the label {label!r}, expected one without white space around it")
    if classes is not None and found.label not in classes:
        raise ValueError(
            f"got the label {found.label!r}, which no text has that the model was trained on, "
            f"expected one of {in_words(classes)}: train on texts with this label too"
        )
    return found
