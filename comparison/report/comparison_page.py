"""The report of a comparison as one self-contained page."""

import functools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from html import escape
from urllib.parse import quote

from ...visualization.html import (
    card,
    chart,
    document,
    folded,
    items,
    legend,
    soft,
    table,
    with_code,
)
from ...visualization.svg import SERIES, drawn
from ..figures import NATS
from ..formatting import amount, number
from ..results import RESULTS, RUNS, Curve, TrainedRun
from ..scaling.laws_of_comparisons import FittedLaw
from ..statistics import Difference
from . import equality, tables, wording
from .charts import (
    CURVES_HEIGHT,
    LAW_HEIGHT,
    WIDTH,
    column_height,
    dashes,
    draw_column,
    draw_curves,
    draw_law,
    draw_yardstick_curves,
    numbers_of,
    sizes_of,
)
from .summary import Summary
from .tables import Table
from .yardstick_curves import OVER

Links = Mapping[tuple[str, int], str]  # of a run's variant and seed: its folder, from the page

MANY = 24  # differences, of which those that do not hold are folded away; so are all of one seed
DASHES = {"-": "none", "--": "6 3", ":": "2 3"}  # of lines, as SVG has them
STYLE = """
.grid { display:grid; grid-template-columns:repeat(auto-fill, minmax(min(100%, 22rem), 1fr));
  gap:1rem; margin:1rem 0 }
.grid figure { background:var(--card); border:1px solid var(--line); border-radius:10px;
  padding:.8rem 1rem; min-width:0 }
.legend svg { width:1.7em; height:.7em; margin-right:.35em; vertical-align:baseline }
.switch > input { margin:0 .35rem 0 .8rem; accent-color:var(--first) }
.switch > .legend { margin-top:.6rem }
@media screen { .grid [class^="over"] { display:none } }
#over0:checked ~ .grid .over0, #over1:checked ~ .grid .over1, #over2:checked ~ .grid .over2 {
  display:block }
td b { color:var(--first) } td b.wins { color:var(--v2) } td b.loses { color:var(--v1) }
td code { white-space:normal; overflow-wrap:anywhere }
"""


def page(summary: Summary, linked: Collection[str] = ()) -> str:
    """Returns the page as HTML, with links to these runs (`TrainedRun.run`) beside it."""
    beside = [run for run in summary.runs if run.run in linked]
    links = {(run.variant, run.seed): quote(run.run) + "/" for run in beside}
    colours = numbers_of(summary)
    body = (
        card("<h3>In short</h3>\n" + items(map(escape, wording.in_short(summary))))
        + "".join(_law(law) for law in summary.laws if law.fit is not None)
        + _yardsticks(summary, colours, links)
        + _yardstick_curves(summary, colours)
        + _listed("What could not be measured", [*map(escape, wording.refused(summary))])
        + _differences(summary)
        + _curves(summary, colours)
        + _costs(summary)
        + _trials(summary)
        + f"<h2>What this does not prove</h2>\n<p>{with_code(wording.limits(summary))}</p>\n"
        + _listed("Runs that failed", [_failure(run, links) for run in summary.failed])
        + _parts(summary)
        + _runs(summary, links)
    )
    made_by = f"<code>pretrax compare</code> from <code>{RESULTS}</code> and <code>{RUNS}</code>."
    above = [wording.setting(summary), *wording.tuning(summary)]
    return document(summary.setup.question, above, body, made_by, STYLE)


def _of_text(of: Table) -> tuple[list[str], list[list[str]]]:
    """Returns the heads and the rows of a table of text as HTML."""
    rows = [
        [f"<b>{escape(x)}</b>" if (i, j) in of.strong else escape(x) for j, x in enumerate(row)]
        for i, row in enumerate(of.rows)
    ]
    return [*map(escape, of.heads)], rows


def _chart(title: str, height: float, draw: Callable, below: str = "") -> str:
    return chart(title, drawn([draw], WIDTH, height), below)


def _yardsticks(summary: Summary, colours: Mapping[str, int], links: Links) -> str:
    if not summary.columns:
        return ""
    charts = "".join(
        _chart(
            f"{escape(column.name)} <small>{escape(wording.about_column(column))}</small>",
            column_height(summary),
            functools.partial(draw_column, column=column, colours=colours, links=links),
        )
        for column in summary.columns
    )
    notes = items(map(escape, wording.notes(summary)))
    return (
        "<h2>Yardsticks</h2>\n"
        + card(_table_of_columns(summary))
        + f'<div class="soft">{notes}</div>\n'
        + soft(
            "Mean over seeds ± half of its 95% interval; the best mean is bold. Below: every seed "
            "a dot, which links to its run where that lies beside this page; ◆ the mean with its "
            "interval; dashed: the baseline, where it is near."
        )
        + f'<div class="grid">{charts}</div>\n'
    )


def _yardstick_curves(summary: Summary, colours: Mapping[str, int]) -> str:
    """Returns the curves of each yardstick, of which a switch shows those over one of `OVER`."""
    if not summary.curves:
        return ""
    switch = "".join(
        f'<input type="radio" name="over" id="over{k}"{" checked" * (k == 0)}>'
        f'<label for="over{k}">{over}</label>'
        for k, over in enumerate(OVER)
    )
    charts = []
    for column in summary.columns:
        if column.name not in summary.curves:
            continue
        draw = functools.partial(
            draw_yardstick_curves,
            curves=summary.curves[column.name],
            colours=colours,
            baseline=column.baseline,
        )
        draws = (functools.partial(draw, over=over) for over in OVER)
        drawings = "".join(
            f'<div class="over{k}">{drawn([one], WIDTH, CURVES_HEIGHT)}</div>'
            for k, one in enumerate(draws)
        )
        about = f"<small>{escape(wording.about_column(column))}</small>"
        charts.append(chart(f"{escape(column.name)} {about}", drawings))
    return (
        f"<h2>{wording.CURVES_TITLE}</h2>\n"
        + items(map(escape, wording.best_at_equal(summary)))
        + f'<div class="switch">over {switch}\n'
        + f'{_legend(colours)}<div class="grid">{"".join(charts)}</div></div>\n'
        + soft(wording.CURVES)
        + folded("The same as numbers", table(*_of_text(tables.yardstick_curves(summary))))
    )


def _table_of_columns(summary: Summary) -> str:
    columns = summary.columns
    variants = len(summary.setup.variants)
    _, rows = _of_text(tables.yardsticks(summary, [""] * len(columns)))
    heads = [
        "",
        *(f"{escape(c.name)}<br><small>{escape(wording.unit_beside(c))}</small>" for c in columns),
    ]
    baselines = [[f'<span class="soft">{x}</span>' for x in row] for row in rows[variants:]]
    return table(heads, [*rows[:variants], *baselines])


def _listed(title: str, lines: Sequence[str]) -> str:
    return f"<h2>{title}</h2>\n{card(items(lines))}" if lines else ""


def _differences(summary: Summary) -> str:
    if not summary.differences:
        return ""
    body = _table_of_differences(summary, summary.differences)
    tested = any(math.isfinite(d.p) for d in summary.differences)
    if len(summary.differences) > MANY or not tested:
        found = [d for d in summary.differences if d.holds]
        few = _table_of_differences(summary, found) if found else ""
        number_of = len(summary.differences)
        everything = "The one difference" if number_of == 1 else f"All {number_of} differences"
        body = f"{few}<details><summary>{everything}</summary>\n{body}</details>\n"
    return f"<h2>Differences by seed</h2>\n{card(body)}{soft(wording.reading(summary))}"


def _table_of_differences(summary: Summary, some: Sequence[Difference]) -> str:
    lines = []
    for d in some:
        one = wording.difference_words(d)
        names = f"{escape(one.variants)}<br><small>{escape(d.figure)}</small>"
        side = "wins" if summary.gain(d) > 0 else "loses"
        holds = f'<b class="{side}">{one.holds}</b>' if d.holds else one.holds
        lines.append([names, one.size, holds, one.interval, one.p, one.needed])
    heads = ["", "difference", "", "95% interval", "p, corrected", "seeds needed"]
    return table(heads, lines, left=(0, 2))


def _curves(summary: Summary, colours: Mapping[str, int]) -> str:
    charts = []
    for name in dict.fromkeys(name for run in summary.trained for name in run.curves):
        curves: dict[str, list[Curve]] = {}
        for run in summary.trained:
            if name in run.curves:
                curves.setdefault(run.variant, []).append(run.curves[name])
        draw = functools.partial(draw_curves, curves=curves, colours=colours)
        charts.append(_chart(escape(wording.about_curve(name)), 2.6, draw))
    if not charts:
        return ""
    return (
        "<h2>Learning curves</h2>\n"
        + soft(
            "Means over seeds, and their range. Losses of different objectives are not of one "
            "kind: what compares them are the yardsticks."
        )
        + f'{_legend(colours)}<div class="grid">{"".join(charts)}</div>\n'
    )


def _legend(names: Iterable[str]) -> str:
    return legend(
        f'<svg viewBox="0 0 24 8"><path d="M0 4H24" stroke="var(--v{k % len(SERIES)})" '
        f'stroke-width="3" stroke-dasharray="{DASHES[dashes(k)]}"/></svg>{escape(name)}'
        for k, name in enumerate(names)
    )


def _law(law: FittedLaw) -> str:
    legend_of_sizes = _legend(f"{amount(size)} parameters" for size in sizes_of(law))
    about = "<small>a dot for each run, a line for what the law says of its size</small>"
    draw = functools.partial(draw_law, law=law)
    left = _chart(f"loss, {NATS}, over compute {about}", LAW_HEIGHT, draw, legend_of_sizes)
    right = f"<figure>{table(*_of_text(tables.law_table(law)))}</figure>"
    return (
        f"<h2>The law of {escape(law.figure)}</h2>\n"
        + f'<div class="grid">{left}{right}</div>\n'
        + soft(wording.LAW)
    )


def _costs(summary: Summary) -> str:
    changes = []
    for variant, lines in summary.setup.variants.items():
        codes = "<br>".join(f"<code>{escape(line)}</code>" for line in lines)
        changes.append([escape(variant), codes or "the base run"])
    return (
        f"<h2>{escape(equality.title(summary))}</h2>\n"
        + f"<p>{escape(equality.equal(summary))}</p>\n"
        + card(table(*_of_text(tables.cost_table(summary))))
        + card(table(["variant", "changes"], changes, left=(0, 1)))
    )


def _trials(summary: Summary) -> str:
    if not summary.tuned:
        return ""
    body = card(table(*_of_text(tables.trials(summary)))) + soft(wording.TRIALS)
    return f"<h2>{wording.TRIALS_TITLE}</h2>\n{body}"


def _failure(run: TrainedRun, links: Links) -> str:
    name = _linked(run, f"{run.variant}, seed {run.seed}", links)
    return f"{name}<pre>{escape(run.error.strip())}</pre>"


def _parts(summary: Summary) -> str:
    if not summary.parts:
        return ""
    content = soft(wording.PARTS) + table(*_of_text(tables.parts(summary)))
    return folded(wording.PARTS_TITLE, content)


def _runs(summary: Summary, links: Links) -> str:
    heads = ["run", "seed", "seconds", *(escape(c.name) for c in summary.columns)]
    lines = []
    for run in summary.trained:
        values = (c.values[run.variant].get(run.seed, math.nan) for c in summary.columns)
        line = [_linked(run, run.variant, links), str(run.seed), amount(run.seconds)]
        lines.append([*line, *(number(value, None) for value in values)])
    return folded("Every run", table(heads, lines))


def _linked(run: TrainedRun, text: str, links: Links) -> str:
    link = links.get((run.variant, run.seed))
    return f'<a href="{escape(link)}">{escape(text)}</a>' if link else escape(text)
