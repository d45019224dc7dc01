"""`PromptForm`: how a text becomes a prompt for a model that an objective trained."""

from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from annotated_types import Interval

from ..constraints import Count, check_fields

Kind = TypeVar("Kind")

# What a model can be asked for. `inference.trained.MODES` describes each. A mode of a user's own
# that is registered there adds its name here.
MODES = [
    "continue",
    "next",
    "complete",
    "infill",
    "middle",
    "restore",
    "respond",
    "mask",
    "unmask",
    "denoise",
    "insert",
    "blocks",
    "embed",
    "states",
    "pair",
    "classify",
    "tag",
]
BUILT_IN_MODES = frozenset(MODES)
Pooling = Literal["first", "mean", "last"]


class Noised(NamedTuple):
    """What the noise of a diffusion has made of a text token by some time: probabilities."""

    keeps: Any  # f32[...] the token is as it was
    each: Any  # f32[...] of each id of text, its own among them: that it was drawn in its place
    masked: Any  # f32[...] it is a mask


# Classes of noises, by the names that a record of prompt forms has for them. Each is a dataclass
# of numbers, and takes `text` and `mask` from the token ids.
NOISES: dict[str, type] = {}


def recorded_noise(kind: type[Kind]) -> type[Kind]:
    """Adds the class of a noise to those that a record of prompt forms may name."""
    NOISES[kind.__name__] = kind
    return kind


class PromptForm(NamedTuple):
    """How a text becomes a prompt for a model that an objective trained.

    The prompt is `before`, the text and `after`, with bidirectional attention unless `causal`. The
    answer begins with `ids.bos` and `start`. T5's span corruption, and GPT's language modeling:

        PromptForm("infill", after=(ids.eos,))
        PromptForm("continue", causal=True)
    """

    mode: str  # what the model does with it: one of `MODES`
    before: tuple[int, ...] = ()  # ids before the text, such as a mode token or [CLS]
    after: tuple[int, ...] = ()  # ids after it
    # Ids after bos that the answer begins with. In the mode "classify", the decoder of an
    # encoder-decoder reads these ids instead of bos before it reads the text again.
    start: tuple[int, ...] = ()
    causal: bool = False  # the answer continues the text, with causal attention throughout
    # For "infill". "together": one answer has every blank after its sentinel. "in turn": each blank
    # has a separate answer, after its sentinel. "masks": the same, but blanks are mask tokens.
    blanks: Literal["together", "in turn", "masks"] = "together"
    # Number of slots from a mask to the slot that predicts its token.
    shift: Annotated[int, Interval(ge=-1, le=0)] = 0
    block_size: Count = 1  # for "blocks": number of tokens written together
    head: str | None = None  # None: the vocabulary projection, or no head for "embed"
    # For "embed", "pair" and "classify": which slots the loss read, the "first", the "mean" of all
    # or the "last". If None, it read each slot separately, and "embed" takes the mean.
    pooling: Pooling | None = None
    independent: bool = False  # for "classify": whether each class has a separate probability
    # For "unmask" and "denoise": (time f32[...], from 0 to 1) -> `Noised`, for a model that
    # predicts only text ids. If None, tokens are masked with the time as their probability.
    noise: Callable[..., Noised] | None = None
    classes: tuple[str, ...] = ()  # names of the head's classes, where the objective has them


def check_form(form: PromptForm) -> None:
    """Raises ValueError for a field of a prompt form that is of no known kind."""
    check_fields(form, "PromptForm.")
    if form.mode not in MODES:  # which modules of a user's own extend
        raise ValueError(f"PromptForm.mode must be one of {MODES}, got {form.mode!r}.")
