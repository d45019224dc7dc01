"""The report of a comparison as Markdown, for a page of documentation or an appendix.

Text from results, such as a variant's name, is escaped. The page of a report (`comparison_page`)
has the same sections, with charts.
"""

import itertools
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
READING = "How to read this report"


class Section(NamedTuple):
    """A part of a report. Its charts go between its two texts, which are Markdown."""

    title: str
    text: str
    rest: str = ""
    is_folded: bool = False  # whether a page shows it folded


def markdown(
    summary: Summary, charts: Sequence[str] = (), curves: Sequence[str] = (), above: str = ""
) -> str:
    """Returns the report. The best means, and the significant differences, are bold.

    Args:
      charts: files next to the report, which are shown below the first table.
      curves: files of the eval metrics over training.
      above: Markdown below the answer, which replaces the explanations at the end.
    """
    images = {EVAL_METRICS: _images(charts), wording.CURVES_TITLE: _images(curves)}
    text = _joined(
        f"# {escaped(summary.setup.question)}",
        " ".join(map(escaped, wording.findings(summary))),
        above,
        escaped(" ".join((wording.setup_sentence(summary), *wording.tuning(summary)))),
        *(
            _section(section, images.get(section.title, ""))
            for section in sections(summary)
            if not above or section.title != READING
        ),
    )
    return printable(text).rstrip() + "\n"


def _section(section: Section, images: str) -> str:
    inside = _joined(section.text, images, section.rest)
    if not section.is_folded:
        return _joined(f"## {escaped(section.title)}", inside)
    # Both GitHub and Python-Markdown (by the attribute) read the Markdown between these tags.
    opened = f'<details markdown="1"><summary>{escaped(section.title)}</summary>'
    return _joined(opened, inside, "</details>")


def sections(summary: Summary, links: Links = NO_LINKS) -> list[Section]:
    """Returns the sections below the findings, without those that would be empty."""
    heads = [f"{c.name} ({wording.about_column(c)})" for c in summary.columns]
    means = _table(tables.eval_metrics(summary, heads)) if summary.columns else ""
    can_be_tested = any(math.isfinite(d.p) for d in summary.differences)
    failed = (
        f"- {_linked(f'{run.variant}, seed {run.seed}', links.get((run.variant, run.seed)))}: "
        f"{escaped(wording.last_line(run.error))}"
        for run in summary.failed
    )
    remarks = wording.not_informative(summary), wording.refused(summary), wording.notes(summary)
    changes = (
        f"- {escaped(variant)}: {', '.join(map(code, lines)) or 'the base run'}"
        for variant, lines in summary.setup.variants.items()
    )
    took = _joined(escaped(equality.equal_costs(summary)), _table(tables.cost_table(summary)))
    explained = wording.explanations(summary).items()
    all_sections = [
        Section(EVAL_METRICS, means),
        Section(
            "Differences",
            _table(tables.differences_table(summary.differences)),
            is_folded=len(summary.differences) > MANY or not can_be_tested,
        ),
        *(
            Section(f"Scaling law of {law.figure}", "", _table(tables.law_table(law)))
            for law in summary.laws
            if law.fit is not None
        ),
        Section("Limits", prose(wording.limits(summary))),
        Section("Failed runs", "\n".join(failed)),
        _folded("Notes and missing figures", items(itertools.chain(*remarks))),
        _folded(
            wording.CURVES_TITLE,
            items(wording.best_at_equal_cost(summary)),
            _table(tables.eval_metric_curves(summary)),
        ),
        _folded("Costs", took, "\n".join(changes)),
        _folded(wording.TRIALS_TITLE, _table(tables.tuning_trials(summary))),
        _folded(wording.PARTS_TITLE, _table(tables.parts(summary)._replace(strong=()))),
        _folded(READING, "\n\n".join(f"**{title}.** {text}" for title, text in explained)),
    ]
    return [section for section in all_sections if section.text or section.rest]


def _folded(title: str, text: str, rest: str = "") -> Section:
    return Section(title, text, rest, is_folded=True)


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
    """Returns a table, or "" without rows. The first cell of a row links to the row's URL."""
    if not table.rows:
        return ""
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
