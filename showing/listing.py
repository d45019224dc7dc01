"""The catalogue of objectives as a table for the terminal."""

from rich.table import Table

from ..objectives.catalogue import ARCHITECTURES, CATALOGUE, aliases_of

LEGEND = (
    "loss: slots with a loss in a row of 512 tokens of text, on average; sentinels and "
    "end-of-sequence count."
)

WIDE = 110  # characters that all columns take


def objectives_table(width: int) -> Table:
    """Returns a line for each objective; without attention and paper where they would be cut."""
    table = Table(box=None, header_style="bold", padding=(0, 1), pad_edge=False)
    table.add_column("objective", style="bold", no_wrap=True)
    table.add_column("or", style="dim", no_wrap=True)
    table.add_column("loss", justify="right", no_wrap=True)
    table.add_column("model", no_wrap=True)
    wide = width >= WIDE
    for heading in ("attention", "good for", "paper") if wide else ("good for",):
        table.add_column(heading)
    for name, entry in CATALOGUE.items():
        shorts = " ".join(aliases_of(name))
        more = (entry.attention, entry.good_for, entry.paper) if wide else (entry.good_for,)
        table.add_row(name, shorts, str(entry.loss_slots), ARCHITECTURES[entry.architecture], *more)
    return table
