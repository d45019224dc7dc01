"""Functions of Python's library with a hidden line."""

import ast
from collections.abc import Iterator
from typing import NamedTuple

from ....corpora.python_library.python_passages import Counts, library_examples
from ....corpora.python_library.python_sources import LibraryText, parsed

# Numbers of characters.
WHOLE = (120, 480)  # smallest and largest function with a hidden line
HIDDEN = 8  # smallest hidden line, without its indentation


class Gap(NamedTuple):
    prefix: str
    truth: str
    suffix: str


def hidden_lines(count: int) -> list[Gap]:
    """Returns functions with one line hidden, except for its indentation and line end."""

    def gaps_in(part: str, document: LibraryText, counts: Counts) -> Iterator[Gap]:
        return (gap for gap in gaps(document.read()) if counts(part, "".join(gap)))

    return library_examples({"validation": count}, gaps_in)["validation"]


def gaps(text: str) -> Iterator[Gap]:
    """Yields the top-level functions of a file, with each line that is a whole statement hidden."""
    lines = text.splitlines(keepends=True)
    for node in _definitions(text):
        whole = "".join(lines[node.lineno - 1 : node.end_lineno])
        if not WHOLE[0] <= len(whole) <= WHOLE[1]:
            continue
        for statement in ast.walk(node):
            if not isinstance(statement, ast.stmt) or not _is_line(statement):
                continue
            line = statement.lineno - 1
            hidden = lines[line].strip()
            if len(hidden) < HIDDEN:
                continue
            before, _, after = lines[line].partition(hidden)
            prefix = "".join(lines[node.lineno - 1 : line]) + before
            suffix = after + "".join(lines[line + 1 : node.end_lineno])
            if suffix:  # The suffix is empty if the file does not end with a line end.
                yield Gap(prefix, hidden, suffix)


def _definitions(text: str) -> list:
    tree = parsed(text)
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return [node for node in tree.body if isinstance(node, kinds)] if tree is not None else []


def _is_line(node: ast.stmt) -> bool:
    """Returns whether a statement is on one line and is not a docstring."""
    if hasattr(node, "body") or node.lineno != node.end_lineno:
        return False
    return not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
