"""Passages of Python's own standard library with an answer to each, as texts.

Their SeqIO tasks, and how hard they are, stand in `tasks.seqio.python_tasks`.
"""

import bisect
import builtins
import collections
import functools
import io
import itertools
import keyword
import random
import re
import tokenize
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from ...data import task_metrics
from .python_sources import LibraryText, library_documents, split_documents

SPLITS = ("train", "validation")
SENTINEL = "<extra_id_0>"
PASSAGE = (160, 320)  # characters: some 60 to 100 tokens, and short enough for a model of bytes

# The packages of Python 3.11 to 3.13 with 4 kB of code or more in files held out. Of most others no
# file is, and a class needs both.
PACKAGES = ("asyncio", "email", "http", "multiprocessing", "unittest", "xml")
MODULE_PASSAGES = {"train": 300, "validation": 60}  # of each package at most
IDENTIFIER_PASSAGES = {"train": 4000, "validation": 500}
TAGGED_PASSAGES = {"train": 240, "validation": 60}  # some 70 words each
TAGGED_OF_FILE = 8
WORDS_OF_PASSAGE = 8
WORDS = {"train": 1000, "validation": 480}
AROUND = 60  # characters on either side of a word, at most
KINDS = ("comment", "keyword", "name", "number", "operator", "string")

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
    """(passage, package) of both splits, in the order of a hash.

        "        self._loop = loop\\n        self._server_side = server_side\\n…"  ->  "asyncio"

    Files are cut from their first function or class on, since what stands before tells the package.
    The names of all packages are blanked, "_Connection", which would tell 30% of the held-out ones.
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
            passages = (passage for text in texts for passage, _ in _passages(text))
            blanked = (names.sub("_", passage) for passage in passages if counts(part, passage))
            some = drawn(blanked, MODULE_PASSAGES[part])
            split[part] += [(passage, package) for passage in some]
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
    files = library_split()
    split: dict[str, list[tuple[str, str]]] = {}
    counts = counted_in(files)
    for part, documents in files.items():
        hidden = (each for document in documents for each in _hidden(document.read()))
        some = (each for each in hidden if counts(part, each[0].replace(SENTINEL, each[1])))
        split[part] = drawn(some, IDENTIFIER_PASSAGES[part])
    return split


class Tagged(NamedTuple):
    """A passage with its words and the kind of each word."""

    text: str
    words: tuple[tuple[int, int], ...]  # the characters start <= i < end of each word
    kinds: tuple[str, ...]  # the kind of each word, one of `KINDS`


@functools.cache
def tagged_examples() -> dict[str, list[Tagged]]:
    """Returns passages of both splits with the kind of each word by Python's `tokenize`.

        "  # add 1\n  x += 1\n"  ->  # comment, add comment, 1 comment, x name, + operator, …

    A word is a run of letters and digits, or another single character that is not a space. The
    words of a string or a comment have its kind. Many words are ambiguous: guessing the most
    frequent kind of each word is correct for 69%. Files that do not tokenize are left out.
    """
    files = library_split()
    split: dict[str, list[Tagged]] = {}
    counts = counted_in(files)
    for part, documents in files.items():
        found: list[Tagged] = []
        # Only as many files as necessary are read, since tokenizing the whole library takes long.
        for document in sorted(documents, key=lambda document: drawn_order(document.name)):
            if len(found) >= TAGGED_PASSAGES[part]:
                break
            tagged = (each for each in _tagged(document.read()) if counts(part, each.text))
            found += drawn(tagged, TAGGED_OF_FILE)
        split[part] = drawn(found, TAGGED_PASSAGES[part])
    return split


class TaggedWord(NamedTuple):
    """A word with some text around it, and its kind."""

    text: str
    word: tuple[int, int]  # the characters start <= i < end
    kind: str  # of `KINDS`


@functools.cache
def word_examples() -> dict[str, list[TaggedWord]]:
    """Words of the passages of `tagged_examples` with some text around them, by a hash.

    TaggedWord("        return name\\n", (15, 19), "name")
    """
    return {
        part: drawn((word for passage in some for word in _some_words(passage)), WORDS[part])
        for part, some in tagged_examples().items()
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
    """The most frequent name in a passage that `python_identifiers` may hide: a guess to beat.

    >>> most_frequent_name("for line in lines: print(lines, <extra_id_0>)")
    'lines'
    """
    return task_metrics.majority(hideable_names(passage) or [""])


def hideable_names(passage: str) -> list[str]:
    """Returns the names in a passage that `python_identifiers` may hide, in their order.

    >>> hideable_names("for line in lines: print(lines, <extra_id_0>)")
    ['line', 'lines', 'lines']
    """
    return [match["name"] for match in _names(passage.replace(SENTINEL, " "))]


def library_split() -> dict[str, list[LibraryText]]:
    """Returns the library's Python files in both splits: those held out are what runs hold out."""
    split = split_documents(library_documents())
    return {
        part: [document for document in documents if document.name.endswith(".py")]
        for part, documents in zip(SPLITS, (split["train"], split["heldout"]))
    }


def counted_in(split: Mapping[str, Iterable[LibraryText]]) -> Callable[[str, str], bool]:
    """Returns (split, passage) -> whether it counts: held out, only with a line of no training
    file, for the library has copies of its own text, as of asyncio's transports in its sslproto."""
    texts = (document.read() for document in split["train"])
    training = {line.strip() for text in texts for line in text.splitlines()}

    def counts(part: str, passage: str) -> bool:
        lines = {line.strip() for line in passage.splitlines()}
        return part == "train" or not lines <= training

    return counts


def _after_head(text: str) -> str:
    """A file from its first function or class on, decorators included; "" without any."""
    found = re.search(r"^(@|def |class |async def )", text, re.MULTILINE)
    return text[found.start() :] if found else ""


def _passages(text: str) -> Iterator[tuple[str, int]]:
    """Passages of whole lines, as long as `PASSAGE` allows, and where each starts."""
    least, most = PASSAGE
    start = end = 0
    for line in [*text.splitlines(keepends=True), " " * most]:
        if end + len(line) - start > most:
            if least <= end - start <= most:
                yield text[start:end], start
            start = end
        end += len(line)


def _hidden(text: str) -> Iterator[tuple[str, str]]:
    """The passages of a text with one name hidden, and that name."""
    names = _names(text)
    for passage, start in _passages(text):
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
    """Where the code of a text has names that may be hidden; group "name" is each."""
    lexemes = [(match, match["name"] or "") for match in _LEXEMES.finditer(text)]
    return [match for match, name in lexemes if len(name) > 2 and name not in _COMMON]


_WORDS = re.compile(r"\w+|[^\w\s]")


def _tagged(text: str) -> Iterator[Tagged]:
    """Yields the passages of a text with the kinds of their words; nothing if it is not Python."""
    try:
        kinds = character_kinds(text)
    except (tokenize.TokenError, SyntaxError):
        return
    for passage, start in _passages(text):
        words = [match.span() for match in _WORDS.finditer(passage)]
        pairs = [(word, kinds[start + word[0]]) for word in words]
        tagged = [(word, kind) for word, kind in pairs if kind]  # not a lone backslash
        if tagged:
            yield Tagged(passage, *map(tuple, zip(*tagged)))


def character_kinds(text: str) -> list[str]:
    """Returns the kind of each character of a Python text, "" of what is in no token."""
    lines = io.StringIO(text).readlines()  # as `tokenize` divides them: at line feeds alone
    starts = list(itertools.accumulate(map(len, lines), initial=0))
    kinds = [""] * len(text)
    # of f-strings, which Python 3.12 and later divide into tokens
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
    """Returns at most so many, each once, drawn by a hash and in its order."""
    return sorted(dict.fromkeys(items), key=drawn_order)[:most]


def drawn_order(item) -> int:
    """Returns a hash of an item, the same in any process."""
    return zlib.crc32(repr(item).encode())
