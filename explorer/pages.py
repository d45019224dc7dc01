"""The pages of `pretrax explore`. Their programs and the styles are in the folder static/."""

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from ..comparison.report import PAGE as REPORT
from ..inference.answering.options import Order
from ..tasks.showing import VOCABULARIES
from ..visualization import html, picture_page
from .objective_views import Objectives, View, encoded, families
from .run_views import curves, find_comparisons, find_runs
from .server import Content, Site, kind_of
from .trained_views import ModelQuestion, TrainedRuns
from .vocabulary_views import tokens_of

STATIC = Path(__file__).parent / "static"
# Address of a page -> (its name in the navigation, its heading, what can be done on it).
PAGES = {
    "": ("Objective", "See an objective", "The inputs and the targets of a model."),
    "compare": ("Two objectives", "Compare two objectives", "Two objectives on the same text."),
    "vocabulary": ("Vocabulary", "See a vocabulary", "The tokens of a text, with ids and bytes."),
    "models": ("Trained models", "Use trained models", "The predictions of a trained model."),
    "training": ("Training", "Watch training", "The metrics of runs, as they arrive."),
    "comparisons": ("Comparisons", "Read comparisons", "The reports of comparisons."),
}


class Explorer:
    """The pages, and the calls that their programs make.

    Args:
      runs: directories of runs, in addition to those below `runs`.
      comparisons: directories of comparisons, in addition to those below `comparisons`.
      trusted: modules that run directories may name, see `settings.trust`.
    """

    def __init__(
        self,
        runs: Sequence[str] = (),
        comparisons: Sequence[str] = (),
        objective: str = "span_corruption",
        trusted: Sequence[str] = (),
    ):
        self._given_runs = tuple(runs)
        self._given_comparisons = tuple(comparisons)
        self._objective = objective
        self._objectives = Objectives()
        self._trained = TrainedRuns(trusted)

    def site(self) -> Site:
        """Returns the pages and the calls."""
        calls = {
            "start": self._start,
            "draw": lambda sent: self._objectives.show(self._view(sent)),
            "statistics": lambda sent: {"html": self._objectives.statistics(self._view(sent))},
            "tokens": self._tokens,
            "document": self._document,
            "known_text": self._known_text,
            "model": lambda sent: self._trained.describe(self._known_run(sent.get("run"))),
            "answer": lambda sent: self._trained.answer(self._question(sent)),
            "probabilities": self._probabilities,
            "unmasked": lambda sent: self._trained.unmasked(self._question(sent)),
            "curves": lambda sent: {"curves": curves(map(self._known_run, sent.get("runs", [])))},
        }
        return Site(self._page, calls)

    def _page(self, path: str, query: Mapping[str, str]) -> Content | None:
        if path in PAGES:
            return Content(page(path).encode())
        if path == "style.css":
            return Content(style().encode(), kind_of(path))
        if path == "report":
            name = query.get("name", "")
            if name not in self.comparisons():
                raise ValueError(f"Got the comparison {name!r}, which has no report here.")
            return Content((Path(name) / REPORT).read_bytes())
        folder, _, name = path.partition("/")
        if folder == "static" and (STATIC / name).is_file() and "/" not in name:
            return Content((STATIC / name).read_bytes(), kind_of(name))
        return None

    # --- calls ------------------------------------------------------------------------------------

    def _start(self, sent: dict) -> dict[str, Any]:
        """Returns what can be chosen on the pages."""
        return {
            "objective": self._objective,
            "families": families(),
            "vocabularies": VOCABULARIES,
            "orders": typing.get_args(Order),
            "runs": self.runs(),
            "comparisons": self.comparisons(),
        }

    def runs(self) -> list[str]:
        return list(dict.fromkeys([*self._given_runs, *find_runs()]))

    def comparisons(self) -> list[str]:
        return list(dict.fromkeys([*self._given_comparisons, *find_comparisons()]))

    def _view(self, sent: dict) -> View:
        view = _record(View, sent)
        name = view.objective
        if "." in name and name != self._objective:  # its module's code would run
            raise ValueError(
                f"Got the objective {name!r}, expected a name that `pretrax show --list` prints: "
                f"start `pretrax explore --objective={name}` to see your own."
            )
        if view.vocabulary not in VOCABULARIES:
            self._known_run(view.vocabulary)
        return view

    def _question(self, sent: dict) -> ModelQuestion:
        question = _record(ModelQuestion, sent)
        self._known_run(question.run)
        return question

    def _known_run(self, run: Any) -> str:
        runs = self.runs()
        if run not in runs:
            known = ", ".join(runs) or "none: train one with `pretrax train`, or give --run=RUN"
            raise ValueError(f"Got the run {run!r}, expected one of these: {known}.")
        return run

    def _tokens(self, sent: dict) -> dict[str, Any]:
        view = self._view({"objective": self._objective, **sent})
        return tokens_of(encoded(view))

    def _document(self, sent: dict) -> dict[str, str]:
        run = self._known_run(sent.get("run"))
        return {"text": self._trained.document(run, int(sent.get("number", 0)))}

    def _known_text(self, sent: dict) -> dict[str, str]:
        run = self._known_run(sent.get("run"))
        return {"text": self._trained.known_text(run, str(sent.get("text", "")))}

    def _probabilities(self, sent: dict) -> dict[str, Any]:
        run = self._known_run(sent.get("run"))
        text = str(sent.get("text", ""))
        context = str(sent.get("context", ""))
        return {"tokens": self._trained.probabilities(run, text, context)}


def page(path: str) -> str:
    """Returns a page. Its program, static/NAME.js, fills it."""
    name, heading, about = PAGES[path]
    script = path or "objective"
    links = "".join(
        f'<a href="./{address}"{" aria-current=page" if address == path else ""}>{title}</a>'
        for address, (title, _, _) in PAGES.items()
    )
    head = (
        '<link rel="icon" href="data:,">\n'
        f'<script type="module" src="static/{script}.js"></script>\n'
    )
    body = (
        '<a class="skip" href="#main">Skip to the content</a>\n'
        f'<header><b>pretrax explore</b><nav aria-label="Pages">{links}</nav></header>\n'
        f'<main id="main" tabindex="-1"><h1>{escape(heading)}</h1>\n'
        f'<p class="soft">{escape(about)}</p>\n'
        '<p id="error" class="error" role="alert" hidden></p>\n<div id="content"></div>\n'
        "<noscript>These pages need JavaScript.</noscript></main>\n"
    )
    return document(f"{name} · pretrax explore", head, body)


def document(title: str, head: str, body: str) -> str:
    """Returns a page with the styles of `style` in a file next to it; head and body are HTML."""
    return html.framed(title, f'<link rel="stylesheet" href="style.css">\n{head}', body)


def style() -> str:
    """Returns the styles of the pages: of reports, of pictures, and of the pages themselves."""
    own = (STATIC / "explore.css").read_text(encoding="utf-8")
    return html.STYLE + picture_page.STYLE + own


def _record(kind: type, sent: dict) -> Any:
    """Returns a dataclass from the JSON object of a request. Raises ValueError for other fields."""
    fields = [field.name for field in dataclasses.fields(kind)]
    if unknown := sent.keys() - set(fields):
        raise ValueError(f"Got {min(unknown)!r}, expected fields among {', '.join(fields)}.")
    try:
        return kind(**sent)
    except TypeError as error:  # a field without a default is missing
        raise ValueError(str(error)) from error
