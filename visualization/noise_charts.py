"""Charts of statistics: the noise of an objective, and the slots of its rows."""

import functools
from collections.abc import Sequence

import numpy as np

from .noise_statistics import BINS, NoiseFigures
from .svg import FIRST, INK, MUTED, SECOND, drawn

WIDTH = 7.6  # inches
BARS = 48  # of a histogram, at most


def chart_of_noise(figures: NoiseFigures) -> str:
    """Returns the lengths of hidden spans, beside their law if it is known, and where they are."""
    panels = (_draw_spans, _draw_where)
    return drawn([functools.partial(draw, figures=figures) for draw in panels], WIDTH, height=2.1)


def chart_of_slots(all_figures: Sequence[NoiseFigures]) -> str:
    """Slots of each stack that hold a token: the mean, and the range over rows."""
    bars = [(f"{f.name} {stack}".strip(), use) for f in all_figures for stack, use in f.use.items()]
    return drawn([functools.partial(_draw_slots, bars=bars)], WIDTH, 0.55 + 0.27 * len(bars))


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


def _draw_spans(axes, figures: NoiseFigures) -> None:
    counts = figures.spans
    expected = figures.expected_spans
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
        law = expected[shown] / expected.sum()
        axes.plot(k[shown], law, "o-", color=SECOND, markersize=3, linewidth=1, label="expected")
        axes.legend(frameon=False, fontsize="small")
    mean = (k * counts).sum() / counts.sum()
    axes.set(title=f"Length of hidden spans: {mean:.2f} tokens on average", xlabel="tokens")
    axes.yaxis.set_major_formatter(_percent)
    axes.xaxis.get_major_locator().set_params(integer=True)


def _draw_where(axes, figures: NoiseFigures) -> None:
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
