"""Charts of a comparison: learning curves, and figures and curves of eval metrics."""

import functools
import itertools
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...settings.printable import printable
from ...visualization.svg import INK, MUTED, SERIES, drawn, standalone
from ..figures import NATS
from ..formatting import amount
from ..results import Curve
from ..scaling.laws_of_comparisons import FittedLaw
from . import wording
from .eval_metric_curves import AXES, Curves
from .summary import Column, Summary

GRID = 200  # number of points of a mean curve
BEGINNING = 0.08  # share of training whose high losses may be cut off
FAR = 1.5  # baselines farther away than this multiple of the figures' range are not drawn
NAME = 18  # number of letters in a line of a variant's name
MAX_NAME_LETTERS = 60  # number of letters of a name in a legend
# Width of a chart in inches. Two charts fit side by side on a desktop, and one fits on a phone.
WIDTH = 4.4
BASELINE: Any = dict(color=INK, linestyle=(0, (4, 3)), linewidth=1)
TITLE = 46  # number of letters in a line of a chart's title, next to the names of variants
# Sizes in inches.
LAW_HEIGHT = CURVES_HEIGHT = 3.0
LEARNING_HEIGHT = 2.6
LEGEND_LINE = 0.17
FILE_AXES = ("text tokens", "FLOPs")  # horizontal axes of chart files; a page has all axes

Links = Mapping[tuple[str, int], str]  # variant and seed of a run -> URL of its folder


class Chart(NamedTuple):
    name: str
    title: str
    height: float  # inches
    draw: Callable[[Any], None]

    @property
    def on_page(self) -> str:
        """The SVG in the colors of the page around it, without the title."""
        return drawn([self.draw], WIDTH, self.height)


def chart_files(summary: Summary) -> dict[str, str]:
    """Returns the SVG charts of each law and each eval metric, by file name."""
    return _files((*law_charts(summary), *column_charts(summary)))


def curve_files(summary: Summary) -> dict[str, str]:
    """Returns the SVG curves of each eval metric over text tokens and over FLOPs, by file name."""
    return _files(chart for over, chart in eval_metric_curve_charts(summary) if over in FILE_AXES)


def _files(charts: Iterable[Chart]) -> dict[str, str]:
    return {re.sub(r"\W+", "_", chart.name).strip("_") + ".svg": _file(chart) for chart in charts}


def _file(chart: Chart) -> str:
    lines = textwrap.wrap(printable(chart.title), TITLE)

    def titled(axes: Any) -> None:
        chart.draw(axes)
        axes.set_title("\n".join(lines))

    return standalone(drawn([titled], WIDTH, chart.height + 0.2 * len(lines)))


def law_charts(summary: Summary) -> list[Chart]:
    title = f"{NATS}: a dot for each run, a line of the law for each size"
    return [
        Chart(
            name=f"law of {law.figure}",
            title=f"{law.figure}, {title}",
            height=LAW_HEIGHT,
            draw=functools.partial(draw_law, law=law),
        )
        for law in summary.laws
        if law.fit is not None
    ]


def column_charts(summary: Summary, links: Links | None = None) -> list[Chart]:
    """Returns the chart of each eval metric; dots link to the runs that have a link."""
    height = 0.5 + 0.4 * len(summary.setup.variants)
    draw = functools.partial(draw_column, colors=numbers_of(summary), links=links or {})
    charts = []
    for column in summary.columns:
        colon = ":" if wording.unit_label(column) else ","
        title = f"{column.name}{colon} {wording.about_column(column)}"
        charts.append(Chart(column.name, title, height, functools.partial(draw, column=column)))
    return charts


def eval_metric_curve_charts(summary: Summary) -> list[tuple[str, Chart]]:
    """Returns pairs (axis, chart) of the curves of each eval metric over each axis of `AXES`."""
    draw = functools.partial(draw_eval_metric_curves, colors=numbers_of(summary))
    charts = []
    with_curves = [column for column in summary.columns if column.name in summary.curves]
    for column, over in itertools.product(with_curves, AXES):
        curves = summary.curves[column.name]
        drawn_over = functools.partial(draw, curves=curves, over=over, baseline=column.baseline)
        title = f"{column.name} over training: {wording.about_column(column)}"
        height = CURVES_HEIGHT + LEGEND_LINE * len(curves)
        charts.append((over, Chart(f"{column.name} over {over}", title, height, drawn_over)))
    return charts


def learning_charts(summary: Summary) -> list[Chart]:
    by_name: dict[str, dict[str, list[Curve]]] = {}
    for run in summary.trained:
        for name, curve in run.curves.items():
            by_name.setdefault(name, {}).setdefault(run.variant, []).append(curve)
    draw = functools.partial(draw_curves, colors=numbers_of(summary))
    return [
        Chart(
            name=name,
            title=wording.about_curve(name),
            height=LEARNING_HEIGHT + LEGEND_LINE * len(curves),
            draw=functools.partial(draw, curves=curves),
        )
        for name, curves in by_name.items()
    ]


def numbers_of(summary: Summary) -> dict[str, int]:
    """Returns the number of each variant's color."""
    return {variant: number for number, variant in enumerate(summary.setup.variants)}


def shown(name: str) -> str:
    r"""Returns a variant's name for charts: on one line, without control characters.

    >>> shown("a\x07\nb")
    'a␇ b'
    """
    name = " ".join(printable(name).split())
    # matplotlib leaves names that begin with an underscore out of legends.
    return f"\N{ZERO WIDTH SPACE}{name}" if name.startswith("_") else name


def _color(number: int) -> str:
    return SERIES[number % len(SERIES)]


def _line(number: int) -> dict[str, Any]:
    """Returns the line style of a series. Dashes distinguish series that share a color."""
    dashes = ("-", "--", ":")[number // 4 % 3]
    return dict(color=_color(number), linestyle=dashes, linewidth=1.4)


def _name_lines_below(axes: Any) -> None:
    below = dict(loc="upper left", bbox_to_anchor=(0, -0.2), borderaxespad=0)
    axes.legend(frameon=False, fontsize="small", **below)


def _in_legend(variant: str) -> str:
    return textwrap.shorten(shown(variant), MAX_NAME_LETTERS, placeholder="…")


def draw_curves(
    axes: Any, curves: Mapping[str, Sequence[Curve]], colors: Mapping[str, int]
) -> None:
    from matplotlib.ticker import EngFormatter

    tops = []
    for variant, seed_curves in curves.items():
        # The mean covers the common range of all seeds.
        first = max(c[0][0] for c in seed_curves)
        last = min(c[-1][0] for c in seed_curves)
        x = np.linspace(first, last, GRID)
        y = np.stack([np.interp(x, *np.array(curve).T) for curve in seed_curves])
        axes.plot(x, y.mean(0), label=_in_legend(variant), **_line(colors[variant]))
        if len(seed_curves) > 1:
            color = _color(colors[variant])
            axes.fill_between(x, y.min(0), y.max(0), color=color, alpha=0.2, linewidth=0)
        tops.append(y[:, x > BEGINNING * last].max())
    (low, _), top = axes.get_ylim(), max(tops)
    axes.set(xlabel="text tokens read", ylim=(low, top + 0.05 * (top - low)))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    _name_lines_below(axes)


def draw_column(axes: Any, column: Column, colors: Mapping[str, int], links: Links) -> None:
    """Draws a row for each variant, with the figure of every seed and their mean and interval.

    The dot of a seed links to its run. The baseline is a dashed line.
    """
    for y, (variant, number) in enumerate(colors.items()):
        seeds = column.values[variant]
        color = _color(number)
        if not seeds:
            continue
        x = list(seeds.values())
        heights = [y + 0.17] * len(seeds)
        dots = axes.scatter(x, heights, s=13, color=color, alpha=0.65, linewidths=0)
        dots.set_urls([links.get((variant, seed)) for seed in seeds])
        mean = column.estimates[variant]
        if math.isfinite(mean.low):
            axes.plot([mean.low, mean.high], [y - 0.13] * 2, color=color, linewidth=2)
        axes.plot(mean.mean, y - 0.13, "D", color=color, markersize=4.5)
    names = [textwrap.fill(shown(name), NAME, max_lines=2, placeholder="…") for name in colors]
    axes.set_yticks(range(len(colors)), names)
    axes.set_ylim(len(colors) - 0.5, -0.5)
    axes.grid(axis="x", color=MUTED, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines["left"].set_visible(False)
    if _is_near(column.baseline, axes.get_xlim()):
        axes.axvline(column.baseline, **BASELINE)
    axes.locator_params(axis="x", nbins=5)
    axes.ticklabel_format(axis="x", useOffset=False)


def draw_eval_metric_curves(
    axes: Any, curves: Curves, colors: Mapping[str, int], over: str, baseline: float | None
) -> None:
    """Draws the mean and the range of each variant's seeds over a cost, a key of `AXES`."""
    from matplotlib.ticker import FuncFormatter

    for variant, checkpoints in curves.items():
        x = [getattr(checkpoint.cost, AXES[over]) for checkpoint in checkpoints]
        line = dict(marker="o", markersize=3, markeredgewidth=0) | _line(colors[variant])
        axes.plot(
            x, [checkpoint.mean for checkpoint in checkpoints], label=_in_legend(variant), **line
        )
        low, high = ([end(c.values) for c in checkpoints] for end in (min, max))
        axes.fill_between(x, low, high, color=line["color"], alpha=0.2, linewidth=0)
    if _is_near(baseline, axes.get_ylim()):
        axes.axhline(baseline, **BASELINE)
    axes.set_xlabel(over)
    axes.set_xlim(left=0)  # so that the costs of variants can be compared by length
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: amount(x)))
    axes.locator_params(axis="x", nbins=5)
    axes.ticklabel_format(axis="y", useOffset=False)
    _name_lines_below(axes)


def _is_near(baseline: float | None, limits: tuple[float, float]) -> bool:
    low, high = limits
    reach = FAR * (high - low)
    return baseline is not None and low - reach <= baseline <= high + reach


def draw_law(axes: Any, law: FittedLaw) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    assert law.fit is not None
    tokens = [point.run.text_tokens for point in law.points]
    x = np.geomspace(min(tokens), max(tokens), GRID)
    for number, size in enumerate(sorted({point.run.parameters for point in law.points})):
        points = [point for point in law.points if point.run.parameters == size]
        flops = [p.run.flops for p in points]
        losses = [p.loss for p in points]
        dots = dict(color=_color(number), markersize=4, alpha=0.65, markeredgewidth=0)
        axes.plot(flops, losses, "o", **dots)
        name = f"{amount(size)} parameters"
        line = _line(number)
        axes.plot(x * points[0].run.flops_per_token, law.fit.law.loss(size, x), label=name, **line)
    axes.set(xlabel="FLOPs", xscale="log", yscale="log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.0e}".replace("e+", "e")))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    low, high = axes.get_ylim()
    steps = (0.1, 0.2, 0.5, 1.0, 2.0)
    step = next((s for s in steps if (high - low) / s <= 6), steps[-1])
    axes.set_yticks(np.arange(math.ceil(low / step), high / step) * step)
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.legend(frameon=False, fontsize="small")
