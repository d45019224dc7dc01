"""The report of a comparison: in the terminal, as Markdown and as a page.

    write("comparisons/masking_rate")

reads the files of `results`, so that a report can be drawn again at any time, without the runs.
"""

from pathlib import Path

from rich.console import Console

from ...data import whole_files
from .. import results
from . import summary as summaries
from .comparison_page import page
from .markdown_report import markdown
from .terminal_report import print_summary

MARKDOWN, PAGE = "report.md", "report.html"


def write(directory: str | Path, console: Console | None = None) -> None:
    """Writes `DIR/report.md` and `DIR/report.html`, and prints the summary to a console.

    The page links to the runs that lie in the directory.

    Raises ValueError where the directory holds no comparison, or a damaged one.
    """
    folder = Path(directory)
    found = summaries.summary(results.read(folder))
    beside = [run.run for run in found.runs if (folder / run.run).is_dir()]
    whole_files.write_text(folder / MARKDOWN, markdown(found))
    whole_files.write_text(folder / PAGE, page(found, beside))
    if console is not None:
        print_summary(console, found)
