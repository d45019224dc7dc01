"""Draws the figure of each objective as an SVG, on a short text with noise that is easy to see.

A figure is an example from the page that `pretrax show --html` writes. It holds the command that
prints it. The seed of its noise is the first seed that gives a clear figure (`is_clear`).
"""

import functools
import itertools
import math
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from html import escape, unescape
from pathlib import Path

from rich.console import Console

from pretrax.cli import show
from pretrax.visualization import html, picture_page
from pretrax.visualization.picture import (
    KINDS,
    NO_SPAN,
    NOWHERE,
    Example,
    Picture,
    Slot,
    Token,
    bare,
    compact,
)

FOLDER = Path(__file__).resolve().parent / "objectives"
OVERVIEW = ("span_corruption", "masked_lm")  # shown in README.md
TEXT = (
    "The quick brown fox jumps over the lazy dog. The dog sleeps for an hour and dreams of a fox. "
    "It rains, so the fox walks home."
)
TEXTS = {  # objectives that need another text
    # The sentence that shares the most words with the others is in the middle.
    "gap_sentences": "The fox runs home. The dog sleeps and dreams of the fox. It rains all day.",
    "number_token_loss": "Of 9 8 7 6 dogs 5 4 3 sleep, and 2 or 1 or 0 dream of a fox.",
}
HIDDEN = {  # pieces of the text that are hidden or moved, in place of random ones
    "span_corruption": "brown fox,for an hour",
    "fill_in_the_middle": "sleeps for an hour",
    "causal_masking": "brown fox,for an hour",
}
SPANS = {  # number of hidden spans in a clear figure
    "albert_ngrams": 2,
    "bart": 2,
    "blank_infilling": 2,
    "gap_sentences": 1,
    "mass": 1,
    "span_corruption": 2,
    "spanbert": 2,
    "text_infilling": 2,
}
# These objectives always hide the end of a text, or predict every token.
TOUCHES_EDGE = frozenset(
    (
        "any_subset_lm",
        "complementary_diffusion",
        "hybrid_diffusion",
        "mixed_diffusion",
        "prefix_lm",
        "spans_and_prefix",
        "ul2",
        "ul2_tutorial",
        "ul2r",
        "uniform_diffusion",
        "unrolled_denoising",
    )
)
VISIBLE = frozenset(("mark", "mask", "other", "replaced", "sentinel"))  # kinds that show noise
SEEDS = 1000  # number of seeds that are tried
WIDTH = 760  # width of a picture in pixels
LETTER = 7.83  # width in pixels of a letter in the widest common font
STANDS_OUT = set(KINDS) - set(picture_page.BARE)  # kinds of tokens with space around their text
# Browsers draw HTML within an SVG even if the SVG is an image, as on GitHub.
FILE = """<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<desc>{description}</desc>
<style>{style}
body {{ background:var(--card); border-radius:10px; padding:1.1rem 1.2rem; height:{height}px }}
h2 {{ margin:1.6rem 0 0; padding-top:.8rem; border-top:1px solid var(--line) }}
</style>
<foreignObject width="{width}" height="{height}"><body xmlns="http://www.w3.org/1999/xhtml">
{content}</body></foreignObject>
</svg>
"""


def options(name: str, seed: int) -> list[str]:
    """Returns the options of `pretrax show` for an objective's figure."""
    text = TEXTS.get(name, TEXT)
    hidden = [f"--hide={HIDDEN[name]}"] if name in HIDDEN else []
    return [
        f"--objective={name}",
        "--vocabulary=words",
        f"--seed={seed}",
        f"--text={text}",
        *hidden,
    ]


def command(name: str) -> str:
    """Returns the command that an objective's SVG file was drawn with."""
    kept = (FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    found = re.search(r"<desc>(.*?)</desc>", kept)
    assert found, f"{name}.svg has no command."
    return unescape(found[1])


def picture(name: str) -> str:
    """Returns the figure of an objective as an SVG.

    For a mixture, only the first member has tracks and attention patterns.
    """
    chosen, whole = clear_draw(name)
    first, *others = whole.examples
    examples = [first, *map(bare, others)]
    return svg(replace(whole, examples=examples), f"pretrax show {shlex.join(chosen)}")


def overview() -> str:
    """Returns an SVG of the model's inputs and predictions for a few objectives."""
    examples = [
        replace(bare(example), title=name)
        for name in OVERVIEW
        for example in clear_draw(name)[1].examples
    ]
    return svg(Picture("", "", [], examples))


# --- a clear draw ---------------------------------------------------------------------------------


@functools.cache
def clear_draw(name: str) -> tuple[list[str], Picture]:
    """Returns the options and the picture of the first seed that gives a clear figure.

    An objective without noise has the seed 0. Raises ValueError if no seed gives a clear figure.
    """
    first = drawn(name, 0)
    if first == drawn(name, 1) and not any(map(spans_of, first.examples)):
        return options(name, 0), first
    for seed in range(SEEDS):
        picture = drawn(name, seed)
        if is_clear(name, picture.examples):
            return options(name, seed), picture
    raise ValueError(
        f"None of the seeds below {SEEDS} gives a clear figure of {name}: change its text, or "
        "the number of spans in SPANS."
    )


def drawn(name: str, seed: int) -> Picture:
    """Returns the picture that `pretrax show` prints for an objective with this seed."""
    values = show.read_command_line(options(name, seed))
    choice = show.choose(values)
    text = show.open_text(Console(), values, choice)
    return show.draw(values, choice, text).picture


def is_clear(name: str, examples: Sequence[Example]) -> bool:
    """Returns whether a figure shows noise away from the edges of the text.

    The number of hidden spans is as in `SPANS`; two spans hold only words. For other objectives,
    there are several spans, or none.
    """
    if name in TOUCHES_EDGE:
        return True
    wished = SPANS.get(name)
    counts = {len(spans_of(example)) for example in examples}
    is_count_right = 1 not in counts if wished is None else counts == {wished}
    is_inside = not any(map(touches_edge, examples))
    are_words = wished != 2 or all(map(hides_words, examples))
    return is_count_right and is_inside and are_words and any(map(shows_noise, examples))


def spans_of(example: Example) -> list[list[int]]:
    """Returns the positions of the tokens of each hidden span."""
    numbers = [token.span for token in text_of(example)]
    runs = itertools.groupby(range(len(numbers)), key=numbers.__getitem__)
    return [list(positions) for number, positions in runs if number != NO_SPAN]


def touches_edge(example: Example) -> bool:
    """Returns whether the first or the last token of the text is hidden."""
    tokens = text_of(example)
    return tokens[0].span != NO_SPAN or tokens[-1].span != NO_SPAN


def hides_words(example: Example) -> bool:
    """Returns whether no hidden token is punctuation."""
    return all(token.text.isalnum() for token in text_of(example) if token.span != NO_SPAN)


def text_of(example: Example) -> list[Token]:
    """Returns the tokens of the text, without the tokens at the ends of documents."""
    return [token for document in example.text for token in document if token.kind != "end"]


def shows_noise(example: Example) -> bool:
    """Returns whether the inputs of a stack have a mask, for example, a gap or another order."""
    for stack in example.stacks:
        given = [slot.given for slot in stack.slots]
        if any(token.kind in VISIBLE for token in given):
            return True
        slots = [token.slot for token in given if token.slot != NOWHERE]
        if any(after != before + 1 for before, after in itertools.pairwise(slots)):
            return True
    return False


# --- pictures as files ----------------------------------------------------------------------------


def svg(drawing: Picture, command: str = "") -> str:
    """Returns the HTML of a picture as an SVG file, which Markdown can show on any site.

    Args:
      drawing: the picture.
      command: the command that prints the picture, for the description of the file.
    """
    parts = []
    for example in drawing.examples:
        title = f"<h2>{escape(example.title)}</h2>\n" if example.title else ""
        parts.append(title + picture_page.example(example))
    return FILE.format(
        width=WIDTH,
        height=_height(drawing),
        description=escape(command),
        style=html.STYLE + picture_page.STYLE,
        content=picture_page.legend(drawing) + "".join(parts),
    )


def _height(drawing: Picture) -> int:
    """Returns the height in pixels that a browser with a wide font needs."""
    height = 40.0 + 22 * _lines([8 * len(about) + 30 for _, about in drawing.legend])
    for example in drawing.examples:
        height += 52 + 60 * bool(example.title) + 76 * bool(example.pools)
        height += 40 * math.ceil(LETTER * len(example.call) / WIDTH)
        height += sum(8 + _flow_height(document) for document in example.text)
        for stack in example.stacks:
            heading = [LETTER * len(word) for word in (stack.name, *stack.caption.split())]
            height += 44 + 18 * _lines(heading, gap=LETTER)
            if any(slot.predicted for slot in stack.slots):
                lines = _lines(map(_cell_width, stack.slots), gap=3)
                height += lines * (41 + 18 * len(stack.further))
            else:
                height += _flow_height([slot.given for slot in stack.slots])
            room = WIDTH - 70 - LETTER * max(map(len, stack.tracks), default=0)
            tracks = [compact(values, picture_page.RUNS) for values in stack.tracks.values()]
            height += sum(18 * math.ceil(LETTER * len(track) / room) for track in tracks)
        for first in range(0, len(example.attentions), 3):
            shapes = [a.queries / a.keys for a in example.attentions[first : first + 3]]
            height += 64 + 200 * max(shapes)
    return math.ceil(height)


def _flow_height(tokens: Sequence[Token]) -> int:
    text = "".join(token.before + token.text for token in tokens)
    words = [[LETTER * len(word) for word in line.split()] for line in text.split("\n")]
    return sum(23 * _lines(line, gap=LETTER + 1) for line in words)


def _cell_width(slot: Slot) -> float:
    tokens = [x for x in (slot.given, slot.predicted, *slot.further) if x]
    return 8 + max(LETTER * len(x.one_line) + 6 * (x.kind in STANDS_OUT) for x in tokens)


def _lines(widths: Iterable[float], gap: float = 18) -> int:
    """Returns the number of lines that boxes of these widths fill, with a gap between boxes."""
    lines = 1
    used = 0.0
    for width in widths:
        if used + width > WIDTH - 40:
            lines += 1
            used = 0.0
        used += width + gap
    return lines
