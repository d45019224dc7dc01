"""Charts of a comparison: learning curves, and a yardstick's figures of every seed."""

import functools
import math
import textwrap
from collections.abc import Mapping, Sequence

import numpy as np

from ...showing.svg import INK, MUTED, SERIES, drawn
from ..results import Curve
from ..scaling.laws_of_comparisons import FittedLaw
from .summary import Column

WIDTH = 4.4  # inches: two side by side on a desk, one on a phone, both readable
GRID = 200  # points of a mean curve
BEGINNING = 0.08  # of training, whose losses may leave the chart at its top
FAR = 1.5  # a baseline further from the figures than this many times their range is not drawn
NAME = 18  # letters in a line of a variant's name


def chart_of_curves(curves: Mapping[str, Sequence[Curve]], colours: Mapping[str, int]) -> str:
    """Returns curves over the text tokens seen: the mean of each variant's seeds, and their
    range."""
    return drawn([functools.partial(_draw_curves, curves=curves, colours=colours)], WIDTH, 2.6)


def chart_of_column(
    column: Column, colours: Mapping[str, int], links: Mapping[tuple[str, int], str]
) -> str:
    """Returns a line for each variant: every seed's figure, which links to its run, and their mean
    with its interval; the baseline is a dashed line across.

    Args:
      colours: the number of each variant's.
      links: of variant and seed, to its run.
    """
    height = 0.5 + 0.4 * len(colours)
    draw = functools.partial(_draw_column, column=column, colours=colours, links=links)
    return drawn([draw], WIDTH, height)


def chart_of_law(law: FittedLaw) -> str:
    """Returns the loss of each run over its FLOPs, and for each size what the law says of it."""
    return drawn([functools.partial(_draw_law, law=law)], WIDTH, 3.0)


def colour(number: int) -> str:
    return SERIES[number % len(SERIES)]


def dashes(number: int) -> str:
    """The line of a series: beyond the first colours, it is told apart by its dashes too."""
    return ("-", "--", ":")[number // 4 % 3]


def _draw_curves(axes, curves, colours) -> None:
    from matplotlib.ticker import EngFormatter

    tops = []
    for variant, some in curves.items():
        # Seeds end at nearly the same text; the mean is of where all of them are.
        first, last = max(c[0][0] for c in some), min(c[-1][0] for c in some)
        x = np.linspace(first, last, GRID)
        y = np.stack([np.interp(x, *np.array(curve).T) for curve in some])
        number = colours[variant]
        axes.plot(x, y.mean(0), color=colour(number), linestyle=dashes(number), linewidth=1.4)
        if len(some) > 1:
            axes.fill_between(x, y.min(0), y.max(0), color=colour(number), alpha=0.2, linewidth=0)
        tops.append(y[:, x > BEGINNING * last].max())
    low, _ = axes.get_ylim()
    top = max(tops)
    axes.set(xlabel="text tokens seen", ylim=(low, top + 0.05 * (top - low)))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def _draw_column(axes, column: Column, colours, links) -> None:
    for y, (variant, number) in enumerate(colours.items()):
        seeds = column.values[variant]
        if not seeds:
            continue
        dots = axes.scatter(
            list(seeds.values()),
            [y + 0.17] * len(seeds),
            s=13,
            color=colour(number),
            alpha=0.65,
            linewidths=0,
        )
        dots.set_urls([links.get((variant, seed)) for seed in seeds])
        mean = column.estimates[variant]
        if math.isfinite(mean.low):
            axes.plot([mean.low, mean.high], [y - 0.13] * 2, color=colour(number), linewidth=2)
        axes.plot(mean.mean, y - 0.13, "D", color=colour(number), markersize=4.5)
    axes.set_yticks(range(len(colours)), [in_two_lines(variant) for variant in colours])
    axes.set_ylim(len(colours) - 0.5, -0.5)
    axes.grid(axis="x", color=MUTED, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines["left"].set_visible(False)
    if column.baseline is not None:
        low, high = axes.get_xlim()
        if low - FAR * (high - low) <= column.baseline <= high + FAR * (high - low):
            axes.axvline(column.baseline, color=INK, linestyle=(0, (4, 3)), linewidth=1)
    axes.locator_params(axis="x", nbins=5)
    axes.ticklabel_format(axis="x", useOffset=False)


def _draw_law(axes, law: FittedLaw) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    assert law.fit is not None
    tokens = [point.run.text_tokens for point in law.points]
    x = np.geomspace(min(tokens), max(tokens), GRID)
    for number, size in enumerate(sizes_of(law)):
        points = [point for point in law.points if point.run.parameters == size]
        axes.plot(
            [p.run.flops for p in points],
            [p.loss for p in points],
            "o",
            color=colour(number),
            markersize=4,
            alpha=0.65,
            markeredgewidth=0,
        )
        flops = x * points[0].run.flops_per_token
        style = dict(color=colour(number), linestyle=dashes(number), linewidth=1.4)
        axes.plot(flops, law.fit.law.loss(size, x), **style)
    axes.set(xlabel="FLOPs", xscale="log", yscale="log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.0e}".replace("e+", "e")))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    low, high = axes.get_ylim()
    steps = (0.1, 0.2, 0.5, 1.0, 2.0)
    step = next((s for s in steps if (high - low) / s <= 6), steps[-1])
    axes.set_yticks(np.arange(math.ceil(low / step), high / step) * step)
    axes.yaxis.set_minor_formatter(NullFormatter())


def sizes_of(law: FittedLaw) -> list[int]:
    """Returns the parameters of the models that a law is fitted to, ascending."""
    return sorted({point.run.parameters for point in law.points})


def in_two_lines(name: str) -> str:
    """
    >>> in_two_lines("static masks, 80/10/10, of spans of words")
    'static masks,\\n80/10/10, of…'
    """
    return textwrap.fill(name, NAME, max_lines=2, placeholder="…")
