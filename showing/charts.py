"""Charts as SVG that takes its colours from the page around it, light or dark."""

import functools
import io
import re
from collections.abc import Callable, Sequence

import numpy as np

from pretrax.showing.statistics import BINS, Figures

# Drawn in these colours, which are then replaced by the page's own.
INK, MUTED, FIRST, SECOND = "#010203", "#040506", "#070809", "#0a0b0c"
ON_PAGE = {INK: "var(--ink)", MUTED: "var(--line)", FIRST: "var(--first)", SECOND: "var(--second)"}
WIDTH = 7.6  # inches
BARS = 48  # of a histogram, at most
SETTINGS = {
    "svg.fonttype": "none",  # text stays text, in the page's font
    "svg.hashsalt": "showing",
    "font.family": "sans-serif",
    "font.size": 9,
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


def chart_of_noise(figures: Figures) -> str:
    """The lengths of hidden spans, with their law where it is known, and where in a row they are."""
    panels = (_draw_spans, _draw_where)
    return _drawn([functools.partial(draw, figures=figures) for draw in panels], height=2.1)


def chart_of_slots(all_figures: Sequence[Figures]) -> str:
    """Slots of each stack that hold a token: the mean, and the range over rows."""
    bars = [(f"{f.name} {stack}".strip(), use) for f in all_figures for stack, use in f.use.items()]
    return _drawn([functools.partial(_draw_slots, bars=bars)], height=0.55 + 0.27 * len(bars))


def _draw_slots(axes, bars) -> None:
    widest = max(use.slots for _, use in bars)
    for y, (_, use) in enumerate(bars):
        axes.barh(y, use.slots, color=MUTED, height=0.62)
        axes.barh(y, use.mean, color=FIRST, height=0.62)
        axes.text(use.slots + widest / 100, y, f"{use.share:.0%}", va="center", color=INK)
        if use.least < use.most:
            axes.plot([use.least, use.most], [y, y], color=INK, linewidth=1.2)
    axes.set_yticks(range(len(bars)), [name for name, _ in bars])
    axes.set(xlabel="slots of a row", xlim=(0, 1.12 * widest), ylim=(len(bars) - 0.4, -0.6))
    axes.spines["left"].set_visible(False)


def _draw_spans(axes, figures: Figures) -> None:
    counts, expected = figures.spans, figures.expected_spans
    k = np.arange(counts.size)
    first = 0 if counts[0] else 1
    share = counts / counts.sum()
    last = max(int(np.searchsorted(np.cumsum(share), 0.995)) + 1, first + 2)
    last = min(last, counts.size - 1)
    shown = slice(first, last + 1)
    # Long spans are counted in bins of several lengths, each drawn as the mean of its lengths.
    edges = np.arange(first, last + 1, -(-(last + 1 - first) // BARS))
    sizes = np.diff(np.append(edges, last + 1))
    heights = np.add.reduceat(share[shown], edges - first) / sizes
    middles = edges + (sizes - 1) / 2
    axes.bar(middles, heights, color=FIRST, width=0.8 * sizes, label="hidden spans")
    if expected is not None:
        axes.plot(
            k[shown],
            expected[shown] / expected.sum(),
            color=SECOND,
            marker="o",
            markersize=3,
            linewidth=1,
            label="expected",
        )
        axes.legend(frameon=False, fontsize="small")
    mean = (k * counts).sum() / counts.sum()
    axes.set(title=f"Length of hidden spans: {mean:.2f} tokens on average", xlabel="tokens")
    axes.yaxis.set_major_formatter(_percent)
    axes.xaxis.get_major_locator().set_params(integer=True)


def _draw_where(axes, figures: Figures) -> None:
    where = (np.arange(BINS) + 0.5) / BINS
    same = np.allclose(figures.hidden_at, figures.predicted_at)
    words = "hidden and predicted" if same else "hidden"
    axes.step(where, figures.hidden_at, color=FIRST, where="mid", label=words)
    axes.fill_between(where, figures.hidden_at, step="mid", color=FIRST, alpha=0.2, linewidth=0)
    if not same:
        axes.step(where, figures.predicted_at, color=SECOND, where="mid", label="predicted")
    top = max(figures.hidden_at.max(), figures.predicted_at.max())
    axes.set(
        title="Where in the text",
        xlabel="from its beginning to its end",
        xlim=(0, 1),
        ylim=(0, 1.35 * top + 0.02),  # the words stand above
        xticks=[],
    )
    axes.set_yticks([share for share in axes.get_yticks() if share <= 1])
    axes.yaxis.set_major_formatter(_percent)
    axes.legend(frameon=False, fontsize="small", loc="upper left", ncols=2)


def _percent(share: float, _) -> str:
    return f"{100 * share:.3g}%"


def _drawn(panels: Sequence[Callable], height: float) -> str:
    """The SVG of panels side by side, each drawn by a function of its axes."""
    import matplotlib  # here: half a second that the terminal does not need

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    file = io.StringIO()
    with matplotlib.rc_context(SETTINGS):
        figure, axes = plt.subplots(
            1, len(panels), figsize=(WIDTH, height), layout="constrained", squeeze=False
        )
        for draw, one in zip(panels, axes[0]):
            draw(one)
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=nothing)
        plt.close(figure)
    return on_page(file.getvalue())


def on_page(svg: str) -> str:
    """An SVG file as an element of a page: with the page's colours, and no ids that could clash."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' id="[A-Za-z]+[A-Za-z_]*_\d+"', "", svg)
    for drawn, variable in ON_PAGE.items():
        svg = svg.replace(drawn, variable)
    return svg
