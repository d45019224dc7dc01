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


def test_control_characters_are_visible():
    assert printable(f"{WINDOW}\r\n\ttext") == "␛]0;x␇␍\n\ttext"
    assert printable("\x9b31m \u202eright\u202c \u2066 \x7f \x00 \ud800") == "�31m �right� � ␡ ␀ �"
    for same in ("", "Zwei Wörter\n", "한 문장, עברית\u200f, 👩\u200d🔬"):
        assert printable(same) == same


def test_a_console_has_its_own_colors_alone():
    console = PrintableConsole(file=io.StringIO(), force_terminal=True, highlight=False)
    table = Table(WINDOW, box=None)
    table.add_row(Text(f"a{WINDOW}", style="red"))
    console.print(WINDOW, Text(WINDOW, style="bold"), table, markup=False)
    with Progress(console=console) as progress:
        progress.add_task(WINDOW, total=1)
    said = console.file.getvalue()
    assert "\x1b[31m" in said and "a␛]0;" in said
    assert "\x1b]" not in said and "\x07" not in said


@pytest.mark.parametrize(
    "folder",
    [
        *("cli", "comparison", "corpora", "preprocessing"),
        *("settings", "tasks", "training"),
    ],
)
def test_no_console_is_another(folder):
    for file in (ROOT / folder).rglob("*.py"):
        assert not re.search(r"(?<!Printable)\bConsole\(", file.read_text()), file
