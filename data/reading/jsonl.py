"""Reads JSONL: a document in each line."""

import io
import string
from collections.abc import Callable, Iterator
from typing import Any

from ...settings.atomic_writes import parse_json
from .opening import BUFFER, decoded, lines, opened
from .raw_document import Bad, RawDocument, Reader

JSONL_SUFFIXES = (".jsonl", ".ndjson", ".json")


def json_lines(
    file: io.BufferedReader,
    path: str,
    document_of: Callable[[Any], Any],
    *,
    kinds: type | tuple[type, ...] = dict,
    byte_range: tuple[int, int | None] = (0, None),
) -> Iterator[RawDocument | Bad]:
    """Yields the documents and the bad lines of an open JSONL file, as `raw_documents` does.

    The value of a line must have one of the types `kinds`.
    """
    first = 0
    before = None
    for number, at, line in lines(file, *byte_range):
        first = at if number == 1 else first
        try:
            value = _value(line, kinds)
            if value is None:
                yield Bad(path, "blank", "")
            else:
                yield RawDocument(document_of(value), path, at, number, value)
        except ValueError as error:
            before = _lines_before(path, first) if before is None else before
            yield Bad(f"{path}:{before + number}", "malformed", str(error))


def _value(line: bytes | None, kinds: type | tuple[type, ...]) -> Any:
    """Returns the value of a line, or None for a blank line. Raises ValueError for a bad line."""
    text = decoded(line).strip(string.whitespace)
    if not text:
        return None
    if text.startswith("["):
        expected = "a JSON object on each line, as `jq -c '.[]'` writes them"
        raise ValueError(f"got an array, expected {expected}")
    try:
        value = parse_json(text)
    except ValueError as error:  # Numbers with too many digits raise it, too.
        raise ValueError(f"not JSON ({error}): {text[:60]!r}") from None
    if not isinstance(value, kinds):
        raise ValueError(f"got {text[:60]!r}, expected a JSON object")
    return value


def _lines_before(path: str, end: int) -> int:
    count = 0
    with opened(path) as file:
        while end > 0 and (block := file.read(min(end, BUFFER))):
            count = count + block.count(b"\n")
            end = end - len(block)
    return count


READERS: dict[str, Reader] = dict.fromkeys(JSONL_SUFFIXES, json_lines)
