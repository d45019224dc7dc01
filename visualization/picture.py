"""The content of a picture of an objective, as plain values for every renderer and for JSON.

`drawing.picture` makes a `Picture` of an objective and a text. `terminal.print_picture` prints it,
`picture_page.page` makes a page of it, and `as_json` returns it as dictionaries and lists.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace

from ..settings.printable import printable

NO_SPAN = -1  # span of a token outside of hidden spans
NOWHERE = -1  # slot of a token that is not copied from the raw row
FEW = 3  # largest number of values of a track that are counted, and of examples shown in detail

# Kinds of tokens that a legend explains. Other kinds are "text" and "pad".
KINDS = {
    "sentinel": "stands for a hidden span",
    "mask": "hides a token or a span",
    "kept": "predicted, left unchanged",
    "replaced": "replaced by another token",
    "noised": "read as a noised embedding",
    "other": "from another text",
    "left out": "neither given nor predicted",
    "cls": "opens a text or a pair of texts",
    "sep": "between texts or after them",
    "mark": "marks a part of the text",
    "mode": "mode token: which denoiser",
    "start": "start",
    "end": "end",
}


@dataclass(frozen=True)
class Token:
    """A token as it is displayed."""

    text: str
    kind: str = "text"  # "text", "pad" or one of `KINDS`
    span: int = NO_SPAN  # number of the hidden span that it is in or stands for
    id: int = 0
    slot: int = NOWHERE  # its slot in the raw row, if it is copied from the row
    before: str = ""  # space before the token that is not part of its text

    @property
    def one_line(self) -> str:
        """The text with · for a space, ⏎ for a line break and ⇥ for a tab."""
        return printable(self.text.translate(str.maketrans(" \n\t", "·⏎⇥"))) or "‥"


@dataclass(frozen=True)
class Slot:
    """A slot of a stack: its input token, and the tokens that are predicted from it."""

    given: Token
    predicted: Token | None = None
    further: tuple[Token | None, ...] = ()  # one for each of the stack's `further` terms


@dataclass(frozen=True)
class StackView:
    """A row's slots in one stack."""

    name: str  # "encoder", "decoder" or "noised"
    caption: str
    slots: list[Slot]  # without padding
    # Name, such as "segments" or "loss weights" -> a number for each slot.
    tracks: dict[str, list[int]]
    targets: int  # number of targets, which may be several for one slot
    further: tuple[str, ...] = ()  # terms that predict other tokens from the same slots


@dataclass(frozen=True)
class AttentionPattern:
    """A row's attention pattern in one stack, or across the two."""

    name: str  # "encoder", "decoder", "cross", "noised" or "clean"
    title: str
    keys: int
    starts: list[int]  # first key that each query attends to
    ends: list[int]  # one past the last key that each query attends to
    documents: list[int]  # number of each query's document

    @property
    def queries(self) -> int:
        return len(self.documents)


@dataclass(frozen=True)
class Example:
    """One row before and after corruption."""

    title: str  # the member's name; "" for an objective that is not a mixture
    caption: str
    text: list[list[Token]]  # tokens of each document; hidden tokens have a span
    stacks: list[StackView]
    attentions: list[AttentionPattern]
    pools: list[str]  # slots whose hidden states stand for texts, with their classes
    with_loss: int  # slots with a loss
    call: str = ""  # how the mixture builds the member


@dataclass(frozen=True)
class SlotUse:
    """Slots of a stack: how many hold a token, and how many are computed."""

    slots: int  # number of slots that are computed, padding included
    mean: float  # mean number of slots with a token in a row
    least: int
    most: int

    @property
    def share(self) -> float:
        return self.mean / self.slots


@dataclass(frozen=True)
class Statistics:
    """Statistics of the rows of one objective or member.

    Unless stated otherwise, shares are relative to the tokens that are not left out.
    """

    name: str
    rate: float  # share of the mixture's rows
    rows: int
    length: int  # number of text tokens in a row
    left_out: float  # share of all text tokens that are neither given nor predicted
    hidden: float  # share that is predicted, but neither in the inputs nor in its place
    predicted: float  # share that is a target or a label
    with_loss: float  # number of slots with a loss for each token of text
    use: dict[str, SlotUse]
    spans: list[int]  # [k] is the number of hidden spans of k tokens
    expected_spans: list[float] | None  # [k] is the expected number in these rows
    hidden_at: list[float]  # share of hidden tokens in each bin along the row
    predicted_at: list[float]


@dataclass(frozen=True)
class Picture:
    """An objective as it is shown: facts, examples and statistics."""

    name: str
    layout: str
    facts: list[str]  # lines on what it is good for, its model and its paper
    examples: list[Example]
    members_left: int = 0  # members of the mixture that are not shown
    statistics: list[Statistics] = field(default_factory=list)
    counted_on: str = ""  # the rows that the statistics were counted on

    @property
    def legend(self) -> list[tuple[Token, str]]:
        """The first token of each kind, with the meaning of the kind."""
        first: dict[str, Token] = {}
        for example in self.examples:
            inputs = [slot.given for stack in example.stacks for slot in stack.slots]
            for tokens in (inputs, *example.text):
                for token in tokens:
                    first.setdefault(token.kind, token)
        return [(first[kind], meaning) for kind, meaning in KINDS.items() if kind in first]

    def as_json(self) -> dict:
        return asdict(self) | {"legend": [(asdict(token), about) for token, about in self.legend]}


def bare(example: Example) -> Example:
    """Returns an example without tracks and attention patterns."""
    stacks = [replace(stack, tracks={}) for stack in example.stacks]
    return replace(example, stacks=stacks, attentions=[])


def brief(picture: Picture) -> Picture:
    """Returns a picture in which the examples after the first have only inputs and targets.

    In a picture of more than `FEW` examples, the first has only text, inputs and targets.
    """
    first, *others = picture.examples
    if len(picture.examples) > FEW:
        first = bare(first)
    return replace(picture, examples=[first, *(replace(bare(x), text=[]) for x in others)])


def counted(number: int, noun: str) -> str:
    """Returns for example "1 slot" or "2,000 slots"."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def compact(values: Sequence[int], most: int) -> str:
    """Returns numbers as short text: equal numbers as value×count, ascending ones as first…last.

    If there are more than `most` runs and only a few different values, the slots of each value are
    counted instead.

    >>> compact([1, 1, 1, 2, 2, 0, 1, 2, 3], most=24)
    '1×3 2×2 0…3'
    >>> compact([0, 1, 0, 0, 1, 0], most=3)
    '0 in 4 slots, 1 in 2 slots'
    """
    runs = []
    at = 0
    while at < len(values):
        step = values[at + 1] - values[at] if at + 1 < len(values) else 0
        end = at + 1
        while step in (0, 1) and end < len(values) and values[end] - values[end - 1] == step:
            end += 1
        if end - at == 1:
            runs.append(str(values[at]))
        elif step:
            runs.append(f"{values[at]}…{values[end - 1]}")
        else:
            runs.append(f"{values[at]}×{end - at}")
        at = end
    more = len(runs) - most
    times = Counter(values)
    if more > 0 and len(times) <= FEW:
        return ", ".join(f"{value} in {counted(times[value], 'slot')}" for value in sorted(times))
    return " ".join(runs[:most]) + (f" … and {more} more" if more > 0 else "")
