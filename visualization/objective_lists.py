"""The catalog of objectives: a table for the terminal, and a page with links to their pages."""

import json
from collections.abc import Mapping, Sequence
from html import escape

from rich.table import Table

from ..objectives.catalog import ARCHITECTURES, CATALOG, FAMILIES, aliases_of, run_of
from . import html

LEGEND = (
    "loss: slots with a loss in a row of 512 tokens of text, on average; sentinels and "
    "end-of-sequence count."
)
# Columns of the table in the terminal. The first of these that fits is printed.
COLUMNS = (
    ("objective", "or", "loss", "model", "attention", "good for", "paper"),
    ("objective", "or", "loss", "model", "good for"),
    ("objective", "model", "good for"),
    ("objective", "good for"),
)
TITLE = "Pre-training objectives"


def objectives_table(width: int) -> Table:
    """Returns a table with a line for each objective under the name of its family.

    Args:
      width: number of characters of a line. A narrow table has fewer columns.
    """
    styles: dict[str, dict] = {"objective": {"style": "bold"}, "or": {"style": "dim"}}
    styles["loss"] = {"justify": "right"}
    columns = next((names for names in COLUMNS if _width(names) <= width), COLUMNS[-1])
    table = Table(box=None, header_style="bold", padding=(0, 1), pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=True, **styles.get(column, {}))
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
            "short_names": aliases_of(name),
            **{**entry._asdict(), "run": run_of(name), "attends": entry.attention},
        }
        for family, entries in FAMILIES.items()
        for name, entry in entries.items()
    ]
    return json.dumps(rows, indent=1)


def index_page(pages: Mapping[str, str], refused: Mapping[str, str], command: str) -> str:
    """Returns a page with a line for each objective.

    Args:
      pages: {objective: file name of its page, in the folder of this page}.
      refused: {objective: why it has no page}.
      command: the command that made the pages.
    """
    heads = ("objective", "good for", "model", "attention", "loss", "paper")
    lines = []
    for name in (name for name in CATALOG if name in pages):
        cells = {column: escape(text) for column, text in _cells(name).items()}
        words = name.replace("_", "_<wbr>")  # allows a line break
        link = f'<a href="{escape(pages[name])}">{words}</a>'
        cells["objective"] = f"{link} <small>{cells['or']}</small>"
        paper, address = CATALOG[name].paper_link
        cells["paper"] = f'<a href="{escape(address)}">{escape(paper)}</a>'
        lines.append([cells[head] for head in heads])
    body = html.card(html.table(heads, lines, left=(0, 1, 2, 3, 5))) + html.soft(LEGEND)
    if refused:
        body += "<h2>Without a page</h2>\n"
        body += html.items(f"{escape(name)}: {escape(why)}" for name, why in refused.items())
    facts = [
        f"{len(pages)} objectives: what a model is given, what it predicts, and which slots attend "
        "to which."
    ]
    return html.document(TITLE, facts, body, f"<code>{escape(command)}</code>")


def _cells(name: str) -> dict[str, str]:
    """Returns {column: text} from the catalog entry of an objective."""
    entry = CATALOG[name]
    return {
        "objective": name,
        "or": " ".join(aliases_of(name)),
        "loss": str(entry.loss_slots),
        "model": ARCHITECTURES[entry.architecture],
        "attention": entry.attention,
        "good for": entry.good_for,
        "paper": entry.paper,
    }
