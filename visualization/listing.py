"""The catalogue of objectives as a table for the terminal."""

from rich.table import Table

from ..objectives.catalogue import ARCHITECTURES, CATALOGUE, aliases_of

LEGEND = (
    "loss: slots with a loss in a row of 512 tokens of text, on average; sentinels and "
    "end-of-sequence count."
)

WIDE = 110  # characters that all columns take


def objectives_table(width: int) -> Table:
    """Returns a line for each objective: all columns where there is room, or else four."""
    wide = width >= WIDE
    table = Table(box=None, header_style="bold", padding=(0, 1), pad_edge=False)
    table.add_column("objective", style="bold", no_wrap=True)
    if wide:
        table.add_column("or", style="dim", no_wrap=True)
    table.add_column("loss", justify="right", no_wrap=True)
    table.add_column("model", no_wrap=True)
    if wide:
        table.add_column("attention")
    table.add_column("good for")
    if wide:
        table.add_column("paper", no_wrap=True)
    for name, entry in CATALOGUE.items():
        cells = {
            "objective": name,
            "or": " ".join(aliases_of(name)),
            "loss": str(entry.loss_slots),
            "model": ARCHITECTURES[entry.architecture],
            "attention": entry.attention,
            "good for": entry.good_for,
            "paper": entry.paper,
        }
        table.add_row(*(cells[str(column.header)] for column in table.columns))
    return table
