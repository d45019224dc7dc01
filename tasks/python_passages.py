"""Passages of Python's own standard library with an answer to each, as texts.

Their SeqIO tasks, and how hard they are, stand in `tasks.python_tasks`.
"""

import bisect
import builtins
import collections
import functools
import keyword
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping

from pretrax.tasks import metrics
from pretrax.tasks.python_sources import Document, library_documents, split_documents

SPLITS = ("train", "validation")
SENTINEL = "<extra_id_0>"
PASSAGE = (160, 320)  # characters: some 60 to 100 tokens, and short enough for a model of bytes

# The packages of Python 3.11 to 3.13 with 4 kB of code or more in files held out. Of most others no
# file is, and a class needs both.
PACKAGES = ("asyncio", "email", "http", "multiprocessing", "unittest", "xml")
MODULE_PASSAGES = {"train": 300, "validation": 60}  # of each package at most
IDENTIFIER_PASSAGES = {"train": 4000, "validation": 500}

# What is no name: comments and texts, in which names stand for something else, and numbers.
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

    Files are cut from their first function or class on, since what stands before says where one
    is. The names of all packages are blanked, "_Connection": finding one would be right for 30% of
    the held-out passages. Blanking the right one alone would tell it as well.
    """
    names = re.compile("|".join(PACKAGES), re.IGNORECASE)
    files = _split()
    split: dict[str, list[tuple[str, str]]] = {}
    counts = _counts_in(files)
    for part, documents in files.items():
        split[part] = []
        for package in PACKAGES:
            texts = (
                _after_head(document.read())
                for document in documents
                if document.name.startswith(f"{package}/")
            )
            passages = (passage for text in texts for passage, _ in _passages(text))
            blanked = (names.sub("_", passage) for passage in passages if counts(part, passage))
            some = _some(blanked, MODULE_PASSAGES[part])
            split[part] += [(passage, package) for passage in some]
        split[part].sort(key=_hash)
    return split


@functools.cache
def identifier_examples() -> dict[str, list[tuple[str, str]]]:
    """(passage with one name hidden, the name) of both splits, in the order of a hash.

        "    total = 0\\n    for x in values:\\n        <extra_id_0> += x"  ->  "total"

    The name has three letters or more, occurs in the code of the passage a second time at least,
    and is no keyword, no builtin, and neither `self` nor `cls`. Which one, and where, is drawn by a
    hash of the passage, evenly over the names.
    """
    files = _split()
    split: dict[str, list[tuple[str, str]]] = {}
    counts = _counts_in(files)
    for part, documents in files.items():
        hidden = (each for document in documents for each in _hidden(document.read()))
        some = (each for each in hidden if counts(part, each[0].replace(SENTINEL, each[1])))
        split[part] = _some(some, IDENTIFIER_PASSAGES[part])
    return split


def most_frequent_name(passage: str) -> str:
    """The most frequent name in a passage that `python_identifiers` may hide: a guess to beat.

    >>> most_frequent_name("for line in lines: print(lines, <extra_id_0>)")
    'lines'
    """
    names = [match["name"] for match in _names(passage.replace(SENTINEL, " "))]
    return metrics.majority(names or [""])


def _split() -> dict[str, list[Document]]:
    """The library's Python files, in both splits."""
    split = split_documents(library_documents())
    return {
        part: [document for document in documents if document.name.endswith(".py")]
        for part, documents in zip(SPLITS, (split["train"], split["heldout"]))
    }


def _counts_in(split: Mapping[str, Iterable[Document]]) -> Callable[[str, str], bool]:
    """Whether a passage counts in a split: held out, only with a line that no training file has.

    The library has copies of its own text, as of asyncio's transports in its sslproto.
    """
    texts = (document.read() for document in split["train"])
    seen = {line.strip() for text in texts for line in text.splitlines()}

    def counts(part: str, passage: str) -> bool:
        lines = {line.strip() for line in passage.splitlines()}
        return part == "train" or not lines <= seen

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
        first, end = (
            bisect.bisect_left(names, at, key=re.Match.start)
            for at in (start, start + len(passage))
        )
        places = collections.defaultdict(list)
        for match in names[first:end]:
            places[match["name"]].append(match.start() - start)
        repeated = [name for name in places if len(places[name]) > 1]
        if repeated:
            draw, which = divmod(_hash(passage), len(repeated))
            name = repeated[which]
            at = places[name][draw % len(places[name])]
            yield passage[:at] + SENTINEL + passage[at + len(name) :], name


def _names(text: str) -> list[re.Match]:
    """Where the code of a text has names that may be hidden; group "name" is each."""
    found = [match for match in _LEXEMES.finditer(text) if match["name"]]
    return [match for match in found if len(match["name"]) > 2 and match["name"] not in _COMMON]


def _some(items: Iterable, most: int) -> list:
    """At most so many, each once, drawn by a hash and in its order."""
    return sorted(dict.fromkeys(items), key=_hash)[:most]


def _hash(item) -> int:
    return zlib.crc32(repr(item).encode())
