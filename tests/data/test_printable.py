"""Printed text cannot move the cursor, rename the window or reverse lines of a terminal."""

import io
import re

import pytest
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from pretrax.settings.printable import PrintableConsole, printable
from tests.training.tiny import ROOT

WINDOW = "\x1b]0;x\x07"  # renames the window


def test_control_characters_are_made_visible():
    assert printable(f"{WINDOW}\r\n\ttext") == "␛]0;x␇␍\n\ttext"
    assert printable("\x9b31m \u202eright\u202c \u2066 \x7f \x00 \ud800") == "�31m �right� � ␡ ␀ �"
    for unchanged in ("", "Zwei Wörter\n", "한 문장, עברית\u200f, 👩\u200d🔬"):
        assert printable(unchanged) == unchanged


def test_console_prints_only_its_own_escape_sequences():
    console = PrintableConsole(file=io.StringIO(), force_terminal=True, highlight=False)
    table = Table(WINDOW, box=None)
    table.add_row(Text(f"a{WINDOW}", style="red"))
    console.print(WINDOW, Text(WINDOW, style="bold"), table, markup=False)
    with Progress(console=console) as progress:
        progress.add_task(WINDOW, total=1)
    printed = console.file.getvalue()
    assert "\x1b[31m" in printed and "a␛]0;" in printed
    assert "\x1b]" not in printed and "\x07" not in printed


@pytest.mark.parametrize(
    "folder",
    [
        *("cli", "comparison", "corpora", "preprocessing"),
        *("settings", "tasks", "training"),
    ],
)
def test_all_consoles_are_printable_consoles(folder):
    for file in (ROOT / folder).rglob("*.py"):
        assert not re.search(r"(?<!Printable)\bConsole\(", file.read_text()), file
