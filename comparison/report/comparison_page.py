"""The report of a comparison as one self-contained page with charts."""

from collections.abc import Collection, Iterable
from html import escape
from urllib.parse import quote

from markdown_it import MarkdownIt

from ...visualization.html import card, document, folded, soft
from ...visualization.html import chart as figure
from ..results import RESULTS, RUNS
from . import wording
from .charts import (
    Chart,
    Links,
    column_charts,
    eval_metric_curve_charts,
    law_charts,
    learning_charts,
)
from .eval_metric_curves import AXES
from .markdown_report import EVAL_METRICS, Section, runs_section, sections
from .markdown_text import escaped
from .summary import Summary

STYLE = """
.grid { display:grid; grid-template-columns:repeat(auto-fill, minmax(min(100%, 22rem), 1fr));
  gap:1rem; margin:1rem 0 }
.grid figure { background:var(--card); border:1px solid var(--line); border-radius:10px;
  padding:.8rem 1rem; min-width:0 }
.switch > input { margin:0 .35rem 0 .8rem; accent-color:var(--first) }
@media screen { .grid [class^="over"] { display:none } }
#over0:checked ~ .grid .over0, #over1:checked ~ .grid .over1, #over2:checked ~ .grid .over2 {
  display:block }
th:first-child, td:first-child { text-align:left }
td strong { color:var(--first) }
"""
_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")


def page(summary: Summary, linked: Collection[str] = ()) -> str:
    """Returns the page as HTML, with links to these runs (`TrainedRun.run`) next to it."""
    next_to_it = [run for run in summary.runs if run.run in linked]
    links = {(run.variant, run.seed): quote(run.run) + "/" for run in next_to_it}
    charts = {
        EVAL_METRICS: _eval_metrics(summary, links),
        wording.CURVES_TITLE: _eval_metric_curves(summary),
        **{f"Scaling {chart.name}": _grid([_figure(chart)]) for chart in law_charts(summary)},
    }
    body = (
        card(_html(" ".join(map(escaped, wording.findings(summary)))))
        + "".join(
            _section(section, charts.get(section.title, "")) for section in sections(summary, links)
        )
        + _learning_curves(summary)
        + _section(runs_section(summary, links))
    )
    made_by = f"<code>pretrax compare</code> from <code>{RESULTS}</code> and <code>{RUNS}</code>."
    above = [wording.setup_sentence(summary), *wording.tuning(summary)]
    return document(summary.setup.question, above, body, made_by, STYLE)


def _section(section: Section, charts: str = "") -> str:
    if section.is_folded:
        return folded(escape(section.title), _html(section.text) + charts + _html(section.rest))
    text, rest = (
        card(_html(markdown)) if markdown else "" for markdown in (section.text, section.rest)
    )
    return f"<h2>{escape(section.title)}</h2>\n{text}{charts}{rest}"


def _html(text: str) -> str:
    """Returns Markdown as HTML, with tables that scroll if they are too wide."""
    html = _MARKDOWN.render(text)
    html = html.replace("<table>", '<div class="scroll"><table>')
    return html.replace("</table>", "</table></div>")


def _figure(chart: Chart) -> str:
    return figure(escape(chart.title), chart.on_page)


def _grid(figures: Iterable[str]) -> str:
    return f'<div class="grid">{"".join(figures)}</div>\n'


def _eval_metrics(summary: Summary, links: Links) -> str:
    explained = soft(
        "Each dot is a seed. It links to its run if the run directory is next to this page. ◆ is "
        "the mean with its interval. A dashed line shows the baseline, if it is near."
    )
    return explained + _grid(map(_figure, column_charts(summary, links)))


def _eval_metric_curves(summary: Summary) -> str:
    """Returns the curves of each eval metric, with a switch between `AXES`."""
    switch = "".join(
        f'<input type="radio" name="over" id="over{k}"{" checked" * (k == 0)}>'
        f'<label for="over{k}">{over}</label>'
        for k, over in enumerate(AXES)
    )
    figures = (
        f'<div class="over{[*AXES].index(over)}">{_figure(chart)}</div>'
        for over, chart in eval_metric_curve_charts(summary)
    )
    return f'<div class="switch">over {switch}\n{_grid(figures)}</div>\n'


def _learning_curves(summary: Summary) -> str:
    explained = soft(
        "Each line shows the mean over seeds, and the band shows their range. Losses of different "
        "objectives cannot be compared; the eval metrics can."
    )
    figures = [_figure(chart) for chart in learning_charts(summary)]
    return f"<h2>Learning curves</h2>\n{explained}{_grid(figures)}" if figures else ""
