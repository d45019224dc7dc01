"""Draws charts as SVG. Their colors are the colors of the page around them, light or dark."""

import io
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from .html import COLORS

# Placeholder colors, which are replaced by the colors of the page.
INK = "#010203"
MUTED = "#040506"
FIRST = "#070809"
SECOND = "#0a0b0c"
SERIES = tuple(f"#0d0e{k:02x}" for k in range(8))  # at most eight curves
ON_PAGE = {
    INK: "var(--ink)",
    MUTED: "var(--line)",
    FIRST: "var(--first)",
    SECOND: "var(--second)",
    **{drawn: f"var(--v{k})" for k, drawn in enumerate(SERIES)},
}
SETTINGS: Any = {
    "svg.fonttype": "none",  # text stays text, in the page's font
    "svg.hashsalt": "showing",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.parse_math": False,  # a name may hold dollars
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
}


def drawn(panels: Sequence[Callable], width: float, height: float) -> str:
    """Returns the SVG of panels side by side.

    Args:
      width: width in inches.
      height: height in inches.
    """
    import matplotlib  # imported here: it takes half a second, and the terminal does not need it

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    file = io.StringIO()
    with matplotlib.rc_context(SETTINGS), warnings.catch_warnings():
        # The reader's fonts draw the text. A glyph that is missing here only affects its width.
        warnings.filterwarnings("ignore", "Glyph .* missing")
        figure, axes = plt.subplots(
            1, len(panels), figsize=(width, height), layout="constrained", squeeze=False
        )
        for draw, panel_axes in zip(panels, axes[0]):
            draw(panel_axes)
        no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=no_metadata)
        plt.close(figure)
    return on_page(file.getvalue())


def on_page(svg: str) -> str:
    """Returns an SVG file as an element of a page, with the page's colors and without ids."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    return re.sub(r"<[^>]*>", _tag_on_page, svg)  # text between tags is not changed


def _tag_on_page(tag: re.Match[str]) -> str:
    text = re.sub(r' id="[A-Za-z]+[A-Za-z_]*_\d+"', "", tag[0])
    for drawn, variable in ON_PAGE.items():
        text = text.replace(drawn, variable)
    return text


def standalone(svg: str) -> str:
    """Returns the SVG of `drawn` as a file with its own colors and background.

    They are light or dark, like the reader's system. Coordinates are cut to two decimals, which
    halves the file.
    """
    svg = re.sub(r"<!--.*?-->", "", svg)
    svg = re.sub(r"<[^>]*>", _tag_of_file, svg)
    svg = re.sub(r"\s+", " ", svg).replace("> <", ">\n<")
    first = svg.index(">") + 1
    style = f'<style>{COLORS}</style><rect width="100%" height="100%" style="fill:var(--card)"/>'
    return f"{svg[:first]}{style}{svg[first:]}\n"


def _tag_of_file(tag: re.Match[str]) -> str:
    text = re.sub(r"font-family: [^;]*;", "font-family: sans-serif;", tag[0])
    return re.sub(r"(\.\d\d)\d+", r"\1", text)
