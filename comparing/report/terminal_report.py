"""The report of a comparison in the terminal."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from . import wording
from .equality import unequal
from .summary import Summary
from .wording import cell

FEW = 5  # differences that do not hold, in words


def print_summary(console: Console, summary: Summary) -> None:
    """Prints a table of variants and yardsticks, the differences that hold, and what the others need."""
    console.print(Text(f"\n{summary.asked.question}", "bold"))
    console.print(Text(wording.setting(summary), "dim"))
    if summary.columns:
        console.print(_table(summary))
    for line in wording.in_short(summary):
        console.print(Text(f"• {line}"))
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


def _table(summary: Summary) -> Table:
    table = Table(box=None, header_style="bold", caption_justify="left")
    table.caption = "mean ± half of its 95% interval over seeds; the best mean is green"
    table.add_column("")
    for column in summary.columns:
        heading = f"{column.name} {wording.ARROW[column.better]}\n{column.unit}"
        table.add_column(Text(heading), justify="right")
    for variant in summary.asked.variants:
        cells = [
            Text(cell(column, variant), "bold green" if variant == column.best else "")
            for column in summary.columns
        ]
        table.add_row(Text(variant), *cells)
    baselines = wording.baselines(summary.columns)
    if baselines:
        table.add_row(wording.BASELINE, *baselines, style="dim")
    return table
