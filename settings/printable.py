r"""Replaces control characters, which could move the cursor or rename the terminal's window.

    printable("\x1b]0;x\x07")              # "␛]0;x␇"
    console = PrintableConsole()           # a `rich.console.Console` that replaces them too

Documents, answers, tokens and file names are printed by this console or with `printable`.
"""

import re
from collections.abc import Collection, Iterable, Iterator

from rich.columns import Columns
from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

_PADDED = (Columns, Padding, Table)  # what rich fills with blanks up to its width

# The control characters of ASCII and Latin-1 except tabs and line ends, characters that override
# or isolate the direction of text, and halves of surrogate pairs, which cannot be encoded.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    r"""Returns text with a visible character for each control character except "\n" and "\t".

    >>> printable("a\x1b[31m\r\n\x9b")
    'a␛[31m␍\n�'
    """
    return text if text.isprintable() else _CONTROL.sub(_picture, text)


def _picture(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code == 0x7F:
        return "␡"
    return chr(0x2400 + code) if code < 0x20 else "\N{REPLACEMENT CHARACTER}"


class PrintableConsole(Console):
    """A console that replaces control characters in its text but not its own escape codes.

    If its output is not a terminal, its tables have no blanks at the ends of lines.
    """

    def __init__(self, *, highlight: bool = False, **settings):
        super().__init__(highlight=highlight, **settings)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        segments = super().render(renderable, options)
        if not self.is_terminal and isinstance(renderable, _PADDED):
            segments = _without_padding(segments)
        for segment in segments:
            shown = segment.text if segment.control else printable(segment.text)
            yield segment if shown is segment.text else segment._replace(text=shown)


def print_note(console: Console, text: str) -> None:
    """Prints a text without wrapping its lines, so that paths and commands can be copied."""
    if text:
        console.print(text, markup=False, soft_wrap=True)


def plain_table(
    *columns: str | Text, text: Collection[str] | None = None, title: str | None = None
) -> Table:
    """Returns a table without lines, with columns of text to the left and of numbers to the right.

    Args:
      text: names of the columns of text. None: the first column.
    """
    table = Table(title=title, title_justify="left", box=None, header_style="bold")
    for number, column in enumerate(columns):
        is_text = number == 0 if text is None else column in text
        table.add_column(column, justify="left" if is_text else "right")
    return table


def _without_padding(segments: Iterable[Segment]) -> Iterator[Segment]:
    """Yields the segments of whole lines without the blanks at the ends of the lines."""
    for line in Segment.split_lines(segments):
        while line and not line[-1].text.rstrip(" "):
            line.pop()
        if line:
            *others, last = line
            yield from others
            yield last._replace(text=last.text.rstrip(" "))
        yield Segment.line()
