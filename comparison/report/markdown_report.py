"""The report of a comparison as Markdown, for a page of documentation or an appendix.

Everything that comes from results, such as a variant's name or an error's message, is escaped.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import quote

from ...settings.printable import printable
from . import equality, tables, wording
from .markdown_text import code, escaped, prose
from .summary import Summary
from .tables import Table

CHARTS = (
    "Of each variant: every seed a dot, ◆ their mean with its 95% interval; dashed: the baseline, "
    "where it is near."
)


def markdown(summary: Summary, charts: Sequence[str] = (), curves: Sequence[str] = ()) -> str:
    """Returns the report; bold are the best means, and the differences that hold.

    `charts` are files beside it, which are shown below the first table, `curves` those of
    yardsticks over training.
    """
    setup = summary.setup
    lines = [f"# {escaped(setup.question)}", "", escaped(wording.setting(summary)), ""]
    lines += [escaped(" ".join(wording.tuning(summary))), ""]
    lines += [*_items(wording.in_short(summary)), ""]
    if summary.columns:
        heads = [f"{c.name} ({wording.about_column(c)})" for c in summary.columns]
        lines += ["## Yardsticks", "", *_table(tables.yardsticks(summary, heads)), ""]
    if charts:
        lines += [*_images(charts), CHARTS, ""]
    if notes := wording.notes(summary):
        lines += [*_items(notes), ""]
    if summary.curves:
        lines += [f"## {wording.CURVES_TITLE}", ""]
        lines += [*_items(wording.best_at_equal(summary)), ""]
        lines += [*_images(curves), wording.CURVES, ""]
        lines += [*_table(tables.yardstick_curves(summary)), ""]
    for law in summary.laws:
        if law.fit is not None:
            lines += [f"## The law of {escaped(law.figure)}", ""]
            lines += [*_table(tables.law_table(law)), "", wording.LAW, ""]
    if refused := wording.refused(summary):
        lines += ["## What could not be measured", "", *_items(refused), ""]
    if summary.differences:
        lines += ["## Differences by seed", "", *_table(tables.differences(summary.differences))]
        lines += ["", wording.reading(summary), ""]
    lines += [f"## {equality.title(summary)}", "", escaped(equality.equal(summary)), ""]
    lines += [*_table(tables.cost_table(summary)), ""]
    for variant, changes in setup.variants.items():
        lines.append(f"- {escaped(variant)}: {', '.join(map(code, changes)) or 'the base run'}")
    if summary.tuned:
        lines += ["", f"## {wording.TRIALS_TITLE}", "", *_table(tables.trials(summary)), ""]
        lines += [wording.TRIALS]
    lines += ["", "## What this does not prove", "", prose(wording.limits(summary)), ""]
    if summary.failed:
        lines += ["## Runs that failed", ""]
        failed = (
            f"{run.variant}, seed {run.seed}: {wording.last_line(run.error)}"
            for run in summary.failed
        )
        lines += _items(failed)
    if summary.parts:
        plain = tables.parts(summary)._replace(strong=())
        lines += ["", f"## {wording.PARTS_TITLE}", "", wording.PARTS, "", *_table(plain)]
    return printable("\n".join(lines)).rstrip() + "\n"


def _items(texts: Iterable[str]) -> list[str]:
    return [f"- {escaped(text)}" for text in texts]


def _images(files: Sequence[str]) -> list[str]:
    images = (f"![{escaped(Path(file).stem)}]({quote(file)})" for file in files)
    return [*images, ""] if files else []


def _table(table: Table) -> list[str]:
    heads = map(escaped, table.heads)
    dashes = ["---", *["---:"] * (len(table.heads) - 1)]
    rows = [
        [
            f"**{escaped(text)}**" if (i, j) in table.strong else escaped(text)
            for j, text in enumerate(row)
        ]
        for i, row in enumerate(table.rows)
    ]
    return [f"| {' | '.join(line)} |" for line in (heads, dashes, *rows)]
