"""Answers of a trained model to texts, in the modes of `trained.MODES`.

    answer(trained, "infill", [{"text": "Thank you <extra_id_0> me."}])
    # [{"filled": "Thank you for inviting me.", "blanks": [" for inviting"], "log_prob": -3.1}]

Items are dicts with a "text" (or "prefix" and "suffix", or "text" and "second"), answers are dicts
that can be written as JSON.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...objectives.prompt_forms import Pooling
from ..decoding.speculation import DraftCounts
from ..prompting.items import text_of
from ..prompting.prompts import Prompt
from ..trained import MODES, Trained, check_mode
from .generation import Answer, Decoding, Draft, generate
from .masks import Order


@dataclasses.dataclass(frozen=True)
class Options:
    """Settings of a mode, beside its items."""

    decoding: Decoding = Decoding()
    draft: Draft | None = None  # a smaller model for speculative decoding
    denoiser: str | None = None  # the mode token that is put before the text, such as UL2's "R"
    top: int = 5  # guesses for each mask or next token, or classes of each text
    steps: int | None = None  # of unmasking, a text or a block; None: one for each mask
    order: Order = "confidence"  # of unmasking
    pooling: Pooling | None = None  # of embeddings
    second: bool = False  # embeddings of second texts, of two towers
    own: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # those of `Mode.arguments`
    numbers: Sequence[int] | None = None  # of the items in a file; `answer` sets them
    on_text: Callable[[str], None] | None = None  # called with the answer so far of a single item
    on_batch: Callable[[int], None] | None = None  # called with the number of items answered
    on_drafts: Callable[[DraftCounts], None] | None = None  # called with counts of drafts


def answer(
    trained: Trained,
    mode: str,
    items: Sequence[dict],
    options: Options = Options(),  # noqa: B008
    numbers: Sequence[int] | None = None,
) -> list[dict]:
    """Returns the mode's answer to each item. `numbers` of the items: see `generation.generate`.

    Raises ValueError for a mode that the model cannot have, an item without what the mode reads,
    and texts that do not fit.
    """
    check_mode(trained, mode)
    if not items:
        return []
    options = dataclasses.replace(options, numbers=numbers)
    inputs = each(items, options, MODES[mode].read or text_of)
    return MODES[mode].answer(trained, inputs, options)


def each(items: Sequence, options: Options, make: Callable) -> list:
    """Returns `make` of each item; its errors name the number of the item, if it has one."""
    made = []
    for i, item in enumerate(items):
        try:
            made.append(make(item))
        except ValueError as error:
            if options.numbers is None:
                raise
            raise ValueError(f"Item {options.numbers[i] + 1}: {error}") from error
    return made


def string_of(item: dict, name: str, otherwise: str | None = None) -> str:
    """Returns a field of an item. Raises ValueError if it is not a text."""
    value = item.get(name, otherwise)
    if not isinstance(value, str):
        raise ValueError(f"Got an item with {name} = {value!r}, expected a text.")
    return value


def generated(
    trained: Trained,
    prompts: Sequence[Prompt],
    options: Options,
    special: Sequence[int] | None = None,
) -> list[list[Answer]]:
    """Returns the samples that the model generates for each prompt, see `generation.generate`."""
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


def written_record(answers: Sequence[Answer]) -> dict:
    """Returns the record of the samples of an answer."""
    first, *others = answers
    record = {"answer": first.text, "log_prob": first.log_prob, "ended": first.ended}
    if others:
        record["others"] = [{"answer": a.text, "log_prob": a.log_prob} for a in others]
    return record
