"""The page that leads to the pages of all objectives."""

import math
from collections.abc import Collection, Mapping
from html import escape

from ..objectives.catalogue import ARCHITECTURES, CATALOGUE, aliases_of, run_of
from . import html
from .listing import LEGEND

TITLE = "Pre-training objectives"
PAPER = "https://arxiv.org/abs/"


def index_page(pages: Mapping[str, str], refused: Mapping[str, str], command: str) -> str:
    """Returns a page with a line for each objective.

    Args:
      pages: the file of each objective that has one, beside this one.
      refused: why the others have none.
      command: that made the pages.
    """
    heads = ("objective", "good for", "model", "attention", "loss", "paper")
    lines = [_line(name, pages) for name in CATALOGUE if name in pages]
    body = html.card(html.table(heads, lines, left=(0, 1, 2, 3, 5))) + html.soft(LEGEND)
    if refused:
        body += "<h2>Without a page</h2>\n"
        body += html.items(f"{escape(name)}: {escape(why)}" for name, why in refused.items())
    facts = [f"{len(pages)} objectives: what a model is given, what it predicts, who sees whom."]
    return html.document(TITLE, facts, body, f"<code>{escape(command)}</code>")


def _line(name: str, pages: Mapping[str, str]) -> list[str]:
    entry = CATALOGUE[name]
    shorts = " ".join(aliases_of(name))
    words = name.replace("_", "_<wbr>")  # lines may end there
    return [
        f'<a href="{escape(pages[name])}">{words}</a> <small>{escape(shorts)}</small>',
        escape(entry.good_for),
        escape(ARCHITECTURES[entry.architecture]),
        escape(entry.attention),
        str(entry.loss_slots),
        _paper(entry.paper),
    ]


def _paper(paper: str) -> str:
    """Returns the name of a paper, as a link.

    >>> _paper("T5, arXiv:1910.10683")
    '<a href="https://arxiv.org/abs/1910.10683">T5</a>'
    """
    name, _, number = paper.rpartition(", arXiv:")
    return f'<a href="{PAPER}{escape(number)}">{escape(name)}</a>'


def progress_line(name: str, done: int, total: int, seconds: float) -> str:
    """Returns the line of an objective that begins, after `done` of `total` took some seconds.

    >>> progress_line("bart", done=12, total=53, seconds=60.0)
    '13 of 53: bart, some 4 min left'
    """
    line = f"{done + 1} of {total}: {name}"
    if not done:
        return line
    minutes = math.ceil((total - done) * seconds / done / 60)
    return f"{line}, some {minutes} min left"


def in_words(pages: Mapping[str, str], refused: Collection[str], index: str) -> str:
    """Returns the last lines: what was written, what was not, and what to run next."""
    count = f"{len(pages)} page{'s' if len(pages) != 1 else ''}"
    without = f" Without one: {', '.join(refused)}; the list says why." if refused else ""
    name = next(iter(pages))
    return (
        f"{count}, listed in {index}: open it in a browser.{without}\n"
        f"Next: pretrax train --gin_file=runs/{run_of(name)}.gin --gin_file=objectives/{name}.gin "
        f"trains {name}; pretrax show --objective=NAME says so of any other."
    )
