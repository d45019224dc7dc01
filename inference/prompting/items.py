"""The items of a command: texts, lines of a file, or a prefix and a suffix.

An item is a dict: `{"text": …}`, `{"prefix": …, "suffix": …}`, `{"text": …, "second": …}`, or all
fields of a line of a file.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ...data.reading import (
    Bad,
    RawDocument,
    is_sequence_file,
    json_lines,
    malformed,
    opened,
    raw_documents,
)
from ..trained import MODES
from .prompts import few_shot_prompt


class Unreadable(dict):
    """A line that cannot be read: {"error": …}, which is also its answer."""


def read_items(file: str, *, strict: bool = True) -> list[dict]:
    """Returns the objects of a JSONL file.

    A JSON string "…" becomes {"text": "…"}. A record of a FASTA or FASTQ file becomes {"id": …,
    "name": …, "description": …, "text": …}, with the text in uppercase.

    Args:
      strict: whether any other line is an error instead of `Unreadable`.

    Raises ValueError if the file does not exist or has no readable line. With `strict`, also for
    the first unreadable line.
    """
    if not Path(file).is_file():
        raise ValueError(f"There is no file {file}: give the path of a JSONL or FASTA file.")
    items: list[dict] = []
    for line in _records(file):
        if isinstance(line, RawDocument):
            items.append(line.text)
        elif line.rule != "blank":
            if strict:
                raise malformed(line)
            items.append(Unreadable(error=str(malformed(line))))
    if not items:
        raise ValueError(f"{file} has no lines, expected a JSON object on each line.")
    if all(isinstance(item, Unreadable) for item in items):
        expected = 'Expected a JSON object on each line, such as {"text": "It is"}.'
        raise ValueError(f"{items[0]['error']} {expected}")
    return items


def _records(file: str) -> Iterator[RawDocument | Bad]:
    """Yields the items and the bad lines or records of a file."""
    if not is_sequence_file(file):
        with opened(file) as lines:
            yield from json_lines(
                lines, file, lambda x: {"text": x} if isinstance(x, str) else x, kinds=(dict, str)
            )
        return
    for record in raw_documents(file, "text"):
        if isinstance(record, RawDocument):
            record = record._replace(text=record.fields | {"text": record.text.upper()})
        yield record


def make_items(
    mode: str,
    *,
    texts: Sequence[str] = (),
    file: str | None = None,
    prefix: str | None = None,
    suffix: str | None = None,
    cursor: str | None = None,
    **options: Any,
) -> list[dict]:
    """Returns the items of a command, one for each text or line of the file.

    Args:
      cursor: "FILE:LINE:COLUMN", the place of a gap.

    Raises ValueError if there are no items, several arguments define them, or the mode does not
    support them.
    """
    ends = {"prefix": prefix, "suffix": suffix}
    gap = {k: v for k, v in ends.items() if v is not None}
    sources = sum(map(bool, (texts, file, gap, cursor)))
    if sources != 1:
        raise ValueError(
            f"Got {'several' if sources else 'none'} of these, expected one: texts, --file, or "
            "--prefix and --suffix (or --cursor)."
        )
    if cursor:
        gap = around_cursor(cursor)
    if gap and not MODES[mode].takes_gap:
        supported = [other.name for other in MODES.values() if other.takes_gap]
        raise ValueError(
            f"Got --prefix, --suffix or --cursor in mode {mode!r}, expected a text: only mode "
            f"{' or '.join(map(repr, supported))} takes these options. Give a text, or use "
            f"--mode={supported[0]} with a model that was trained for it."
        )
    if file:
        return read_items(file, strict=False)
    if gap:
        return [gap]
    items = MODES[mode].items
    return items(texts, options) if items else [{"text": text} for text in texts]


def text_of_item(item: dict) -> str:
    """Returns the text of an item. Raises ValueError without text."""
    if isinstance(item, Unreadable):
        raise ValueError(item["error"])
    if item.get("text") == "":
        raise ValueError("Got an empty text, expected some words.")
    if not isinstance(item.get("text"), str):
        raise ValueError(
            f"Got an item with the fields {', '.join(item) or 'none'}, expected a field "
            '"text" with a string of some words.'
        )
    return item["text"]


def around_cursor(place: str) -> dict:
    """Returns the text of a file before and after "FILE:LINE:COLUMN".

    Lines and columns count from 1. Raises ValueError for a place that is not in the file.
    """
    name, *numbers = place.rsplit(":", 2)
    if len(numbers) != 2 or not all(x.isdecimal() and int(x) > 0 for x in numbers):
        raise ValueError(f"Got --cursor={place!r}, expected FILE:LINE:COLUMN, counted from 1.")
    if not Path(name).is_file():
        raise ValueError(f"Got --cursor={place!r}, expected a file: there is no {name}.")
    try:
        text = Path(name).read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} cannot be read: it is not UTF-8 ({error}).") from None
    lines = text.split("\n")  # unlike splitlines, editors do not end a line at a form feed
    line, column = (int(x) for x in numbers)
    if line > len(lines):
        raise ValueError(f"Got --cursor={place!r}, expected a line up to {len(lines)} of {name}.")
    if column > len(lines[line - 1]) + 1:
        end = len(lines[line - 1]) + 1
        raise ValueError(f"Got --cursor={place!r}, expected a column up to {end} in line {line}.")
    at = sum(len(x) + 1 for x in lines[: line - 1]) + column - 1
    return {"prefix": text[:at], "suffix": text[at:]}


def with_masks(items: Sequence[dict], count: int) -> list[dict]:
    """Returns the items with `count` masks after each text.

    >>> with_masks([{"text": "It is"}], 2)
    [{'text': 'It is[MASK][MASK]'}]
    """
    added = "[MASK]" * count
    return [
        {**item, "text": item["text"] + added} if isinstance(item.get("text"), str) else item
        for item in items
    ]


def with_examples(items: Sequence[dict], file: str, template: str, answer: str) -> list[dict]:
    """Returns the items with few-shot prompts as their texts (`inference.few_shot_prompt`).

    `file` has the solved examples. A text of the command line fills {text}.
    """
    examples = read_items(file)
    template = template.replace("\\n", "\n")
    return [
        item
        if isinstance(item, Unreadable)
        else {**item, "text": few_shot_prompt(template, examples, item, answer)}
        for item in items
    ]
