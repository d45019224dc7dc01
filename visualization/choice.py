"""The objective that is shown: its name, its catalog entry, and the layout of its model."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ..objectives import Builder, TokenIds, members_of
from ..objectives.catalog import ARCHITECTURES, Entry
from ..objectives.contract import build, with_corpus_classes
from ..objectives.layouts import LAYOUTS, supporting_layouts


class Choice(NamedTuple):
    """An objective to show, with the settings of a run if it comes from one."""

    name: str
    build: Builder
    entry: Entry | None = None  # None for an objective that is not in the catalog
    model: Callable | None = None  # the run's (vocabulary rows, heads) -> model, if it has one
    corpus: Callable | None = None  # the run's corpus, if it has one
    mark_document_ends: bool | None = None  # None: the objective's default
    packing: str | None = None  # the run's packing, if it has one
    # Number of slots of the run's stacks, for all rows or for each shape of rows.
    sequence_lengths: Mapping[str, int] | Sequence[Mapping[str, int]] | None = None
    mean_span_length: float | None = None  # mean length of hidden spans, if it is set

    def facts(self, layout: str) -> list[str]:
        """Returns lines on the objective's uses, its model and its paper."""
        model = layout.replace("_", "-")
        if self.entry is None:
            return [f"Model: {model}"]
        published = ARCHITECTURES[self.entry.architecture].label
        if layout == layout_of(self.entry):
            model = published
        else:
            model += f"; published on another model: {published}"
        return [
            f"Good for: {self.entry.good_for}",
            f"Model: {model}; attention: {self.entry.attention}",
            f"Paper: {self.entry.paper}",
        ]


def layout_of(entry: Entry) -> str:
    """Returns the layout of an objective's architecture.

    A pair of encoders has the layout of a single encoder.
    """
    return entry.architecture if entry.architecture in LAYOUTS else "encoder"


def layout_for(choice: Choice, ids: TokenIds) -> str:
    """Returns the layout of an objective.

    It is the layout of the run's model, or of the catalog, or else the first that supports the
    objective.

    >>> layout_for(Choice("mine", objectives.causal_lm), ids)
    'decoder'

    Raises ValueError if no layout has the objective's features.
    """
    if choice.model is not None:
        # The layout does not depend on the number of classes.
        objective = with_corpus_classes(build(choice.build, ids), 2)
        return choice.model(ids.size, objective.facts.heads).layout
    if choice.entry:
        return layout_of(choice.entry)
    layouts = supporting_layouts(
        [member.objective.lengths(100) for member in members_of(build(choice.build, ids))]
    )
    if not layouts:
        raise ValueError(
            f"No layout supports the features of {choice.name}: expected features of an "
            "encoder-decoder, an encoder or a decoder."
        )
    return layouts[0]
