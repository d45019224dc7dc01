"""Tasks on the code of Python's standard library and its docstrings.

    pairs       does this docstring belong to this code?                  chance 1/2
    retrieval   which of N pieces of code does this docstring belong to?  chance 1/N
    order       are two statements in the order of their program?         chance 1/2

The split `validation` has the files that `corpora.python_library` holds out by default.
"""

import functools
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from .python_passages import counted_in, drawn, drawn_order, library_split
from .python_sources import Pair, consecutive_statements, documented_definitions

DEFINITIONS = {"train": 1200, "validation": 240}
DOCSTRING_CHARACTERS = (16, 160)  # Smallest and largest length of a docstring's first paragraph
STATEMENTS = {"train": 1000, "validation": 240}  # Number of pairs, each shown in both orders
STATEMENT_CHARACTERS = 100  # Largest length of a statement
CODE_CHARACTERS = 240  # Largest length of code, which is cut at the end of a line


class DocstringPair(NamedTuple):
    docstring: str
    code: str
    belongs: bool


@functools.cache
def definition_examples() -> dict[str, list[Pair]]:
    r"""Returns the docstrings of each split with their code, without duplicates, ordered by a hash.

        Pair("Return the mean.", "def mean(values):\n    return sum(values) / len(values)\n")

    A docstring is cut to its first paragraph, and code to its first lines.
    """
    files = library_split()
    split: dict[str, list[Pair]] = {}
    counts = counted_in(files)
    for part, documents in files.items():
        pairs: dict[str, Pair] = {}  # by docstring
        codes: set[str] = set()
        # Files are parsed only until there are enough pairs, since parsing them all is slow.
        for document in sorted(documents, key=lambda document: drawn_order(document.name)):
            if len(pairs) >= DEFINITIONS[part] * 5 // 4:
                break
            for pair in documented_definitions(document, Counter()):
                docstring = " ".join(pair.docstring.strip().split("\n\n")[0].split())
                code = first_lines(pair.code, CODE_CHARACTERS)
                least, most = DOCSTRING_CHARACTERS
                if not least <= len(docstring) <= most or not code or not counts(part, code):
                    continue
                if docstring not in pairs and code not in codes:
                    pairs[docstring] = Pair(docstring, code)
                    codes.add(code)
        split[part] = drawn(pairs.values(), DEFINITIONS[part])
    return split


def pair_examples() -> dict[str, list[DocstringPair]]:
    """Returns the pairs of each split, half of which belong together (see `matched_pairs`)."""
    return {part: matched_pairs(pairs) for part, pairs in definition_examples().items()}


def matched_pairs(definitions: Sequence[Pair]) -> list[DocstringPair]:
    """Returns each docstring with its own code, and with other code of about the same length.

        a: A, b: B    ->    (a, A, True), (b, B, True), (a, B, False), (b, A, False)

    Each docstring and each piece of code is in one pair that belongs together and in one that does
    not. Neither text alone, nor its length, therefore predicts the answer. One definition of an odd
    number is left out.
    """
    by_length = sorted(definitions, key=lambda pair: (len(pair.code), drawn_order(pair)))
    pairs = []
    for one, other in zip(by_length[::2], by_length[1::2]):
        pairs += [DocstringPair(*one, True), DocstringPair(*other, True)]
        pairs += [DocstringPair(one.docstring, other.code, False)]
        pairs += [DocstringPair(other.docstring, one.code, False)]
    return sorted(pairs, key=drawn_order)


class StatementPair(NamedTuple):
    text: str  # two statements, one after the other
    in_order: bool


@functools.cache
def statement_examples() -> dict[str, list[StatementPair]]:
    r"""Returns consecutive statements of both splits, each pair in both orders.

        StatementPair("total = sum(values)\nreturn total / len(values)", True)
        StatementPair("return total / len(values)\ntotal = sum(values)", False)

    The words of a pair are the same in both orders, so they do not show the answer.
    """
    files = library_split()
    split: dict[str, list[StatementPair]] = {}
    counts = counted_in(files)
    for part, documents in files.items():
        pairs: list[tuple[str, str]] = []
        for document in sorted(documents, key=lambda document: drawn_order(document.name)):
            if len(pairs) >= STATEMENTS[part] * 5 // 4:
                break
            pairs += [
                (one, other)
                for one, other in consecutive_statements(document)
                if one != other
                and max(len(one), len(other)) <= STATEMENT_CHARACTERS
                and counts(part, f"{one}\n{other}")
            ]
        shown = [
            StatementPair("\n".join(each), in_order)
            for pair in drawn(pairs, STATEMENTS[part])
            for each, in_order in ((pair, True), (pair[::-1], False))
        ]
        split[part] = sorted(shown, key=drawn_order)
    return split


def first_lines(text: str, characters: int) -> str:
    r"""Returns the first whole lines of a text, with at most `characters` characters together.

    >>> first_lines("one\ntwo\nthree\n", 9)
    'one\ntwo\n'
    """
    kept = ""
    for line in text.splitlines(keepends=True):
        if len(kept) + len(line) > characters:
            break
        kept += line
    return kept
