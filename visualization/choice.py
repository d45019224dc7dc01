"""The objective that is shown: its name, what the catalog says of it, and the layout it is on."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ..objectives import Builder, TokenIds, members_of
from ..objectives.catalog import ARCHITECTURES, Entry
from ..objectives.contract import with_counted_classes
from ..objectives.layouts import LAYOUTS


class Choice(NamedTuple):
    name: str
    build: Builder
    entry: Entry | None = None  # None: it is not in the catalog
    model: Callable | None = None  # (vocabulary rows, heads) -> the run's model, if it names one
    corpus: Callable | None = None  # of the run, where it names one
    mark_document_ends: bool | None = None  # None: as in any run of the objective
    packing: str | None = None  # of the run, where it has one
    # Slots of the run's stacks, where it has them: of all rows, or of each shape of rows.
    sequence_lengths: Mapping[str, int] | Sequence[Mapping[str, int]] | None = None
    mean_span_length: float | None = None  # where the objective is given one

    def facts(self, layout: str) -> list[str]:
        """Returns lines of the heading: what it is good for, its model, its paper."""
        if self.entry is None:
            return []
        published = layout_of(self.entry)
        model = "Model" if layout == published else "Published on another model"
        return [
            f"Good for: {self.entry.good_for}",
            f"{model}: {ARCHITECTURES[self.entry.architecture]}; attention: {self.entry.attention}",
            f"Paper: {self.entry.paper}",
        ]


def layout_of(entry: Entry) -> str:
    """Returns the layout of an objective's architecture: of two encoders that of one."""
    return entry.architecture if entry.architecture in LAYOUTS else "encoder"


def layout_for(choice: Choice, ids: TokenIds) -> str:
    """Returns the layout of the run's model, else the catalog's, else the first that fits.

    >>> layout_for(Choice("mine", objectives.causal_lm), ids)
    'decoder'

    Raises ValueError for features that no layout takes.
    """
    if choice.model is not None:
        # Of two classes, where a run counts its own: its layout is the same.
        return choice.model(ids.size, with_counted_classes(choice.build(ids), 2).facts.heads).layout
    if choice.entry:
        return layout_of(choice.entry)
    members = members_of(choice.build(ids))
    for name in ("encoder_decoder", "encoder", "decoder"):
        with contextlib.suppress(ValueError):
            for member in members:
                LAYOUTS[name].lengths(member.objective.lengths(100))
            return name
    raise ValueError(f"{choice.name} has no features that a model could learn from.")
