"""Reads FASTA and FASTQ: a document in each sequence."""

import itertools
import re
import string
from collections.abc import Iterator
from typing import Any

from .opening import BOM, MAX_TEXT_BYTES, lines, unpacked
from .raw_document import Bad, DocumentOf, RawDocument, Reader, malformed

FASTA_SUFFIXES = (".fa", ".fasta", ".fna", ".faa", ".ffn")
FASTQ_SUFFIXES = (".fq", ".fastq")
SEQUENCE_SUFFIXES = FASTA_SUFFIXES + FASTQ_SUFFIXES
SEQUENCE_PART = 1 << 20  # number of bytes of FASTA that are parsed at once
_WHITESPACE = string.whitespace.encode()
_SEQUENCE = string.ascii_letters.encode() + b"*-."  # bytes that a sequence may have
_ENTRY = re.compile(r"(?:sp|tr)\|([^|]+)\|(.+)")  # the first word of a header of UniProt
_REPRESENTATIVE = re.compile(r"\bRepID=(\S+)")  # in the description of a cluster of UniRef


def is_sequence_file(path: str) -> bool:
    """Returns whether the file is FASTA or FASTQ, according to its name."""
    return unpacked(path).endswith(SEQUENCE_SUFFIXES)


def sequence_fields(header: str) -> dict[str, str]:
    """Returns the id, name and description in a header of FASTA or FASTQ, without its first sign.

    The id of a UniProt entry is its accession. The name of a UniRef cluster is its representative.

    >>> sequence_fields("sp|P69905|HBA_HUMAN Hemoglobin subunit alpha OS=Homo sapiens")["id"]
    'P69905'
    >>> sequence_fields("UniRef50_Q9K794 AgrB-like n=2 TaxID=86665 RepID=AGRB_HALH5")["name"]
    'AGRB_HALH5'
    """
    first, description = [*header.split(maxsplit=1), "", ""][:2]
    entry = _ENTRY.fullmatch(first)
    cluster = _REPRESENTATIVE.search(description) if first.startswith("UniRef") else None
    return {
        "id": entry[1] if entry else first,
        "name": entry[2] if entry else cluster[1] if cluster else first,
        "description": description.rstrip(),
    }


def _fasta(file: Any, path: str, document_of: DocumentOf) -> Iterator[RawDocument | Bad]:
    """Yields the sequences of a FASTA file. A long sequence is read in parts."""
    at = -1
    before = 0
    fields: dict[str, Any] = {}
    last_line: int | None = None
    for header, line, letters, ends_document in _fasta_parts(file, path):
        if line != last_line:
            fields = sequence_fields(header.decode("utf-8", "replace"))
            last_line = line
            at += 1
            before = 0
        if letters.isalpha():  # a quick check for most records
            named = fields | {"text": letters.decode("ascii")}
            yield RawDocument(document_of(named), path, at, line, named, ends_document)
        else:
            record = RawDocument("", path, at, line, fields, ends_document)
            yield from _sequence(record, letters, before, document_of)
        before += len(letters)
    if at < 0:
        raise malformed(Bad(path, "malformed", "the file has no record, expected FASTA"))


def _fasta_parts(file: Any, path: str) -> Iterator[tuple[bytes, int, bytes, bool]]:
    """Yields the header of a record, its line, the next letters, and whether the record ends."""
    header = waiting = b""
    line = at = 0
    for block in _fasta_blocks(file, path):
        first, *records = block.split(b"\n>")
        letters = first.translate(None, _WHITESPACE)
        if letters and not at:
            reason = f"got {letters[:20].decode('latin-1')!r}, expected FASTA with a header ('>')"
            raise malformed(Bad(path, "malformed", reason))
        if letters and waiting:
            yield header, at, waiting, False
            waiting = b""
        waiting += letters
        line += first.count(b"\n")
        for record in records:
            if at:
                yield header, at, waiting, True
            header, _, content = record.partition(b"\n")
            waiting = content.translate(None, _WHITESPACE)
            at = line + 1
            line = at + record.count(b"\n")
    if at:
        yield header, at, waiting, True


def _fasta_blocks(file: Any, path: str) -> Iterator[bytes]:
    """Yields the content of a file after a line end, cut neither in a header nor before one."""
    rest = b"\n" + file.read(len(BOM)).removeprefix(BOM)
    while block := file.read(SEQUENCE_PART):
        text = rest + block
        header = text.rfind(b"\n>")
        if header < 0 or b"\n" in text[header + 1 :]:
            header = len(text) - text.endswith(b"\n")
        rest = text[header:]
        if len(rest) > MAX_TEXT_BYTES:
            raise malformed(Bad(path, "malformed", "a header is longer than 64 MiB"))
        yield text[:header]
    yield rest


def _fastq(file: Any, path: str, document_of: DocumentOf) -> Iterator[RawDocument | Bad]:
    rows = lines(file)
    none = (0, 0, b"")
    at = -1
    for at, four in enumerate(itertools.zip_longest(rows, rows, rows, rows, fillvalue=none)):
        header, letters, plus, qualities = ((row or b"").strip() for _, _, row in four)
        if not (header or letters or plus or qualities):  # Blank lines end many files.
            continue
        line = four[0][0]
        if not (header.startswith(b"@") and plus.startswith(b"+")):
            reason = "expected a record of four lines: '@' with its name, letters, '+', qualities"
            raise malformed(Bad(f"{path}:{line}", "malformed", reason))
        fields = sequence_fields(header[1:].decode("utf-8", "replace"))
        if len(letters) != len(qualities):
            sizes = f"{len(letters)} letters, but {len(qualities)} qualities"
            reason = f"record {fields['id']!r} has {sizes}, expected the same number"
            yield Bad(f"{path}:{line}", "malformed", reason)
            continue
        yield from _sequence(RawDocument("", path, at, line, fields), letters, 0, document_of)
    if at < 0:
        raise malformed(Bad(path, "malformed", "the file has no record, expected FASTQ"))


def _sequence(
    record: RawDocument, letters: bytes, before: int, document_of: DocumentOf
) -> Iterator[RawDocument | Bad]:
    """Yields a part of a record, which follows `before` letters, or why it cannot be read."""
    reason = "" if letters or before else "is empty, expected letters"
    if other := letters.translate(None, _SEQUENCE):
        position = before + letters.index(other[:1]) + 1
        reason = f"has {chr(other[0])!r} at position {position:,}, expected a letter"
    if reason:
        reason = f"record {record.fields['id']!r} {reason}"
        yield Bad(f"{record.path}:{record.line}", "malformed", reason)
        letters = b""
    if letters or before:  # After a bad part, the document of the other parts still has to end.
        fields = record.fields | {"text": letters.decode("ascii")}
        # Files of proteins have many short records, for which `_replace` is slow.
        text = document_of(fields)
        yield RawDocument(text, record.path, record.at, record.line, fields, record.ends_document)


READERS: dict[str, Reader] = {
    **dict.fromkeys(FASTA_SUFFIXES, _fasta),
    **dict.fromkeys(FASTQ_SUFFIXES, _fastq),
}
