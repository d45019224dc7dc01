"""The longest rows that a model can read, and those that it was trained on.

    check_texts(trained, rows)             # before they are embedded, classified, filled in, scored
    check_prompts(trained, prompts, 64)    # before up to 64 tokens are generated after each

A row beyond learned positions is refused. One beyond the rows of training is a `BeyondTraining`
warning: rotary and relative positions have no end, but nothing was learned there.
"""

import warnings
from collections.abc import Sequence

from ..decoding.batching import check_positions
from ..trained import Trained
from .prompts import Prompt, prompt_size

SHOWN = 16  # tokens of a text that is too long, by which it is found again


class BeyondTraining(UserWarning):
    """Text that takes more `slots` of a stack than the rows that a model was `trained` on.

    Args:
      remedy: a sentence that says what to do about it.
      held: what else is in those slots, such as ", with up to 6 new tokens".
    """

    def __init__(self, stack: str, slots: int, trained: int, remedy: str, held: str = ""):
        super().__init__(
            f"Got a text that takes {slots} slots of the {stack}{held}, and the rows of training "
            f"had {trained}: what lies beyond them the model has not learned to read. {remedy}"
        )
        self.stack = stack
        self.slots = slots
        self.trained = trained


def check_texts(trained: Trained, rows: Sequence[Sequence[int]], max_new: int = 0) -> None:
    """Checks rows that one stack reads whole, with up to `max_new` tokens that it generates: raises
    and warns as `check_prompts` does."""
    stack = "decoder" if trained.model.layout == "decoder" else "encoder"
    longest = max(rows, key=len, default=())
    _check(trained, stack, len(longest) + max_new, longest, max_new)


def check_prompts(trained: Trained, prompts: Sequence[Prompt], max_new: int) -> None:
    """Checks prompts after each of which up to `max_new` tokens are generated.

    Raises ValueError as `batching.check_positions` does; warns of `BeyondTraining`. An answer of an
    encoder-decoder has slots of its own, in which it mostly ends by itself: none is warned of.
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
    limit = trained.model.max_positions
    longest = min(trained.lengths.get(stack, slots), limit or slots)
    if slots <= longest:
        return
    shorter = f"a shorter text than {trained.decode(list(row[:SHOWN]))!r} …"
    check_positions(limit, stack, slots, max_new, shorter=shorter)
    held = f", with up to {max_new} new tokens" if max_new else ""
    left = longest - (slots - max_new)
    fewer = f" or max_new={left}" if max_new and left > 0 else ""
    remedy = f"Give {shorter}{fewer}, or train with longer sequence_lengths."
    warnings.warn(BeyondTraining(stack, slots, longest, remedy, held), stacklevel=3)
