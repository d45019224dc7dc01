"""Passages of Python's standard library with an answer for each passage.

`tasks.seqio.python_tasks` has their SeqIO tasks, and baselines for their difficulty.
"""

import bisect
import builtins
import collections
import functools
import io
import itertools
import keyword
import math
import random
import re
import tokenize
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from ...data import task_metrics
from .python_sources import LibraryText, library_documents, split_documents

SPLITS = ("train", "validation")
SENTINEL = "<extra_id_0>"
# Smallest and largest number of characters of a passage, which has about 60 to 100 tokens. It is
# short enough for a model of bytes.
PASSAGE = (160, 320)

# The packages with at least 4 kB of code in held-out files, for Python 3.11 to 3.13. Most other
# packages have no held-out file, but a class needs training files and held-out files.
PACKAGES = ("asyncio", "email", "http", "multiprocessing", "unittest", "xml")
MODULE_PASSAGES = {"train": 300, "validation": 60}  # Largest number of passages of a package
IDENTIFIER_PASSAGES = {"train": 4000, "validation": 500}
TAGGED_PASSAGES = {"train": 240, "validation": 60}  # A passage has about 70 words.
TAGGED_OF_FILE = 8
WORDS_OF_PASSAGE = 8
WORDS = {"train": 1000, "validation": 480}
AROUND = 60  # Largest number of characters on either side of a word
KINDS = ("comment", "keyword", "name", "number", "operator", "string")

Example = TypeVar("Example")
Counts = Callable[[str, str], bool]  # what `counted_in` returns

# Comments, strings and numbers are matched first, so that only the rest can be names.
_LEXEMES = re.compile(
    r"""\#[^\n]*
    | '{3}(?:\\.|[^\\])*?'{3} | "{3}(?:\\.|[^\\])*?"{3}
    | '(?:\\.|[^'\\\n])*' | "(?:\\.|[^"\\\n])*"
    | \d\w*
    | (?P<name>[^\W\d]\w*)""",
    re.VERBOSE | re.DOTALL,
)
_COMMON = {"self", "cls", *keyword.kwlist, *keyword.softkwlist, *dir(builtins)}


@functools.cache
def module_examples() -> dict[str, list[tuple[str, str]]]:
    """Returns pairs (passage, package) of both splits, in the order of a hash.

        "        self._loop = loop\\n        self._server_side = server_side\\n…"  ->  "asyncio"

    The text before the first function or class of a file is left out, since it often shows the
    package. The names of all packages are replaced, as in "_Connection". Otherwise they would show
    the package of 30% of the held-out passages.
    """
    names = re.compile("|".join(PACKAGES), re.IGNORECASE)
    files = library_split()
    split: dict[str, list[tuple[str, str]]] = {}
    counts = counted_in(files)
    for part, documents in files.items():
        split[part] = []
        for package in PACKAGES:
            own = (document for document in documents if document.name.startswith(f"{package}/"))
            texts = (_after_head(document.read()) for document in own)
            whole = (passage for text in texts for passage, _ in whole_line_passages(text))
            blanked = (names.sub("_", passage) for passage in whole if counts(part, passage))
            passages = drawn(blanked, MODULE_PASSAGES[part])
            split[part] += [(passage, package) for passage in passages]
        split[part].sort(key=drawn_order)
    return split


@functools.cache
def identifier_examples() -> dict[str, list[tuple[str, str]]]:
    """Returns pairs (passage with a hidden name, the name) of both splits, in the order of a hash.

        "    total = 0\\n    for x in values:\\n        <extra_id_0> += x"  ->  "total"

    The name has at least three letters and occurs at least twice in the code of the passage.
    Keywords, builtins, `self` and `cls` are not hidden. The name and its place are drawn uniformly
    over the names by a hash of the passage.
    """

    def examples_in(part: str, document: LibraryText, counts: Counts) -> Iterator[tuple[str, str]]:
        for passage, name in _hidden(document.read()):
            if counts(part, passage.replace(SENTINEL, name)):
                yield passage, name

    return library_examples(IDENTIFIER_PASSAGES, examples_in)


class Tagged(NamedTuple):
    """A passage with its words and the kind of each word."""

    text: str
    words: tuple[tuple[int, int], ...]  # the characters start <= i < end of each word
    kinds: tuple[str, ...]  # the kind of each word, one of `KINDS`


@functools.cache
def tagged_examples() -> dict[str, list[Tagged]]:
    r"""Returns passages of both splits with the kind of each word by Python's `tokenize`.

        "  # add 1\n  x += 1\n"  ->  # comment, add comment, 1 comment, x name, + operator, …

    A word is a run of letters and digits, or another single character that is not a space. The
    words of a string or a comment have its kind. Many words are ambiguous: guessing the most
    frequent kind of each word is correct for 69%. Files that do not tokenize are left out.
    """

    def examples_in(part: str, document: LibraryText, counts: Counts) -> list[Tagged]:
        tagged = (passage for passage in _tagged(document.read()) if counts(part, passage.text))
        return drawn(tagged, TAGGED_OF_FILE)

    return library_examples(TAGGED_PASSAGES, examples_in, enough=1)


class TaggedWord(NamedTuple):
    """A word with some text around it, and its kind."""

    text: str
    word: tuple[int, int]  # the characters start <= i < end
    kind: str  # one of `KINDS`


@functools.cache
def word_examples() -> dict[str, list[TaggedWord]]:
    """Returns words of the passages of `tagged_examples` with some text around them.

    TaggedWord("        return name\\n", (15, 19), "name")
    """
    return {
        part: drawn((word for passage in passages for word in _some_words(passage)), WORDS[part])
        for part, passages in tagged_examples().items()
    }


def _some_words(passage: Tagged) -> Iterator[TaggedWord]:
    """Yields words that are drawn without regard to their kinds."""
    words = list(zip(passage.words, passage.kinds))
    random.Random(drawn_order(passage.text)).shuffle(words)
    for (start, end), kind in words[:WORDS_OF_PASSAGE]:
        first = max(0, start - AROUND)
        text = passage.text[first : end + AROUND]
        yield TaggedWord(text, (start - first, end - first), kind)


def most_frequent_name(passage: str) -> str:
    """Returns the most frequent name in a passage that `python_identifiers` may hide: a baseline.

    >>> most_frequent_name("for line in lines: print(lines, <extra_id_0>)")
    'lines'
    """
    return task_metrics.majority(hideable_names(passage) or [""])


def hideable_names(passage: str) -> list[str]:
    """Returns the names in a passage that `python_identifiers` may hide, in order.

    >>> hideable_names("for line in lines: print(lines, <extra_id_0>)")
    ['line', 'lines', 'lines']
    """
    return [match["name"] for match in _names(passage.replace(SENTINEL, " "))]


def library_split() -> dict[str, list[LibraryText]]:
    """Returns the library's Python files in both splits. Runs hold out the same files."""
    split = split_documents(library_documents())
    return {
        part: [document for document in documents if document.name.endswith(".py")]
        for part, documents in zip(SPLITS, (split["train"], split["heldout"]))
    }


def library_examples(
    most: Mapping[str, int],
    examples_in: Callable[[str, LibraryText, Counts], Iterable[Example]],
    enough: float = math.inf,
) -> dict[str, list[Example]]:
    """Returns examples of the library's files by split, chosen and ordered by a hash.

    Args:
      most: largest number of examples of each split.
      examples_in: a function (split, file, result of `counted_in`) -> the examples of the file.
      enough: number of examples at which no further file is read, as a multiple of `most`, since
        parsing all files is slow. Files are read in the order of a hash.
    """
    files = library_split()
    counts = counted_in(files)
    split = {}
    for part, number in most.items():
        found: list[Example] = []
        for document in sorted(files[part], key=lambda document: drawn_order(document.name)):
            if len(found) >= enough * number:
                break
            found += examples_in(part, document, counts)
        split[part] = drawn(found, number)
    return split


def counted_in(split: Mapping[str, Iterable[LibraryText]]) -> Counts:
    """Returns a function (split, passage) -> whether the passage may be an example of the split.

    A held-out passage needs a line that is in no training file, since the library repeats some of
    its text. For example, asyncio's sslproto repeats parts of its transports.
    """
    texts = (document.read() for document in split["train"])
    training = {line.strip() for text in texts for line in text.splitlines()}

    def counts(part: str, passage: str) -> bool:
        lines = {line.strip() for line in passage.splitlines()}
        return part == "train" or not lines <= training

    return counts


def _after_head(text: str) -> str:
    """Returns a file from its first function or class on, including decorators; "" for none."""
    match = re.search(r"^(@|def |class |async def )", text, re.MULTILINE)
    return text[match.start() :] if match else ""


def whole_line_passages(text: str) -> Iterator[tuple[str, int]]:
    """Yields passages of whole lines whose length is in `PASSAGE`, and where each starts."""
    least, most = PASSAGE
    start = end = 0
    for line in [*text.splitlines(keepends=True), " " * most]:
        if end + len(line) - start > most:
            if least <= end - start <= most:
                yield text[start:end], start
            start = end
        end += len(line)


def _hidden(text: str) -> Iterator[tuple[str, str]]:
    """Yields the passages of a text with one name hidden, and the hidden name."""
    names = _names(text)
    for passage, start in whole_line_passages(text):
        ends = start, start + len(passage)
        first, end = (bisect.bisect_left(names, at, key=re.Match.start) for at in ends)
        places = collections.defaultdict(list)
        for match in names[first:end]:
            places[match["name"]].append(match.start() - start)
        repeated = [name for name in places if len(places[name]) > 1]
        if repeated:
            draw, which = divmod(drawn_order(passage), len(repeated))
            name = repeated[which]
            at = places[name][draw % len(places[name])]
            yield passage[:at] + SENTINEL + passage[at + len(name) :], name


def _names(text: str) -> list[re.Match]:
    """Returns matches of the names that may be hidden, each as the group "name"."""
    lexemes = [(match, match["name"] or "") for match in _LEXEMES.finditer(text)]
    return [match for match, name in lexemes if len(name) > 2 and name not in _COMMON]


_WORDS = re.compile(r"\w+|[^\w\s]")


def _tagged(text: str) -> Iterator[Tagged]:
    """Yields the passages of a text with the kinds of their words; nothing if it is not Python."""
    try:
        kinds = character_kinds(text)
    except (tokenize.TokenError, SyntaxError):
        return
    for passage, start in whole_line_passages(text):
        words = [match.span() for match in _WORDS.finditer(passage)]
        pairs = [(word, kinds[start + word[0]]) for word in words]
        # A backslash at the end of a line has no kind.
        tagged = [(word, kind) for word, kind in pairs if kind]
        if tagged:
            yield Tagged(passage, *map(tuple, zip(*tagged)))


def character_kinds(text: str) -> list[str]:
    """Returns the kind of each character of a Python text; "" if the character is in no token."""
    lines = io.StringIO(text).readlines()  # Like `tokenize`, this divides only at line feeds.
    starts = list(itertools.accumulate(map(len, lines), initial=0))
    kinds = [""] * len(text)
    # Python 3.12 and later divide f-strings into tokens, so the outermost f-string is tracked.
    depth = 0
    opened = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        start, end = (starts[row - 1] + column for row, column in (token.start, token.end))
        name = tokenize.tok_name[token.type]
        if name == "FSTRING_START":
            opened = opened if depth else start
            depth += 1
        if name == "FSTRING_END":
            depth -= 1
            start, name = (start, name) if depth else (opened, "STRING")
        kind = _KIND_OF_TOKEN.get(name, "")
        if kind == "name" and keyword.iskeyword(token.string):
            kind = "keyword"
        if kind:
            kinds[start:end] = [kind] * (end - start)
    return kinds


_KIND_OF_TOKEN = {kind.upper(): kind for kind in ("comment", "name", "number", "string")} | {
    "OP": "operator"
}


def drawn(items: Iterable, most: int) -> list:
    """Returns at most `most` different items, chosen and ordered by a hash."""
    return sorted(dict.fromkeys(items), key=drawn_order)[:most]


def drawn_order(item) -> int:
    """Returns a hash of an item that is the same in every process."""
    return zlib.crc32(repr(item).encode())
