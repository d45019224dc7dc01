"""Statistics as HTML: tiles, tables, and charts of the noise and of the slots of rows."""

import functools
from collections.abc import Sequence
from html import escape

import numpy as np

from . import html
from .noise_statistics import BINS
from .picture import Statistics
from .svg import FIRST, INK, MUTED, SECOND, drawn

WIDTH = 7.6  # inches
BARS = 48  # largest number of bars of a histogram


def statistics(members: Sequence[Statistics]) -> str:
    """Returns a card with charts and the statistics of an objective or a table of its members."""
    bars = [
        (f"{member.name} {stack}".strip(), use)
        for member in members
        for stack, use in member.use.items()
    ]
    slots = drawn([functools.partial(_draw_slots, bars=bars)], WIDTH, 0.55 + 0.27 * len(bars))
    charts = [html.chart("Slots that hold a token, of all slots of a row", slots)]
    for member in members:
        if member.hidden:  # a chart of the noise needs hidden tokens
            panels = [functools.partial(draw, noise=member) for draw in (_draw_spans, _draw_where)]
            charts.append(
                html.chart(escape(member.name) or "Noise", drawn(panels, WIDTH, height=2.1))
            )
    summed = _table(members) if len(members) > 1 else _tiles(members[0])
    return html.card(summed + "".join(charts))


def _tiles(member: Statistics) -> str:
    tiles = [
        (f"{member.length:,}", "tokens of text in a row"),
        *([(f"{member.left_out:.1%}", "of them left out")] if member.left_out else []),
        (f"{member.hidden:.1%}", "of the others hidden" if member.left_out else "of them hidden"),
        (f"{member.predicted:.1%}", "of them predicted"),
        (f"{100 * member.with_loss:.1f}", "slots with a loss, for 100 tokens of text"),
        *(
            (f"{use.share:.0%}", f"of {use.slots} {stack} slots hold a token")
            for stack, use in member.use.items()
        ),
    ]
    return html.tiles(tiles)


def _table(members: Sequence[Statistics]) -> str:
    stacks = list(dict.fromkeys(stack for f in members for stack in f.use))
    heads = ["", "rows", "tokens", "hidden", "predicted", "with a loss", *stacks]
    lines = [
        [
            escape(f.name),
            f"{f.rate:.0%}",
            f"{f.length:,}",
            f"{f.hidden:.1%}",
            f"{f.predicted:.1%}",
            f"{f.with_loss:.1%}",
            *(f"{f.use[s].mean:.0f} of {f.use[s].slots}" if s in f.use else "" for s in stacks),
        ]
        for f in members
    ]
    return html.table(heads, lines)


# --- charts ---------------------------------------------------------------------------------------


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


def _draw_spans(axes, noise: Statistics) -> None:
    counts = np.array(noise.spans)
    k = np.arange(counts.size)
    first = 0 if counts[0] else 1
    share = counts / counts.sum()
    last = max(int(np.searchsorted(np.cumsum(share), 0.995)) + 1, first + 2)
    last = min(last, counts.size - 1)
    shown = slice(first, last + 1)
    # Lengths are grouped into bins, and a bar is the mean over its lengths.
    edges = np.arange(first, last + 1, -(-(last + 1 - first) // BARS))
    sizes = np.diff(np.append(edges, last + 1))
    heights = np.add.reduceat(share[shown], edges - first) / sizes
    middles = edges + (sizes - 1) / 2
    axes.bar(middles, heights, color=FIRST, width=0.8 * sizes, label="hidden spans")
    if noise.expected_spans is not None:
        expected = np.array(noise.expected_spans)[shown] / sum(noise.expected_spans)
        axes.plot(
            k[shown], expected, "o-", color=SECOND, markersize=3, linewidth=1, label="expected"
        )
        axes.legend(frameon=False, fontsize="small")
    mean = (k * counts).sum() / counts.sum()
    axes.set(title=f"Length of hidden spans: {mean:.2f} tokens on average", xlabel="tokens")
    axes.yaxis.set_major_formatter(_percent)
    axes.xaxis.get_major_locator().set_params(integer=True)


def _draw_where(axes, noise: Statistics) -> None:
    where = (np.arange(BINS) + 0.5) / BINS
    same = np.allclose(noise.hidden_at, noise.predicted_at)
    label = "hidden and predicted" if same else "hidden"
    axes.step(where, noise.hidden_at, color=FIRST, where="mid", label=label)
    axes.fill_between(where, noise.hidden_at, step="mid", color=FIRST, alpha=0.2, linewidth=0)
    if not same:
        axes.step(where, noise.predicted_at, color=SECOND, where="mid", label="predicted")
    top = max(*noise.hidden_at, *noise.predicted_at)
    axes.set(
        title="Where in the text",
        xlabel="from its beginning to its end",
        xlim=(0, 1),
        ylim=(0, 1.35 * top + 0.02),  # leaves room for the legend
        xticks=[],
    )
    axes.set_yticks([share for share in axes.get_yticks() if share <= 1])
    axes.yaxis.set_major_formatter(_percent)
    axes.legend(frameon=False, fontsize="small", loc="upper left", ncols=2)


def _percent(share: float, _) -> str:
    return f"{100 * share:.3g}%"
