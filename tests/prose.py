"""Finds prose in the repository, and habits of style in it that a program can recognize.

`passages(path)` yields the prose of a Python, Markdown or gin file: docstrings, comments, error
messages, help texts, headings, paragraphs, list items and table cells. `problems(passage)` says
what is wrong with a passage. Spelling is checked by codespell (`tests/test_prose.py`).
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.import_graph import statements

MOST_WORDS = 35  # in a sentence

# Phrases that make readers stop, with what to write instead. Each begins at the start of a word.
BANNED = {
    r"anew\b": "again",
    r"beside\b": "next to, compared with, in addition to",
    r"whoever\b": "anyone who, a caller that",
    r"wherever\b": "whenever, if",
    r"(?:go|goes|going|went) on\b": "continue",
    r"(?:come|comes|came) to (?=\d|about|some|the same|as)": "is, reaches",
    r"(?<!times )as many\b(?!(?: \w+){0,3} as\b)": "the same number of",
    r"by itself\b": "alone, separately",
    r"reckon\w*\b|spoilt\b": "count, damaged",
    r"of (?:one's|ones) (?:own|choice)\b": "your own",
    r"(?<!there )(?:is|are|was|were|be) no (?!longer\b|worse\b|need\b|\w+ than\b)": "is not a",
    r"(?:has|have) no \w+ that\b": "does not have a … that",
    r"there (?:is|are|was|were) no \w+ that\b": "does not exist, no … does",
    r"told\b|tells? apart\b|says? of\b": "distinguish, given, shown",
    r"who cannot\b": "if you cannot",
    r"in words\b": "as text, a message",
    r"thereby\b|whereof\b|thereof\b|wherein\b|nought\b|amongst\b": "plain words",
    r"held against\b|to hold against\b": "compared with",
    r"mend(?:s|ed|ing)?\b": "fix",
    r"lies there\b|lying there\b": "exists",
    r"makes? believe\b": "pretend",
    r"yardsticks?\b": "eval metric",
}
_BANNED = {
    re.compile(rf"\b(?:{pattern})", re.IGNORECASE): instead for pattern, instead in BANNED.items()
}
# Searching lowercase text for all phrases at once takes a tenth of the time.
_ANY_BANNED = re.compile(rf"\b(?:{'|'.join(BANNED)})")
_OPENING = re.compile(r"(?:Of (?!course)|For who\b|Whoever\b)", re.IGNORECASE)
_NO_ZERO = re.compile(r"(?<![\w.\])}/*'\"`-])-?\.\d+\b(?!\.|\w)")
# A help text stands alone: it does not lean on the name of its option or on the text before it.
_LEANING = re.compile(r"(?:of|as|and|or|whose|which|that|in place of|the same|also)\b")
# Indented code, rulers, and rows of tables and diagrams, whose columns are apart.
_NOT_A_SENTENCE = re.compile(r"^\s{8,}\S|^\s*[|+=-]{3,}|\S {3,}\S")
_TOOLS = re.compile(r"(?:noqa|type:|fmt:|pyright|pragma|!|%%|ruff|mypy|shellcheck)")


class Passage(NamedTuple):
    """A paragraph, list item, comment or message of a file."""

    path: str
    line: int
    kind: str  # "docstring", "comment", "message", "help", "paragraph", "heading" or "cell"
    text: str


def passages(path: Path) -> Iterator[Passage]:
    """Yields the prose of a file, one paragraph at a time."""
    readers = {".py": _python, ".md": _markdown, ".gin": _gin}
    for line, kind, text in readers[path.suffix](path.read_text("utf-8")):
        for start, paragraph in _paragraphs(text):
            yield Passage(str(path), line + start, kind, paragraph)


def problems(passage: Passage) -> list[str]:
    """Returns what is wrong with a passage.

    >>> problems(Passage("a.md", 1, "paragraph", "It is drawn anew, with a rate of .15."))
    ["'anew': write again", "'.15': write a zero before the point"]
    """
    text = _without_code(passage.text)
    banned = _BANNED if _ANY_BANNED.search(text.lower()) else {}
    found = [
        f"{match[0]!r}: write {instead}"
        for pattern, instead in banned.items()
        for match in pattern.finditer(text)
    ]
    if passage.kind in ("docstring", "comment") and text.count('"') % 2:
        found.append("a quotation mark without its pair: complete the quotation")
    if passage.kind not in ("message", "heading") and _OPENING.match(text):
        found.append(f"begins with {text.split()[0]!r}: put the subject first")
    if passage.kind == "help" and _LEANING.match(text):
        found.append(f"begins with {text.split()[0]!r}: a help text must stand alone")
    found += [f"{match[0]!r}: write a zero before the point" for match in _NO_ZERO.finditer(text)]
    for sentence in re.split(r"(?<=[.!?])[\"')\]]?\s+|:\s+|;\s+", text):
        words = len(re.findall(r"[\w'’]+(?:[-/.,]\w+)*", sentence))
        if words > MOST_WORDS:
            found.append(f"a sentence of {words} words, at most {MOST_WORDS}: {sentence[:60]!r}")
    return found


def _without_code(text: str) -> str:
    """Returns the text with each piece of code and each address as one word."""
    text = re.sub(r"`+[^`]*`+", "CODE", text)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return re.sub(r"https?://\S+", "LINK", text)


def _paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yields (line, text) of each paragraph and list item, without examples and indented code."""
    lines: list[str] = []
    start = 0
    in_example = False
    for number, line in enumerate(text.split("\n")):
        stripped = line.strip()
        in_example = stripped.startswith(">>>") or (in_example and bool(stripped))
        is_code = in_example or _NOT_A_SENTENCE.search(line)
        is_item = re.match(r"(?:[-*] |\d+\. |\w+(?:, \w+)*: )", stripped)
        if lines and (not stripped or is_code or is_item):
            yield start, " ".join(lines)
            lines = []
        if stripped and not is_code:
            if not lines:
                start = number
            lines.append(stripped)
    if lines:
        yield start, " ".join(lines)


def _python(text: str) -> Iterator[tuple[int, str, str]]:
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    tree = ast.parse(text)
    for node in statements(tree):
        if isinstance(node, documented) and (doc := ast.get_docstring(node)):
            yield node.body[0].lineno, "docstring", doc
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            for argument in node.exc.args[:1]:
                yield argument.lineno, "message", _string(argument)
    for node in ast.walk(tree) if "help=" in text else ():
        if isinstance(node, ast.keyword) and node.arg == "help":
            yield node.value.lineno, "help", _string(node.value)
    yield from _comments(text)


# Python's own tokenizer finds the same comments in twenty times the time.
_STRING_OR_COMMENT = re.compile(
    r'''"""(?:[^"\\]|\\.|"(?!""))*"""|"(?:[^"\\\n]|\\.)*"'''
    r"""|'''(?:[^'\\]|\\.|'(?!''))*'''|'(?:[^'\\\n]|\\.)*'|\#[^\n]*""",
    re.DOTALL,
)


def _comments(text: str) -> Iterator[tuple[int, str, str]]:
    """Yields comments; lines of comments that follow each other are one comment."""
    block: list[str] = []
    first = 0
    last = -1
    line = 1
    counted = 0
    for match in _STRING_OR_COMMENT.finditer(text):
        body = match[0].lstrip("#").strip()
        if match[0][0] != "#" or _TOOLS.match(body):
            continue
        line += text.count("\n", counted, match.start())
        counted = match.start()
        stands_alone = not text[text.rfind("\n", 0, counted) + 1 : counted].strip()
        if not (stands_alone and line == last + 1):
            yield first, "comment", "\n".join(block)
            block = []
            first = line
        block.append(body)
        last = line if stands_alone else -1
    yield first, "comment", "\n".join(block)


def _string(node: ast.expr) -> str:
    """Returns the text of a string, with VALUE for each value that is formatted into it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_string(part) or "VALUE" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _string(node.left) + _string(node.right)
    return ""


_NOT_PROSE = re.compile(
    r"^(\s*)(```|~~~).*?^\1\2\s*$|<!--.*?-->|<(svg|script|style)\b.*?</\3>",
    re.DOTALL | re.MULTILINE,
)


def _markdown(text: str) -> Iterator[tuple[int, str, str]]:
    text = _NOT_PROSE.sub(lambda match: "\n" * match[0].count("\n"), text)
    block: list[str] = []
    first = 1
    for number, line in enumerate([*text.split("\n"), ""], start=1):
        if line.strip() and not line.startswith(("|", "#")):
            if not block:
                first = number
            block.append(re.sub(r"<[^>]+>", "", line))
            continue
        yield first, "paragraph", "\n".join(block)
        block = []
        if line.startswith("#"):
            yield number, "heading", line.lstrip("# ")
        for cell in re.split(r"(?<!\\)\|", line)[1:-1]:
            if not re.fullmatch(r"\s*:?-+:?\s*", cell):
                yield number, "cell", cell


def _gin(text: str) -> Iterator[tuple[int, str, str]]:
    block: list[str] = []
    first = 1
    for number, line in enumerate([*text.split("\n"), ""], start=1):
        comment = re.match(r"\s*#+ ?(.*)$", line)
        if comment:
            if not block:
                first = number
            block.append(comment[1])
            continue
        yield first, "comment", "\n".join(block)
        block = []
        if re.search(r"\s# ", line):
            yield number, "comment", re.split(r"\s# ", line, maxsplit=1)[1]
