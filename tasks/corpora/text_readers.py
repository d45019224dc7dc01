"""Reads documents from plain text and JSONL files, gzip'd or not, naming every line that is wrong.

A plain text file is a document; one longer than 128 kB is read in parts, cut at line ends, so that
a file of any size is never in memory whole. A line of a `.jsonl`, `.ndjson` or `.json` file is a
document: the string in its text field; a line of more than 64 MiB is malformed. `.gz` may follow any
of them.
"""

import contextlib
import dataclasses
import functools
import glob
import gzip
import io
import json
import os
import re
import stat
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

JSONL_SUFFIXES = (".jsonl", ".ndjson", ".json")
_BLOCK = 1 << 17  # bytes of plain text in a part; tokenisers slow down on longer ones
_LONGEST = 1 << 26  # bytes of a JSONL line, which is in memory whole
_NO_FILE = "a pipe, socket or device, expected a file"
_SHOWN = 5  # malformed lines named in a summary


Readable = gzip.GzipFile | io.BufferedReader


class TextPart(NamedTuple):
    """A document, or a part of a long one."""

    text: Any  # a string; of a JSONL line what `text_field` makes of it
    ends: bool = True  # the document ends with it; else the next part follows


class MalformedLine(ValueError):
    """A line that cannot be read, by file and line."""


@dataclasses.dataclass
class ReadingReport:
    """What reading left out."""

    malformed: int = 0
    blank: int = 0  # blank lines between JSONL documents
    first_malformed: list[str] = dataclasses.field(default_factory=list)

    def describe(self) -> str:
        parts = []
        if self.malformed:
            shown = "; ".join(self.first_malformed)
            more = "; …" if self.malformed > len(self.first_malformed) else ""
            parts.append(f"{self.malformed:,} malformed lines skipped ({shown}{more})")
        if self.blank:
            parts.append(f"{self.blank:,} blank lines")
        return ", ".join(parts)


def listed(patterns: str | Sequence[str]) -> list[str]:
    """Patterns that are given as a list, or separated by commas.

    listed("data/*.txt, more/a.jsonl") -> ["data/*.txt", "more/a.jsonl"]
    """
    if isinstance(patterns, str):
        return [pattern.strip() for pattern in patterns.split(",") if pattern.strip()]
    return list(patterns)


def find_files(patterns: str | Sequence[str]) -> list[str]:
    """The files that match, sorted, each once, whatever links lead to it.

        find_files("data/*.txt, more/a.jsonl.gz") -> ["data/x.txt", "data/y.txt", "more/a.jsonl.gz"]

    Args:
        patterns: glob patterns (`**` for any depth), as a list or separated by commas.

    Raises:
        FileNotFoundError: a pattern that matches no file.
        ValueError: no pattern.
    """
    patterns = [os.path.expanduser(pattern) for pattern in listed(patterns) if pattern]
    if not patterns:
        raise ValueError(
            "Got no file to read: set `files` to one or more paths, such as 'data/*.txt'."
        )
    found = set()
    for pattern in patterns:
        files = matching_files(pattern)
        if not files:
            folder = " (it is a folder: add '/*.txt')" if os.path.isdir(pattern) else ""
            raise FileNotFoundError(
                f"No file matches {pattern!r}{folder}, looked for from {os.getcwd()}."
            )
        found |= files
    return each_once(found)


def matching_files(pattern: str) -> set[str]:
    """The files that match a glob pattern, without going round in loops of links."""
    return {path for path in _matches(pattern) if not os.path.isdir(path)}


def each_once(paths: Iterable[str]) -> list[str]:
    """Paths, sorted, one for each file, whatever links lead to it."""
    once: dict[str, str] = {}
    for path in sorted(paths, key=lambda path: (os.path.islink(path), path)):
        once.setdefault(os.path.realpath(path), path)
    return sorted(once.values())


def _matches(pattern: str) -> Iterator[str]:
    """Yields the paths that match as in `glob.iglob`, whose `**` would follow a loop of links 40 times
    round, and two loops in one folder without end."""
    head, *tail = re.split(r"(?:^|(?<=/))\*\*(?:/|$)", pattern, maxsplit=1)
    if not tail:
        yield from glob.iglob(pattern)
        return
    for start in glob.glob(head) if head else [""]:
        for folder in _folders(start):
            yield from _matches(glob.escape(folder) + (tail[0] or "*"))


def _folders(start: str) -> Iterator[str]:
    """Yields a folder and all below it, each once, as "a/"; "" is the working directory."""
    waiting, seen = deque([start]), set()
    while waiting:
        folder = waiting.popleft()
        if (real := os.path.realpath(folder)) in seen:
            continue
        seen.add(real)
        yield folder
        names = sorted(name for name in os.listdir(folder or ".") if not name.startswith("."))
        paths = [f"{folder}{name}" for name in names if os.path.isdir(f"{folder}{name}")]
        waiting += [f"{path}/" for path in sorted(paths, key=os.path.islink)]


def is_jsonl(path: str) -> bool:
    """Whether lines of a file are documents, by its name."""
    return path.lower().removesuffix(".gz").endswith(JSONL_SUFFIXES)


def read_documents(
    path: str,
    *,
    text_field: str | Callable[[dict], Any] = "text",
    on_malformed: str = "error",
    report: ReadingReport | None = None,
    advance: Callable[[int], None] = lambda size: None,
) -> Iterator[TextPart]:
    """The documents of one file, in order; memory use does not depend on its size.

    A long plain text file comes in parts, of which the last one ends the document.

    Args:
        path: the file; its name says what it is.
        text_field: the field of a JSONL line that holds the text; or a function that takes the line's
            object for what a document is, and raises ValueError with the reason where it is none.
        on_malformed: "error" raises at the first malformed line, "skip" counts it in `report`.
        report: where what was left out is counted.
        advance: called with the bytes of the file on disk that were read since the last call.

    Raises:
        MalformedLine: bad JSON, no such field, no string in it, text that is not UTF-8, or what is no
            file, such as a named pipe.
        ValueError: a damaged gzip file.
        OSError: a file that cannot be opened.
    """
    if on_malformed not in ("error", "skip"):
        raise ValueError(f"on_malformed must be 'error' or 'skip', got {on_malformed!r}.")
    report = ReadingReport() if report is None else report

    def malformed(line: int | None, reason: str) -> None:
        where = f"{path}: {reason}" if line is None else f"{path}:{line}: {reason}"
        if on_malformed == "error":
            raise MalformedLine(f"{where}. Mend it, or set on_malformed = 'skip'.")
        report.malformed += 1
        if len(report.first_malformed) < _SHOWN:
            report.first_malformed.append(where)

    if not _is_file(path):
        malformed(None, _NO_FILE)
        return
    with _opened(path) as (raw, file):
        read: Callable[..., Iterator[TextPart]] = _read_jsonl if is_jsonl(path) else _read_text
        told = 0
        for document in read(file, text_field, malformed, report):
            yield document
            advance(raw.tell() - told)
            told = raw.tell()


def read_lines(
    path: str, advance: Callable[[int], None] = lambda size: None
) -> Iterator[tuple[int, str]]:
    """The lines of a file with their numbers, from 1, without line ends; memory use as above.

    Args:
        path: the file; gzip'd where its name ends with `.gz`.
        advance: called with the bytes of the file on disk that were read since the last call.

    Raises:
        MalformedLine: a line that is not UTF-8 or too long, or what is no file.
        ValueError: a damaged gzip file.
        OSError: a file that cannot be opened.
    """
    with _opened(path) as (raw, file):
        told = 0
        for number, line in enumerate(_lines(file), start=1):
            if line is None:
                raise MalformedLine(f"{path}:{number}: longer than {_LONGEST >> 20} MiB. Cut it.")
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise MalformedLine(
                    f"{path}:{number}: not UTF-8 ({error.reason} at byte {error.start}). Write the file "
                    "as UTF-8."
                ) from None
            yield number, text.removesuffix("\n").removesuffix("\r")
            advance(raw.tell() - told)
            told = raw.tell()


@contextlib.contextmanager
def _opened(path: str) -> Iterator[tuple[io.BufferedReader, Readable]]:
    """A file as it lies on disk, and to be read, unzipped."""
    if not _is_file(path):
        raise MalformedLine(f"{path}: {_NO_FILE}.")
    with open(path, "rb") as raw:
        try:
            yield raw, gzip.GzipFile(fileobj=raw) if path.lower().endswith(".gz") else raw
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path} is no whole gzip file ({error}): get it again.") from error


def _is_file(path: str) -> bool:
    """Whether it is no pipe, say, whose reader would wait for its writer."""
    return stat.S_ISREG(os.stat(path).st_mode)


def _read_jsonl(file: Readable, text_field, malformed, report: ReadingReport) -> Iterator[TextPart]:
    document_of = text_field if callable(text_field) else functools.partial(text_of, text_field)
    for number, line in enumerate(_lines(file), start=1):
        if line is None:
            malformed(number, f"longer than {_LONGEST >> 20} MiB")
            continue
        if not line.strip():
            report.blank += 1
            continue
        try:
            value = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
        except UnicodeDecodeError as error:
            malformed(number, f"not UTF-8 ({error.reason} at byte {error.start})")
            continue
        except (ValueError, RecursionError) as error:  # also of numbers with too many digits
            malformed(number, f"not JSON ({error})")
            continue
        if not isinstance(value, dict):
            malformed(number, f"expected a JSON object, got {type(value).__name__}")
            continue
        try:
            document = document_of(value)
        except ValueError as error:
            malformed(number, str(error))
        else:
            yield TextPart(document)


def _lines(file: Readable) -> Iterator[bytes | None]:
    """Yields each line, and None for one of more than `_LONGEST` bytes, which is passed over."""
    while line := file.readline(_LONGEST + 1):
        if len(line) <= _LONGEST:
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(_BLOCK)
        yield None


def text_of(field: str, value: dict) -> str:
    """The string in a field of a JSONL line. Raises ValueError, saying why there is none."""
    if field not in value:
        fields = ", ".join(map(repr, list(value)[:8])) or "none"
        raise ValueError(f"no field {field!r}, the line has {fields} (see text_field)")
    text = value[field]
    if not isinstance(text, str):
        raise ValueError(f"field {field!r} is {type(text).__name__}, expected a string")
    if not _is_encodable(text):
        raise ValueError(f"field {field!r} holds half a surrogate pair, which is no text")
    return text


def _read_text(
    file: Readable, text_field: str, malformed, report: ReadingReport
) -> Iterator[TextPart]:
    del text_field, report
    number = 1  # of the block's first line
    while block := file.read(_BLOCK):
        # Whole lines; a line of many megabytes is cut between two characters.
        block += file.readline(_BLOCK)
        for _ in range(3):  # the bytes of a character after its first
            if block[-1] >= 0x80:
                block += _continuation(file)
        if number == 1:
            block = block.removeprefix(b"\xef\xbb\xbf")
        try:
            text = block.decode("utf-8")
        except UnicodeDecodeError:
            text = _decodable_lines(block, number, malformed)
        yield TextPart(text, ends=not file.peek(1))
        number += block.count(b"\n")


def _continuation(file: Readable) -> bytes:
    """The next bytes if they go on with a character that a block's end has cut."""
    peeked = file.peek(1)[:1]
    return file.read(1) if peeked and 0x80 <= peeked[0] < 0xC0 else b""


def _decodable_lines(block: bytes, number: int, malformed) -> str:
    lines = []
    for line in block.splitlines(keepends=True):
        try:
            lines.append(line.decode("utf-8"))
        except UnicodeDecodeError as error:
            malformed(number, f"not UTF-8 ({error.reason} at byte {error.start})")
        number += line.endswith(b"\n")
    return "".join(lines)


def _is_encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
