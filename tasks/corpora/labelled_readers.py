"""Reads labelled text: TSV files with a header, and JSONL, gzip'd or not, naming a line that is wrong.

    text<TAB>label                      {"text": "A fine film.", "label": "good"}
    A fine film.<TAB>good

A row of a TSV file is a line and a tab ends a column: nothing is quoted, so a quotation mark is text,
and a text with a tab or a line break in it needs JSONL. Other columns and fields are not read.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from .text_readers import JSONL_SUFFIXES, MalformedLine, is_jsonl, read_lines

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
    advance: Callable[[int], None] = lambda size: None,
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


def _rows_of_jsonl(path: str, advance: Callable[[int], None]) -> Iterator[_Row]:
    for number, line in read_lines(path, advance):
        where = f"{path}:{number}"
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise MalformedLine(
                f"{where}: not JSON ({error}): {line[:60]!r}. Expected an object such as "
                '{"text": "A fine film.", "label": "good"}.'
            ) from None
        if not isinstance(value, dict):
            raise MalformedLine(
                f"{where}: got {line[:60]!r}, expected a JSON object with the fields 'text' and 'label'."
            )
        for name in FIELDS:
            if name not in value:
                raise MalformedLine(
                    f"{where}: got the fields {', '.join(map(repr, value)) or 'none'}, expected 'text' "
                    f"and 'label': {name!r} is missing."
                )
        yield _Row(where, value["text"], value["label"])


def _rows_of_tsv(path: str, advance: Callable[[int], None]) -> Iterator[_Row]:
    if not path.removesuffix(".gz").endswith(TSV_SUFFIX):
        raise ValueError(
            f"{path} is neither TSV ({TSV_SUFFIX}) nor JSONL ({', '.join(JSONL_SUFFIXES)}), also "
            "gzip'd, by its name: write labelled text as one of them."
        )
    lines = read_lines(path, advance)
    number, header = next(lines, (1, ""))
    columns = header.split("\t")
    _check_header(f"{path}:{number}", columns)
    text, label = (columns.index(name) for name in FIELDS)
    for number, line in lines:
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
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise MalformedLine(
                f"{row.where}: the {name} holds half a surrogate pair, which is no text. Mend it."
            ) from None
    if label != label.strip():
        raise MalformedLine(
            f"{row.where}: got the label {label!r}, expected one without white space around it. Take "
            "that out."
        )
    return Labelled(text, label)
