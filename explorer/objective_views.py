"""The picture of an objective on a text, for a page."""

import dataclasses
import functools
import os
import threading
from collections.abc import Callable, Mapping
from html import escape
from typing import Any, Literal, NamedTuple

from ..constraints import Seed, check_fields
from ..corpora.vocabularies import Vocabulary
from ..objectives import Objective, TokenIds
from ..objectives.catalog import ARCHITECTURES, FAMILIES, find, run_of
from ..settings.partial import Partial, as_partial
from ..settings.printable import printable
from ..settings.user_modules import function_of, import_current_module
from ..tasks import sample_text, showing
from ..tasks.sample_text import SampleText
from ..tasks.showing import VOCABULARIES
from ..visualization import html, picture_page
from ..visualization.choice import Choice
from ..visualization.drawing import Drawn, picture
from ..visualization.noise_charts import statistics
from ..visualization.noise_statistics import with_statistics
from ..visualization.picture import Example
from ..visualization.pieces import ranges_of
from .commands import Commands, commands
from .controls import Control, controls, value_of, with_values

MAX_CHARACTERS = 100_000  # longest text


@dataclasses.dataclass(frozen=True, kw_only=True)
class View:
    """An objective, a text and a draw that a page shows.

    Attributes:
      objective: a name of the catalog, or the user's own MODULE.BUILDER.
      text: the text, whose documents are separated by blank lines.
      values: settings that differ from the objective's gin file, by name in gin.
      vocabulary: a name of `VOCABULARIES`, or the directory of a run.
      layout: layout of the model. None: the layout that suits the objective.
      seed: seed of the noise.
      rows: number of draws.
      length: number of slots of the first stack.
      hidden: tokens to hide, as in `pretrax show --hide_tokens`; "" for random ones.
    """

    objective: str
    text: str
    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    vocabulary: str = "words"
    layout: Literal["encoder", "decoder", "encoder_decoder"] | None = None
    seed: Seed = 0
    rows: Literal[1, 2, 3, 4, 5, 6, 7, 8] = 1
    length: Literal[128, 256, 512, 1024, 2048] = 512
    hidden: str = ""

    def __post_init__(self) -> None:
        check_fields(self, "")
        if len(self.text) > MAX_CHARACTERS:
            raise ValueError(
                f"The text has {len(self.text):,} characters, expected at most "
                f"{MAX_CHARACTERS:,}: shorten it."
            )


class Shown(NamedTuple):
    """A view of an objective with the controls of its settings."""

    name: str
    title: str
    about: list[str]
    link: str  # address of the paper; "" for an objective that is not in the catalog
    controls: list[Control]
    defaults: dict[str, Any]  # values of the controls in the objective's gin file
    text: str  # the text, by default with a button for each token
    body: str  # what the model is given and what it predicts
    commands: Commands


def families() -> dict[str, list[dict[str, Any]]]:
    """Returns the objectives of the catalog by family, as a page lists them."""
    return {
        family: [
            {
                "name": name,
                "title": entry.title,
                "aliases": list(entry.short_names),
                "good_for": entry.good_for,
            }
            for name, entry in entries.items()
        ]
        for family, entries in FAMILIES.items()
    }


class Objectives:
    """Draws objectives, and reloads the modules of the user's own when their files change."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read: dict[str, float] = {}  # file of a user's module -> time of its last change

    def show(self, view: View, text_of: Callable[[Example], str] | None = None) -> Shown:
        """Returns a view.

        Args:
          text_of: makes HTML of the text of the first row. None: `choosable_text`.

        Raises ValueError or OSError for a mistake of the user.
        """
        known, values, choice = self._chosen(view)
        as_partial(choice.build).check(None)  # names a wrong value by its name in gin
        drawn = _drawn(view, choice)
        text = (text_of or choosable_text)(drawn.picture.examples[0])
        layout = drawn.picture.layout
        entry = choice.entry
        suits = entry and not view.layout
        run = run_of(choice.name) if suits else ARCHITECTURES[layout].small_run
        options: dict[str, Any] = {"seed": view.seed, "vocabulary": view.vocabulary}
        options |= {"layout": view.layout} if view.layout else {}
        # Without --rows, `pretrax show` prints only an overview of several members.
        is_one = len(drawn.picture.examples) == 1
        options |= {} if is_one else {"rows": view.rows}
        options |= {"length": view.length} if view.length != showing.LENGTH else {}
        shown = commands(
            view.objective,
            choice.build,
            values,
            run=run,
            text=view.text,
            options=options,
            hidden=view.hidden,
        )
        return Shown(
            name=choice.name,
            title=entry.title if entry else choice.name,
            about=drawn.picture.facts,
            link=entry.paper_link[1] if entry else "",
            controls=controls(choice.build),
            defaults={name: control.value for name, control in known.items()},
            text=printable(text),
            body=printable(_body(drawn)),
            commands=shown,
        )

    def statistics(self, view: View) -> str:
        """Returns the statistics of a view's objective over a thousand rows, as HTML."""
        *_, choice = self._chosen(view)
        text = encoded(view)
        counted = with_statistics(
            choice,
            _drawn(view, choice),
            text.stream(),
            text.stream_name,
            slots=view.length,
            seed=view.seed,
        )
        return html.soft(counted.counted_on) + statistics(counted.statistics)

    def _chosen(self, view: View) -> tuple[dict[str, Control], dict[str, Any], Choice]:
        """Returns the controls of an objective, and the objective with the values of a form."""
        name = view.objective
        if "." not in name:
            base = choice_of(find(name))
        else:
            base = showing.choice_of_fields({"objective": self._own(name)})
        known = {control.name: control for control in controls(base.build)}
        values = {
            setting: value_of(known[setting], value) if setting in known else value
            for setting, value in view.values.items()
        }
        return known, values, base._replace(build=with_values(base.build, values))

    def _own(self, name: str) -> Partial:
        """Returns a user's builder from the current content of its file and folder."""
        module, _, builder = name.rpartition(".")
        with self._lock:
            imported = import_current_module(module, self._read)
        return as_partial(function_of(imported, builder))


def _drawn(view: View, choice: Choice) -> Drawn:
    # Programs are kept for a loss, so that another draw must have the same objective.
    build = functools.partial(_built, as_partial(choice.build))
    return picture(
        choice._replace(build=build),
        encoded(view).shown(is_own=True),
        layout=view.layout,
        count=view.rows,
        slots=view.length,
        seed=view.seed,
        hide=ranges_of(view.hidden) if view.hidden else (),
    )


def encoded(view: View) -> SampleText:
    """Returns the text of a view, as token ids of its vocabulary."""
    is_run = view.vocabulary not in VOCABULARIES
    changed = os.path.getmtime(view.vocabulary) if is_run else 0.0
    return _encoded(view.text, view.vocabulary, changed)


@functools.lru_cache(maxsize=256)
def choice_of(name: str) -> Choice:
    """Returns an objective of the catalog, with the settings of its gin file."""
    return showing.choice_of(name)


@functools.lru_cache(maxsize=64)
def _built(build: Partial, ids: TokenIds) -> Objective:
    return build(ids)


@functools.lru_cache(maxsize=64)
def _encoded(text: str, vocabulary: str, changed: float) -> SampleText:
    """Returns a text as token ids. A run's vocabulary is read again after it has changed."""
    documents = sample_text.read_documents([text])
    if vocabulary == "words":
        return sample_text.from_words(documents)
    return sample_text.from_texts(_opened(vocabulary, changed), documents)


@functools.lru_cache(maxsize=8)
def _opened(vocabulary: str, changed: float) -> Vocabulary:
    return showing.open_vocabulary(vocabulary)


def choosable_text(example: Example) -> str:
    """Returns the text of a row, each token as a button that chooses it."""
    parts = []
    number = 0
    for document in example.text:
        parts.append('<div class="flow">')
        for token in document:
            parts.append(
                f'{escape(token.before)}<button type="button" class="token" data-token="{number}" '
                f'aria-pressed="false">{picture_page.token_html(token)}</button>'
            )
            number += 1
        parts.append("</div>\n")
    return "".join(parts)


def _body(drawn: Drawn) -> str:
    """Returns the legend, and inputs and targets of each draw or member."""
    examples = drawn.picture.examples
    if len(examples) == 1:
        rows = html.card(picture_page.stacks(examples[0]))
    else:
        rows = picture_page.folded_examples(examples)
    left = drawn.picture.members_left
    more = html.soft(f"{left} more members are not shown.") if left else ""
    return picture_page.legend(drawn.picture) + rows + more
