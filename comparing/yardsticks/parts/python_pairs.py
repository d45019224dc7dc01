"""Minimal pairs made of Python's own library: a text, and the same text with two places exchanged.

    return sum(items[1:])        return sum(items[1:)]        brackets
    total = sum(values)          values = sum(total)          names: used before it is defined
    Return the number of         Return number the of         words

Both texts consist of the same characters, so that neither length nor frequencies tell them apart.
The wrong one of code does not parse, or reads a variable that has no value yet; of prose a function
word stands behind its word.
"""

import ast
import inspect
import io
import keyword
import re
import textwrap
import tokenize
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ....tasks.python_library.python_sources import Document

CHARACTERS = (60, 200)  # of the code of a pair, at least and at most
WORDS = (8, 24)  # of a sentence
GIVEN = 3  # words before the first place: an encoder-decoder reads what both texts begin with

CLOSING = frozenset(")]}")
OPERATORS = frozenset(
    "+ - * / // % ** @ & | ^ ~ << >> < > <= >= == != = += -= *= /= //= %= |= &= := ->".split()
)
FUNCTION_WORDS = frozenset("the a an of to in for from with by is are be into on at as".split())


class MinimalPair(NamedTuple):
    kind: str
    good: str
    bad: str


class Place(NamedTuple):
    """A part of a text: text[start:end]."""

    start: int
    end: int


def python_pairs(documents: Sequence[Document], count: int) -> list[MinimalPair]:
    """Returns up to `count` pairs of each kind, the same at every call, from all documents.

    Texts are taken in the order of a hash, at most one pair of a kind from each.
    """
    code = _in_order(text for document in documents for text in functions_of(document))
    prose = _in_order(text for document in documents for text in sentences_of(document))
    pairs = []
    for kind, (places, is_wrong) in KINDS.items():
        texts = prose if kind == "words" else code
        found = (pair for text in texts if (pair := _pair(kind, text, places, is_wrong)))
        pairs += [pair for pair, _ in zip(found, range(count))]
    return pairs


def _pair(kind: str, text: str, places: Callable, is_wrong: Callable) -> MinimalPair | None:
    """Returns the pair of the first exchange, in the order of a hash, that makes the text wrong."""
    candidates = list(dict.fromkeys(_exchanged(text, *pair) for pair in places(text)))
    bad = next((x for x in _in_order(candidates) if x != text and is_wrong(x)), None)
    return None if bad is None else MinimalPair(kind, text, bad)


def _in_order(texts) -> list[str]:
    return sorted(dict.fromkeys(texts), key=lambda text: (zlib.crc32(text.encode()), text))


def _exchanged(text: str, one: Place, other: Place) -> str:
    """Returns the text with two parts exchanged, the first of which comes first."""
    middle = text[one.end : other.start]
    swapped = text[slice(*other)] + middle + text[slice(*one)]
    return text[: one.start] + swapped + text[other.end :]


# --- texts --------------------------------------------------------------------------------------


def functions_of(document: Document) -> Iterator[str]:
    """Yields the short functions of a Python file, unindented and without their docstrings."""
    lines = document.read().splitlines(keepends=True)
    for node in _nodes(document):
        if not isinstance(node, ast.FunctionDef):
            continue
        first = last = node.lineno - 1
        if ast.get_docstring(node) is not None:
            first, last = node.body[0].lineno - 1, node.body[0].end_lineno or 0
        text = textwrap.dedent(
            "".join(lines[node.lineno - 1 : first] + lines[last : node.end_lineno])
        )
        if CHARACTERS[0] <= len(text) <= CHARACTERS[1] and text.isascii() and _parses(text):
            yield text


def sentences_of(document: Document) -> Iterator[str]:
    """Yields the first sentences of the docstrings of a Python file."""
    for node in _nodes(document):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
            text = inspect.cleandoc(ast.get_docstring(node) or "")
            found = re.match(r"[A-Z][^.:>`|]*\.(?=\s|$)", text)
            sentence = " ".join(found[0].split()) if found else ""
            if WORDS[0] <= len(sentence.split()) <= WORDS[1] and sentence.isascii():
                yield sentence


def _nodes(document: Document) -> Iterator[ast.AST]:
    if not document.name.endswith(".py"):
        return
    try:
        with warnings.catch_warnings(action="ignore"):  # of escapes that are out of date
            yield from ast.walk(ast.parse(document.read()))
    except (SyntaxError, ValueError):  # ValueError: null bytes
        return


def _parses(text: str) -> bool:
    try:
        with warnings.catch_warnings(action="ignore"):
            compile(text, "pair", "exec")  # which finds more than `ast.parse`, such as f() = 1
    except (SyntaxError, ValueError):
        return False
    return True


# --- places that may be exchanged ---------------------------------------------------------------


def closing_brackets(text: str) -> Iterator[tuple[Place, Place]]:
    """Yields neighbours among the closing brackets."""
    yield from _neighbours(text, lambda t: t.type == tokenize.OP and t.string in CLOSING)


def operators(text: str) -> Iterator[tuple[Place, Place]]:
    """Yields neighbours among the operators."""
    yield from _neighbours(text, lambda t: t.type == tokenize.OP and t.string in OPERATORS)


def keywords(text: str) -> Iterator[tuple[Place, Place]]:
    """Yields neighbours among the keywords."""
    yield from _neighbours(text, lambda t: t.type == tokenize.NAME and keyword.iskeyword(t.string))


def indentations(text: str) -> Iterator[tuple[Place, Place]]:
    """Yields the spaces before two lines that follow each other, from the second line on."""
    starts = [match.start() for match in re.finditer(r"^", text, re.MULTILINE)]
    lines = [
        Place(start, start + len(line) - len(line.lstrip(" ")))
        for start, line in zip(starts, text.splitlines())
        if line.strip()
    ]
    yield from zip(lines[1:], lines[2:])


def names(text: str) -> Iterator[tuple[Place, Place]]:
    """Yields a use of a name and a later use of a variable that is not yet defined at the first
    one."""
    (function,) = ast.parse(text).body
    found = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
    defined: dict[str, int] = {}  # the first line in which it is given a value
    for node in found:
        if isinstance(node.ctx, ast.Store):
            defined[node.id] = min(defined.get(node.id, node.lineno), node.lineno)
    uses = [node for node in found if isinstance(node.ctx, ast.Load)]
    arguments = {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    for one in uses:
        for other in uses:
            later = defined.get(other.id, 0) >= one.lineno and other.lineno > one.lineno
            known = one.id in defined or one.id in arguments
            if later and known and other.id not in arguments and one.id != other.id:
                yield _place(text, one), _place(text, other)


def words(text: str) -> Iterator[tuple[Place, Place]]:
    """Yields a function word and the word behind it, which is none."""
    found = list(re.finditer(r"\S+", text))
    for one, other in zip(found[GIVEN:], found[GIVEN + 1 :]):
        plain = other[0].isalpha() and other[0].islower()
        if one[0] in FUNCTION_WORDS and plain and other[0] not in FUNCTION_WORDS:
            yield Place(*one.span()), Place(*other.span())


def _neighbours(text: str, wanted: Callable) -> Iterator[tuple[Place, Place]]:
    found = [t for t in tokenize.generate_tokens(io.StringIO(text).readline) if wanted(t)]
    places = [Place(_offset(text, *t.start), _offset(text, *t.end)) for t in found]
    for one, other in zip(places, places[1:]):
        if text[slice(*one)] != text[slice(*other)]:
            yield one, other


def _place(text: str, node: ast.Name) -> Place:
    start = _offset(text, node.lineno, node.col_offset)  # of bytes, which are characters in ASCII
    return Place(start, start + len(node.id))


def _offset(text: str, line: int, column: int) -> int:
    lines = text.splitlines(keepends=True)
    return sum(map(len, lines[: line - 1])) + column


# kind -> (places of a text that may be exchanged, whether a text is wrong)
KINDS: dict[str, tuple[Callable, Callable[[str], bool]]] = {
    "brackets": (closing_brackets, lambda text: not _parses(text)),
    "indentation": (indentations, lambda text: not _parses(text)),
    "names": (names, _parses),  # by `names`, such a text parses and is wrong
    "keywords": (keywords, lambda text: not _parses(text)),
    "operators": (operators, lambda text: not _parses(text)),
    "words": (words, lambda text: True),
}
