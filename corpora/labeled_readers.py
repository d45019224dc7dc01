"""Reads labeled text from TSV with a header, JSONL, Parquet and Arrow. Errors name the bad line.

    text<TAB>label                      {"text": "A fine film.", "label": "good"}
    A fine film.<TAB>good

Each line of a TSV file is a row, and tabs separate the columns. Quotes have no special meaning, so
texts with tabs or line breaks need JSONL. Other columns and fields are ignored.
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
    """Yields the texts and labels of files in order, skipping blank lines.

        list(read_labeled(["films.tsv"]))    # [Labeled(text='A fine film.', label='good')]

    Args:
        classes: the allowed labels, or None to allow any label.
        advance: called with the number of bytes read since the last call.

    Raises MalformedLine for an invalid line, an invalid header or a damaged file, and ValueError
    for a file of another type.
    """
    # The first row that has fields. All labels of a TSV file are strings, so its rows do not count.
    first: RawDocument | None = None
    for path in paths:
        if reading.has_fields(path):
            rows = reading.valid_documents(reading.raw_documents(path, _fields, advance), _EXAMPLE)
        else:
            rows = reading.valid_documents(_tsv(path, advance))
        for row in rows:
            first = first or (row if row.fields else None)
            try:
                yield _checked(row, first, classes)
            except ValueError as error:
                bad = Bad(row.place, "malformed", str(error))
                raise reading.malformed(bad, "Fix it, or remove it.") from None


def class_list(classes: Sequence[str]) -> str:
    """Returns the names of the first 8 classes, and the number of classes if there are more."""
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
            f"The name of {path} is that of neither TSV (.tsv) nor JSONL "
            f"({', '.join(JSONL_SUFFIXES)}), also as .gz or .zst: write labeled text in one of "
            "these formats, and name the file accordingly."
        )
    columns: list[str] = []
    with reading.opened(path, advance) as file:
        rows = reading.lines(file) if file.peek(1) else [(1, 0, b"")]  # an empty header
        for number, at, line in rows:
            try:
                values = reading.decoded(line).rstrip("\r\n").split("\t")
                if not columns:
                    columns = _checked_header(values)
                elif any(value.strip() for value in values):
                    if len(values) != len(columns):
                        raise ValueError(
                            f"got {len(values)} columns, expected {len(columns)} as in the header: "
                            "tabs separate the columns; use JSONL for texts with tabs"
                        )
                    yield RawDocument([values[columns.index(n)] for n in FIELDS], path, at, number)
            except ValueError as error:
                yield Bad(f"{path}:{number}", "malformed", str(error))


def _checked_header(columns: list[str]) -> list[str]:
    got = ", ".join(repr(column[:40]) for column in columns)
    if double := next((name for name in FIELDS if columns.count(name) > 1), None):
        raise ValueError(
            f"got the column {double!r} twice in the header ({got}), expected a different name "
            "for each column"
        )
    if lacking := [repr(name) for name in FIELDS if name not in columns]:
        raise ValueError(
            f"got the columns {got}, expected a header with 'text' and 'label', separated by tabs: "
            f"{' and '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} missing. Put these "
            "names in the first line"
        )
    return columns


def _checked(row: RawDocument, first: RawDocument | None, classes: Sequence[str] | None) -> Labeled:
    """Returns a text with its label, which is a string or an integer.

    All labels must have the type of the `first` label, so that 1 and "1" do not become one class.
    """
    text, label = row.text
    if type(label) not in (str, int):
        raise ValueError(
            f"got the label {json.dumps(label, default=str)}, expected a string or an integer. To "
            "predict numbers, see runs/finetune_regression.gin"
        )
    if row.fields and first and type(label) is not (kind := type(first.text[1])):
        raise ValueError(
            f"got the label {json.dumps(label)} of type {type(label).__name__}, but the label of "
            f"{first.place} has the type {kind.__name__}: write all labels as strings, or all as "
            "numbers"
        )
    if not isinstance(text, str):
        raise ValueError(f"got the text {json.dumps(text, default=str)[:60]}, expected a string")
    example = Labeled(text, str(label))
    for name, value in zip(FIELDS, example):
        if not value.strip():
            raise ValueError(f"got the {name} {value!r}, expected at least one word")
        reading.check_is_text(value, f"the {name}")
    if example.label != example.label.strip():
        raise ValueError(f"got the label {label!r}, expected no white space around the label")
    if classes is not None and example.label not in classes:
        raise ValueError(
            f"got the label {example.label!r}, which no training text has, expected one of "
            f"{class_list(classes)}: train on texts with this label, too"
        )
    return example
