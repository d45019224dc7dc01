"""The report of a comparison as Markdown, for a page of documentation or an appendix."""

import re
from collections.abc import Sequence
from pathlib import Path

from ...data.printable import printable
from . import equality, tables, wording
from .summary import Summary
from .tables import Table

# Code between backticks, what begins a tag of HTML, and the middle of a link.
_MARKUP = re.compile(r"((?<!`)(?P<fence>`+)(?!`).*?(?<!`)(?P=fence)(?!`))|<(?=[A-Za-z/!?])|\]\(")
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
    lines = [f"# {setup.question}", "", wording.setting(summary), ""]
    lines += [" ".join(wording.tuning(summary)), ""]
    lines += [f"- {line}" for line in wording.in_short(summary)] + [""]
    if summary.columns:
        heads = [f"{c.name} ({wording.about_column(c)})" for c in summary.columns]
        lines += ["## Yardsticks", "", *_table(tables.yardsticks(summary, heads)), ""]
    if charts:
        lines += [*_images(charts), CHARTS, ""]
    if notes := wording.notes(summary):
        lines += [*(f"- {line}" for line in notes), ""]
    if summary.curves:
        lines += [f"## {wording.CURVES_TITLE}", ""]
        lines += [*(f"- {line}" for line in wording.best_at_equal(summary)), ""]
        lines += [*_images(curves), wording.CURVES, ""]
        lines += [*_table(tables.yardstick_curves(summary)), ""]
    for law in summary.laws:
        if law.fit is not None:
            lines += [f"## The law of {law.figure}", "", *_table(tables.law_table(law)), ""]
            lines += [wording.LAW, ""]
    if refused := wording.refused(summary):
        lines += ["## What could not be measured", "", *(f"- {line}" for line in refused), ""]
    if summary.differences:
        lines += ["## Differences by seed", "", *_table(tables.differences(summary.differences))]
        lines += ["", wording.reading(summary), ""]
    lines += [f"## {equality.title(summary)}", "", equality.equal(summary), ""]
    lines += [*_table(tables.cost_table(summary)), ""]
    for variant, changes in setup.variants.items():
        lines.append(f"- {variant}: {', '.join(map(_code, changes)) or 'the base run'}")
    if summary.tuned:
        lines += ["", f"## {wording.TRIALS_TITLE}", "", *_table(tables.trials(summary)), ""]
        lines += [wording.TRIALS]
    lines += ["", "## What this does not prove", "", wording.limits(summary), ""]
    if summary.failed:
        lines += ["## Runs that failed", ""]
        for run in summary.failed:
            lines.append(f"- {run.variant}, seed {run.seed}: {wording.last_line(run.error)}")
    if summary.parts:
        plain = tables.parts(summary)._replace(strong=())
        lines += ["", f"## {wording.PARTS_TITLE}", "", wording.PARTS, "", *_table(plain)]
    own = {*_images(charts), *_images(curves)}
    lines = [line if line in own else _plain(line) for line in lines]
    return "\n".join(lines).rstrip() + "\n"


def _plain(line: str) -> str:
    r"""Returns a line in which no name is a tag or a link; what is code stays as it is.

    >>> print(_plain("<b>\n[x](y) `<b>` is better, p < 0.1"))
    &lt;b> [x]\(y) `<b>` is better, p < 0.1
    """
    return _MARKUP.sub(_as_text, printable(line).replace("\n", " "))


def _as_text(found: re.Match[str]) -> str:
    return found[1] or {"<": "&lt;", "](": "]\\("}[found[0]]


def _code(text: str) -> str:
    """Returns text as code, between more backticks than it has in a row.

    >>> _code("a = 1"), _code("a = '`'")
    ('`a = 1`', "`` a = '`' ``")
    """
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * (longest + 1)
    return f"{fence} {text} {fence}" if longest else f"`{text}`"


def _images(files: Sequence[str]) -> list[str]:
    return [*(f"![{Path(file).stem}]({file})" for file in files), ""] if files else []


def _table(table: Table) -> list[str]:
    rows = [
        [f"**{text}**" if (i, j) in table.strong else text for j, text in enumerate(row)]
        for i, row in enumerate(table.rows)
    ]
    dashes = ["---", *["---:"] * (len(table.heads) - 1)]
    lines = [[text.replace("|", "\\|") for text in row] for row in (table.heads, dashes, *rows)]
    return [f"| {' | '.join(line)} |" for line in lines]
