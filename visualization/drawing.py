"""Makes the `Picture` of an objective and a text."""

import typing
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from ..data.packing import resolve_packing
from ..objectives import Objective, TokenIds, packed_lengths
from ..objectives.contract import build
from ..objectives.laws import check_objective, is_user_defined
from ..objectives.layouts import LAYOUTS
from .choice import Choice, layout_for
from .examples import Reader, example
from .hidden import hides
from .picture import Example, Picture
from .pieces import marked, marked_ranges
from .rows import ShownObjective, first_stack, longest_document, shown_objectives, view_of

MAX_MEMBERS = 8  # maximum number of shown members


class ShownText(NamedTuple):
    """The text of a picture."""

    reader: Reader
    documents: Sequence[np.ndarray]  # documents of one row, i32[n] each
    other: np.ndarray  # i32[n] other text, for the partner row
    is_own: bool = True  # whether the user gave the text; other text is shortened until it fits


class Drawn(NamedTuple):
    """A picture, and the objectives that it shows: a single objective or members of a mixture."""

    picture: Picture
    members: Iterable[ShownObjective]


def picture(
    choice: Choice,
    text: ShownText,
    *,
    layout: str | None = None,
    count: int | None = None,
    slots: int = 512,
    seed: int = 0,
    hide: Sequence[str] | Sequence[range] = (),
) -> Drawn:
    """Returns the picture of an objective on a text, without statistics.

    Args:
      layout: layout of the model; by default the layout that suits the objective.
      count: number of examples of each member; by default three, or one for a mixture.
      slots: number of slots of the first stack, which limits the length of the text.
      hide: pieces of the text to hide, or ranges of its tokens, instead of random tokens.

    Raises:
      ValueError: if `check_objective` rejects an objective of the user, if the documents are too
        long or a single token, or if the objective cannot hide `hide` alone.
    """
    ids = text.reader.ids
    layout = layout or layout_for(choice, ids)
    objective = build(choice.build, ids)
    if is_user_defined(objective):
        check_objective(objective, ids)
    members = shown_objectives(objective, layout, ids)
    shown = members[:MAX_MEMBERS]
    documents = text.documents
    if not text.is_own:
        longest = min(longest_document(member, slots) for member in shown)
        documents = [documents[0][: max(longest - 1, 2)]]
    documents = _closed(documents, choice, objective, ids)
    count = count or (3 if len(members) == 1 else 1)
    examples = [
        drawn
        for member in shown
        for drawn in _examples(member, documents, text, count, slots, seed, hide)
    ]
    facts = choice.facts(layout)
    if objective.adaptation:
        facts.append("Noise: adapts to the model in training; the picture shows the initial noise")
    left = len(members) - len(shown)
    return Drawn(Picture(choice.name, layout, facts, examples, members_left=left), shown)


def _closed(
    documents: Iterable[np.ndarray], choice: Choice, objective: Objective, ids: TokenIds
) -> list[np.ndarray]:
    """Returns documents as in training.

    They end with end-of-sequence if the run marks the ends of documents and the objective does not
    read parts.
    """
    _, mark_document_ends = resolve_packing(objective, None, choice.mark_document_ends)
    closing = [ids.eos] if mark_document_ends and objective.facts.rows.kind != "parts" else []
    return [np.append(document, closing).astype(np.int32) for document in documents]


def _examples(
    member: ShownObjective,
    documents: Sequence[np.ndarray],
    text: ShownText,
    count: int,
    slots: int,
    seed: int,
    hide: Sequence[str] | Sequence[range],
) -> list[Example]:
    """Returns `count` examples of one row that holds these documents."""
    _check_fits(member, documents, slots)
    # The other row has the same number of documents, with the same lengths.
    ends = np.cumsum([len(document) for document in documents])
    others = np.split(np.resize(text.other, ends[-1]), ends[:-1])
    rows = [list(documents), others] * count
    hidden = np.stack([_marks(documents, hide, text.reader)] * len(rows)) if hide else None
    view = view_of(member, rows, seed, hidden)
    if hidden is not None and not hides(view, 0, hidden[0] > 0):
        raise ValueError(
            f"{member.name or 'This objective'} cannot hide {', '.join(map(_quoted, hide))} and "
            "nothing else. For example, prefix language modeling can only hide the end of a text, "
            "and fill-in-the-middle a single span of it. Hide another piece of the text."
        )
    return [example(member, view, text.reader, row) for row in range(0, len(rows), 2)]


def _marks(
    documents: Sequence[np.ndarray], hide: Sequence[str] | Sequence[range], reader: Reader
) -> np.ndarray:
    if all(isinstance(piece, range) for piece in hide):
        return marked_ranges(documents, typing.cast(Sequence[range], hide))
    return marked(documents, typing.cast(Sequence[str], hide), reader)


def _quoted(piece: str | range) -> str:
    return f"tokens {piece.start} to {piece.stop - 1}" if isinstance(piece, range) else repr(piece)


def _check_fits(member: ShownObjective, documents: Sequence[np.ndarray], slots: int) -> None:
    lengths = [len(document) for document in documents]
    if sum(lengths) < 2:
        raise ValueError("The text is a single token, expected at least two: give a longer text.")
    needs = LAYOUTS[member.layout].lengths(packed_lengths(member.objective, lengths))
    stack = first_stack(needs)
    if needs[stack] > slots:
        prefix = f"{member.name}: " if member.name else ""
        raise ValueError(
            f"{prefix}the text has {sum(lengths):,} tokens, which take {needs[stack]:,} slots of "
            f"the {stack}. Expected at most {slots} slots: shorten the text, or raise --length."
        )
