"""The report of a comparison: in the terminal, as Markdown and as an HTML page.

    write("comparisons/masking_rate")

`write` reads the files of `results`. A report can therefore be written again at any time, without
the runs.
"""

from pathlib import Path

from rich.console import Console

from ...settings import atomic_writes
from .. import results
from .comparison_page import page
from .markdown_report import markdown
from .summary import summary_of
from .terminal_report import print_summary

MARKDOWN = "report.md"
PAGE = "report.html"


def write(directory: str | Path, console: Console | None = None) -> None:
    """Writes `DIR/report.md` and `DIR/report.html`, and prints the summary to a console.

    Raises ValueError if the directory has no comparison, or a damaged one.
    """
    folder = Path(directory)
    summary = summary_of(results.read(folder))
    linked = [run.run for run in summary.runs if (folder / run.run).is_dir()]
    atomic_writes.write_text(folder / MARKDOWN, markdown(summary))
    atomic_writes.write_text(folder / PAGE, page(summary, linked))
    if console is not None:
        print_summary(console, summary)
