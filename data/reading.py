"""Reads documents from files of many formats, on disk or in a bucket, and names every bad record.

The name of a file, without `.gz` or `.zst`, gives its format. A `.jsonl`, `.ndjson` or `.json` file
has a document in each line, a `.parquet` or `.arrow` file in each row, and a `.warc` or `.wet` file
in each record. Any other file is a plain-text document.
"""

import contextlib
import functools
import gzip
import io
import os
import stat
import string
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import fsspec

from ..settings.atomic_writes import parse_json
from ..settings.extras import missing_package_message

JSONL_SUFFIXES = (".jsonl", ".ndjson", ".json")
BOM = b"\xef\xbb\xbf"  # byte order mark with which some programs begin UTF-8
LONGEST = 1 << 26  # largest number of bytes of a line or a plain-text file, held in memory
BUFFER = 1 << 17  # number of bytes that are read at once
PART = 1 << 17  # bytes of a part of a plain-text file; tokenizers slow down on longer parts
# Archives are refused; without this list they would be read as plain text.
_ARCHIVES = (".tar", ".tgz", ".zip", ".7z", ".rar", ".bz2", ".xz", ".lz4")
_ARCHIVED = {"conversion": "text", "response": "page"}  # WARC records that hold a document
# Rules that leave out records that are not bad: blank lines of JSONL, and answers of a server with
# a status other than 200, such as pages that were not found.
LEFT_OUT = ("blank", "http_status")


class RawDocument(NamedTuple):
    """A document as a file holds it, or a part of a long plain-text file."""

    text: Any  # a string, or the value that `DocumentOf` makes of a line's object or a row
    path: str = ""
    at: int = 0  # the first byte of its line, or the number of its row or record, from 0
    # The number of its line, from 1. In a byte range, lines are counted from its start.
    line: int | None = None
    fields: dict[str, Any] = {}  # all fields of the line's object, the row or the web page
    ends: bool = True  # whether the document ends here; otherwise its next part follows

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


# (a line's object or a row) -> its document; raises ValueError, saying why there is none.
DocumentOf = Callable[[dict[str, Any]], Any]


def malformed(bad: Bad, change: str = "Mend it.") -> MalformedLine:
    """Returns the error of a bad record, which says what is wrong and what to change."""
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
      document_of: the field or column that holds the text; or makes a document of a line's object
        or of a row. Plain text, and the text of a web page, is a document as it is.
      advance: called with the number of bytes, as they lie on disk, read since the last call.
      byte_range: where the lines start that are read of a JSONL file; (0, None): all lines.
      text_in_parts: whether plain text of more than 128 kB comes in parts, cut at line ends, so
        that memory does not depend on the file's size.

    Raises OSError for a file that cannot be opened, and ValueError where a package is missing.
    """
    if isinstance(document_of, str):
        document_of = functools.partial(text_of, document_of)
    try:
        if not is_plain_text(path):
            read = _READERS[os.path.splitext(unpacked(path))[1]]
            ranges = {} if byte_range == (0, None) else {"byte_range": byte_range}
            with opened(path, advance) as file:
                yield from read(file, path, document_of, **ranges)
        elif text_in_parts:
            yield from _text_parts(path, advance)
        else:
            yield RawDocument(plain_text(path, advance), path)
    except MalformedLine as error:
        yield error.bad


def good(found: Iterable[RawDocument | Bad], change: str = "Mend it.") -> Iterator[RawDocument]:
    """Yields documents. Raises MalformedLine, which says what to change, at the first bad one."""
    for one in found:
        if isinstance(one, RawDocument):
            yield one
        elif one.rule not in LEFT_OUT:
            raise malformed(one, change)


def has_fields(path: str) -> bool:
    """Whether documents are objects or rows with fields, by the file's name."""
    return unpacked(path).endswith((*JSONL_SUFFIXES, ".parquet", ".arrow"))


def is_plain_text(path: str) -> bool:
    """Whether a file is a document of plain text, by its name."""
    return not unpacked(path).endswith(tuple(_READERS))


def unpacked(path: str) -> str:
    """Returns the name that says what a file is."""
    return path.lower().removesuffix(".gz").removesuffix(".zst")


# --- bytes and lines -----------------------------------------------------------------------------


@contextlib.contextmanager
def opened(path: str, advance: Callable[[int], object] = lambda size: None) -> Iterator[Any]:
    """Opens a file to read its bytes, uncompressed, buffered; `advance` as in `raw_documents`.

    Raises MalformedLine for an archive, for a path that is not a regular file, such as a named
    pipe, and while reading for a damaged compressed file. Raises OSError for a file that cannot be
    opened.
    """
    remote = "://" in path
    packed = os.path.splitext(path)[1].lower()
    if not remote and not stat.S_ISREG(
        os.stat(path).st_mode
    ):  # Reading a pipe would wait for a writer.
        raise malformed(Bad(path, "malformed", "a pipe, socket or device, expected a file"))
    if unpacked(path).endswith(_ARCHIVES):
        reason = "an archive, expected text: unpack it, or use gzip or zstd"
        raise malformed(Bad(path, "malformed", reason))
    with fsspec.open(path, "rb") if remote else open(path, "rb", buffering=0) as raw:
        file: Any = io.BufferedReader(_Counted(raw, advance), BUFFER)
        try:
            if packed in (".gz", ".zst") and not file.peek(1):
                raise EOFError("it is empty")  # as a download leaves it that failed
            if packed == ".gz":
                file = gzip.GzipFile(fileobj=file)
            elif packed == ".zst":
                file = io.BufferedReader(_ZstdFile(file), BUFFER)
            yield file
        except ImportError as error:  # of a package for a format
            raise ValueError(f"{path}: {missing_package_message(error) or error}") from error
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            kind = "zstd" if packed == ".zst" else "gzip"
            bad = Bad(path, "damaged", f"no whole {kind} file ({error})")
            raise malformed(bad, "Get it again.") from error


class _Counted(io.RawIOBase):
    """A file that says how many of its bytes were read."""

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
    """The content of a zstd file, in one frame or several.

    Raises EOFError if the last frame has no end, as gzip does: zstandard's own reader takes a file
    that breaks off for a shorter one. Windows are of up to 2 GiB, as `zstd --long=31` writes.
    """

    def __init__(self, file: io.BufferedReader):
        import zstandard  # an extra: before a format's own reader meets the file

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
            raise EOFError("a zstd frame has no end")
        taken = min(len(into), len(self._content))
        into[:taken], self._content = self._content[:taken], self._content[taken:]
        return taken


def lines(
    file: io.BufferedReader, start: int = 0, end: int | None = None
) -> Iterator[tuple[int, int, bytes | None]]:
    """Yields the number, from 1, the first byte and the content of the lines that start in a range.

    The content is None for a line of more than `LONGEST` bytes, which is passed over.
    """
    at = start
    number = 0
    if at:  # the line that a range starts in is the business of the range before
        file.seek(at - 1)
        at += len(file.readline()) - 1
    while (end is None or at < end) and (line := file.readline(LONGEST + 1)):
        first = at
        at = at + len(line)
        number = number + 1
        if len(line) <= LONGEST:
            yield number, first, line
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(BUFFER)
            at += len(line)
        yield number, first, None


def decoded(line: bytes | None) -> str:
    """The text of a line of `lines`. Raises ValueError, saying why it is none."""
    if line is None:
        raise ValueError(f"longer than {LONGEST >> 20} MiB: cut it into documents")
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
    """Yields the documents of an open file of JSONL, and its bad lines, as `raw_documents`.

    A line's value is of one of `kinds`.
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
    """The value of a line, None for a blank one. Raises ValueError, saying what is wrong."""
    text = decoded(line).strip(string.whitespace)
    if not text:
        return None
    if text.startswith("["):
        expected = "a JSON object a line, as `jq -c '.[]'` writes them"
        raise ValueError(f"got an array, expected {expected}")
    try:
        value = parse_json(text)
    except ValueError as error:  # also of numbers with too many digits
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


def text_of(field: str, value: dict) -> str:
    """The string in a field of an object or a row. Raises ValueError, saying why there is none."""
    if field not in value:
        fields = ", ".join(map(repr, list(value)[:8])) or "none"
        raise ValueError(f"no field {field!r}, the line has {fields} (see text_field)")
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
        raise ValueError(f"{what} holds half a surrogate pair, which is not valid text") from None


# --- other formats -------------------------------------------------------------------------------


def plain_text(path: str, advance: Callable[[int], object] = lambda size: None) -> str:
    """Returns the document that a file is, whatever its name; `advance` as in `raw_documents`.

    Raises MalformedLine where it is none, and OSError where it cannot be opened.
    """
    with opened(path, advance) as file:
        content = file.read(LONGEST + 1)
    try:
        return decoded(content if len(content) <= LONGEST else None)
    except ValueError as error:
        raise malformed(Bad(path, "malformed", str(error))) from None


def _text_parts(path: str, advance: Callable[[int], object]) -> Iterator[RawDocument | Bad]:
    """Yields a plain text file in parts of whole lines, and its lines that are not UTF-8."""
    number = 1  # of the first line of a part
    with opened(path, advance) as file:
        while block := file.read(PART):
            # Whole lines. A line of many megabytes is cut between two characters.
            block += file.readline(PART)
            for _ in range(3):  # the bytes, after its first, of a character that is cut
                if block[-1] >= 0x80 and b"\x80" <= file.peek(1)[:1] < b"\xc0":
                    block += file.read(1)
            if number == 1:
                block = block.removeprefix(BOM)
            try:
                text = block.decode("utf-8")
            except UnicodeDecodeError:
                text, bad = _decodable_lines(block, path, number)
                yield from bad
            yield RawDocument(text, path, ends=not file.peek(1))
            number += block.count(b"\n")


def _decodable_lines(block: bytes, path: str, number: int) -> tuple[str, list[Bad]]:
    """Returns the lines of a block, whose first has this number, that are text; and the others."""
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
    """Yields the rows of batches of a table."""
    import pyarrow

    number = 0
    try:
        for batch in batches(file):
            batch.validate(full=True)  # otherwise wrong offsets crash the process
            for row in batch.to_pylist():
                try:
                    yield RawDocument(document_of(row), path, number, fields=row)
                except ValueError as error:
                    yield Bad(f"{path}@{number}", "malformed", str(error))
                number += 1
    # A damaged length raises MemoryError, and a damaged column name UnicodeDecodeError.
    except (pyarrow.ArrowException, OSError, MemoryError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's or the network's: it says nothing of the file's content
        yield Bad(path, "damaged", f"no whole {kind} file ({error})")


def _parquet_batches(file: Any) -> Iterator[Any]:
    import pyarrow.parquet

    return pyarrow.parquet.ParquetFile(file).iter_batches(1000)


def _arrow_batches(file: Any) -> Iterator[Any]:
    """Yields the batches of a stream, as `datasets` saves them, or of a file, as others do."""
    import pyarrow.ipc

    if not file.peek(6).startswith(b"ARROW1"):
        yield from pyarrow.ipc.open_stream(file)
        return
    reader = pyarrow.ipc.open_file(file)
    yield from map(reader.get_batch, range(reader.num_record_batches))


def _warc(file: Any, path: str, document_of: DocumentOf) -> Iterator[RawDocument | Bad]:
    from warcio.archiveiterator import ArchiveIterator

    number = 0
    archive = ArchiveIterator(file, no_record_parse=True)  # warcio's parser needs an address
    try:
        for record in archive:
            kind = _ARCHIVED.get(record.rec_type)
            if kind is not None:
                yield from _warc_document(record, kind, path, number)
            number += 1
        file.read(1)  # raises EOFError where a gzip file breaks off, which warcio takes for its end
    except Exception as error:  # warcio and the codecs of pages raise many types of errors
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk or the network failed, which says nothing about the file's content
        reason = f"no whole WARC file from this record on ({str(error) or type(error).__name__})"
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
    record.raw_stream.read()  # what may follow the last chunk of a page
    if record.raw_stream.limit:
        raise EOFError(f"the record of {url} has no end")
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
    import trafilatura  # and lxml, which no other format needs

    return trafilatura.extract(page, favor_precision=True, include_comments=False) or ""


_READERS: dict[str, Callable[..., Iterator[RawDocument | Bad]]] = {
    **dict.fromkeys(JSONL_SUFFIXES, json_lines),
    ".parquet": functools.partial(_rows, "Parquet", _parquet_batches),
    ".arrow": functools.partial(_rows, "Arrow", _arrow_batches),
    **dict.fromkeys((".warc", ".wet"), _warc),
}
