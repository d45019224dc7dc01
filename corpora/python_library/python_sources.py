"""Reads the text of Python's standard library, and pairs of docstrings and code."""

import ast
import functools
import itertools
import os
import sysconfig
import textwrap
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ...constraints import AtLeastTwo, checked

# Tests and generated tables teach little, and other people's packages are not on every machine.
SKIPPED_FOLDERS = frozenset(
    "site-packages dist-packages __pycache__ test tests idlelib lib2to3 turtledemo encodings "
    "pydoc_data ensurepip _bundled".split()
)
HELDOUT_EVERY = 20  # By default, one document in this number is held out.

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class LibraryText(NamedTuple):
    """A source file or a pydoc topic, which is read when it is needed."""

    name: str  # path in the library with "/"; topics are "pydoc_data/topics/…"
    fingerprint: str  # a value that changes when the text changes
    read: Callable[[], str]


def library_documents() -> list[LibraryText]:
    """Returns the library's source files and the topics of pydoc, sorted by name.

    Raises FileNotFoundError if Python was installed without the sources of its library.
    """
    root = Path(sysconfig.get_path("stdlib"))
    documents = []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in SKIPPED_FOLDERS]
        for path in (Path(folder, file) for file in files):
            if path.suffix != ".py" or path.name.startswith("_sysconfigdata"):
                continue
            if size := path.stat().st_size:
                read = functools.partial(path.read_text, "utf-8", "replace")
                documents.append(LibraryText(path.relative_to(root).as_posix(), str(size), read))
    if not documents:
        raise FileNotFoundError(
            f"There are no Python sources in {root}, because this Python was installed without the "
            "sources of its library. Use a Python from python.org, your distribution, conda or uv, "
            "or train on your own text with corpora.text_files."
        )
    documents += _topics()
    return sorted(documents)


@checked
def split_documents(
    documents: Sequence[LibraryText], heldout_every: AtLeastTwo = HELDOUT_EVERY
) -> dict[str, list[LibraryText]]:
    """Returns training and held-out documents: one in `heldout_every`, by a hash of its name.

    Raises ValueError if a split would be empty.
    """
    split: dict[str, list[LibraryText]] = {"train": [], "heldout": []}
    for document in documents:
        held = zlib.crc32(document.name.encode()) % heldout_every == 0
        split["heldout" if held else "train"].append(document)
    for name, chosen in split.items():
        if not chosen:
            raise ValueError(
                f"Got no {name} documents out of {len(documents)} with heldout_every="
                f"{heldout_every}, expected at least one: change heldout_every."
            )
    return split


class Pair(NamedTuple):
    """The docstring of a function, method or class, and its code without any docstring."""

    docstring: str
    code: str  # the whole definition, from "def" or "class" on


def documented_definitions(document: LibraryText, left_out: Counter[str]) -> Iterator[Pair]:
    r"""Yields a pair for each function, method and class of a Python file that has a docstring.

        def mean(values):             ->  Pair("The mean.", "def mean(values):\n    return …")
            '''The mean.'''
            return …

    Docstrings of nested definitions are removed from the code, too. A pair whose code still
    contains the docstring is left out. Documents other than Python files have no definitions.
    `left_out` counts the omitted pairs by reason.
    """
    if not document.name.endswith(".py"):
        return
    text = document.read()
    if (tree := parsed(text)) is None:
        left_out["files that do not parse"] += 1
        return
    source = _Source(text)
    for node in _definitions(tree):
        if not _has_docstring(node):
            continue
        # Half a surrogate pair may be written as an escape, but is not valid text.
        docstring = (ast.get_docstring(node) or "").encode("utf-8", "replace").decode()
        code = source.without_docstrings(node)
        if not docstring.strip() or len(node.body) == 1:
            left_out["pairs with an empty side"] += 1
        elif " ".join(docstring.split()) in " ".join(code.split()):
            left_out["pairs whose code repeats the docstring"] += 1
        else:
            yield Pair(docstring, code)


def consecutive_statements(document: LibraryText) -> Iterator[tuple[str, str]]:
    r"""Yields pairs of simple statements that follow each other in a function of a Python file.

        def mean(values):
            total = sum(values)            ->  ("total = sum(values)", "return total / len(values)")
            return total / len(values)

    Each statement is in at most one pair. Documents that do not parse have no statements.
    """
    text = document.read()
    tree = parsed(text) if document.name.endswith(".py") else None
    if tree is None:
        return
    source = _Source(text)
    for node in _definitions(tree):
        body = [] if isinstance(node, ast.ClassDef) else node.body[_has_docstring(node) :]
        for one, other in zip(body[::2], body[1::2]):
            if not {"body", "cases"} & {*one._fields, *other._fields}:
                yield source.statement(one), source.statement(other)


def docstrings(text: str) -> str:
    """Returns the docstrings of a Python source, the module's first; "" if it does not parse.

    >>> docstrings("'Means.'\\n\\ndef mean(values):\\n    'The mean.'\\n    return sum(values)")
    'Means.\\n\\nThe mean.'
    """
    if (tree := parsed(text)) is None:
        return ""
    parts = (ast.get_docstring(node) for node in (tree, *_definitions(tree)))
    # Half a surrogate pair may be written as an escape, but is not valid text.
    return "\n\n".join(filter(None, parts)).encode("utf-8", "replace").decode()


def without_docstrings(text: str) -> str:
    """Returns a Python source without its docstrings; "" if it does not parse.

    >>> without_docstrings("def mean(values):\\n    'The mean.'\\n    return sum(values)")
    'def mean(values):\\n    return sum(values)'
    """
    tree = parsed(text)
    return "" if tree is None else _Source(text).module_without_docstrings(tree).lstrip("\n")


def parsed(text: str) -> ast.Module | None:
    """Returns the syntax tree of a Python source, or None if this Python does not parse it."""
    try:
        with warnings.catch_warnings(action="ignore"):  # about deprecated escapes
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # ValueError: null bytes
        return None


def _definitions(node: ast.AST) -> Iterator[Definition]:
    """Yields the functions, methods and classes in a node, at any depth, in order."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):  # Expressions have no definitions.
            continue
        if isinstance(child, Definition):
            yield child
        yield from _definitions(child)


def _has_docstring(node) -> bool:
    return ast.get_docstring(node, clean=False) is not None


class _Source:
    """The text of a file, which is cut at the lines and byte columns of `ast` nodes."""

    def __init__(self, text: str):
        self._bytes = text.encode("utf-8")
        lengths = [len(line) + 1 for line in self._bytes.split(b"\n")]
        self._starts = list(itertools.accumulate(lengths, initial=0))

    def without_docstrings(self, node) -> str:
        """Returns a definition without any docstrings and the white space before them."""
        start, end = self._span(node)
        parts = [b" " * node.col_offset]  # the indentation of the first line
        for definition in (node, *_definitions(node)):
            if _has_docstring(definition):
                first, last = self._span(definition.body[0])
                parts.append(self._bytes[start:first].rstrip())
                start = last + self._bytes.startswith(b";", last)
        parts.append(self._bytes[start:end])
        return textwrap.dedent(b"".join(parts).decode("utf-8"))

    def statement(self, node) -> str:
        """Returns a statement whose first line is not indented."""
        start, end = self._span(node)
        indented = b" " * node.col_offset + self._bytes[start:end]
        return textwrap.dedent(indented.decode("utf-8"))

    def module_without_docstrings(self, tree: ast.Module) -> str:
        """Returns the whole text without docstrings. `...` replaces an empty body."""
        parts = []
        start = 0
        for definition in (tree, *_definitions(tree)):
            if _has_docstring(definition):
                first, last = self._span(definition.body[0])
                before = self._bytes[start:first]
                inside = not isinstance(definition, ast.Module)
                parts.append(before.rstrip() if inside else before)
                parts.append(b" ..." if inside and len(definition.body) == 1 else b"")
                start = last
                if self._bytes.startswith(b";", last):
                    start = len(self._bytes) - len(self._bytes[last + 1 :].lstrip(b" \t"))
                    parts.append(b" " if inside else b"")
        return b"".join([*parts, self._bytes[start:]]).decode("utf-8")

    def _span(self, node) -> tuple[int, int]:
        return (
            self._starts[node.lineno - 1] + node.col_offset,
            self._starts[node.end_lineno - 1] + node.end_col_offset,
        )


def _topics() -> list[LibraryText]:
    try:
        from pydoc_data.topics import topics
    except ImportError:  # Some distributions of Python leave it out.
        return []
    return [
        LibraryText(f"pydoc_data/topics/{name}", str(len(text)), functools.partial(str, text))
        for name, text in topics.items()
    ]
