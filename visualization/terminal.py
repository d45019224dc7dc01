"""Examples in the terminal, in its own colours: tokens by span, attention by document."""

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from rich.box import ROUNDED
from rich.cells import cell_len
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from ..settings.printable import printable
from .attention_pictures import picture
from .examples import NO_SPAN, AttentionPattern, Example, Pool, Slot, StackView, Token

COLOURS = ("yellow", "cyan", "magenta", "green", "red", "blue")  # of spans and of documents
KINDS = {  # of tokens: their style, and their meaning where the legend explains them
    "text": ("", ""),
    "pad": ("dim", ""),
    "sentinel": ("bold reverse", "stands for a hidden span"),
    "mask": ("bold reverse", "hides a token or a span"),
    "kept": ("underline", "predicted, left unchanged"),
    "replaced": ("bold red strike", "replaced by another token"),
    "other": ("italic dim", "from another text"),
    "left out": ("dim strike", "neither given nor predicted"),
    "cls": ("bold reverse blue", "opens a text or a pair of texts"),
    "sep": ("bold reverse blue", "between texts or after them"),
    "mark": ("bold reverse blue", "marks a part of the text"),
    "mode": ("bold reverse green", "mode token: which denoiser"),
    "start": ("bold dim", "start"),
    "end": ("bold dim", "end"),
}
LEGEND = {kind: meaning for kind, (_, meaning) in KINDS.items() if meaning}
PIXELS = 32  # of an attention pattern, a side
RUNS = 24  # of a track, before it is cut
FEW = 3  # values of a track, which are counted
POOLED = "slots whose hidden state stands for a text or a pair of texts"
ATTENDS = {
    "encoder": "encoder attends to itself",
    "cross": "decoder attends to encoder",
    "decoder": "decoder attends to itself",
    "noised": "noised copies attend to copies",
    "clean": "noised copies attend to decoder",
}


def print_heading(console: Console, name: str, layout: str, facts: Sequence[str]) -> None:
    """Prints the objective's name and layout, and a line for each fact."""
    article = "an" if layout[0] == "e" else "a"
    on = f"  on {article} {layout.replace('_', '-')}"
    console.print()
    console.print(Text.assemble((name, "bold reverse"), (on, "bold")))
    for fact in facts:
        console.print(Text(fact, "dim"))


def print_examples(console: Console, examples: Sequence[Example]) -> None:
    """Prints the meaning of each kind of special token that examples have, and each example."""
    line = Text("  ")
    for token, meaning in explained(examples):
        line.append_text(_word(token)).append(f" {meaning}   ", "dim")
    console.print("", line, "", sep="\n")
    for one in examples:
        _print_example(console, one)


def _print_example(console: Console, example: Example) -> None:
    """Prints the text, each stack's inputs and targets, and which queries attend to which keys."""
    if example.name:
        console.print(Rule(Text(example.name, "bold"), align="left", style="dim"))
    console.print(_headed("Text", text_in_words(example)))
    for document in example.text:
        console.print(Padding(flowing(document), (0, 2, 1, 2)))
    for stack in example.stacks:
        console.print(_headed(stack.name.capitalize(), slots_in_words(stack)))
        body: RenderableType = flowing(slot.given for slot in stack.slots)
        if any(slot.predicted for slot in stack.slots):
            body = Group(*stacked(stack.slots, console.width - 4))
        console.print(Padding(body, (0, 2)))
        tracks = Table.grid(padding=(0, 2))
        for name, values in stack.tracks.items():
            tracks.add_row(Text(name, "dim"), Text(compact(values, RUNS), "dim"))
        console.print(Padding(tracks, (1, 2)) if stack.tracks else "")
    if example.pools:
        console.print(_headed("Pooled", POOLED))
        console.print(Padding("; ".join(map(pool_words, example.pools)), (0, 2, 1, 2)))
    pictures = [_panel(attention) for attention in example.attentions]
    if pictures:
        console.print(Padding(Columns(pictures, padding=(0, 1)), (0, 2, 1, 2)))


def explained(examples: Iterable[Example]) -> list[tuple[Token, str]]:
    """Returns the first token of each kind that examples have, with the meaning of the kind."""
    first: dict[str, Token] = {}
    for one in examples:
        inputs = [slot.given for stack in one.stacks for slot in stack.slots]
        for token in itertools.chain(inputs, *one.text):
            first.setdefault(token.kind, token)
    return [(first[kind], meaning) for kind, meaning in LEGEND.items() if kind in first]


def _headed(word: str, about: str) -> Text:
    return Text.assemble((f"{word}  ", "bold"), (about, "dim"))


def slots_in_words(stack: StackView) -> str:
    """Such as "233 slots and 23 of padding; 39 targets, below the slots that predict them"."""
    words = _count(len(stack.slots), "slot")
    if stack.size > len(stack.slots):
        words += f" and {stack.size - len(stack.slots)} of padding"
    if stack.targets:
        below = "slot that predicts it" if stack.targets == 1 else "slots that predict them"
        words += f"; {_count(stack.targets, 'target')}, below the {below}"
    if stack.further:
        words += f"; below them those of {', '.join(stack.further)}"
    return words


def text_in_words(example: Example) -> str:
    """Such as "258 tokens in 2 documents; 39 hidden; 20 left out"."""
    tokens = [token for document in example.text for token in document]
    hidden = sum(token.span != NO_SPAN for token in tokens)
    left_out = sum(token.kind == "left out" for token in tokens)
    words = _count(len(tokens), "token")
    if len(example.text) > 1:
        words += f" in {len(example.text)} documents"
    words += f"; {hidden} hidden" if hidden else ""
    return words + (f"; {left_out} left out" if left_out else "")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


# --- tokens ---------------------------------------------------------------------------------------


def style(token: Token) -> str:
    colour = "" if token.span == NO_SPAN else f" {COLOURS[token.span % len(COLOURS)]}"
    return KINDS[token.kind][0] + colour


def flowing(tokens: Iterable[Token]) -> Text:
    """Returns tokens as one text, with its own line breaks."""
    parts = (((t.before, ""), (t.text.replace("\t", "    "), style(t))) for t in tokens)
    return Text.assemble(*itertools.chain.from_iterable(parts))


def in_one_line(token: Token) -> str:
    """Returns the text of a token with · for a space, ⏎ for a line break, ⇥ for a tab."""
    return printable(token.text.translate(str.maketrans(" \n\t", "·⏎⇥"))) or "‥"


def _word(token: Token) -> Text:
    return Text(in_one_line(token), style(token))


def stacked(slots: Sequence[Slot], width: int) -> list[Text]:
    """Lines of given tokens, each with the targets of its slots in lines below it, if any."""
    blocks: list[list[Text]] = []
    for slot in slots:
        tokens = slot.given, slot.predicted, *slot.further
        words = [_word(token) if token else Text() for token in tokens]
        size = max(cell_len(word.plain) for word in words)
        if not blocks or 0 < cell_len(blocks[-1][0].plain) > width - size:
            blocks.append([Text(no_wrap=True) for _ in tokens])
        for line, word in zip(blocks[-1], words):
            line.append_text(word)
            line.append(" " * (size - cell_len(word.plain) + 1))
    return [line for block in blocks for line in block if line.plain.strip()]


# --- numbers --------------------------------------------------------------------------------------


def compact(values: Sequence[int] | np.ndarray, most: int = RUNS) -> str:
    """Numbers as text, shortened: equal ones as value×count, ascending ones as first…last.

    Where that is too long, the slots of each value are counted, if there are few values.

    >>> compact([1, 1, 1, 2, 2, 0, 1, 2, 3])
    '1×3 2×2 0…3'
    >>> compact([0, 1, 0, 0, 1, 0], most=3)
    '0 in 4 slots, 1 in 2 slots'
    """
    values = [int(v) for v in values]
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
        return ", ".join(f"{value} in {_count(times[value], 'slot')}" for value in sorted(times))
    return " ".join(runs[:most]) + (f" … and {more} more" if more > 0 else "")


def pool_words(pool: Pool) -> str:
    """Returns such as "slot 4: class 1, swapped"."""
    if not pool.counts:
        return "one without a loss"
    return f"slot {pool.slot}" + ("" if pool.label is None else f": {pool.label}")


# --- attention ------------------------------------------------------------------------------------


def _panel(attention: AttentionPattern) -> Panel:
    queries = attention.documents.size
    return Panel(
        half_blocks(*picture(attention, PIXELS)),
        box=ROUNDED,
        border_style="dim",
        title=Text(ATTENDS[attention.name], "bold"),
        title_align="left",
        subtitle=Text(f"↓ {queries} queries  → {attention.keys} keys", "dim"),
        subtitle_align="left",
        expand=False,
        padding=0,
        width=max(PIXELS, len(ATTENDS[attention.name]) + 4) + 2,
    )


def half_blocks(share: np.ndarray, documents: np.ndarray) -> Text:
    """Returns a picture of two rows in a line, in ▀, ▄ and █: readable without colours."""
    filled = np.pad(share >= 0.5, ((0, len(share) % 2), (0, 0))).astype(int)
    lines = []
    for upper, lower, document in zip(filled[::2], filled[1::2], documents[::2]):
        blocks = "".join(" ▀▄█"[shade] for shade in upper + 2 * lower)
        lines.append(Text(blocks, COLOURS[1:][(int(document) - 1) % (len(COLOURS) - 1)]))
    return Text("\n", no_wrap=True).join(lines)
