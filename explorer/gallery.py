"""Pages of all objectives that need no server: a few settings of each, to step through.

The pages need no JavaScript either: the settings are radio buttons, so that the arrow keys step
through them.
"""

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from html import escape
from typing import Any, NamedTuple

from ..objectives.catalog import FAMILIES
from ..objectives.token_ids import specimen_ids
from ..settings import atomic_writes
from ..visualization import picture_page
from .controls import Control, controls, with_values
from .objective_views import Objectives, Shown, View, choice_of
from .pages import document, style

TEXT = (
    "The quick brown fox jumps over the lazy dog. The dog sleeps for an hour and dreams of a fox."
)
MAX_VARIANTS = 4  # largest number of settings of an objective, in addition to another draw


class ShownSettings(NamedTuple):
    """Settings of an objective that a page shows."""

    label: str
    values: Mapping[str, Any]
    seed: int = 0


PUBLISHED = ShownSettings("as published", {})


def export(
    folder: str, names: Iterable[str], on_page: Callable[[str], None] = lambda name: None
) -> None:
    """Writes the page of each objective into a folder, and `index.html`, which lists them."""
    os.makedirs(folder, exist_ok=True)
    drawing = Objectives()
    atomic_writes.write_text(os.path.join(folder, "style.css"), style() + STYLE)
    atomic_writes.write_text(os.path.join(folder, "index.html"), index_page())
    for name in names:
        views = drawn_views(drawing, name)
        atomic_writes.write_text(os.path.join(folder, f"{name}.html"), objective_page(views))
        on_page(name)


def drawn_views(drawing: Objectives, name: str) -> list[tuple[ShownSettings, Shown]]:
    """Returns the settings of an objective with their views."""
    view = View(objective=name, text=TEXT)
    try:
        drawing.show(view)
    except ValueError:  # The objective needs tokens that a vocabulary of words lacks.
        view = dataclasses.replace(view, vocabulary="bytes")
    return [
        (
            settings,
            drawing.show(
                dataclasses.replace(view, values=settings.values, seed=settings.seed),
                picture_page.text,
            ),
        )
        for settings in variants(choice_of(name).build)
    ]


def variants(build: Callable) -> list[ShownSettings]:
    """Returns the settings of an objective that its page shows.

    >>> [variant.label for variant in variants(objectives.goldfish_loss)]
    ['as published', 'another draw', 'k = 2', 'k = 16', 'width = 6', 'width = 52']
    """
    changed = [
        ShownSettings(f"{control.label} = {value}", {control.name: value})
        for control in controls(build)
        for value in _other_values(control)
        if _is_accepted(build, {control.name: value})
    ]
    return [
        PUBLISHED,
        ShownSettings("another draw", {}, seed=1),
        *changed[:MAX_VARIANTS],
    ]


def _is_accepted(build: Callable, values: Mapping[str, Any]) -> bool:
    """Returns whether an objective accepts these values together with its other settings."""
    try:
        with_values(build, values)(specimen_ids(1000))
    except ValueError:
        return False
    return True


def _other_values(control: Control) -> Iterator[Any]:
    """Yields other values of a control: all choices, or up to two values of a slider."""
    if control.kind == "switch":
        yield not control.value
    elif control.kind == "choice":
        yield from (choice for choice in control.choices if choice != control.value)
    elif control.kind == "whole" and control.value:
        yield from _within(control, control.value // 2, control.value * 4)
    elif control.kind == "real" and control.value is not None:
        yield from _within(control, control.value / 2, control.value * 2)


def _within(control: Control, *values: float) -> Iterator[float]:
    """Yields the values that are in the range of a control and differ from its value."""
    assert control.low is not None and control.high is not None  # a slider has both
    for value in values:
        if control.low <= value <= control.high and value != control.value:
            yield round(value, 4) if control.kind == "real" else value


STYLE = """
.variants > section { display:none }
.variants > input { position:absolute; opacity:0 }
.variants > label { display:inline-block; border:1px solid var(--line); border-radius:6px;
  padding:.2rem .7rem; margin:.15rem .3rem .15rem 0; cursor:pointer; background:var(--card) }
.variants > input:checked + label { background:var(--first); color:var(--card) }
.variants > input:focus-visible + label { outline:2px solid var(--first); outline-offset:2px }
"""


def objective_page(views: list[tuple[ShownSettings, Shown]]) -> str:
    """Returns the page of an objective from its views."""
    first = views[0][1]
    number = range(len(views))
    rules = ", ".join(f"#v{k}:checked ~ #s{k}" for k in number)
    choices = "".join(
        f'<input type="radio" name="v" id="v{k}"{" checked" * (k == 0)}>'
        f'<label for="v{k}">{escape(variant.label)}</label>\n'
        for k, (variant, _) in enumerate(views)
    )
    sections = "".join(
        f'<section id="s{k}">\n<div class="card">{shown.text}'
        f"</div>\n{shown.body}<pre>{escape(shown.commands.shell)}</pre></section>\n"
        for k, (_, shown) in enumerate(views)
    )
    about = "".join(f"<p>{escape(line)}</p>" for line in first.about)
    body = (
        f'<p><a href="index.html">All objectives</a></p>\n<h1>{escape(first.title)}</h1>\n'
        f'<div class="soft">{about}<p><a href="{escape(first.link)}">Paper</a></p></div>\n'
        f'<style>{rules} {{ display:block }}</style>\n<div class="variants" role="radiogroup" '
        f'aria-label="Settings">\n{choices}{sections}</div>\n'
    )
    return document(first.title, "", f"<main>\n{body}</main>")


def index_page() -> str:
    """Returns the page that lists the objectives of the catalog by family."""
    parts = ["<h1>Gallery</h1>\n<p>The inputs and the targets of each objective.</p>\n"]
    for family, entries in FAMILIES.items():
        links = "".join(
            f'<li><a href="{name}.html">{escape(entry.title)}</a> '
            f'<span class="soft">{escape(entry.good_for)}</span></li>\n'
            for name, entry in entries.items()
        )
        parts.append(f"<h2>{escape(family.capitalize())}</h2>\n<ul>{links}</ul>\n")
    return document("Gallery", "", f"<main>\n{''.join(parts)}</main>")
