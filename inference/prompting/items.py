"""The items of a command: its texts, the lines of a file, or a prefix and a suffix.

An item is a dict of an input's fields: `{"text": …}`, `{"prefix": …, "suffix": …}`,
`{"text": …, "second": …}`, or a line of a file with whatever fields it has.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...data.reading import RawDocument, json_lines, malformed, opened
from ..trained import MODES
from .prompts import few_shot_prompt


class Unreadable(dict):
    """In place of the item of a line that cannot be read: {"error": …}, which is its answer too."""


def read_items(file: str, *, strict: bool = True) -> list[dict]:
    """Returns the objects of a JSONL file; a line that is a JSON string "…" becomes {"text": "…"}.

    `strict`: whether a line that is neither is an error; else it is `Unreadable`.

    Raises ValueError, naming the file and the line, for such a line, and where the file does not
    exist, has no lines, or none that can be read.
    """
    if not Path(file).is_file():
        raise ValueError(f"There is no file {file}: give the path of a JSONL file.")
    items: list[dict] = []
    with opened(file) as lines:
        for one in json_lines(lines, file, _item, kinds=(dict, str)):
            if isinstance(one, RawDocument):
                items.append(one.text)
            elif one.rule != "blank":
                if strict:
                    raise malformed(one)
                items.append(Unreadable(error=str(malformed(one))))
    if not items:
        raise ValueError(f"{file} holds no line, expected a JSON object on each.")
    if all(isinstance(item, Unreadable) for item in items):
        raise ValueError(items[0]["error"])
    return items


def _item(value: dict | str) -> dict:
    return {"text": value} if isinstance(value, str) else value


def items_of(
    mode: str,
    *,
    texts: Sequence[str] = (),
    file: str | None = None,
    prefix: str | None = None,
    suffix: str | None = None,
    cursor: str | None = None,
    **options: Any,
) -> list[dict]:
    """Returns the items that a command gives, one for each text or line of the file.

    `cursor`, "FILE:LINE:COLUMN", gives prefix and suffix; `options` are the mode's own.

    Raises ValueError where there are none, where several arguments give them, and where the mode
    does not take such items.
    """
    ends = {"prefix": prefix, "suffix": suffix}
    gap = {k: v for k, v in ends.items() if v is not None}
    sources = sum(map(bool, (texts, file, gap, cursor)))
    if sources != 1:
        raise ValueError(
            "Expected one of: texts, --file, or --prefix and --suffix (or --cursor); got "
            f"{'several' if sources else 'none'} of them."
        )
    if cursor:
        gap = around_cursor(cursor)
    if gap and not MODES[mode].reads_gap:
        able = [one.name for one in MODES.values() if one.reads_gap]
        raise ValueError(
            f"Got --prefix, --suffix or --cursor, which mode {' or '.join(map(repr, able))} takes, "
            f"and not {mode!r}: give the text itself, or --mode={able[0]} to a model that was "
            "trained for it."
        )
    if file:
        return read_items(file, strict=False)
    if gap:
        return [gap]
    items = MODES[mode].items
    return items(texts, options) if items else [{"text": text} for text in texts]


def text_of(item: dict) -> str:
    """Returns an item's text; raises ValueError where it has none."""
    if isinstance(item, Unreadable):
        raise ValueError(item["error"])
    if item.get("text") == "":
        raise ValueError("Got an empty text, expected some words.")
    if not isinstance(item.get("text"), str):
        raise ValueError(
            f"Got an item with the fields {', '.join(item) or 'none'} and no text in it, expected "
            '"text" with some words.'
        )
    return item["text"]


def around_cursor(place: str) -> dict:
    """The text of a file before and after "FILE:LINE:COLUMN", both from 1, as editors count.

    Raises ValueError for a place that is not in the file.
    """
    name, *numbers = place.rsplit(":", 2)
    if len(numbers) != 2 or not all(x.isdecimal() and int(x) > 0 for x in numbers):
        raise ValueError(f"Got --cursor={place!r}, expected FILE:LINE:COLUMN, both from 1.")
    if not Path(name).is_file():
        raise ValueError(f"Got --cursor={place!r}, expected a file: there is no {name}.")
    try:
        text = Path(name).read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} cannot be read: it is not UTF-8 ({error}).") from None
    lines = text.split("\n")  # editors end no line at a form feed, as splitlines does
    line, column = (int(x) for x in numbers)
    if line > len(lines) or column > len(lines[line - 1]) + 1:
        raise ValueError(f"{name} has no line {line} with a column {column}.")
    at = sum(len(x) + 1 for x in lines[: line - 1]) + column - 1
    return {"prefix": text[:at], "suffix": text[at:]}


def with_masks(items: Sequence[dict], count: int) -> list[dict]:
    """Items with `count` masks after each text.

    >>> with_masks([{"text": "It is"}], 2)
    [{'text': 'It is[MASK][MASK]'}]
    """
    added = "[MASK]" * count
    return [
        {**item, "text": item["text"] + added} if isinstance(item.get("text"), str) else item
        for item in items
    ]


def with_examples(items: Sequence[dict], file: str, template: str, answer: str) -> list[dict]:
    """Items whose text is a few-shot prompt, see `inference.few_shot_prompt`.

    `file` holds solved examples; a text of the command line fills {text} of the template.
    """
    examples = read_items(file)
    template = template.replace("\\n", "\n")
    return [
        item
        if isinstance(item, Unreadable)
        else {**item, "text": few_shot_prompt(template, examples, item, answer)}
        for item in items
    ]
