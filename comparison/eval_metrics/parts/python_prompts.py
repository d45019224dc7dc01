"""Beginnings of functions of Python's library, and functions with a hidden line."""

import ast
import io
import tokenize
import warnings
from collections.abc import Iterator
from typing import NamedTuple

from ....corpora.python_library.python_passages import counted_in, drawn, library_split

# Numbers of characters.
PREFIX = (120, 320)  # smallest and largest beginning of a function or class
WHOLE = (120, 480)  # smallest and largest function with a hidden line
FOLLOWING = 400  # length of the true text after a beginning
SOON = 120  # the true text has a whole statement within this length
HIDDEN = 8  # smallest hidden line, without its indentation


class Gap(NamedTuple):
    """A gap in a text, with the true text that belongs into it."""

    prefix: str
    truth: str
    suffix: str  # the text after the gap; "" if the text is to be continued


def continuations(count: int) -> list[Gap]:
    """Returns beginnings of functions and classes, each cut after a whole statement."""
    return _library_gaps(count, beginnings)


def hidden_lines(count: int) -> list[Gap]:
    """Returns functions with one line hidden, except for its indentation and line end."""
    return _library_gaps(count, gaps)


def beginnings(text: str) -> Iterator[Gap]:
    """Yields the top-level functions and classes of a file, each cut after a whole statement."""
    lines = text.splitlines(keepends=True)
    for node in _definitions(text):
        statements = (each for each in ast.walk(node) if isinstance(each, ast.stmt))
        for end in sorted({each.end_lineno or 0 for each in statements}):
            prefix = "".join(lines[node.lineno - 1 : end])
            truth = "".join(lines[end:])[:FOLLOWING]
            if not PREFIX[0] <= len(prefix) <= PREFIX[1]:
                continue
            if parses(prefix) and continues_to_parse(prefix, truth[:SOON]):
                yield Gap(prefix, truth, "")
                break


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


def parses(text: str) -> bool:
    """Returns whether this Python parses a text."""
    return _parsed(text) is not None


def _parsed(text: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings(action="ignore"):  # warnings about deprecated escapes
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # ValueError: null bytes
        return None


def continues_to_parse(prefix: str, text: str) -> bool:
    """Returns whether a prefix parses with the complete lines of a text, which have a statement.

    The lines of an unfinished statement at the end are left out. A statement is unfinished if a
    bracket or a string is open, a block has no body, or a decorator has no function.

    >>> continues_to_parse("x = 1\\n", "y = (x)\\nz = f(\\n")
    True
    >>> continues_to_parse("x = 1\\n", "y = x)\\n")
    False
    """
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines.pop()
    while lines and _is_unfinished(prefix + "".join(lines)):
        lines.pop()
    stated = any(line.strip() and not line.lstrip().startswith("#") for line in lines)
    return stated and parses(prefix + "".join(lines))


def _is_unfinished(text: str) -> bool:
    """Returns whether a text ends within a statement, or after the head of a block."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except tokenize.TokenError as error:
        return "EOF in multi-line" in str(error)
    except SyntaxError:
        return False
    lines: list[list[str]] = [[]]
    for token in tokens:
        if token.type == tokenize.NEWLINE:
            lines.append([])
        elif token.type not in _LAYOUT:
            lines[-1].append(token.string)
    last = next((line for line in reversed(lines) if line), [""])
    return last[-1] == ":" or last[0] == "@"


_LAYOUT = {tokenize.NL, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def _library_gaps(count: int, gaps_in) -> list[Gap]:
    split = library_split()
    counts = counted_in(split)
    found = (gap for document in split["validation"] for gap in gaps_in(document.read()))
    return drawn((gap for gap in found if counts("validation", "".join(gap))), count)


def _definitions(text: str) -> list:
    tree = _parsed(text)
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return [node for node in tree.body if isinstance(node, kinds)] if tree is not None else []


def _is_line(node: ast.stmt) -> bool:
    """Returns whether a statement is on one line and is not a docstring."""
    if hasattr(node, "body") or node.lineno != node.end_lineno:
        return False
    return not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
