"""The report of a preparation as one self-contained page."""

from collections.abc import Sequence
from html import escape

from ..visualization import html
from .preparation_report import PreparationReport, StepReport

STYLE = """
td.left { white-space:normal; min-width:11rem } td:first-child { min-width:7.5rem }
.share { min-width:5rem; height:.55rem; margin-top:.45rem; background:var(--chip);
  border-radius:4px; overflow:hidden }
.share i { display:block; height:100%; background:var(--first) }
pre + p, h3 + p { overflow-wrap:anywhere }
"""


def page(report: PreparationReport) -> str:
    """Returns the page as HTML. Names, rules and texts are escaped."""
    records = report.steps[0].documents_in
    title = f"{report.documents:,} documents of {records:,}"
    figures = [
        (f"{records:,}", "records read"),
        (f"{report.documents:,}", "documents kept"),
        *([(f"{report.tokens:,}", "tokens")] if report.tokens else []),
    ]
    settings = "\n".join(f"{name} = {value}" for name, value in report.settings.items())
    body = (
        html.tiles(figures)
        + "<h2>Steps</h2>\n"
        + html.card(_table(report.steps))
        + _examples(report.steps)
        + html.folded("Settings", f"<pre>{escape(settings)}</pre>")
    )
    return html.document(title, [report.source], body, "<code>pretrax prepare</code>.", STYLE)


def _table(steps: Sequence[StepReport]) -> str:
    most = max(steps[0].documents_in, 1)
    lines = [
        [
            escape(s.name),
            f"{s.documents_in:,}",
            f"{s.documents_out:,}",
            f'<div class="share"><i style="width:{100 * s.documents_out / most:.2f}%"></i></div>',
            _rules(s),
        ]
        for s in steps
    ]
    return html.table(["", "in", "out", "share left", "dropped, by rule"], lines, left=(0, 4))


def _rules(step: StepReport) -> str:
    rules = [f"{escape(rule)} <b>{number:,}</b>" for rule, number in step.dropped.items()]
    if step.changed is not None:
        rules.append(f'<span class="soft">{step.changed:,} changed</span>')
    return "<br>".join(rules)


def _examples(steps: Sequence[StepReport]) -> str:
    cards = "".join(_card(step) for step in steps if step.examples)
    about = html.soft("The beginning of the first documents that each rule dropped.")
    return f"<h2>What was dropped</h2>\n{about}{cards}" if cards else ""


def _card(step: StepReport) -> str:
    content = ""
    for rule, examples in sorted(step.examples.items()):
        dropped = f"{step.dropped.get(rule, 0):,} dropped"
        content += f"<h3>{escape(rule)} <small>{dropped}</small></h3>\n"
        for example in examples:
            content += f"{html.soft(example['id'])}<pre>{escape(example['text'])}</pre>\n"
    return html.folded(escape(step.name), content)
