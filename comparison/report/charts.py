"""Charts of a comparison: learning curves, a yardstick's figures of every seed, and its curves.

Each `draw_` function draws on an `Axes` of matplotlib; `colours` has the number of each variant's.
"""

import functools
import math
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...settings.printable import printable
from ...visualization.svg import INK, MUTED, SERIES, drawn, standalone
from ..figures import NATS
from ..formatting import amount
from ..results import Curve
from ..scaling.laws_of_comparisons import FittedLaw
from . import wording
from .summary import Column, Summary
from .yardstick_curves import OVER, Curves

GRID = 200  # points of a mean curve
BEGINNING = 0.08  # of training, whose losses may leave the chart at its top
FAR = 1.5  # a baseline further from the figures than this many times their range is not drawn
NAME = 18  # letters in a line of a variant's name
WIDTH = 4.4  # of a chart, inches: two side by side on a desk, one on a phone, both readable
LEGEND_LINE = 0.17  # inches
BASELINE: Any = dict(color=INK, linestyle=(0, (4, 3)), linewidth=1)
TITLE = 46  # letters in a line of a chart's title, beside names of variants
LAW_HEIGHT = CURVES_HEIGHT = 3.0  # inches


def chart_files(summary: Summary) -> dict[str, str]:
    """Returns {name: SVG} of the charts of a report that stand by themselves: of each law and each
    yardstick, by its name."""
    colours = numbers_of(summary)
    files = {}
    for law in summary.laws:
        if law.fit is not None:
            draw = functools.partial(_draw_named_law, law=law)
            title = f"{law.figure}, {NATS}: a dot for each run, a line for the law of its size"
            files[f"law of {law.figure}"] = _file(draw, title, LAW_HEIGHT)
    for column in summary.columns:
        draw = functools.partial(draw_column, column=column, colours=colours, links={})
        colon = ":" if wording.unit_beside(column) else ","
        title = f"{column.name}{colon} {wording.about_column(column)}"
        files[column.name] = _file(draw, title, column_height(summary))
    return {f"{_file_name(name)}.svg": svg for name, svg in files.items()}


def curve_files(summary: Summary) -> dict[str, str]:
    """Returns {name: SVG} of the curves of each yardstick over text tokens, and over FLOPs."""
    colours = numbers_of(summary)
    files = {}
    for column in summary.columns:
        for over in ("text tokens", "FLOPs") if column.name in summary.curves else ():
            draw = functools.partial(_draw_named_curves, column, summary, colours, over)
            title = f"{column.name} over training: {wording.about_column(column)}"
            height = CURVES_HEIGHT + LEGEND_LINE * len(summary.curves[column.name])
            files[f"{_file_name(column.name)}_over_{_file_name(over)}.svg"] = _file(
                draw, title, height
            )
    return files


def _file_name(name: str) -> str:
    return re.sub(r"\W+", "_", name).strip("_")


def _draw_named_curves(
    column: Column, summary: Summary, colours: Mapping[str, int], over: str, axes: Any
) -> None:
    draw_yardstick_curves(axes, summary.curves[column.name], colours, over, column.baseline)
    below = dict(loc="upper left", bbox_to_anchor=(0, -0.2), borderaxespad=0)
    axes.legend(frameon=False, fontsize="small", **below)


def numbers_of(summary: Summary) -> dict[str, int]:
    """Returns the number of each variant's colour."""
    return {variant: number for number, variant in enumerate(summary.setup.variants)}


def column_height(summary: Summary) -> float:
    """Returns the height of a yardstick's chart, in inches."""
    return 0.5 + 0.4 * len(summary.setup.variants)


def _file(draw: Callable[[Any], None], title: str, height: float) -> str:
    lines = textwrap.wrap(printable(title), TITLE)

    def titled(axes: Any) -> None:
        draw(axes)
        axes.set_title("\n".join(lines))

    return standalone(drawn([titled], WIDTH, height + 0.2 * len(lines)))


def _draw_named_law(axes: Any, law: FittedLaw) -> None:
    draw_law(axes, law)
    lines = axes.get_lines()[1::2]  # after the dots of each size
    names = [f"{amount(size)} parameters" for size in sizes_of(law)]
    axes.legend(lines, names, frameon=False, fontsize="small")


def shown(name: str) -> str:
    r"""Returns a variant's name as a chart shows it: on one line, without control characters.

    >>> shown("a\x07\nb")
    'a␇ b'
    """
    name = " ".join(printable(name).split())
    # matplotlib leaves names that begin with an underscore out of legends.
    return f"\N{ZERO WIDTH SPACE}{name}" if name.startswith("_") else name


def dashes(number: int) -> str:
    """Returns the line of a series, which beyond the first colours differs by its dashes too."""
    return ("-", "--", ":")[number // 4 % 3]


def _colour(number: int) -> str:
    return SERIES[number % len(SERIES)]


def _line(number: int) -> dict[str, Any]:
    return dict(color=_colour(number), linestyle=dashes(number), linewidth=1.4)


def draw_curves(
    axes: Any, curves: Mapping[str, Sequence[Curve]], colours: Mapping[str, int]
) -> None:
    """Draws curves over the text tokens seen: the mean of each variant's seeds, and their range."""
    from matplotlib.ticker import EngFormatter

    tops = []
    for variant, some in curves.items():
        # Seeds end at nearly the same text; the mean is of where all of them are.
        first = max(c[0][0] for c in some)
        last = min(c[-1][0] for c in some)
        x = np.linspace(first, last, GRID)
        y = np.stack([np.interp(x, *np.array(curve).T) for curve in some])
        axes.plot(x, y.mean(0), **_line(colours[variant]))
        if len(some) > 1:
            colour = _colour(colours[variant])
            axes.fill_between(x, y.min(0), y.max(0), color=colour, alpha=0.2, linewidth=0)
        tops.append(y[:, x > BEGINNING * last].max())
    (low, _), top = axes.get_ylim(), max(tops)
    axes.set(xlabel="text tokens seen", ylim=(low, top + 0.05 * (top - low)))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def draw_column(
    axes: Any, column: Column, colours: Mapping[str, int], links: Mapping[tuple[str, int], str]
) -> None:
    """Draws a line for each variant: every seed's figure, which links to its run, and their mean
    with its interval; the baseline is a dashed line across."""
    for y, (variant, number) in enumerate(colours.items()):
        seeds = column.values[variant]
        colour = _colour(number)
        if not seeds:
            continue
        x = list(seeds.values())
        heights = [y + 0.17] * len(seeds)
        dots = axes.scatter(x, heights, s=13, color=colour, alpha=0.65, linewidths=0)
        dots.set_urls([links.get((variant, seed)) for seed in seeds])
        mean = column.estimates[variant]
        if math.isfinite(mean.low):
            axes.plot([mean.low, mean.high], [y - 0.13] * 2, color=colour, linewidth=2)
        axes.plot(mean.mean, y - 0.13, "D", color=colour, markersize=4.5)
    names = [textwrap.fill(shown(name), NAME, max_lines=2, placeholder="…") for name in colours]
    axes.set_yticks(range(len(colours)), names)
    axes.set_ylim(len(colours) - 0.5, -0.5)
    axes.grid(axis="x", color=MUTED, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines["left"].set_visible(False)
    if _is_near(column.baseline, axes.get_xlim()):
        axes.axvline(column.baseline, **BASELINE)
    axes.locator_params(axis="x", nbins=5)
    axes.ticklabel_format(axis="x", useOffset=False)


def draw_yardstick_curves(
    axes: Any, curves: Curves, colours: Mapping[str, int], over: str, baseline: float | None
) -> None:
    """Draws a yardstick over one of `OVER`: the mean of each variant's seeds at each checkpoint,
    and their range; the baseline is a dashed line across."""
    from matplotlib.ticker import FuncFormatter

    for variant, checkpoints in curves.items():
        x = [getattr(checkpoint.spent, OVER[over]) for checkpoint in checkpoints]
        line = dict(marker="o", markersize=3, markeredgewidth=0) | _line(colours[variant])
        axes.plot(x, [checkpoint.mean for checkpoint in checkpoints], label=shown(variant), **line)
        low, high = ([end(c.values) for c in checkpoints] for end in (min, max))
        axes.fill_between(x, low, high, color=line["color"], alpha=0.2, linewidth=0)
    if _is_near(baseline, axes.get_ylim()):
        axes.axhline(baseline, **BASELINE)
    axes.set_xlabel(over)
    axes.set_xlim(left=0)  # so that what one takes is seen as a share of what another does
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: amount(x)))
    axes.locator_params(axis="x", nbins=5)
    axes.ticklabel_format(axis="y", useOffset=False)


def _is_near(baseline: float | None, limits: tuple[float, float]) -> bool:
    low, high = limits
    reach = FAR * (high - low)
    return baseline is not None and low - reach <= baseline <= high + reach


def draw_law(axes: Any, law: FittedLaw) -> None:
    """Draws the loss of each run over its FLOPs, and for each size what the law says of it."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    assert law.fit is not None
    tokens = [point.run.text_tokens for point in law.points]
    x = np.geomspace(min(tokens), max(tokens), GRID)
    for number, size in enumerate(sizes_of(law)):
        points = [point for point in law.points if point.run.parameters == size]
        flops = [p.run.flops for p in points]
        losses = [p.loss for p in points]
        dots = dict(color=_colour(number), markersize=4, alpha=0.65, markeredgewidth=0)
        axes.plot(flops, losses, "o", **dots)
        axes.plot(x * points[0].run.flops_per_token, law.fit.law.loss(size, x), **_line(number))
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
