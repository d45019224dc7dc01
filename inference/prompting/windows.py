"""Checks of the length of rows, against the model's positions and the rows of training.

A row longer than learned positions is rejected. A row longer than the rows of training causes a
`BeyondTraining` warning: rotary and relative positions have no limit, but the model has not learned
longer distances.
"""

import warnings
from collections.abc import Sequence

from ..decoding.batching import check_positions
from ..trained import Trained, longest_row
from .prompts import Prompt, prompt_size

SHOWN = 16  # number of tokens of a long text in a message


class BeyondTraining(UserWarning):
    """Warns of a text that is longer than the rows of training."""

    def __init__(self, stack: str, slots: int, trained: int, remedy: str, held: str = ""):
        super().__init__(
            f"Got a text of {slots} slots of the {stack}{held}, longer than the training rows of "
            f"{trained}: the model has not learned to read longer texts. {remedy}"
        )
        self.stack = stack
        self.slots = slots
        self.trained = trained


def check_texts(trained: Trained, rows: Sequence[Sequence[int]], max_new: int = 0) -> None:
    """Checks rows that a single stack reads, including up to `max_new` generated tokens.

    Raises ValueError if a row is longer than the model's positions, and warns of `BeyondTraining`.
    """
    stack = "decoder" if trained.model.layout == "decoder" else "encoder"
    longest = max(rows, key=len, default=())
    _check(trained, stack, len(longest) + max_new, longest, max_new)


def check_prompts(trained: Trained, prompts: Sequence[Prompt], max_new: int) -> None:
    """Checks prompts that are continued by up to `max_new` generated tokens.

    Raises ValueError if a row is longer than the model's positions, and warns of `BeyondTraining`.
    The answer of an encoder-decoder causes no warning, since it usually ends before `max_new`.
    """
    model = trained.model
    if not prompts:
        return
    if model.layout == "encoder_decoder":
        start = max(len(prompt.start) + 1 for prompt in prompts)
        check_positions(model.max_positions, "decoder", start + max_new, max_new)
        inputs = max((prompt.inputs for prompt in prompts), key=len)
        _check(trained, "encoder", len(inputs), inputs)
    else:
        longest = max(prompts, key=lambda prompt: prompt.size)
        slots = prompt_size(model.layout, longest) + max_new
        _check(trained, "decoder", slots, [*longest.inputs, *longest.start], max_new)


def _check(trained: Trained, stack: str, slots: int, row: Sequence[int], max_new: int = 0) -> None:
    longest = longest_row(trained, stack)
    if longest is None or slots <= longest:
        return
    shorter = f"a shorter text than {trained.decode(list(row[:SHOWN]))!r} …"
    check_positions(trained.model.max_positions, stack, slots, max_new, shorter=shorter)
    held = f", with up to {max_new} new tokens" if max_new else ""
    left = longest - (slots - max_new)
    fewer = f" or max_new={left}" if max_new and left > 0 else ""
    remedy = f"Give {shorter}{fewer}, or train with longer sequence_lengths."
    warnings.warn(BeyondTraining(stack, slots, longest, remedy, held), stacklevel=3)
