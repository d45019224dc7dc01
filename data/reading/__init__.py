"""Reads documents from files of many formats, on disk or in a bucket, and names every bad record.

The name of a file, without `.gz`, `.bgz` or `.zst`, gives its format. A `.jsonl`, `.ndjson` or
`.json` file has a document in each line, a `.parquet` or `.arrow` file in each row, and a `.warc`
or `.wet` file in each record. A FASTA or FASTQ file (`SEQUENCE_SUFFIXES`) has a document in each
sequence. Any other file is a plain-text document.
"""

from .fasta_and_fastq import SEQUENCE_SUFFIXES, is_sequence_file
from .formats import has_fields, raw_documents
from .jsonl import JSONL_SUFFIXES, json_lines
from .opening import MAX_TEXT_BYTES, decoded, lines, opened, unpacked
from .plain_text_files import plain_text
from .raw_document import (
    LEFT_OUT,
    Bad,
    DocumentOf,
    MalformedLine,
    RawDocument,
    check_is_text,
    malformed,
    text_of_field,
    valid_documents,
)

__all__ = [
    "JSONL_SUFFIXES",
    "LEFT_OUT",
    "MAX_TEXT_BYTES",
    "SEQUENCE_SUFFIXES",
    "Bad",
    "DocumentOf",
    "MalformedLine",
    "RawDocument",
    "check_is_text",
    "decoded",
    "has_fields",
    "is_sequence_file",
    "json_lines",
    "lines",
    "malformed",
    "opened",
    "plain_text",
    "raw_documents",
    "text_of_field",
    "unpacked",
    "valid_documents",
]
