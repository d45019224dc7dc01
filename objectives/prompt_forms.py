"""`PromptForm`: how a text becomes a prompt for a model that an objective trained."""

from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from annotated_types import Interval

from ..constraints import Count, check_fields

Kind = TypeVar("Kind")

Pooling = Literal["first", "mean", "last"]


class Noised(NamedTuple):
    """Distribution of a diffusion's noise on a text token at some time."""

    keeps: Any  # f32[...] probability that the token is unchanged
    each: Any  # f32[...] probability of each text id as a random token, including the token's id
    masked: Any  # f32[...] probability that the token is a mask


# Classes of noises by name. Each is a dataclass of numbers, whose fields `text` and `mask` come
# from the token ids.
NOISES: dict[str, type] = {}


def recorded_noise(kind: type[Kind]) -> type[Kind]:
    """Registers the class of a noise by name, for records of prompt forms."""
    NOISES[kind.__name__] = kind
    return kind


class MaskedBlocks(NamedTuple):
    """How a causal model drafts the tokens after a text from masks."""

    size: Count  # number of masks in a block
    bidirectional: bool = True  # whether the masks of a block attend to each other both ways
    shifted: bool = False  # whether each mask predicts the token after its own

    @property
    def drafts(self) -> int:
        """Number of predicted tokens in addition to the token that the text predicts."""
        return self.size if self.shifted else self.size - 1


class PromptForm(NamedTuple):
    """How a text becomes a prompt for a model that an objective trained.

    The prompt is `before`, the text and `after`, with bidirectional attention unless `causal`. The
    answer begins with `ids.bos` and `start`. For T5's span corruption and GPT's language modeling:

        PromptForm("infill", after=(ids.eos,))
        PromptForm("continue", causal=True)
    """

    mode: str  # task of the model: a mode of `inference.trained.MODES`
    before: tuple[int, ...] = ()  # ids before the text, such as a mode token or [CLS]
    after: tuple[int, ...] = ()  # ids after the text
    # Ids after bos that begin the answer. In the mode "classify", the decoder of an encoder-decoder
    # reads them instead of bos before it reads the text again.
    start: tuple[int, ...] = ()
    causal: bool = False  # whether the answer continues the text, with causal attention throughout
    # For "infill". "together": one answer has every blank after its sentinel. "in turn": each blank
    # has a separate answer, after its sentinel. "masks": the same, but blanks are mask tokens.
    blanks: Literal["together", "in turn", "masks"] = "together"
    # Number of slots from a mask to the slot that predicts its token.
    shift: Annotated[int, Interval(ge=-1, le=0)] = 0
    # For "mask" and "unmask": how a mask is predicted. "in place": at the mask, which the model
    # reads. "from copies": by a noised copy of the mask, which attends to the other masks and to
    # all given tokens. "as next": as the next token of a shuffled text, after all given tokens.
    predicted: Literal["in place", "from copies", "as next"] = "in place"
    block_size: Count = 1  # for "blocks": number of tokens written together
    # For "continue": how masks draft tokens for speculative decoding, if training had such masks.
    masked_blocks: MaskedBlocks | None = None
    head: str | None = None  # None: the vocabulary projection, or no head for "embed"
    # For "embed", "pair" and "classify": how the loss pools hidden states: "first", "last" or
    # "mean". None: the loss reads each slot separately, and "embed" uses the mean.
    pooling: Pooling | None = None
    independent: bool = False  # for "classify": whether each class has a separate probability
    # For "unmask" and "denoise": (time f32[...], from 0 to 1) -> `Noised`, for a model that
    # predicts only text ids. None: tokens are masked with a probability equal to the time.
    noise: Callable[..., Noised] | None = None
    classes: tuple[str, ...] = ()  # names of the head's classes, if the objective defines them


def check_form(form: PromptForm) -> None:
    """Raises ValueError for a prompt form with an invalid field."""
    check_fields(form, "PromptForm.")
    if form.masked_blocks is not None:
        check_fields(form.masked_blocks, "PromptForm.masked_blocks.")
