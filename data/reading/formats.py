"""Reads the documents of a file in the format that its name gives."""

import functools
import os
from collections.abc import Callable, Iterable, Iterator

from . import fasta_and_fastq, jsonl, parquet_and_arrow, web_archives
from .opening import opened, unpacked
from .plain_text_files import plain_text, text_parts
from .raw_document import Bad, DocumentOf, MalformedLine, RawDocument, text_of_field

# Suffix -> reader of a format whose records have fields, and of all formats but plain text.
_READERS_OF_FIELDS = jsonl.READERS | parquet_and_arrow.READERS | fasta_and_fastq.READERS
_READERS = _READERS_OF_FIELDS | web_archives.READERS


def raw_documents(
    path: str,
    document_of: str | DocumentOf,
    advance: Callable[[int], object] = lambda size: None,
    *,
    byte_range: tuple[int, int | None] = (0, None),
    text_in_parts: bool = False,
) -> Iterator[RawDocument | Bad]:
    """Yields the documents of a file and its bad records, in order.

    Args:
      document_of: the field or column that has the text, or a function that makes a document of a
        line's object or a row. It is not used for plain text and web pages.
      advance: called with the number of (compressed) bytes read since the last call.
      byte_range: the range in which the lines to read start, for a JSONL file. (0, None) reads all
        lines.
      text_in_parts: whether long documents are read in parts, so that memory use does not depend on
        the file's size. Plain text of more than 128 kB has parts that end at line ends, and a
        sequence of more than 1 MiB has parts.

    Raises OSError for a file that cannot be opened, and ValueError if a package is missing.
    """
    if isinstance(document_of, str):
        document_of = functools.partial(text_of_field, document_of)
    try:
        if not is_plain_text(path):
            read = _READERS[os.path.splitext(unpacked(path))[1]]
            ranges = {} if byte_range == (0, None) else {"byte_range": byte_range}
            with opened(path, advance) as file:
                records = read(file, path, document_of, **ranges)
                yield from records if text_in_parts else _whole(records)
        elif text_in_parts:
            yield from text_parts(path, advance)
        else:
            yield RawDocument(plain_text(path, advance), path)
    except MalformedLine as error:
        yield error.bad


def has_fields(path: str) -> bool:
    """Returns whether the file's records have fields, according to its name."""
    return unpacked(path).endswith(tuple(_READERS_OF_FIELDS))


def is_plain_text(path: str) -> bool:
    """Returns whether the file is plain text, according to its name."""
    return not unpacked(path).endswith(tuple(_READERS))


def _whole(records: Iterable[RawDocument | Bad]) -> Iterator[RawDocument | Bad]:
    parts: list[str] = []
    for record in records:
        if isinstance(record, Bad) or (record.ends_document and not parts):
            yield record
            continue
        parts.append(record.text)
        if record.ends_document:
            yield record._replace(text="".join(parts))
            parts = []
