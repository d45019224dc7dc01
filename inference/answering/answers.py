"""Applies a trained model to texts in a mode of `trained.MODES`.

    answer(trained, "infill", [{"text": "Thank you <extra_id_0> me."}])
    # [{"filled": "Thank you for inviting me.", "blanks": [" for inviting"], "log_prob": -3.1}]

An item is a dict with a "text" (or "prefix" and "suffix", or "text" and "second"). An answer is a
dict that can be written as JSON.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...objectives.prompt_forms import Pooling
from ..decoding.batching import Batching
from ..decoding.speculation import DraftCounts
from ..prompting.items import text_of_item
from ..prompting.prompts import Prompt
from ..trained import MODES, Trained, check_mode
from .generation import Answer, Decoding, Draft, generate
from .unmasking import Order


@dataclasses.dataclass(frozen=True)
class Options:
    """Settings of a mode, the same for all items.

    Attributes:
      decoding: Decoding settings, for modes that write text.
      draft: Smaller model for speculative decoding. None: no drafts.
      denoiser: Mode token before the text, such as UL2's "R". None: the default of the prompt form.
      top: Number of guesses for each mask or next token, or of classes for each text.
      steps: Number of steps of unmasking, for each text or block. None: the number of masks.
      order: Order of unmasking.
      pooling: How to pool hidden states into an embedding. None: as in training.
      second: Whether two towers embed texts as the second text of a pair.
      mode_options: Values of the mode's additional options, `ModeCommand.arguments`.
      numbers: Numbers of the items, for their random keys and for error messages. None: 0, 1, …,
        and messages do not name items.
      on_text: Function that is called with the partial answer of a single item.
      on_batch: Function that is called with the number of items answered.
      on_drafts: Function that is called with the counts of drafts.
    """

    decoding: Decoding = Decoding()
    draft: Draft | None = None
    denoiser: str | None = None
    top: int = 5
    steps: int | None = None
    order: Order = "confidence"
    pooling: Pooling | None = None
    second: bool = False
    mode_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    numbers: Sequence[int] | None = None
    on_text: Callable[[str], None] | None = None
    on_batch: Callable[[int], None] | None = None
    on_drafts: Callable[[DraftCounts], None] | None = None

    @property
    def batching(self) -> Batching:
        return Batching(self.decoding.batch_size, self.on_batch, self.numbers)


def answer(
    trained: Trained,
    mode: str,
    items: Sequence[dict],
    options: Options = Options(),  # noqa: B008
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


def generate_answers(
    trained: Trained,
    prompts: Sequence[Prompt],
    options: Options,
    special: Sequence[int] | None = None,
) -> list[list[Answer]]:
    """Returns the samples that the model generates for each prompt, with these options."""
    return generate(
        trained,
        prompts,
        options.decoding,
        draft=options.draft,
        special=special,
        numbers=options.numbers,
        on_text=options.on_text,
        on_batch=options.on_batch,
        on_drafts=options.on_drafts,
    )


def answer_record(answers: Sequence[Answer]) -> dict:
    """Returns the record of an answer and its further samples."""
    first, *others = answers
    record = {"answer": first.text, "log_prob": first.log_prob, "ended": first.ended}
    if others:
        record["others"] = [{"answer": a.text, "log_prob": a.log_prob} for a in others]
    return record
