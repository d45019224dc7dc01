"""The report of a comparison in the terminal."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...settings.printable import plain_table
from . import tables, wording
from .equality import unequal_costs
from .summary import Summary

FEW = 5  # number of insignificant differences that are described
TRIALS = "held-out loss of each tuning trial, under the variant's own objective"


def print_summary(console: Console, summary: Summary) -> None:
    console.print(Text(f"\n{summary.setup.question}", "bold"))
    console.print(Text(wording.setup_sentence(summary), "dim"))
    if summary.tuned:
        console.print(_table(tables.tuning_trials(summary), TRIALS))
    for line in wording.tuning(summary):
        console.print(Text(line, "dim"))
    if summary.columns:
        console.print(_means(summary))
    for line in (*wording.findings(summary), *wording.significant(summary)):
        console.print(Text(f"• {line}"))
    for line in wording.best_at_equal_cost(summary):
        console.print(Text(line, "dim"))
    open_ones = [d for d in summary.differences if not d.is_significant and d.needed is not None]
    for d in sorted(open_ones, key=lambda d: d.needed or 0)[:FEW]:
        console.print(Text(f"  {wording.seeds_sentence(d)}", "dim"))
    if unequal_costs(summary):
        console.print(Text(unequal_costs(summary), "dim"))
    for line in (*wording.not_informative(summary), *wording.refused(summary, reasons=True)):
        console.print(Text(line), soft_wrap=True)
    for run in summary.failed:
        failed = f"{run.variant}, seed {run.seed} failed: {wording.last_line(run.error)}"
        console.print(Text(failed, "red"), soft_wrap=True)


def _means(summary: Summary) -> Table:
    heads = [
        f"{c.name} {wording.ARROW[c.better]}\n{wording.unit_label(c)}" for c in summary.columns
    ]
    caption = "mean ± half of its 95% interval over seeds; the best mean is green"
    means = tables.eval_metrics(summary, heads)
    return _table(means, caption, dim=len(summary.setup.variants))


def _table(table: tables.Table, caption: str, dim: int | None = None) -> Table:
    """Returns a table for the terminal, with strong cells in green and the row `dim` dimmed."""
    shown = plain_table("", *map(Text, table.heads[1:]))
    shown.caption = caption
    shown.caption_justify = "left"
    for i, row in enumerate(table.rows):
        styles = ("bold green" if (i, j) in table.strong else "" for j in range(len(row)))
        shown.add_row(*map(Text, row, styles), style="dim" if i == dim else None)
    return shown
