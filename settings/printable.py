r"""Text in a terminal, where its control characters could move the cursor or rename the window.

    printable("\x1b]0;x\x07")              # "␛]0;x␇"
    console = PrintableConsole()           # a `rich.console.Console` that shows them so

Documents, answers, tokens and names of files are printed by this console, or by `printable`.
"""

import re
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

# ASCII's and Latin-1's control characters but tabs and line ends, what overrides or isolates the
# direction of text, and the halves of surrogate pairs, which no terminal is sent.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    r"""Returns a text with a visible character for each control character but "\n" and "\t".

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
    """A console that shows control characters in what it prints; its own colors and bars stay."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            shown = segment.text if segment.control else printable(segment.text)
            yield segment if shown is segment.text else segment._replace(text=shown)
