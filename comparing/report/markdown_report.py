"""The report of a comparison as Markdown, for a page of documentation or the appendix of a paper."""

from collections.abc import Sequence

from . import equality, wording
from .summary import Summary
from .wording import cell


def markdown(summary: Summary) -> str:
    """Returns the report; the best mean of each yardstick is bold, and each difference that holds. Parts
    of yardsticks come last, without claims."""
    asked = summary.asked
    lines = [f"# {asked.question}", "", wording.setting(summary), ""]
    lines += [f"- {line}" for line in wording.in_short(summary)] + [""]
    if summary.columns:
        lines += ["## Yardsticks", "", *_yardsticks(summary), ""]
    if notes := wording.notes(summary):
        lines += [*(f"- {line}" for line in notes), ""]
    for law in summary.laws:
        if law.fit is not None:
            lines += [f"## The law of {law.figure}", "", *_table(*wording.law_table(law)), ""]
            lines += [wording.LAW, ""]
    if refused := wording.refused(summary):
        lines += ["## What could not be measured", "", *(f"- {line}" for line in refused), ""]
    if summary.differences:
        lines += ["## Differences by seed", "", *_differences(summary), "", wording.READING, ""]
    lines += [f"## {equality.title(summary)}", "", equality.equal(summary), ""]
    lines += [*_table(*equality.cost_table(summary)), ""]
    for variant, changes in asked.variants.items():
        lines.append(f"- {variant}: {', '.join(f'`{x}`' for x in changes) or 'the base run'}")
    lines += ["", "## What this does not prove", "", wording.limits(summary), ""]
    if summary.failed:
        lines += ["## Runs that failed", ""]
        lines += [
            f"- {r.variant}, seed {r.seed}: {wording.last_line(r.error)}" for r in summary.failed
        ]
    if summary.parts:
        title, said = wording.PARTS
        lines += ["", f"## {title}", "", said, "", *_parts(summary)]
    return "\n".join(lines).rstrip() + "\n"


def _yardsticks(summary: Summary) -> list[str]:
    heads = ["", *(f"{c.name} ({wording.about_column(c)})" for c in summary.columns)]
    rows = []
    for variant in summary.asked.variants:
        best = [variant == column.best for column in summary.columns]
        cells = [cell(column, variant) for column in summary.columns]
        rows.append([variant, *(f"**{x}**" if bold else x for x, bold in zip(cells, best))])
    known = wording.baselines(summary.columns)
    return _table(heads, [*rows, *([[wording.BASELINE, *known]] if known else [])])


def _parts(summary: Summary) -> list[str]:
    variants = summary.asked.variants
    rows = [[c.name, *(cell(c, variant) for variant in variants)] for c in summary.parts]
    return _table(["", *variants], rows)


def _differences(summary: Summary) -> list[str]:
    heads = [
        "yardstick",
        "variants",
        "difference",
        "95% interval",
        "p, corrected",
        "",
        "seeds needed",
    ]
    rows = []
    for d in summary.differences:
        one = wording.told(d)
        holds = f"**{one.holds}**" if d.holds else one.holds
        rows.append([d.figure, *one._replace(holds=holds)])
    return _table(heads, rows)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns a table's lines: the first column is words, the others are numbers."""
    dashes = ["---", *["---:"] * (len(heads) - 1)]
    return [_line([text.replace("|", "\\|") for text in row]) for row in (heads, dashes, *rows)]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
