"""The report of a comparison as one self-contained page."""

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from urllib.parse import quote

from ...showing.html import document
from ...showing.svg import SERIES
from ..figures import NATS
from ..formatting import amount, number
from ..results import RESULTS, RUNS, TrainedRun
from ..scaling.laws_of_comparisons import FittedLaw
from ..statistics import Difference
from . import equality, wording
from .charts import chart_of_column, chart_of_curves, chart_of_law, dashes, sizes_of
from .summary import Column, Summary
from .wording import about_column, cell

Links = Mapping[tuple[str, int], str]  # of a run's variant and seed: its folder, from the page

MANY = 24  # differences, of which those that do not hold are folded away; so are all of one seed
DASHES = {"-": "none", "--": "6 3", ":": "2 3"}  # of lines, as SVG has them
STYLE = """
.scroll { overflow-x:auto; background:  /* a shadow at the side where there is more */
  linear-gradient(to right, var(--card) 40%, transparent) 0 0 / 3rem 100% no-repeat local,
  linear-gradient(to left, var(--card) 40%, transparent) 100% 0 / 3rem 100% no-repeat local,
  linear-gradient(to right, var(--line), transparent) 0 0 / .9rem 100% no-repeat scroll,
  linear-gradient(to left, var(--line), transparent) 100% 0 / .9rem 100% no-repeat scroll }
.grid { display:grid; grid-template-columns:repeat(auto-fill, minmax(min(100%, 22rem), 1fr));
  gap:1rem; margin:1rem 0 }
.grid figure { background:var(--card); border:1px solid var(--line); border-radius:10px;
  padding:.8rem 1rem; min-width:0 }
figure h3 { margin:0 0 .2rem; overflow-wrap:anywhere }
.legend svg { width:1.7em; height:.7em; margin-right:.35em; vertical-align:baseline }
.legend span { overflow-wrap:anywhere }
th small { display:inline-block; max-width:8.5rem; white-space:normal }
td b { color:var(--first) } td small { color:var(--soft) }
th, td { vertical-align:top; white-space:nowrap; text-align:right }
td.left, th.left { text-align:left }
th:first-child, td:first-child { white-space:normal; min-width:4.5rem; overflow-wrap:anywhere }
td code { white-space:normal; overflow-wrap:anywhere }
tbody tr:last-child td { border-bottom:0 }
ul { margin:.4rem 0; padding-left:1.2rem } li { margin:.25rem 0; overflow-wrap:anywhere }
td b.wins { color:var(--v2) } td b.loses { color:var(--v1) }
pre { white-space:pre-wrap; overflow-wrap:anywhere; font-size:12px; color:var(--soft); margin:.2rem 0 }
details.card { padding-bottom:.7rem }
@media (max-width:30rem) { main { padding:1.4rem .8rem 3rem } h1 { font-size:1.45rem }
  .card { padding-left:.8rem; padding-right:.8rem } th, td { padding:.2rem .35rem } }
"""


def page(summary: Summary, linked: Iterable[str] = ()) -> str:
    """Returns the page as HTML; names, words and paths are escaped.

    Args:
      linked: the runs whose folders lie beside the page, as `TrainedRun.run` names them.
    """
    asked, beside = summary.asked, set(linked)
    links = {
        (run.variant, run.seed): quote(run.run) + "/" for run in summary.runs if run.run in beside
    }
    colours = {variant: number for number, variant in enumerate(asked.variants)}
    body = (
        f"<h1>{escape(asked.question)}</h1>\n"
        + f'<p class="soft">{escape(wording.setting(summary))}</p>\n'
        + _in_short(summary)
        + "".join(_law(law) for law in summary.laws if law.fit is not None)
        + _yardsticks(summary, colours, links)
        + _refused(summary)
        + _differences(summary)
        + _curves(summary, colours)
        + _costs(summary)
        + _limits(summary)
        + _failures(summary.failed, links)
        + _parts(summary)
        + _runs(summary, links)
        + f"<footer>Made by <code>pretrax compare</code> from <code>{RESULTS}</code> and "
        + f"<code>{RUNS}</code>.</footer>\n"
    )
    return document(asked.question, STYLE, body)


def table(heads: Sequence[str], lines: Sequence[Sequence[str]], left: Iterable[int] = (0,)) -> str:
    """Returns a table of cells that are HTML; `left`: the columns that are wording."""
    sides = ['class="left"' if k in set(left) else "" for k in range(len(heads))]

    def row(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag} {s}>{c}</{tag}>" for s, c in zip(sides, cells)) + "</tr>\n"

    body = "".join(row(line, "td") for line in lines)
    head = row(heads, "th")
    return f'<div class="scroll"><table><thead>{head}</thead><tbody>{body}</tbody></table></div>\n'


def _in_short(summary: Summary) -> str:
    lines = "".join(f"<li>{escape(line)}</li>\n" for line in wording.in_short(summary))
    return f'<section class="card"><h3>In short</h3>\n<ul>{lines}</ul></section>\n'


def _yardsticks(summary: Summary, colours: Mapping[str, int], links: Links) -> str:
    if not summary.columns:
        return ""
    charts = "".join(
        f"<figure><h3>{escape(column.name)} <small>{escape(about_column(column))}</small></h3>"
        f'<div class="chart">{chart_of_column(column, colours, links)}</div></figure>\n'
        for column in summary.columns
    )
    notes = "".join(f"<li>{escape(line)}</li>\n" for line in wording.notes(summary))
    return (
        "<h2>Yardsticks</h2>\n"
        + f'<div class="card">{_table_of_columns(summary)}</div>\n'
        + (f'<ul class="soft">{notes}</ul>\n' if notes else "")
        + '<p class="soft">Mean over seeds ± half of its 95% interval; the best mean is bold. Below: '
        + "every seed a dot, which links to its run where that lies beside this page; ◆ the mean with "
        + "its interval; dashed: the baseline, where it is near.</p>\n"
        + f'<div class="grid">{charts}</div>\n'
    )


def _table_of_columns(summary: Summary) -> str:
    columns = summary.columns
    heads = ["", *(f"{escape(c.name)}<br><small>{escape(c.unit)}</small>" for c in columns)]
    lines = [
        [escape(variant), *(_cell(column, variant) for column in columns)]
        for variant in summary.asked.variants
    ]
    soft = [f'<span class="soft">{x}</span>' for x in wording.baselines(columns)]
    lines += [[f'<span class="soft">{wording.BASELINE}</span>', *soft]] if soft else []
    return table(heads, lines)


def _cell(column: Column, variant: str) -> str:
    text = cell(column, variant)
    return f"<b>{text}</b>" if variant == column.best else text


def _refused(summary: Summary) -> str:
    items = "".join(f"<li>{escape(line)}</li>\n" for line in wording.refused(summary))
    title = "<h2>What could not be measured</h2>\n"
    return f'{title}<div class="card"><ul>{items}</ul></div>\n' if items else ""


def _differences(summary: Summary) -> str:
    if not summary.differences:
        return ""
    body = _table_of_differences(summary, summary.differences)
    tested = any(math.isfinite(d.p) for d in summary.differences)
    if len(summary.differences) > MANY or not tested:
        found = [d for d in summary.differences if d.holds]
        few = _table_of_differences(summary, found) if found else ""
        everything = f"All {len(summary.differences)} differences"
        body = f"{few}<details><summary>{everything}</summary>\n{body}</details>\n"
    return (
        "<h2>Differences by seed</h2>\n"
        + f'<div class="card">{body}</div>\n'
        + f'<p class="soft">{escape(wording.READING)}</p>\n'
    )


def _table_of_differences(summary: Summary, some: Sequence[Difference]) -> str:
    lines = []
    for d in some:
        one = wording.told(d)
        side = "wins" if summary.gain(d) > 0 else "loses"
        lines.append(
            [
                f"{escape(one.variants)}<br><small>{escape(d.figure)}</small>",
                one.size,
                f'<b class="{side}">{one.holds}</b>' if d.holds else one.holds,
                one.interval,
                one.p,
                one.needed,
            ]
        )
    heads = ["", "difference", "", "95% interval", "p, corrected", "seeds needed"]
    return table(heads, lines, left=(0, 2))


def _curves(summary: Summary, colours: Mapping[str, int]) -> str:
    names = dict.fromkeys(name for run in summary.trained for name in run.curves)
    charts = []
    for name in names:
        some = {
            variant: [
                r.curves[name] for r in summary.trained if r.variant == variant and name in r.curves
            ]
            for variant in colours
        }
        some = {variant: curves for variant, curves in some.items() if curves}
        svg = chart_of_curves(some, colours)
        charts.append(
            f"<figure><h3>{escape(wording.about_curve(name))}</h3>"
            f'<div class="chart">{svg}</div></figure>\n'
        )
    if not charts:
        return ""
    return (
        "<h2>Learning curves</h2>\n"
        + '<p class="soft">Means over seeds, and their range. Losses of different objectives are not of '
        + "one kind: what compares them are the yardsticks.</p>\n"
        + f'{_legend(colours)}\n<div class="grid">{"".join(charts)}</div>\n'
    )


def _legend(names: Iterable[str]) -> str:
    items = "".join(
        f'<span><svg viewBox="0 0 24 8"><path d="M0 4H24" stroke="var(--v{k % len(SERIES)})" '
        f'stroke-width="3" stroke-dasharray="{DASHES[dashes(k)]}"/></svg>{escape(name)}</span>'
        for k, name in enumerate(names)
    )
    return f'<div class="legend">{items}</div>'


def _law(law: FittedLaw) -> str:
    heads, lines = wording.law_table(law)
    sizes = [f"{amount(size)} parameters" for size in sizes_of(law)]
    return (
        f"<h2>The law of {escape(law.figure)}</h2>\n"
        + f'<div class="grid"><figure><h3>loss, {NATS}, over compute '
        + "<small>a dot for each run, a line for what the law says of its size</small></h3>"
        + f'<div class="chart">{chart_of_law(law)}</div>{_legend(sizes)}</figure>\n'
        + f"<figure>{table(heads, lines)}</figure></div>\n"
        + f'<p class="soft">{escape(wording.LAW)}</p>\n'
    )


def _costs(summary: Summary) -> str:
    heads, lines = equality.cost_table(summary)
    cells = [[escape(cell) for cell in line] for line in lines]
    changes = [
        [escape(variant), "<br>".join(map(_code, changed)) or "the base run"]
        for variant, changed in summary.asked.variants.items()
    ]
    return (
        f"<h2>{escape(equality.title(summary))}</h2>\n"
        + f"<p>{escape(equality.equal(summary))}</p>\n"
        + f'<div class="card">{table([*map(escape, heads)], cells)}</div>\n'
        + f'<div class="card">{table(["variant", "changes"], changes, left=(0, 1))}</div>\n'
    )


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>"


def _limits(summary: Summary) -> str:
    return f"<h2>What this does not prove</h2>\n<p>{escape(wording.limits(summary))}</p>\n"


def _failures(failed: Sequence[TrainedRun], links: Links) -> str:
    if not failed:
        return ""
    items = "".join(
        f"<li>{_linked(run, f'{run.variant}, seed {run.seed}', links)}"
        f"<pre>{escape(run.error.strip())}</pre></li>\n"
        for run in failed
    )
    return f'<h2>Runs that failed</h2>\n<div class="card"><ul>{items}</ul></div>\n'


def _parts(summary: Summary) -> str:
    if not summary.parts:
        return ""
    (title, said), variants = wording.PARTS, summary.asked.variants
    lines = [[escape(c.name), *(_cell(c, variant) for variant in variants)] for c in summary.parts]
    return (
        f'<details class="card"><summary>{title}</summary>\n<p class="soft">{said}</p>\n'
        f"{table(['', *map(escape, variants)], lines)}</details>\n"
    )


def _runs(summary: Summary, links: Links) -> str:
    heads = ["run", "seed", "seconds", *(escape(c.name) for c in summary.columns)]
    lines = [
        [
            _linked(run, run.variant, links),
            str(run.seed),
            amount(run.seconds),
            *(number(c.values[run.variant].get(run.seed, math.nan), None) for c in summary.columns),
        ]
        for run in summary.trained
    ]
    return (
        '<details class="card"><summary>Every run</summary>\n'
        + table(heads, lines)
        + "</details>\n"
    )


def _linked(run: TrainedRun, text: str, links: Links) -> str:
    link = links.get((run.variant, run.seed))
    return f'<a href="{escape(link)}">{escape(text)}</a>' if link else escape(text)
