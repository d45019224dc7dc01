"""The report of a comparison in the terminal."""

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from . import tables, wording
from .equality import unequal
from .summary import Summary

FEW = 5  # differences that do not hold, in words


def print_summary(console: Console, summary: Summary) -> None:
    console.print(Text(f"\n{summary.setup.question}", "bold"))
    console.print(Text(wording.setting(summary), "dim"))
    if summary.tuned:
        console.print(_of_trials(summary))
    for line in wording.tuning(summary):
        console.print(Text(line, "dim"))
    if summary.columns:
        console.print(_table(summary))
    for line in wording.in_short(summary):
        console.print(Text(f"• {line}"))
    for line in wording.best_at_equal(summary):
        console.print(Text(line, "dim"))
    open_ones = [d for d in summary.differences if not d.holds and d.needed is not None]
    for d in sorted(open_ones, key=lambda d: d.needed or 0)[:FEW]:
        console.print(Text(f"  {wording.next_one(d)}", "dim"))
    if unequal(summary):
        console.print(Text(unequal(summary), "dim"))
    for line in wording.refused(summary):
        console.print(Text(line), soft_wrap=True)
    for run in summary.failed:
        failed = f"{run.variant}, seed {run.seed} failed: {wording.last_line(run.error)}"
        console.print(Text(failed, "red"), soft_wrap=True)


def _of_trials(summary: Summary) -> Table:
    tried = tables.trials(summary)
    columns = (Column(Text(head), justify="right") for head in tried.heads[1:])
    table = Table("", *columns, box=None, header_style="bold", caption_justify="left")
    table.caption = "held-out loss of each trial, by the variant's own objective"
    for i, row in enumerate(tried.rows):
        strong = [(i, j) in tried.strong for j, _ in enumerate(row)]
        table.add_row(*(Text(x, "bold green" if s else "") for x, s in zip(row, strong)))
    return table


def _table(summary: Summary) -> Table:
    heads = [
        f"{c.name} {wording.ARROW[c.better]}\n{wording.unit_beside(c)}" for c in summary.columns
    ]
    of_means = tables.yardsticks(summary, heads)
    columns = (Column(Text(head), justify="right") for head in of_means.heads[1:])
    table = Table("", *columns, box=None, header_style="bold", caption_justify="left")
    table.caption = "mean ± half of its 95% interval over seeds; the best mean is green"
    for i, row in enumerate(of_means.rows):
        cells = [
            Text(text, "bold green" if (i, j) in of_means.strong else "")
            for j, text in enumerate(row)
        ]
        table.add_row(*cells, style="dim" if i == len(summary.setup.variants) else None)
    return table
