"""The catalog of objectives, as a table for the terminal and as JSON."""

import json
from collections.abc import Sequence

from rich.table import Table

from ..objectives.catalog import ARCHITECTURES, CATALOG, FAMILIES, run_of

# Columns of the table in the terminal. The first of these that fits is printed.
COLUMNS = (
    ("objective", "or", "model", "attention", "good for", "paper"),
    ("objective", "or", "model", "good for"),
    ("objective", "model", "good for"),
    ("objective", "good for"),
)


def objectives_table(width: int) -> Table:
    """Returns a table with a line for each objective under the name of its family.

    Args:
      width: number of characters of a line. A narrow table has fewer columns.
    """
    styles = {"objective": "bold", "or": "dim"}
    columns = next((names for names in COLUMNS if _width(names) <= width), COLUMNS[-1])
    table = Table(box=None, header_style="bold", padding=(0, 1), pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=True, style=styles.get(column))
    for family, entries in FAMILIES.items():
        table.add_row()
        table.add_row(family, style="not bold italic")
        for name in entries:
            cells = _cells(name)
            table.add_row(*(cells[column] for column in columns))
    return table


def _width(columns: Sequence[str]) -> int:
    """Returns the number of characters of a line with these columns, two blanks between them."""
    cells = [_cells(name) for name in CATALOG]
    widths = (max(len(name), *(len(cell[name]) for cell in cells)) for name in columns)
    return sum(widths) + 2 * (len(columns) - 1)


def objectives_json() -> str:
    """Returns a JSON list with an object for each objective."""
    rows = [
        {
            "family": family,
            "objective": name,
            **{**entry._asdict(), "run": run_of(name), "attends": entry.attention},
        }
        for family, entries in FAMILIES.items()
        for name, entry in entries.items()
    ]
    return json.dumps(rows, indent=1)


def _cells(name: str) -> dict[str, str]:
    """Returns {column: text} from the catalog entry of an objective."""
    entry = CATALOG[name]
    return {
        "objective": name,
        "or": " ".join(entry.short_names),
        "model": ARCHITECTURES[entry.architecture].label,
        "attention": entry.attention,
        "good for": entry.good_for,
        "paper": entry.paper,
    }
