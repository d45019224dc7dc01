"""Reads labelled text: TSV files with a header, and JSONL, compressed or not, naming a wrong line.

    text<TAB>label                      {"text": "A fine film.", "label": "good"}
    A fine film.<TAB>good

A row of a TSV file is a line and a tab ends a column: nothing is quoted, so a quotation mark is text,
and a text with a tab or a line break in it needs JSONL. Other columns and fields are not read.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from ...data.reading import (
    JSONL_SUFFIXES,
    Bad,
    FileRange,
    MalformedLine,
    check_is_text,
    decoded,
    good,
    is_jsonl,
    lines,
    malformed,
    opened,
    records,
    unpacked,
)

TSV_SUFFIX = ".tsv"
FIELDS = ("text", "label")


class Labelled(NamedTuple):
    """A text and its label, which is the name of a class."""

    text: str
    label: str


class _Row(NamedTuple):
    """A line's values of `FIELDS`, and where it is."""

    where: str  # "FILE:LINE"
    text: Any
    label: Any


def read_labelled(
    paths: Sequence[str],
    classes: Sequence[str] | None = None,
    advance: Callable[[int], object] = lambda size: None,
) -> Iterator[Labelled]:
    """The texts and labels of files, in order; blank lines are passed over.

        list(read_labelled(["films.tsv"]))    # [Labelled(text='A fine film.', label='good')]

    Args:
        paths: of TSV and JSONL files, by their names.
        classes: the labels that there may be; None: any.
        advance: called with the bytes on disk that were read since the last call.

    Raises:
        MalformedLine: a line, or a header, that is not as expected.
        ValueError: a file of another kind, or a damaged one.
    """
    first: tuple[type, str] | None = None  # kind of a JSONL label, and where it stands
    for path in paths:
        jsonl = is_jsonl(path)
        for row in (_rows_of_jsonl if jsonl else _rows_of_tsv)(path, advance):
            if jsonl:
                first = first or (type(row.label), row.where)
                _check_kind(row, *first)
            example = _checked(row)
            if classes is not None and example.label not in classes:
                raise MalformedLine(
                    f"{row.where}: got the label {example.label!r}, which no text has that the model "
                    f"was trained on, expected one of {in_words(classes)}. Mend it, or train on texts "
                    "with this label too."
                )
            yield example


def in_words(classes: Sequence[str]) -> str:
    """The first classes by name, and how many more there are.

    >>> in_words(["bad", "good"])
    'bad, good'
    """
    more = f", … ({len(classes)} in all)" if len(classes) > 8 else ""
    return ", ".join(classes[:8]) + more


def _rows_of_jsonl(path: str, advance: Callable[[int], object]) -> Iterator[_Row]:
    change = 'Expected an object such as {"text": "A fine film.", "label": "good"}.'
    for row in good(records(FileRange(path), _fields, advance), change):
        yield _Row(f"{path}:{row.line}", *row.text)


def _fields(line: dict) -> list:
    if lacking := [name for name in FIELDS if name not in line]:
        raise ValueError(
            f"got the fields {', '.join(map(repr, line)) or 'none'}, expected 'text' and 'label': "
            f"{lacking[0]!r} is missing"
        )
    return [line[name] for name in FIELDS]


def _lines(path: str, advance: Callable[[int], object]) -> Iterator[tuple[int, str]]:
    """The lines of a file with their numbers, without line ends."""
    with opened(path, advance) as file:
        for number, _, line in lines(file):
            try:
                yield number, decoded(line).removesuffix("\n").removesuffix("\r")
            except ValueError as error:
                bad = Bad(f"{path}:{number}", "malformed", str(error))
                raise malformed(bad, "Mend it, as UTF-8.") from None


def _rows_of_tsv(path: str, advance: Callable[[int], object]) -> Iterator[_Row]:
    if not unpacked(path).endswith(TSV_SUFFIX):
        raise ValueError(
            f"{path} is neither TSV ({TSV_SUFFIX}) nor JSONL ({', '.join(JSONL_SUFFIXES)}), also as "
            ".gz or .zst, by its name: write labelled text as one of them."
        )
    rows = _lines(path, advance)
    number, header = next(rows, (1, ""))
    columns = header.split("\t")
    _check_header(f"{path}:{number}", columns)
    text, label = (columns.index(name) for name in FIELDS)
    for number, line in rows:
        if not line.strip():
            continue
        where, values = f"{path}:{number}", line.split("\t")
        if len(values) != len(columns):
            raise MalformedLine(
                f"{where}: got {len(values)} columns, expected {len(columns)} as in the header: a tab "
                "ends a column, and there is none within a text. Mend it, or write JSONL."
            )
        yield _Row(where, values[text], values[label])


def _check_header(where: str, columns: Sequence[str]) -> None:
    got = ", ".join(repr(column[:40]) for column in columns)
    if double := next((name for name in FIELDS if columns.count(name) > 1), None):
        raise MalformedLine(
            f"{where}: got the column {double!r} twice in the header ({got}): give each a name of its "
            "own."
        )
    lacking = [name for name in FIELDS if name not in columns]
    if lacking:
        raise MalformedLine(
            f"{where}: got the columns {got}, expected a header with 'text' and 'label', separated by "
            f"tabs: {' and '.join(map(repr, lacking))} "
            f"{'is' if len(lacking) == 1 else 'are'} missing. Name the columns so in the first line."
        )


def _check_kind(row: _Row, kind: type, where: str) -> None:
    """Raises MalformedLine for a label that is neither a string nor a whole number, or in one line
    this and in another that, so that 1 and "1" are not taken for one class."""
    if type(row.label) not in (str, int):
        raise MalformedLine(
            f"{row.where}: got the label {json.dumps(row.label)}, expected a string, or a whole number. "
            "To predict numbers, see runs/finetune_regression.gin."
        )
    if type(row.label) is not kind:
        raise MalformedLine(
            f"{row.where}: got the label {json.dumps(row.label)}, a {type(row.label).__name__}, and that "
            f"of {where} is a {kind.__name__}: write all labels as strings, or all as numbers."
        )


def _checked(row: _Row) -> Labelled:
    text, label = row.text, str(row.label)
    if not isinstance(text, str):
        raise MalformedLine(
            f"{row.where}: got the text {json.dumps(text)[:60]}, expected a string."
        )
    for name, value in zip(FIELDS, (text, label)):
        if not value.strip():
            raise MalformedLine(
                f"{row.where}: got the {name} {value!r}, expected some words. Fill it in, or take the "
                "line out."
            )
        try:
            check_is_text(value, f"the {name}")
        except ValueError as error:
            raise MalformedLine(f"{row.where}: {error}. Mend it.") from None
    if label != label.strip():
        raise MalformedLine(
            f"{row.where}: got the label {label!r}, expected one without white space around it. Take "
            "that out."
        )
    return Labelled(text, label)
