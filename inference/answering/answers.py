"""Applies a trained model to texts in a mode of `trained.MODES`.

    answer(trained, "infill", [{"text": "Thank you <extra_id_0> me."}])
    # [{"filled": "Thank you for inviting me.", "blanks": [" for inviting"], "log_prob": -3.1}]

An item is a dict with a "text" (or "prefix" and "suffix", or "text" and "second"). An answer is a
dict that can be written as JSON.
"""

from collections.abc import Callable, Sequence

from ..prompting.items import text_of_item
from ..trained import MODES, Trained, check_mode
from .generation import Answer
from .options import DEFAULT_OPTIONS, Options


def answer(
    trained: Trained,
    mode: str,
    items: Sequence[dict],
    options: Options = DEFAULT_OPTIONS,
) -> list[dict]:
    """Returns the mode's answer to each item.

    Raises:
      ValueError: The model does not support the mode, an item lacks a field, a text does not fit,
        or the mode does not return a record for each item.
    """
    check_mode(trained, mode)
    if not items:
        return []
    inputs = map_items(items, options, MODES[mode].read or text_of_item)
    records = MODES[mode].answer(trained, inputs, options)
    kinds = {type(record).__name__ for record in records if not isinstance(record, dict)}
    if kinds or len(records) != len(items):
        got = ", ".join(sorted(kinds)) or "dict"
        raise ValueError(
            f"The mode {mode!r} returned {len(records)} answers ({got}) to {len(items)} items, "
            "expected one dict for each item: change its function `answer`."
        )
    return records


def map_items(items: Sequence, options: Options, make: Callable) -> list:
    """Returns `make(item)` for each item. Errors name the item by its number, if it has one."""
    results = []
    for i, item in enumerate(items):
        try:
            results.append(make(item))
        except ValueError as error:
            if options.numbers is None:
                raise
            raise ValueError(f"Item {options.numbers[i] + 1}: {error}") from error
    return results


def text_field(item: dict, name: str, otherwise: str | None = None) -> str:
    """Returns a field of an item. Raises ValueError if it is not a text."""
    value = item.get(name, otherwise)
    if not isinstance(value, str):
        raise ValueError(f"Got an item with {name} = {value!r}, expected a text.")
    return value


def answer_record(answers: Sequence[Answer]) -> dict:
    """Returns the record of an answer and its further samples."""
    first, *others = answers
    record = {"answer": first.text, "log_prob": first.log_prob, "ended": first.ended}
    if others:
        record["others"] = [{"answer": a.text, "log_prob": a.log_prob} for a in others]
    return record
