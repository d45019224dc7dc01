"""Reads records from files of all kinds, on disk or in a bucket, naming every one that is bad.

What a file is, its name says, once `.gz` or `.zst` is taken off it: `.jsonl`, `.ndjson` and `.json`
hold a document a line, `.parquet` and `.arrow` one a row, `.warc` and `.wet` one a record; any other
file is a document of plain text.
"""

import glob
import gzip
import io
import json
import os
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

import fsspec
import zstandard

from ..data.whole_files import read_json
from ..tasks.corpora.text_readers import (
    JSONL_SUFFIXES,
    MalformedLine,
    find_files,
    listed,
    text_of,
)

LONGEST = 1 << 26  # bytes of a JSONL line or of a plain text file, which are in memory whole
_STATE, _INFO, _SPLITS = (
    "state.json",
    "dataset_info.json",
    "dataset_dict.json",
)  # `datasets` saves them
_PACKED = (".tar", ".tgz", ".zip", ".7z", ".rar", ".bz2", ".xz", ".lz4")  # else a .tar is a text
_ARCHIVED = {"conversion": "text", "response": "page"}  # records of WARC that hold a document


class Record(NamedTuple):
    """A document as a file holds it."""

    text: str
    name: str  # where it is: file, and line, row or record
    metadata: dict[str, Any]


class Bad(NamedTuple):
    """A record that is no document."""

    name: str  # where it is
    rule: str  # `malformed`, `empty` or `damaged`
    reason: str


class Reading(NamedTuple):
    """How records are read."""

    text_field: str  # of JSONL, Parquet and Arrow
    on_malformed: str  # "error" or "skip"


class FileRange(NamedTuple):
    """A file, or the lines of one that start within a range of its bytes."""

    path: str
    start: int = 0
    end: int | None = None  # None: to its end


def found_files(patterns: str | Sequence[str]) -> list[str]:
    """Returns the files that match, in order: paths or glob patterns, a list or separated by commas.

    A pattern with "://" is looked for in its bucket, by fsspec's package for it, such as s3fs; a folder
    that `datasets` saved stands for its Arrow files. Raises ValueError and FileNotFoundError as
    `text_readers.find_files`, and ValueError for a bucket that cannot be read, and for a folder of
    several splits, of which one may be for evaluation.
    """
    found: dict[str, None] = {}
    for pattern in listed(patterns):
        folder = os.path.expanduser(pattern)
        if "://" in pattern:
            found |= dict.fromkeys(_remote(pattern))
        elif any(os.path.exists(os.path.join(folder, name)) for name in (_STATE, _INFO, _SPLITS)):
            found |= dict.fromkeys(_saved(folder))
        else:
            found |= dict.fromkeys(find_files([pattern]))
    once: dict[str, str] = {}
    for path in found:
        once.setdefault(path if "://" in path else os.path.realpath(path), path)
    return list(once.values()) or find_files([])


def _saved(folder: str) -> list[str]:
    """Returns the Arrow files of a saved dataset, without what `map` and `filter` cached beside them."""
    here = os.listdir(folder)
    if _SPLITS in here or _STATE not in here:  # without a state: the cache of `load_dataset`
        described = read_json(os.path.join(folder, _SPLITS if _SPLITS in here else _INFO))
        splits = list(described.get("splits") or ())
        if len(splits) > 1:
            one = splits[0] if _SPLITS in here else f"*-{splits[0]}*.arrow"
            raise ValueError(
                f"{folder} holds the splits {', '.join(splits)}: give the one to read, such as "
                f"{os.path.join(folder, one)}."
            )
    paths = find_files([os.path.join(glob.escape(folder), "**/*.arrow")])
    return [path for path in paths if not os.path.basename(path).startswith("cache-")]


def _remote(pattern: str) -> list[str]:
    try:
        filesystem, path = fsspec.core.url_to_fs(pattern)
        paths = filesystem.glob(path) if glob.has_magic(path) else filesystem.find(path)
    except (
        Exception
    ) as error:  # each kind of bucket has errors of its own, and a package to install
        raise ValueError(f"{pattern} cannot be read: {error}.") from error
    if not paths:
        raise FileNotFoundError(f"No file matches {pattern!r}.")
    return sorted(filesystem.unstrip_protocol(one) for one in paths)


def size_and_version(path: str) -> tuple[int, str]:
    """Returns the bytes of a file, and a text that changes when the file does.

    Raises OSError for one that is not there, and ValueError for what is no file.
    """
    if "://" not in path:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):  # whose reader would wait for its writer
            raise ValueError(f"{path} is a pipe, socket or device, expected a file.")
        return found.st_size, str(found.st_mtime_ns)
    filesystem, inner = fsspec.core.url_to_fs(path)
    info = filesystem.info(inner)
    known = (info.get(name) for name in ("ETag", "etag", "generation", "mtime", "created"))
    return info["size"], str(next((one for one in known if one), ""))


def is_splittable(path: str) -> bool:
    """Whether a file can be read from its middle: JSONL that is not compressed."""
    return path.lower().endswith(JSONL_SUFFIXES)


def records(file_range: FileRange, reading: Reading) -> Iterator[Record | Bad]:
    """Yields the documents of a file and its bad records, in order.

    Raises MalformedLine at the first malformed record where `on_malformed` is "error", and OSError for
    a file that cannot be opened.
    """
    yield from judged(_found_in(file_range, reading.text_field), reading.on_malformed, "files")


def judged(
    found: Iterable[Record | Bad], on_malformed: str, source: str | None
) -> Iterator[Record | Bad]:
    """Yields documents and bad records, a document without text as a bad one.

    Raises MalformedLine at the first malformed record where `on_malformed` is "error".

    Args:
      found: as they were read.
      on_malformed: "error" or "skip".
      source: the function of `sources` whose setting that is, for the message; None: it is none.
    """
    skip = source and f", or skip such records: --gin.sources.{source}.on_malformed=\"'skip'\""
    for one in found:
        if isinstance(one, Bad) and one.rule != "empty" and on_malformed == "error":
            raise MalformedLine(f"{one.name}: {one.reason}. Mend it{skip or '.'}")
        if isinstance(one, Record) and not one.text.strip():
            one = Bad(one.name, "empty", "no text")
        yield one


def texts_of(path: str, text_field: str) -> Iterator[str]:
    """Yields the texts of a file; raises as `records` at the first malformed one."""
    for one in judged(_found_in(FileRange(path), text_field), "error", None):
        if isinstance(one, Record):
            yield one.text


def _found_in(file_range: FileRange, text_field: str) -> Iterator[Record | Bad]:
    kinds: dict[tuple[str, ...], Callable[..., Iterator[Record | Bad]]] = {
        JSONL_SUFFIXES: _lines,
        (".parquet",): _parquet,
        (".arrow",): _arrow,
        (".warc", ".wet"): _warc,
    }
    name = _unpacked(file_range.path)
    read = next((kinds[ends] for ends in kinds if name.endswith(ends)), _text)
    yield from _read_by(read, file_range, text_field)


def _unpacked(path: str) -> str:
    """Returns the name that says what a file is."""
    return path.lower().removesuffix(".gz").removesuffix(".zst")


def plain_text(file_range: FileRange) -> Record | Bad:
    """Returns the document that a file is, whatever its name."""
    return next(_read_by(_text, file_range, ""))


def _read_by(read: Callable, file_range: FileRange, text_field: str) -> Iterator[Record | Bad]:
    try:
        if _is_packed(file_range.path) and size_and_version(file_range.path)[0] == 0:
            raise EOFError("it is empty")  # as a download leaves it that failed
        with _opened(file_range.path) as file:
            yield from read(file, file_range, text_field)
    except (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError) as error:
        yield Bad(file_range.path, "damaged", f"the file breaks off or is damaged ({error})")


def _is_packed(path: str) -> bool:
    return path.lower().endswith((".gz", ".zst"))


def _opened(path: str) -> Any:
    ending = os.path.splitext(path)[1].lower()
    file: Any = fsspec.open(path, "rb", compression="gzip" if ending == ".gz" else None).open()
    return io.BufferedReader(_Zstd(file), 1 << 17) if ending == ".zst" else file


class _Zstd(io.RawIOBase):
    """What a zstd file holds, in one frame or several.

    Raises EOFError where the last frame has no end, as gzip does: zstandard's own reader takes a file
    that breaks off for a shorter one. Windows are of up to 2 GiB, as `zstd --long=31` writes them.
    """

    def __init__(self, file: BinaryIO):
        self._file = file
        self._frame: Any = None
        self._rest = b""  # of what was read, behind a frame
        self._content = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        while not self._content:
            packed = self._rest or self._file.read(1 << 14)
            if not packed:
                if self._frame:
                    raise EOFError("a zstd frame has no end")
                return 0
            if not self._frame:
                self._frame = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()
            self._content = memoryview(self._frame.decompress(packed))
            self._rest = self._frame.unused_data if self._frame.eof else b""
            self._frame = None if self._frame.eof else self._frame
        taken = min(len(into), len(self._content))
        into[:taken] = self._content[:taken]
        self._content = self._content[taken:]
        return taken

    def close(self) -> None:
        self._file.close()
        super().close()


def _lines(file: BinaryIO, file_range: FileRange, text_field: str) -> Iterator[Record | Bad]:
    at = file_range.start
    if at:  # the line that a range starts in is the business of the range before
        file.seek(at - 1)
        at += len(file.readline()) - 1
    first, number, before = at, 0, None
    while (file_range.end is None or at < file_range.end) and (line := file.readline(LONGEST + 1)):
        start, at, number = at, at + len(line), number + 1
        if len(line) > LONGEST:
            while not line.endswith(b"\n") and (line := file.readline(1 << 20)):
                at += len(line)
            found: dict | str = f"longer than {LONGEST >> 20} MiB"
        else:
            found = _object(line)
        if found == {}:
            continue
        try:
            if isinstance(found, str):
                raise ValueError(found)
            text = text_of(text_field, found)
        except ValueError as error:
            before = _lines_before(file_range.path, first) if before is None else before
            yield Bad(f"{file_range.path}:{number + before}", "malformed", str(error))
            continue
        yield _record(text, found, f"{file_range.path}@{start}", text_field)


def _object(line: bytes) -> dict | str:
    """Returns the object of a line of JSON; {} for a blank line; a text that says what is wrong."""
    if not line.strip():
        return {}
    if line.lstrip().startswith(b"["):
        return "a JSON array, expected an object a line, as `jq -c '.[]'` writes an array's"
    try:
        value = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        return f"not UTF-8 ({error.reason} at byte {error.start})"
    except (ValueError, RecursionError) as error:
        return f"not JSON ({error})"
    if not isinstance(value, dict) or not value:
        return f"expected a JSON object with fields, got {line[:40].decode('utf-8', 'replace').strip()}"
    return value


def _lines_before(path: str, end: int) -> int:
    with _opened(path) as file:
        count = 0
        while end > 0 and (block := file.read(min(end, 1 << 20))):
            count, end = count + block.count(b"\n"), end - len(block)
    return count


def _record(text: str, fields: dict[str, Any], where: str, text_field: str) -> Record:
    known = fields.get("id")
    name = str(known) if isinstance(known, str | int) else where
    others = {key: value for key, value in fields.items() if key not in (text_field, "id")}
    if isinstance(within := others.get("metadata"), dict):  # as datatrove and Dolma write them
        others = within | {key: value for key, value in others.items() if key != "metadata"}
    return Record(text, name, {"file": where.rpartition("@")[0], **others})


def _text(file: BinaryIO, file_range: FileRange, text_field: str) -> Iterator[Record | Bad]:
    if _unpacked(file_range.path).endswith(_PACKED):
        yield Bad(
            file_range.path,
            "malformed",
            "an archive, expected text: unpack it, or use gzip or zstd",
        )
        return
    content = file.read(LONGEST + 1)
    if len(content) > LONGEST:
        reason = f"longer than {LONGEST >> 20} MiB: cut it into documents, such as lines of JSONL"
        yield Bad(file_range.path, "malformed", reason)
        return
    try:
        yield Record(content.decode("utf-8-sig"), file_range.path, {"file": file_range.path})
    except UnicodeDecodeError as error:
        yield Bad(
            file_range.path, "malformed", f"not UTF-8 text ({error.reason} at byte {error.start})"
        )


def _parquet(file: BinaryIO, file_range: FileRange, text_field: str) -> Iterator[Record | Bad]:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.ParquetFile(file)
        yield from _rows(table.iter_batches(1000), file_range, text_field)
    except (pyarrow.ArrowException, OSError) as error:
        _check_is_of_content(error)
        yield Bad(file_range.path, "damaged", f"no whole Parquet file ({error})")


def _arrow(file: BinaryIO, file_range: FileRange, text_field: str) -> Iterator[Record | Bad]:
    import pyarrow

    try:
        yield from _rows(_arrow_batches(file), file_range, text_field)
    except (pyarrow.ArrowException, OSError) as error:
        _check_is_of_content(error)
        yield Bad(file_range.path, "damaged", f"no whole Arrow file or stream ({error})")


def _arrow_batches(file: Any) -> Iterator[Any]:
    """Yields the batches of a stream, as `datasets` saves them, or of a file, as others do."""
    import pyarrow

    is_file = file.seekable() and file.read(6) == b"ARROW1"
    if file.seekable():
        file.seek(0)
    if not is_file:
        yield from pyarrow.ipc.open_stream(file)
        return
    reader = pyarrow.ipc.open_file(file)
    yield from map(reader.get_batch, range(reader.num_record_batches))


def _check_is_of_content(error: Exception) -> None:
    """Raises an error of the disk or the network again: it says nothing of a file's content."""
    if isinstance(error, OSError) and error.errno is not None:
        raise error


def _rows(batches, file_range: FileRange, text_field: str) -> Iterator[Record | Bad]:
    number = 0
    for batch in batches:
        for row in batch.to_pylist():
            where, number = f"{file_range.path}@{number}", number + 1
            try:
                yield _record(text_of(text_field, row), row, where, text_field)
            except ValueError as error:
                yield Bad(where, "malformed", str(error))


def _warc(file: BinaryIO, file_range: FileRange, text_field: str) -> Iterator[Record | Bad]:
    from warcio.archiveiterator import ArchiveIterator
    from warcio.exceptions import ArchiveLoadFailed

    try:
        for number, record in enumerate(ArchiveIterator(file)):
            kind = _ARCHIVED.get(record.rec_type)
            if kind is None:
                continue
            url = record.rec_headers.get_header("WARC-Target-URI") or f"{file_range.path}@{number}"
            content = record.content_stream().read()
            record.raw_stream.read()  # what may follow the last chunk of a page
            if record.raw_stream.limit:
                raise EOFError(f"the record of {url} has no end")
            header = record.http_headers
            media = header.get_header("Content-Type", "") if header else ""
            if kind == "page" and "html" not in media:
                continue
            text = _main_text(content) if kind == "page" else content.decode("utf-8", "replace")
            metadata = {
                "file": file_range.path,
                "url": url,
                "date": record.rec_headers.get_header("WARC-Date"),
            }
            yield Record(text, url, metadata)
        file.read(1)  # raises EOFError where a gzip file breaks off, which warcio takes for its end
    except (ArchiveLoadFailed, ValueError) as error:
        yield Bad(file_range.path, "damaged", f"no whole WARC file ({error})")


def _main_text(page: bytes) -> str:
    """Returns the text of a web page without its menus, as FineWeb extracts it; "" for none."""
    import trafilatura  # lxml and its friends, which no other format needs

    return trafilatura.extract(page, favor_precision=True, include_comments=False) or ""
