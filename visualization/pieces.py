"""Finds the tokens of the pieces of text that a user hides."""

import itertools
import re
from collections.abc import Sequence

import numpy as np

from .examples import Reader, surfaces


def pieces_of(names: Sequence[str], text: str) -> list[str]:
    """Returns the pieces to hide: each name if the text contains it, else its parts between commas.

    >>> pieces_of(["a, b", "c,d"], "f(a, b) c d")
    ['a, b', 'c', 'd']

    Raises ValueError for a name with an empty part before, between or after its commas.
    """
    parts = [[name] if name in text else name.split(",") for name in names]
    for name, pieces in zip(names, parts):
        if "" in pieces:
            raise ValueError(
                f"Got {name!r} to hide, expected pieces of the text with a comma between two: "
                "leave out a comma at the end, or give a piece."
            )
    return list(itertools.chain.from_iterable(parts))


def ranges_of(text: str) -> list[range]:
    """Returns the ranges of tokens of a text such as "3-5,9", counted from 0.

    >>> ranges_of("3-5,9")
    [range(3, 6), range(9, 10)]

    Raises ValueError for a text that is not a list of numbers and of pairs, or is out of order.
    """
    ranges: list[range] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"Got {text!r}, expected numbers of tokens, such as 3-5,9.")
        chosen = range(int(first), int(last if dash else first) + 1)
        if not chosen or (ranges and chosen.start < ranges[-1].stop):
            raise ValueError(f"Got {text!r}, expected numbers of tokens in ascending order.")
        ranges.append(chosen)
    return ranges


def marked_ranges(documents: Sequence[np.ndarray], ranges: Sequence[range]) -> np.ndarray:
    """Returns i32[n] numbers of the ranges that the tokens are in, from 1; 0 for other tokens.

    >>> marked_ranges([np.array([7, 7]), np.array([7, 7])], [range(1, 2), range(2, 4)])
    array([0, 1, 2, 2], dtype=int32)

    Raises ValueError for a range that is not within one document.
    """
    numbers = np.repeat(np.arange(len(documents)), list(map(len, documents)))
    marks = np.zeros(numbers.size, np.int32)
    for number, chosen in enumerate(ranges, 1):
        if chosen.stop > numbers.size or numbers[chosen.start] != numbers[chosen.stop - 1]:
            raise ValueError(
                f"Got the tokens {chosen.start} to {chosen.stop - 1} to hide, expected tokens of "
                f"one document: the text has {numbers.size}, counted from 0."
            )
        marks[chosen.start : chosen.stop] = number
    return marks


def marked(documents: Sequence[np.ndarray], pieces: Sequence[str], reader: Reader) -> np.ndarray:
    """Returns i32[n] numbers of the pieces that the tokens are in, from 1; 0 for other tokens.

    Each piece is found at its first occurrence after the previous piece.

    Raises ValueError for a piece that is not found or that begins or ends within a token.
    """
    texts = surfaces(reader, np.concatenate(documents))
    numbers = np.repeat(np.arange(len(documents)), list(map(len, documents)))
    whole = "".join(texts)
    ends = np.cumsum([len(text) for text in texts])
    starts = ends - [len(text) for text in texts]
    at = 0
    piece_numbers = np.zeros(len(texts), np.int32)
    for number, piece in enumerate(pieces, 1):
        wanted = "".join(f" {x}" for x in reader.words(piece)) if reader.words else piece
        starts_of_piece = [
            at + match.start() for match in re.finditer(f"(?={re.escape(wanted)})", whole[at:])
        ]
        runs = [_run(starts, ends, first, first + len(wanted)) for first in starts_of_piece]
        runs = [run for run in runs if np.unique(numbers[run]).size == 1]  # within one document
        if not wanted or not runs:
            if reader.words and "".join(wanted.split()) in "".join(whole[at:].split()):
                raise ValueError(
                    f"Got {piece!r} to hide, which begins or ends within a word: hide whole words, "
                    "or choose a finer vocabulary (--vocabulary=bytes)."
                )
            later = " after the previous piece" if at else ""
            raise ValueError(
                f"Got {piece!r} to hide, expected a piece of the text: it does not occur{later}."
            )
        cuts = ["".join(itertools.compress(texts, run)) for run in runs]
        inside = next((run for run, cut in zip(runs, cuts) if cut.strip() == wanted.strip()), None)
        if inside is None:
            raise ValueError(
                f"Got {piece!r} to hide, but its tokens are {cuts[0]!r}: hide whole tokens, "
                "or choose a finer vocabulary (--vocabulary=bytes)."
            )
        at = int(ends[inside].max())
        piece_numbers[inside] = number
    return piece_numbers


def _run(starts: np.ndarray, ends: np.ndarray, first: int, end: int) -> np.ndarray:
    """Returns a bool[n] mask of the tokens between two characters of the text.

    If a character has several tokens, only the first has text (`surfaces`). The other tokens belong
    to the first.

    >>> _run(np.array([0, 1, 2]), np.array([1, 2, 2]), 1, 2)  # "aé" in bytes
    array([False,  True,  True])
    """
    return (ends > first) & ((starts < end) | (ends == end))
