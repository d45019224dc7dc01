"""The report of a comparison as Markdown, for a page of documentation or an appendix.

Everything that comes from results, such as a variant's name or an error's message, is escaped. The
page of a report (`comparison_page`) shows the same sections, with charts.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import quote

from ...settings.printable import printable
from ..formatting import MISSING, amount, number
from . import equality, tables, wording
from .charts import Links
from .markdown_text import code, escaped, prose
from .summary import Summary
from .tables import Table

NO_LINKS: Links = MappingProxyType({})

MANY = 24  # a page folds the table if there are more differences
EVAL_METRICS = "Eval metrics"
CHARTS = (
    "Each dot is a seed. ◆ is the mean of a variant with its 95% confidence interval. A dashed "
    "line shows the baseline, if it is near."
)


class Section(NamedTuple):
    """A part of a report. Its charts go between its two texts, which are Markdown."""

    title: str
    text: str
    rest: str = ""
    is_folded: bool = False  # whether a page shows only the title until a reader opens it


def markdown(summary: Summary, charts: Sequence[str] = (), curves: Sequence[str] = ()) -> str:
    """Returns the report. The best means, and the differences that hold, are bold.

    Args:
      charts: files next to the report, which are shown below the first table.
      curves: files of the eval metrics over training.
    """
    images = {
        EVAL_METRICS: _joined(_images(charts), CHARTS) if charts else "",
        wording.CURVES_TITLE: _images(curves),
    }
    text = _joined(
        f"# {escaped(summary.setup.question)}",
        escaped(wording.setting(summary)),
        escaped(" ".join(wording.tuning(summary))),
        items(wording.in_short(summary)),
        *(
            _joined(f"## {escaped(one.title)}", one.text, images.get(one.title, ""), one.rest)
            for one in sections(summary)
        ),
    )
    return printable(text).rstrip() + "\n"


def sections(summary: Summary, links: Links = NO_LINKS) -> list[Section]:
    """Returns the sections below the findings, without those that would be empty."""
    heads = [f"{c.name} ({wording.about_column(c)})" for c in summary.columns]
    means = _table(tables.eval_metrics(summary, heads)) if summary.columns else ""
    every = [Section(EVAL_METRICS, means, items(wording.notes(summary)))]
    if summary.curves:
        best = items(wording.best_at_equal(summary))
        numbers = _table(tables.eval_metric_curves(summary))
        every.append(Section(wording.CURVES_TITLE, best, _joined(wording.CURVES, numbers)))
    for law in summary.laws:
        if law.fit is not None:
            fitted = _joined(_table(tables.law_table(law)), wording.LAW)
            every.append(Section(f"Scaling law of {law.figure}", "", fitted))
    every.append(Section("Missing figures", items(wording.refused(summary))))
    if summary.differences:
        tested = _joined(_table(tables.differences(summary.differences)), wording.reading(summary))
        can_be_tested = any(math.isfinite(d.p) for d in summary.differences)
        is_folded = len(summary.differences) > MANY or not can_be_tested
        every.append(Section("Differences", tested, is_folded=is_folded))
    changes = [
        f"- {escaped(variant)}: {', '.join(map(code, lines)) or 'the base run'}"
        for variant, lines in summary.setup.variants.items()
    ]
    took = _joined(escaped(equality.equal(summary)), _table(tables.cost_table(summary)))
    every.append(Section("Costs", took, "\n".join(changes)))
    if summary.tuned:
        tried = _joined(_table(tables.tuning_trials(summary)), wording.TRIALS)
        every.append(Section(wording.TRIALS_TITLE, tried))
    every.append(Section("Limits", prose(wording.limits(summary))))
    failed = "\n".join(
        f"- {_linked(f'{run.variant}, seed {run.seed}', links.get((run.variant, run.seed)))}: "
        f"{escaped(wording.last_line(run.error))}"
        for run in summary.failed
    )
    every.append(Section("Failed runs", failed))
    if summary.parts:
        plain = tables.parts(summary)._replace(strong=())
        parts = _joined(wording.PARTS, _table(plain))
        every.append(Section(wording.PARTS_TITLE, parts, is_folded=True))
    return [one for one in every if one.text or one.rest]


def runs_section(summary: Summary, links: Links) -> Section:
    """Returns the figures of every run. A page of documentation leaves this long section out."""
    rows = []
    urls = {}
    for i, run in enumerate(summary.trained):
        values = [c.values[run.variant].get(run.seed) for c in summary.columns]
        words = [MISSING if x is None else number(x, None) for x in values]
        rows.append([run.variant, str(run.seed), amount(run.seconds), *words])
        urls[i] = links.get((run.variant, run.seed))
    heads = ["run", "seed", "seconds", *(c.name for c in summary.columns)]
    return Section("All runs", _table(Table(heads, rows), urls), is_folded=True)


def items(texts: Iterable[str]) -> str:
    return "\n".join(f"- {escaped(text)}" for text in texts)


def _joined(*blocks: str) -> str:
    return "\n\n".join(filter(None, blocks))


def _images(files: Sequence[str]) -> str:
    return "\n".join(f"![{escaped(Path(file).stem)}]({quote(file)})" for file in files)


def _linked(text: str, url: str | None) -> str:
    return f"[{escaped(text)}]({url})" if url else escaped(text)


def _table(table: Table, urls: Mapping[int, str | None] = MappingProxyType({})) -> str:
    """Returns a table in which the first cell of a row links to the row's URL, if it has one."""
    heads = map(escaped, table.heads)
    dashes = ["---", *["---:"] * (len(table.heads) - 1)]
    rows = [
        [
            f"**{escaped(text)}**"
            if (i, j) in table.strong
            else _linked(text, None if j else urls.get(i))
            for j, text in enumerate(row)
        ]
        for i, row in enumerate(table.rows)
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in (heads, dashes, *rows))
