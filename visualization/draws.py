"""Draws: the same documents corrupted several times, each time with noise of its own."""

import itertools
import re
from collections.abc import Sequence

import numpy as np

from ..objectives import Objective, TokenIds, packed_lengths
from ..objectives.layouts import LAYOUTS
from .examples import Example, Reader, example, hides, surfaces
from .rows import ShownObjective, first_stack, longest_document, view_of


def draws(
    subject: ShownObjective,
    documents: Sequence[np.ndarray],
    other: np.ndarray,
    reader: Reader,
    *,
    count: int,
    slots: int,
    seed: int,
    hide: Sequence[str] = (),
) -> list[Example]:
    """Returns `count` examples of one row that holds these documents.

    Args:
      documents: i32[n] each, as `prepared` gives them.
      other: another text i32[n], for objectives that pair a row with the next one.
      slots: of the first stack, which bound how long the documents may be.
      hide: what to hide, as of `marked`, in place of what the objective would draw.

    Raises ValueError for documents that are too long, or of a single token, and for an objective
    that does not hide what it should.
    """
    _check_fits(subject, documents, slots)
    # The other row has as many documents, of the same lengths.
    ends = np.cumsum([len(document) for document in documents])
    others = np.split(np.resize(other, ends[-1]), ends[:-1])
    rows = [list(documents), others] * count
    if not hide:
        view = view_of(subject, rows, seed)
    else:
        asked = marked(documents, hide, reader)
        view = view_of(subject, rows, seed, np.stack([asked] * 2 * count))
        if not hides(view, 0, asked > 0):
            raise ValueError(
                f"{subject.name or 'This objective'} cannot hide {', '.join(map(repr, hide))} and "
                "nothing else: prefix language modelling hides the end of a text, and "
                "fill-in-the-middle one stretch of it."
            )
    return [example(subject, view, reader, 2 * i) for i in range(count)]


def marked(documents: Sequence[np.ndarray], pieces: Sequence[str], reader: Reader) -> np.ndarray:
    """Returns i32[n]: the number from 1 of the piece that each token of a text is in; 0 for others.

    Each piece is the first of these words after the piece before it.

    Raises ValueError for a piece that is not there, or that begins or ends within a token.
    """
    texts = surfaces(reader, np.concatenate(documents))
    numbers = np.repeat(np.arange(len(documents)), list(map(len, documents)))
    whole = "".join(texts)
    ends = np.cumsum([len(text) for text in texts])
    starts = ends - [len(text) for text in texts]
    at = 0
    found_in = np.zeros(len(texts), np.int32)
    for number, piece in enumerate(pieces, 1):
        wanted = "".join(f" {x}" for x in reader.words(piece)) if reader.words else piece
        found = [at + one.start() for one in re.finditer(f"(?={re.escape(wanted)})", whole[at:])]
        runs = [_run(starts, ends, first, first + len(wanted)) for first in found]
        runs = [run for run in runs if np.unique(numbers[run]).size == 1]  # within a document
        if not wanted or not runs:
            if reader.words and "".join(wanted.split()) in "".join(whole[at:].split()):
                raise ValueError(
                    f"Got {piece!r} to hide, which begins or ends within a word: hide whole words, "
                    "or choose a finer vocabulary (--vocabulary=bytes)."
                )
            later = " after what is hidden before it" if at else ""
            raise ValueError(f"Got {piece!r} to hide, which the text has not{later}.")
        cuts = ["".join(itertools.compress(texts, run)) for run in runs]
        inside = next((run for run, cut in zip(runs, cuts) if cut.strip() == wanted.strip()), None)
        if inside is None:
            raise ValueError(
                f"Got {piece!r} to hide, and the tokens there are {cuts[0]!r}: hide whole tokens, "
                "or choose a finer vocabulary (--vocabulary=bytes)."
            )
        at = int(ends[inside].max())
        found_in[inside] = number
    return found_in


def _run(starts: np.ndarray, ends: np.ndarray, first: int, end: int) -> np.ndarray:
    """Returns bool[n]: the tokens of the text between two of its characters.

    The last parts of a character have no text of their own (`surfaces`), and go with its first.

    >>> _run(np.array([0, 1, 2]), np.array([1, 2, 2]), 1, 2)  # of "aé", as bytes
    array([False,  True,  True])
    """
    return (ends > first) & ((starts < end) | (ends == end))


def pieces_of(names: Sequence[str], text: str) -> list[str]:
    """Returns what to hide: each name whole where the text has it, else its parts between commas.

    >>> pieces_of(["a, b", "c,d"], "f(a, b) c d")
    ['a, b', 'c', 'd']

    Raises ValueError for a name with nothing before, between or after its commas.
    """
    parts = [[name] if name in text else name.split(",") for name in names]
    for name, pieces in zip(names, parts):
        if "" in pieces:
            raise ValueError(
                f"Got {name!r} to hide, expected pieces of the text with a comma between two: "
                "leave out a comma at the end, or give a piece."
            )
    return list(itertools.chain.from_iterable(parts))


def shortened(document: np.ndarray, members: Sequence[ShownObjective], slots: int) -> np.ndarray:
    """Returns the beginning of a document that fits every member's first stack when `prepared`."""
    longest = min(longest_document(member, slots) for member in members)
    return document[: max(longest - 1, 2)]


def prepared(
    documents: Sequence[np.ndarray], objective: Objective, ids: TokenIds, mark_document_ends: bool
) -> list[np.ndarray]:
    """Returns documents as training gives them to the objective.

    End-of-sequence closes each document if `mark_document_ends`, but of an objective of parts.
    """
    closes = mark_document_ends and objective.facts.rows.kind != "parts"
    closing = [ids.eos] if closes else []
    return [np.append(document, closing).astype(np.int32) for document in documents]


def _check_fits(subject: ShownObjective, documents: Sequence[np.ndarray], slots: int) -> None:
    lengths = [len(document) for document in documents]
    who = f"{subject.name}: " if subject.name else ""
    if sum(lengths) < 2:
        raise ValueError("The text is a single token, which leaves nothing to hide: give more.")
    needs = LAYOUTS[subject.layout].lengths(packed_lengths(subject.build(subject.ids), lengths))
    stack = first_stack(needs)
    if needs[stack] > slots:
        raise ValueError(
            f"{who}the text has {sum(lengths):,} tokens, which take {needs[stack]:,} slots of the "
            f"{stack}; there are {slots}: shorten it, or raise --length."
        )
