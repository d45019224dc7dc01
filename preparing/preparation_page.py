"""The report of a preparation as one self-contained page."""

from collections.abc import Sequence
from html import escape

from ..showing.html import document
from .preparation_report import PreparationReport, StepReport

STYLE = """
.tiles { display:grid; grid-template-columns:repeat(auto-fit, minmax(9rem,1fr)); gap:.7rem;
  margin:1.2rem 0 }
.tile { background:var(--card); border:1px solid var(--line); border-radius:10px; padding:.6rem .9rem }
.tile b { display:block; font-size:1.4rem; font-variant-numeric:tabular-nums }
.tile span { color:var(--soft); font-size:.85rem }
.scroll { overflow-x:auto }
td.words, th.words { text-align:left; min-width:11rem } td { vertical-align:top }
.share { min-width:5rem; height:.55rem; margin-top:.45rem; background:var(--chip); border-radius:4px;
  overflow:hidden } .share i { display:block; height:100%; background:var(--first) }
details.card { padding-bottom:.6rem }
pre { white-space:pre-wrap; overflow-wrap:anywhere; font:12px/1.5 ui-monospace, Menlo,
  "DejaVu Sans Mono", monospace; background:var(--chip); border-radius:6px; padding:.6rem .8rem;
  max-height:16rem; overflow-y:auto; margin:.3rem 0 .9rem }
pre + p, h3 + p { overflow-wrap:anywhere }
@media (max-width:30rem) { main { padding:1.4rem .8rem 3rem } .card { padding-left:.8rem;
  padding-right:.8rem } }
"""


def page(report: PreparationReport) -> str:
    """Returns the page as HTML; names, rules and texts are escaped."""
    records = report.steps[0].taken
    title = f"{report.documents:,} documents of {records:,}"
    body = (
        f"<h1>{title}</h1>\n"
        + f'<p class="soft">{escape(report.source)}</p>\n'
        + _tiles(report)
        + "<h2>Steps</h2>\n"
        + _table(report.steps)
        + _examples(report.steps)
        + _settings(report)
        + "<footer>Made by <code>pretrax prepare</code>.</footer>\n"
    )
    return document(title, STYLE, body)


def _tiles(report: PreparationReport) -> str:
    tiles = [
        (f"{report.steps[0].taken:,}", "records read"),
        (f"{report.documents:,}", "documents kept"),
        *([(f"{report.tokens:,}", "tokens")] if report.tokens else []),
    ]
    cells = "".join(f'<div class="tile"><b>{a}</b><span>{b}</span></div>' for a, b in tiles)
    return f'<div class="tiles">{cells}</div>\n'


def _table(steps: Sequence[StepReport]) -> str:
    most = max(steps[0].taken, 1)
    lines = "".join(
        f"<tr><td>{escape(s.name)}</td><td>{s.taken:,}</td><td>{s.given:,}</td>"
        f'<td><div class="share"><i style="width:{100 * s.given / most:.2f}%"></i></div></td>'
        f'<td class="words">{_rules(s)}</td></tr>\n'
        for s in steps
    )
    head = '<tr><th></th><th>in</th><th>out</th><th>left of all</th><th class="words">dropped, by rule</th></tr>'
    return f'<div class="card scroll"><table><thead>{head}</thead><tbody>{lines}</tbody></table></div>\n'


def _rules(step: StepReport) -> str:
    rules = [f"{escape(rule)} <b>{number:,}</b>" for rule, number in step.dropped.items()]
    if step.changed is not None:
        rules.append(f'<span class="soft">{step.changed:,} changed</span>')
    return "<br>".join(rules)


def _examples(steps: Sequence[StepReport]) -> str:
    cards = "".join(
        f'<details class="card"><summary>{escape(step.name)}</summary>\n'
        + "".join(
            f"<h3>{escape(rule)} <small>{step.dropped.get(rule, 0):,} dropped</small></h3>\n"
            + "".join(
                f'<p class="soft">{escape(one["id"])}</p>\n<pre>{escape(one["text"])}</pre>\n'
                for one in some
            )
            for rule, some in sorted(step.examples.items())
        )
        + "</details>\n"
        for step in steps
        if step.examples
    )
    if not cards:
        return ""
    about = '<p class="soft">The first documents that each rule dropped, from their start.</p>\n'
    return f"<h2>What was dropped</h2>\n{about}{cards}"


def _settings(report: PreparationReport) -> str:
    lines = "\n".join(f"{name} = {value}" for name, value in report.settings.items())
    return (
        f'<details class="card"><summary>Settings</summary>\n<pre>{escape(lines)}</pre></details>\n'
    )
