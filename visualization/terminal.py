"""Prints a picture in the terminal. Tokens are colored by span, attention by document."""

import itertools
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

from .examples import POOLED
from .picture import NO_SPAN, AttentionPattern, Example, Picture, Slot, Token, compact

COLORS = ("yellow", "cyan", "magenta", "green", "red", "blue")  # colors of spans and documents
STYLES = {  # kind of a token -> style
    "pad": "dim",
    "sentinel": "bold reverse",
    "mask": "bold reverse",
    "kept": "underline",
    "replaced": "bold red strike",
    "noised": "red",
    "other": "italic dim",
    "left out": "dim strike",
    "cls": "bold reverse blue",
    "sep": "bold reverse blue",
    "mark": "bold reverse blue",
    "mode": "bold reverse green",
    "start": "bold dim",
    "end": "bold dim",
}
PIXELS = 32  # largest width and height of an attention pattern
RUNS = 24  # number of runs of a track that are shown


def print_picture(console: Console, picture: Picture) -> None:
    """Prints the name and the facts of a picture, the legend of its tokens, and its examples."""
    console.print()
    console.print(Text(picture.name, "bold reverse"))
    for fact in picture.facts:
        console.print(Text(fact, "dim"))
    legend = Text("  ")
    for token, meaning in picture.legend:
        legend.append_text(_word(token)).append(f" {meaning}   ", "dim")
    legend.rstrip()
    console.print("", legend, "", sep="\n")
    for example in picture.examples:
        _print_example(console, example)
    if picture.members_left:
        shown = len({example.title for example in picture.examples})
        console.print(f"The first {shown} of {shown + picture.members_left} members.")


def _print_example(console: Console, example: Example) -> None:
    """Prints the text, each stack's inputs and targets, and which queries attend to which keys."""
    if example.title:
        console.print(Rule(Text(example.title, "bold"), align="left", style="dim"))
    if example.call:
        console.print(Padding(Text(example.call, "dim"), (0, 2, 1, 2)))
    if example.text:
        console.print(_headed("Text", example.caption))
    for document in example.text:
        console.print(Padding(flowing(document), (0, 2, 1, 2)))
    for stack in example.stacks:
        console.print(_headed(stack.name.capitalize(), stack.caption))
        body: RenderableType = flowing(slot.given for slot in stack.slots)
        if any(slot.predicted for slot in stack.slots):
            body = Group(*stacked(stack.slots, console.width - 4))
        console.print(Padding(body, (0, 2)))
        tracks = Table.grid(padding=(0, 2))
        for name, values in stack.tracks.items():
            tracks.add_row(Text(name, "dim"), Text(compact(values, RUNS), "dim"))
        if stack.tracks:
            console.print(Padding(tracks, (1, 2)))
    if not any(stack.tracks for stack in example.stacks):
        console.print()
    if example.pools:
        console.print(_headed("Pooled", POOLED))
        console.print(Padding(Text("; ".join(example.pools)), (0, 2, 1, 2)))
    if example.attentions:
        panels = Columns(map(_panel, example.attentions), padding=(0, 1))
        console.print(Padding(panels, (0, 2, 1, 2)))


def _headed(word: str, about: str) -> Text:
    return Text.assemble((f"{word}  ", "bold"), (about, "dim"))


# --- tokens ---------------------------------------------------------------------------------------


def style(token: Token) -> str:
    color = "" if token.span == NO_SPAN else f" {COLORS[token.span % len(COLORS)]}"
    return STYLES.get(token.kind, "") + color


def flowing(tokens: Iterable[Token]) -> Text:
    """Returns tokens as one text that keeps its line breaks."""
    parts = (((t.before, ""), (t.text.replace("\t", "    "), style(t))) for t in tokens)
    return Text.assemble(*itertools.chain.from_iterable(parts))


def _word(token: Token) -> Text:
    return Text(token.one_line, style(token))


def stacked(slots: Sequence[Slot], width: int) -> list[Text]:
    """Returns lines of input tokens, each with the targets of its slots in the lines below it."""
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


# --- attention ------------------------------------------------------------------------------------


def _panel(attention: AttentionPattern) -> Panel:
    return Panel(
        half_blocks(*pixels(attention, PIXELS)),
        box=ROUNDED,
        border_style="dim",
        title=Text(attention.title, "bold"),
        title_align="left",
        subtitle=Text(f"↓ {attention.queries} queries  → {attention.keys} keys", "dim"),
        subtitle_align="left",
        expand=False,
        padding=0,
        width=max(PIXELS, len(attention.title) + 4) + 2,
    )


def pixels(attention: AttentionPattern, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the pattern scaled down to at most `most` rows (queries) and columns (keys).

    The first array, f[rows, columns], is the share of a pixel's query-key pairs that attend. The
    second array, i32[rows], is the document of the first query of a row.

    >>> causal = AttentionPattern("decoder", "", 3, [0, 0, 0], [1, 2, 3], [1, 1, 1])
    >>> pixels(causal, 8)[0]
    array([[1., 0., 0.],
           [1., 1., 0.],
           [1., 1., 1.]])
    """
    keys = attention.keys
    queries = attention.queries
    scale = max(1.0, max(queries, keys) / most)
    edges = np.linspace(0, keys, max(1, round(keys / scale)) + 1)
    starts = np.array(attention.starts)[:, None]
    ends = np.array(attention.ends)[:, None]
    seen = np.minimum(ends, edges[1:]) - np.maximum(starts, edges[:-1])
    share = np.clip(seen, 0, None) / np.diff(edges)
    first = np.linspace(0, queries, max(1, round(queries / scale)), endpoint=False).astype(int)
    count = np.diff(np.append(first, queries))
    share = np.add.reduceat(share, first, axis=0) / count[:, None]
    return share, np.array(attention.documents)[first]


def half_blocks(share: np.ndarray, documents: np.ndarray) -> Text:
    """Returns a picture with two rows a line, drawn in ▀, ▄ and █ to be readable without colors."""
    filled = np.pad(share >= 0.5, ((0, len(share) % 2), (0, 0))).astype(int)
    lines = []
    for upper, lower, document in zip(filled[::2], filled[1::2], documents[::2]):
        blocks = "".join(" ▀▄█"[shade] for shade in upper + 2 * lower)
        lines.append(Text(blocks, COLORS[1:][(int(document) - 1) % (len(COLORS) - 1)]))
    return Text("\n", no_wrap=True).join(lines)
