"""Draws the figure of each objective as an SVG, on a short text with noise that is easy to see.

A figure is an example from the page that `pretrax show --html` writes. It holds the command that
prints it.
"""

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
from pretrax.visualization.picture import KINDS, Picture, Slot, Token, bare, compact

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
# Seeds of noise that is easy to see, with hidden spans away from the edges; 0 for other objectives.
SEEDS = {
    "adaptive_masked_lm": 2,
    "albert_ngrams": 1,
    "antlm": 1,
    "bart": 22,
    "blank_infilling": 3,
    "block_diffusion": 2,
    "block_diffusion_encoder_decoder": 2,
    "flexible_masked_diffusion": 2,
    "frequency_informed_diffusion": 7,
    "gpt_bert": 1,
    "insertion_lm": 7,
    "masked_diffusion": 7,
    "masked_lm": 1,
    "masked_next_token": 1,
    "mass": 6,
    "next_sentence_prediction": 1,
    "permutation_lm": 4,
    "replaced_token_detection": 1,
    "retromae": 1,
    "sentence_order_prediction": 1,
    "spanbert": 35,
    "text_infilling": 26,
    "whole_word_masking": 1,
}
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


def options(name: str) -> list[str]:
    """Returns the options of `pretrax show` for an objective's figure."""
    text = TEXTS.get(name, TEXT)
    hidden = [f"--hide={HIDDEN[name]}"] if name in HIDDEN else []
    return [
        f"--objective={name}",
        "--vocabulary=words",
        f"--seed={SEEDS.get(name, 0)}",
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
    whole = drawn(name)
    first, *others = whole.examples
    examples = [first, *map(bare, others)]
    return svg(replace(whole, examples=examples), f"pretrax show {shlex.join(options(name))}")


def overview() -> str:
    """Returns an SVG of the model's inputs and predictions for a few objectives."""
    examples = [
        replace(bare(example), title=name) for name in OVERVIEW for example in drawn(name).examples
    ]
    return svg(Picture("", "", [], examples))


def drawn(name: str) -> Picture:
    """Returns the picture that `pretrax show` prints for an objective with `options`."""
    values = show.read_command_line(options(name))
    choice = show.choose(values)
    text = show.open_text(Console(), values, choice)
    return show.draw(values, choice, text).picture


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
