"""The items of a command: its texts, the lines of a file, or a prefix and a suffix.

An item is a dict of an input's fields: `{"text": …}`, `{"prefix": …, "suffix": …}`,
`{"text": …, "second": …}`, or a line of a file with whatever fields it has.
"""

from collections.abc import Sequence
from pathlib import Path

from .answer_files import Unreadable, read_items
from .prompts import few_shot_prompt


def items_of(
    mode: str,
    *,
    texts: Sequence[str] = (),
    target: str | None = None,
    file: str | None = None,
    prefix: str | None = None,
    suffix: str | None = None,
    cursor: str | None = None,
) -> list[dict]:
    """Returns the items that a command gives.

    Args:
      mode: what the model is to do, see `inference.MODES`.
      texts: an item each, or the two of a pair; with `target`, the answer to be scored.
      file: JSONL, an item a line.
      prefix, suffix: one item, what stands before a gap and after it.
      cursor: "FILE:LINE:COLUMN", in place of prefix and suffix.

    Raises ValueError where there are none, where several arguments give them, and where the mode
    does not take such items.
    """
    gap = {"prefix": prefix, "suffix": suffix}
    gap = {key: value for key, value in gap.items() if value is not None}
    if cursor:
        gap = around_cursor(cursor)
    given = [bool(texts), bool(file), bool(gap)]
    if sum(given) != 1:
        raise ValueError(
            "Expected one of: texts, --file, or --prefix and --suffix (or --cursor); got "
            f"{'none' if not any(given) else 'several'} of them."
        )
    if gap and mode != "middle":
        raise ValueError(
            f"Got --prefix, --suffix or --cursor, which mode 'middle' takes, and not {mode!r}: "
            "give the text itself, or --mode=middle to a model that fill_in_the_middle trained."
        )
    if mode == "middle" and texts:
        raise ValueError(
            "Got a text, expected --prefix and --suffix (or --cursor): this model was trained to "
            "write what stands between them. To continue the text: --mode=continue."
        )
    if file:
        return read_items(file, strict=False)
    if mode == "pair":
        if len(texts) != 2:
            raise ValueError(
                f"Got {len(texts)} of the two texts that mode 'pair' takes: give both, or --file with "
                'the fields "text" and "second" in each line.'
            )
        return [{"text": texts[0], "second": texts[1]}]
    scored = {} if target is None else {"target": target}
    return [gap] if gap else [{"text": text, **scored} for text in texts]


def around_cursor(place: str) -> dict:
    """The text of a file before and after "FILE:LINE:COLUMN", both from 1, as editors count.

    Raises ValueError for a place that is not in the file.
    """
    name, *numbers = place.rsplit(":", 2)
    if len(numbers) != 2 or not all(x.isdigit() and int(x) > 0 for x in numbers):
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

    Args:
      file: solved examples, JSONL.
      template: such as "Q: {question}\\\\nA: {answer}"; a text of the command line fills {text}.
      answer: the field that is answered.
    """
    examples, template = read_items(file), template.replace("\\n", "\n")
    return [
        item
        if isinstance(item, Unreadable)
        else {**item, "text": few_shot_prompt(template, examples, item, answer)}
        for item in items
    ]
