"""Reads documents from files of many formats, on disk or in a bucket, and names every bad record.

The name of a file, without `.gz`, `.bgz` or `.zst`, gives its format. A `.jsonl`, `.ndjson` or
`.json` file has a document in each line, a `.parquet` or `.arrow` file in each row, and a `.warc`
or `.wet` file in each record. A FASTA or FASTQ file (`SEQUENCE_SUFFIXES`) has a document in each
sequence. Any other file is a plain-text document.
"""

import contextlib
import functools
import gzip
import io
import itertools
import os
import re
import stat
import string
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import fsspec

from ..settings.atomic_writes import parse_json
from ..settings.extras import missing_package_message

JSONL_SUFFIXES = (".jsonl", ".ndjson", ".json")
FASTA_SUFFIXES = (".fa", ".fasta", ".fna", ".faa", ".ffn")
FASTQ_SUFFIXES = (".fq", ".fastq")
SEQUENCE_SUFFIXES = FASTA_SUFFIXES + FASTQ_SUFFIXES
BOM = b"\xef\xbb\xbf"  # byte order mark, with which some programs begin UTF-8 files
# Largest number of bytes of a line, or of a plain-text file that is read as a whole.
MAX_TEXT_BYTES = 1 << 26
BUFFER = 1 << 17  # number of bytes that are read at once
PART = 1 << 17  # number of bytes of a part of a plain-text file; longer parts tokenize more slowly
SEQUENCE_PART = 1 << 20  # number of bytes of FASTA that are parsed at once
_WHITESPACE = string.whitespace.encode()
_SEQUENCE = string.ascii_letters.encode() + b"*-."  # bytes that a sequence may have
_ENTRY = re.compile(r"(?:sp|tr)\|([^|]+)\|(.+)")  # the first word of a header of UniProt
_REPRESENTATIVE = re.compile(r"\bRepID=(\S+)")  # in the description of a cluster of UniRef
_GZIP = (".gz", ".bgz")  # bgzip writes gzip files with many members
_PACKED = (*_GZIP, ".zst")
# Archives are rejected; without this list they would be read as plain text.
_ARCHIVES = (".tar", ".tgz", ".zip", ".7z", ".rar", ".bz2", ".xz", ".lz4")
_ARCHIVED = {"conversion": "text", "response": "page"}  # WARC records that hold a document
# Rules that leave out well-formed records: blank lines of JSONL, and responses of a server with a
# status other than 200, such as pages that were not found.
LEFT_OUT = ("blank", "http_status")


class RawDocument(NamedTuple):
    """A document as a file holds it, or a part of a long plain-text file or sequence."""

    text: Any  # a string, or the value that `DocumentOf` makes of a line's object or a row
    path: str = ""
    at: int = 0  # first byte of the line, or number of the row or record, from 0
    # Number of the line, from 1. In a byte range, lines are counted from its start.
    line: int | None = None
    fields: dict[str, Any] = {}  # all fields of the line's object, the row or the web page
    ends_document: bool = True  # whether the document ends here; otherwise its next part follows

    @property
    def place(self) -> str:
        return f"{self.path}:{self.line}" if self.line else f"{self.path}@{self.at}"


class Bad(NamedTuple):
    """A record that is not a document."""

    place: str  # the file and the line, row or record
    rule: str  # `malformed`, `empty` or `damaged`, or one of `LEFT_OUT`
    reason: str


class MalformedLine(ValueError):
    """A line or a file that cannot be read; the message names its place."""

    bad: Bad


# (a line's object or a row) -> document; raises ValueError, with the reason, if there is none.
DocumentOf = Callable[[dict[str, Any]], Any]


def malformed(bad: Bad, change: str = "Fix it.") -> MalformedLine:
    """Returns the error of a bad record, with the reason and what to change."""
    error = MalformedLine(f"{bad.place}: {bad.reason}. {change}")
    error.bad = bad
    return error


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
            yield from _text_parts(path, advance)
        else:
            yield RawDocument(plain_text(path, advance), path)
    except MalformedLine as error:
        yield error.bad


def valid_documents(
    records: Iterable[RawDocument | Bad], change: str = "Fix it."
) -> Iterator[RawDocument]:
    """Yields the documents. Raises MalformedLine, with what to change, at the first bad record."""
    for record in records:
        if isinstance(record, RawDocument):
            yield record
        elif record.rule == "damaged":
            raise malformed(record, "Download or copy the file again.")
        elif record.rule not in LEFT_OUT:
            raise malformed(record, change)


def has_fields(path: str) -> bool:
    """Returns whether the file's records have fields, according to its name."""
    return unpacked(path).endswith(tuple(_READERS_OF_FIELDS))


def is_plain_text(path: str) -> bool:
    """Returns whether the file is plain text, according to its name."""
    return not unpacked(path).endswith(tuple(_READERS))


def unpacked(path: str) -> str:
    """Returns a file's name in lower case, without `.gz`, `.bgz` or `.zst`."""
    name = path.lower()
    return name.removesuffix(os.path.splitext(name)[1]) if name.endswith(_PACKED) else name


def is_sequence_file(path: str) -> bool:
    """Returns whether the file is FASTA or FASTQ, according to its name."""
    return unpacked(path).endswith(SEQUENCE_SUFFIXES)


# --- bytes and lines -----------------------------------------------------------------------------


@contextlib.contextmanager
def opened(path: str, advance: Callable[[int], object] = lambda size: None) -> Iterator[Any]:
    """Opens a file for buffered reading of its uncompressed bytes.

    `advance` is called with the number of (compressed) bytes read since the last call.

    Raises MalformedLine for an archive, for a path that is not a regular file, such as a named
    pipe, and while reading for a damaged compressed file. Raises OSError for a file that cannot be
    opened.
    """
    remote = "://" in path
    packed = os.path.splitext(path)[1].lower()
    # Reading a pipe would wait for a writer.
    if not remote and not stat.S_ISREG(os.stat(path).st_mode):
        raise malformed(Bad(path, "malformed", "a pipe, socket or device, expected a file"))
    if unpacked(path).endswith(_ARCHIVES):
        reason = "an archive, expected text: unpack it, or use gzip or zstd"
        raise malformed(Bad(path, "malformed", reason))
    with fsspec.open(path, "rb") if remote else open(path, "rb", buffering=0) as raw:
        file: Any = io.BufferedReader(_Counted(raw, advance), BUFFER)
        try:
            if packed in _PACKED and not file.peek(1):
                raise EOFError("it is empty")  # Failed downloads leave such files.
            if packed in _GZIP:
                file = gzip.GzipFile(fileobj=file)
            elif packed == ".zst":
                file = io.BufferedReader(_ZstdFile(file), BUFFER)
            yield file
        except ImportError as error:  # The format needs a package that is missing.
            raise ValueError(f"{path}: {missing_package_message(error) or error}") from error
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            kind = "zstd" if packed == ".zst" else "gzip"
            bad = Bad(path, "damaged", f"the {kind} file is damaged or incomplete ({error})")
            raise malformed(bad, "Download or copy the file again.") from error


class _Counted(io.RawIOBase):
    def __init__(self, raw: Any, advance: Callable[[int], object]):
        self._raw = raw
        self._advance = advance

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._raw.seekable()

    def seek(self, to: int, whence: int = os.SEEK_SET) -> int:
        return self._raw.seek(to, whence)

    def readinto(self, into: Any) -> int:
        size = self._raw.readinto(into) or 0
        self._advance(size)
        return size


class _ZstdFile(io.RawIOBase):
    """The content of a zstd file with one or more frames.

    Reading raises EOFError if the last frame is incomplete, as gzip does. zstandard's own reader
    does not notice that a file is cut short. Windows may have up to 2 GiB, as with
    `zstd --long=31`.
    """

    def __init__(self, file: io.BufferedReader):
        import zstandard  # Imported here, so that a missing package raises before reading starts.

        self._file = file
        self._new_frame = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj
        self._frame: Any = None
        self._error = zstandard.ZstdError
        self._packed = b""
        self._content = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        while not self._content and (packed := self._packed or self._file.read(1 << 14)):
            self._frame = self._frame or self._new_frame()
            try:
                self._content = memoryview(self._frame.decompress(packed))
            except self._error as error:
                raise EOFError(str(error)) from error
            self._packed = self._frame.unused_data if self._frame.eof else b""
            self._frame = None if self._frame.eof else self._frame
        if not self._content and self._frame:
            raise EOFError("a zstd frame is incomplete")
        taken = min(len(into), len(self._content))
        into[:taken], self._content = self._content[:taken], self._content[taken:]
        return taken


def lines(
    file: io.BufferedReader, start: int = 0, end: int | None = None
) -> Iterator[tuple[int, int, bytes | None]]:
    """Yields number (from 1), first byte and content of each line that starts in a range.

    The content is None for a line of more than `MAX_TEXT_BYTES` bytes, which is skipped.
    """
    at = start
    number = 0
    if at:  # A line that starts before the range belongs to the previous range.
        file.seek(at - 1)
        at += len(file.readline()) - 1
    while (end is None or at < end) and (line := file.readline(MAX_TEXT_BYTES + 1)):
        first = at
        at = at + len(line)
        number = number + 1
        if len(line) <= MAX_TEXT_BYTES:
            yield number, first, line
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(BUFFER)
            at += len(line)
        yield number, first, None


def decoded(line: bytes | None) -> str:
    """Returns the text of a line of `lines`. Raises ValueError, with the reason, if it has none."""
    if line is None:
        raise ValueError(f"longer than {MAX_TEXT_BYTES >> 20} MiB: cut it into documents")
    try:
        return line.removeprefix(BOM).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 ({error.reason} at byte {error.start})") from None


# --- JSONL ---------------------------------------------------------------------------------------


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


def text_of_field(field: str, value: dict) -> str:
    """Returns the string in a field of an object or a row.

    Raises ValueError, with the reason, if there is none.
    """
    if field not in value:
        fields = ", ".join(map(repr, list(value)[:8])) or "none"
        raise ValueError(f"no field {field!r}, but the line has {fields} (see text_field)")
    text = value[field]
    if not isinstance(text, str):
        raise ValueError(f"field {field!r} is {type(text).__name__}, expected a string")
    check_is_text(text, f"field {field!r}")
    return text


def check_is_text(text: str, what: str) -> None:
    """Raises ValueError for a string that cannot be written as UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"{what} has half a surrogate pair, which is not valid text") from None


# --- sequences -----------------------------------------------------------------------------------


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


# --- other formats -------------------------------------------------------------------------------


def plain_text(path: str, advance: Callable[[int], object] = lambda size: None) -> str:
    """Returns the text of a whole file, whatever its name.

    `advance` is called with the number of (compressed) bytes read since the last call.

    Raises MalformedLine if the file is not UTF-8 or is too long, and OSError if it cannot be
    opened.
    """
    with opened(path, advance) as file:
        content = file.read(MAX_TEXT_BYTES + 1)
    try:
        return decoded(content if len(content) <= MAX_TEXT_BYTES else None)
    except ValueError as error:
        raise malformed(Bad(path, "malformed", str(error))) from None


def _text_parts(path: str, advance: Callable[[int], object]) -> Iterator[RawDocument | Bad]:
    """Yields a plain-text file in parts of whole lines, and its lines that are not UTF-8."""
    number = 1  # number of the first line of a part
    with opened(path, advance) as file:
        while block := file.read(PART):
            # Complete the last line. A line of many megabytes is cut between two characters.
            block += file.readline(PART)
            for _ in range(3):  # Complete a character, which has up to 3 more bytes.
                if block[-1] >= 0x80 and b"\x80" <= file.peek(1)[:1] < b"\xc0":
                    block += file.read(1)
            if number == 1:
                block = block.removeprefix(BOM)
            try:
                text = block.decode("utf-8")
            except UnicodeDecodeError:
                text, bad = _decodable_lines(block, path, number)
                yield from bad
            yield RawDocument(text, path, ends_document=not file.peek(1))
            number += block.count(b"\n")


def _decodable_lines(block: bytes, path: str, number: int) -> tuple[str, list[Bad]]:
    """Returns the text of a block's lines that are UTF-8, and its other lines as bad records.

    `number` is the number of the first line.
    """
    lines = []
    bad = []
    for line in block.splitlines(keepends=True):
        try:
            lines.append(decoded(line))
        except ValueError as error:
            bad.append(Bad(f"{path}:{number}", "malformed", str(error)))
        number += line.endswith(b"\n")
    return "".join(lines), bad


def _rows(
    kind: str, batches: Callable, file: Any, path: str, document_of: DocumentOf
) -> Iterator[RawDocument | Bad]:
    import pyarrow

    number = 0
    try:
        for batch in batches(file):
            batch.validate(full=True)  # Otherwise wrong offsets crash the process.
            for row in batch.to_pylist():
                try:
                    yield RawDocument(document_of(row), path, number, fields=row)
                except ValueError as error:
                    yield Bad(f"{path}@{number}", "malformed", str(error))
                number += 1
    # A damaged length raises MemoryError, and a damaged column name UnicodeDecodeError.
    except (pyarrow.ArrowException, OSError, MemoryError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # The disk or the network failed, which says nothing about the file's content.
        yield Bad(path, "damaged", f"the {kind} file is damaged or incomplete ({error})")


def _parquet_batches(file: Any) -> Iterator[Any]:
    import pyarrow.parquet

    return pyarrow.parquet.ParquetFile(file).iter_batches(1000)


def _arrow_batches(file: Any) -> Iterator[Any]:
    """Yields the batches of an Arrow stream, which `datasets` writes, or of an Arrow file."""
    import pyarrow.ipc

    if not file.peek(6).startswith(b"ARROW1"):
        yield from pyarrow.ipc.open_stream(file)
        return
    reader = pyarrow.ipc.open_file(file)
    yield from map(reader.get_batch, range(reader.num_record_batches))


def _warc(file: Any, path: str, document_of: DocumentOf) -> Iterator[RawDocument | Bad]:
    from warcio.archiveiterator import ArchiveIterator

    number = 0
    archive = ArchiveIterator(file, no_record_parse=True)  # warcio's parser requires URLs.
    try:
        for record in archive:
            kind = _ARCHIVED.get(record.rec_type)
            if kind is not None:
                yield from _warc_document(record, kind, path, number)
            number += 1
        file.read(1)  # Raises EOFError if a gzip file is cut short, which warcio does not notice.
    except Exception as error:  # warcio and the codecs of pages raise many types of errors.
        if isinstance(error, OSError) and error.errno is not None:
            raise  # The disk or the network failed, which says nothing about the file's content.
        cause = str(error) or type(error).__name__
        reason = f"the WARC file is damaged or incomplete from this record on ({cause})"
        yield Bad(f"{path}@{number}", "damaged", reason)


def _warc_document(record: Any, kind: str, path: str, number: int) -> Iterator[RawDocument | Bad]:
    """Yields the document of a record, or why the record has none. Yields nothing for an image.

    Raises EOFError if the record ends before its length. Raises ValueError if the record has no
    length, since the records after it cannot be found.
    """
    place = f"{path}@{number}"
    if record.length is None:
        raise ValueError("the record has no Content-Length")
    url = record.rec_headers.get_header("WARC-Target-URI")
    if kind == "page" and url is None:
        yield Bad(place, "malformed", "got a response without a WARC-Target-URI, expected one")
        return
    url = url or place
    if kind == "page":
        record.http_headers = _http_headers(record, url)
    content = record.content_stream().read()
    record.raw_stream.read()  # the rest of the record, if any
    if record.raw_stream.limit:
        raise EOFError(f"the record of {url} is incomplete")
    header = record.http_headers
    if kind == "page" and "html" not in (header.get_header("Content-Type", "") if header else ""):
        return
    if kind == "page" and header.get_statuscode() != "200":
        yield Bad(url, "http_status", f"got the HTTP status {header.statusline}")
        return
    text = _main_text(content) if kind == "page" else content.decode("utf-8", "replace")
    date = record.rec_headers.get_header("WARC-Date")
    yield RawDocument(text, path, number, fields={"id": url, "url": url, "date": date})


def _http_headers(record: Any, url: str) -> Any:
    """Returns the HTTP headers at the start of a record's content; None if it has no headers."""
    from warcio.recordloader import ArcWarcRecordLoader

    loader = ArcWarcRecordLoader(verify_http=False)
    return loader.load_http_headers(record.rec_type, url, record.raw_stream, record.length)


def _main_text(page: bytes) -> str:
    """Returns the text of a web page without its menus, as FineWeb extracts it; "" for none."""
    import trafilatura  # Imports lxml, which no other format needs.

    return trafilatura.extract(page, favor_precision=True, include_comments=False) or ""


_Reader = Callable[..., Iterator[RawDocument | Bad]]
# Suffix -> reader of a format whose records have fields.
_READERS_OF_FIELDS: dict[str, _Reader] = {
    **dict.fromkeys(JSONL_SUFFIXES, json_lines),
    ".parquet": functools.partial(_rows, "Parquet", _parquet_batches),
    ".arrow": functools.partial(_rows, "Arrow", _arrow_batches),
    **dict.fromkeys(FASTA_SUFFIXES, _fasta),
    **dict.fromkeys(FASTQ_SUFFIXES, _fastq),
}
_READERS = _READERS_OF_FIELDS | dict.fromkeys((".warc", ".wet"), _warc)
