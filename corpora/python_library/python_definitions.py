"""Docstrings of Python's own standard library and the code that they belong to, as tasks.

    pairs       does this docstring belong to this code?      balanced, chance 1/2
    retrieval   which of N pieces of code belongs to it?      chance by N

The split `validation` is of files that `corpora.python_library` holds out with its defaults.
"""

import functools
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from .python_passages import counted_in, drawn, drawn_order, library_split
from .python_sources import Pair, documented_definitions

DEFINITIONS = {"train": 1200, "validation": 240}
DOCSTRING_CHARACTERS = (16, 160)  # of the first paragraph; longer ones are left out
CODE_CHARACTERS = 240  # whole lines: what follows is cut off


class DocstringPair(NamedTuple):
    docstring: str
    code: str
    belongs: bool


@functools.cache
def definition_examples() -> dict[str, list[Pair]]:
    """Returns docstrings with their code, of both splits, each text once, in the order of a hash.

        Pair("Return the mean.", "def mean(values):\n    return sum(values) / len(values)\n")

    A docstring is cut to its first paragraph, code to its first lines.
    """
    files = library_split()
    split: dict[str, list[Pair]] = {}
    counts = counted_in(files)
    for part, documents in files.items():
        found: dict[str, Pair] = {}
        codes: set[str] = set()
        # As many files as are needed, since to parse the whole library takes long.
        for document in sorted(documents, key=lambda document: drawn_order(document.name)):
            if len(found) >= DEFINITIONS[part] * 5 // 4:
                break
            for pair in documented_definitions(document, Counter()):
                docstring = " ".join(pair.docstring.strip().split("\n\n")[0].split())
                code = first_lines(pair.code, CODE_CHARACTERS)
                least, most = DOCSTRING_CHARACTERS
                if not least <= len(docstring) <= most or not code or not counts(part, code):
                    continue
                if docstring not in found and code not in codes:
                    found[docstring] = Pair(docstring, code)
                    codes.add(code)
        split[part] = drawn(found.values(), DEFINITIONS[part])
    return split


def pair_examples() -> dict[str, list[DocstringPair]]:
    """Returns pairs of both splits, half of which belong together: see `matched_pairs`."""
    return {part: matched_pairs(some) for part, some in definition_examples().items()}


def matched_pairs(definitions: Sequence[Pair]) -> list[DocstringPair]:
    """Returns each docstring with its code, and with other code of about the same length.

        a: A, b: B    ->    (a, A, True), (b, B, True), (a, B, False), (b, A, False)

    Each docstring and each code is in one pair that belongs together and one that does not, so that
    neither tells anything by itself, nor does its length. Without one of an odd number.
    """
    by_length = sorted(definitions, key=lambda pair: (len(pair.code), drawn_order(pair)))
    pairs = []
    for one, other in zip(by_length[::2], by_length[1::2]):
        pairs += [DocstringPair(*one, True), DocstringPair(*other, True)]
        pairs += [DocstringPair(one.docstring, other.code, False)]
        pairs += [DocstringPair(other.docstring, one.code, False)]
    return sorted(pairs, key=drawn_order)


def first_lines(text: str, characters: int) -> str:
    r"""Returns the first whole lines of a text, of so many characters at most.

    >>> first_lines("one\ntwo\nthree\n", 9)
    'one\ntwo\n'
    """
    kept = ""
    for line in text.splitlines(keepends=True):
        if len(kept) + len(line) > characters:
            break
        kept += line
    return kept
