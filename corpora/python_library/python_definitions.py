"""Tasks on the code of Python's standard library and its docstrings.

    pairs       does this docstring belong to this code?                  chance 1/2
    retrieval   which of N pieces of code does this docstring belong to?  chance 1/N
    order       are two statements in the order of their program?         chance 1/2

The split `validation` has the files that `corpora.python_library` holds out by default.
"""

import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .python_passages import Counts, drawn_order, library_examples
from .python_sources import (
    LibraryText,
    Pair,
    consecutive_statements,
    documented_definitions,
)

DEFINITIONS = {"train": 1200, "validation": 240}
DOCSTRING_CHARACTERS = (16, 160)  # Smallest and largest length of a docstring's first paragraph
STATEMENTS = {"train": 1000, "validation": 240}  # Number of pairs, each shown in both orders
STATEMENT_CHARACTERS = 100  # Largest length of a statement
ENOUGH = 1.25  # Number of examples at which no further file is read, as a multiple of the largest
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
    least, most = DOCSTRING_CHARACTERS
    seen: set[tuple[str, str]] = set()  # (split, docstring or code)

    def examples_in(part: str, document: LibraryText, counts: Counts) -> Iterator[Pair]:
        for pair in documented_definitions(document, Counter()):
            docstring = " ".join(pair.docstring.strip().split("\n\n")[0].split())
            code = first_lines(pair.code, CODE_CHARACTERS)
            sides = {(part, docstring), (part, code)}
            fits = least <= len(docstring) <= most and code and counts(part, code)
            if fits and seen.isdisjoint(sides):
                seen.update(sides)
                yield Pair(docstring, code)

    return library_examples(DEFINITIONS, examples_in, ENOUGH)


def pair_examples() -> dict[str, list[DocstringPair]]:
    """Returns the pairs of each split. Half of them belong together (see `matched_pairs`)."""
    return {part: matched_pairs(pairs) for part, pairs in definition_examples().items()}


def matched_pairs(definitions: Sequence[Pair]) -> list[DocstringPair]:
    """Returns each docstring with its own code, and with other code of about the same length.

        a: A, b: B    ->    (a, A, True), (b, B, True), (a, B, False), (b, A, False)

    Each docstring and each piece of code is in one pair that belongs together and in one that does
    not. So neither text alone nor its length predicts the answer. If the number of definitions is
    odd, one is left out.
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

    def examples_in(part: str, document: LibraryText, counts: Counts) -> Iterator[tuple[str, str]]:
        for one, other in consecutive_statements(document):
            is_short = max(len(one), len(other)) <= STATEMENT_CHARACTERS
            if one != other and is_short and counts(part, f"{one}\n{other}"):
                yield one, other

    def in_both_orders(pairs: Sequence[tuple[str, str]]) -> list[StatementPair]:
        shown = [StatementPair("\n".join(pair), True) for pair in pairs]
        shown += [StatementPair("\n".join(pair[::-1]), False) for pair in pairs]
        return sorted(shown, key=drawn_order)

    split = library_examples(STATEMENTS, examples_in, ENOUGH)
    return {part: in_both_orders(pairs) for part, pairs in split.items()}


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
