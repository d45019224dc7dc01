"""Minimal pairs from Python's own library: a text, and the same text with two parts exchanged.

    return sum(items[1:])        return sum(items[1:)]        brackets
    total = sum(values)          values = sum(total)          names: used before it is defined
    Return the number of         Return number the of         words

Both texts have the same characters, so neither lengths nor frequencies distinguish them. The wrong
code does not parse, or reads an undefined variable.
"""

import ast
import inspect
import io
import itertools
import keyword
import re
import textwrap
import tokenize
import warnings
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from ....corpora.python_library.python_sources import LibraryText, parsed

CHARACTERS = (60, 200)  # smallest and largest number of characters of code
WORDS = (8, 24)  # smallest and largest number of words of a sentence
# Number of words before the exchange, since an encoder-decoder reads the common beginning.
GIVEN = 3

CLOSING = frozenset(")]}")
OPERATORS = frozenset(
    "+ - * / // % ** @ & | ^ ~ << >> < > <= >= == != = += -= *= /= //= %= |= &= := ->".split()
)
FUNCTION_WORDS = frozenset("the a an of to in for from with by is are be into on at as".split())


class MinimalPair(NamedTuple):
    kind: str
    good: str
    bad: str


def python_pairs(documents: Sequence[LibraryText], count: int) -> list[MinimalPair]:
    """Returns up to `count` pairs of each kind, at most one per text."""
    code = _in_order(text for document in documents for text in functions_of(document))
    prose = _in_order(text for document in documents for text in sentences_of(document))
    pairs: list[MinimalPair] = []
    for kind, (places, is_wrong) in KINDS.items():
        texts = prose if kind == "words" else code
        kind_pairs = (_pair(kind, text, places, is_wrong) for text in texts)
        pairs += itertools.islice(filter(None, kind_pairs), count)
    return pairs


def _pair(kind: str, text: str, places: Callable, is_wrong: Callable) -> MinimalPair | None:
    """Returns the pair of the first exchange, by hash, that makes the text wrong."""
    candidates = list(dict.fromkeys(_exchanged(text, *pair) for pair in places(text)))
    bad = next((x for x in _in_order(candidates) if x != text and is_wrong(x)), None)
    return None if bad is None else MinimalPair(kind, text, bad)


def _in_order(texts) -> list[str]:
    return sorted(dict.fromkeys(texts), key=lambda text: (zlib.crc32(text.encode()), text))


def _exchanged(text: str, first: slice, second: slice) -> str:
    swapped = text[second] + text[first.stop : second.start] + text[first]
    return text[: first.start] + swapped + text[second.stop :]


# --- texts --------------------------------------------------------------------------------------


def functions_of(document: LibraryText) -> Iterator[str]:
    """Yields the short functions of a Python file, unindented and without their docstrings."""
    lines = document.read().splitlines(keepends=True)
    for node in _nodes(document):
        if not isinstance(node, ast.FunctionDef):
            continue
        first = last = node.lineno - 1
        if ast.get_docstring(node) is not None:
            first = node.body[0].lineno - 1
            last = node.body[0].end_lineno or 0
        text = textwrap.dedent(
            "".join(lines[node.lineno - 1 : first] + lines[last : node.end_lineno])
        )
        if CHARACTERS[0] <= len(text) <= CHARACTERS[1] and text.isascii() and compiles(text):
            yield text


def sentences_of(document: LibraryText) -> Iterator[str]:
    """Yields the first sentences of the docstrings of a Python file."""
    for node in _nodes(document):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
            text = inspect.cleandoc(ast.get_docstring(node) or "")
            match = re.match(r"[A-Z][^.:>`|]*\.(?=\s|$)", text)
            sentence = " ".join(match[0].split()) if match else ""
            if WORDS[0] <= len(sentence.split()) <= WORDS[1] and sentence.isascii():
                yield sentence


def _nodes(document: LibraryText) -> Iterator[ast.AST]:
    tree = parsed(document.read()) if document.name.endswith(".py") else None
    if tree is not None:
        yield from ast.walk(tree)


def compiles(text: str) -> bool:
    """Returns whether Python compiles a text. This rejects more than `ast.parse`, as f() = 1."""
    try:
        with warnings.catch_warnings(action="ignore"):
            compile(text, "pair", "exec")
    except (SyntaxError, ValueError):
        return False
    return True


def fails_to_compile(text: str) -> bool:
    return not compiles(text)


# --- parts that may be exchanged ----------------------------------------------------------------


def indentations(text: str) -> Iterator[tuple[slice, slice]]:
    """Yields the indentations of consecutive lines, from the second line on."""
    starts = [match.start() for match in re.finditer(r"^", text, re.MULTILINE)]
    lines = [
        slice(start, start + len(line) - len(line.lstrip(" ")))
        for start, line in zip(starts, text.splitlines())
        if line.strip()
    ]
    yield from zip(lines[1:], lines[2:])


def names(text: str) -> Iterator[tuple[slice, slice]]:
    """Yields a use of a name, and a later use of a variable that is undefined at the first use."""
    (function,) = ast.parse(text).body
    name_nodes = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
    defined: dict[str, int] = {}  # variable -> first line that assigns a value to it
    for node in name_nodes:
        if isinstance(node.ctx, ast.Store):
            defined[node.id] = min(defined.get(node.id, node.lineno), node.lineno)
    uses = [node for node in name_nodes if isinstance(node.ctx, ast.Load)]
    arguments = {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    for use in uses:
        for later_use in uses:
            is_later = defined.get(later_use.id, 0) >= use.lineno and later_use.lineno > use.lineno
            is_defined = use.id in defined or use.id in arguments
            if is_later and is_defined and later_use.id not in arguments and use.id != later_use.id:
                yield _place(text, use), _place(text, later_use)


def words(text: str) -> Iterator[tuple[slice, slice]]:
    """Yields a function word and the word after it, which is not a function word."""
    matches = list(re.finditer(r"\S+", text))
    for word, next_word in zip(matches[GIVEN:], matches[GIVEN + 1 :]):
        plain = next_word[0].isalpha() and next_word[0].islower()
        if word[0] in FUNCTION_WORDS and plain and next_word[0] not in FUNCTION_WORDS:
            yield slice(*word.span()), slice(*next_word.span())


def neighbors(text: str, *, kind: int, strings: Collection[str]) -> Iterator[tuple[slice, slice]]:
    """Yields consecutive tokens of a kind that are among these strings."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    matching = [t for t in tokens if t.type == kind and t.string in strings]
    places = [slice(_offset(text, *t.start), _offset(text, *t.end)) for t in matching]
    for place, next_place in itertools.pairwise(places):
        if text[place] != text[next_place]:
            yield place, next_place


def _place(text: str, node: ast.Name) -> slice:
    start = _offset(text, node.lineno, node.col_offset)  # Bytes are characters in ASCII text.
    return slice(start, start + len(node.id))


def _offset(text: str, line: int, column: int) -> int:
    lines = text.splitlines(keepends=True)
    return sum(map(len, lines[: line - 1])) + column


# kind -> (function that yields candidate exchanges, function that tests for a wrong text)
KINDS: dict[str, tuple[Callable, Callable[[str], bool]]] = {
    "brackets": (partial(neighbors, kind=tokenize.OP, strings=CLOSING), fails_to_compile),
    "indentation": (indentations, fails_to_compile),
    "names": (names, compiles),  # An exchange of `names` is wrong although the text parses.
    "keywords": (partial(neighbors, kind=tokenize.NAME, strings=keyword.kwlist), fails_to_compile),
    "operators": (partial(neighbors, kind=tokenize.OP, strings=OPERATORS), fails_to_compile),
    "words": (words, lambda text: True),
}
