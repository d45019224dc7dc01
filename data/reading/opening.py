"""Opens files, compressed or not, on disk or in a bucket, and reads their lines."""

import contextlib
import gzip
import io
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import fsspec

from ...settings.extras import missing_package_message
from .raw_document import Bad, malformed

BOM = b"\xef\xbb\xbf"  # byte order mark, with which some programs begin UTF-8 files
# Largest number of bytes of a line, or of a plain-text file that is read as a whole.
MAX_TEXT_BYTES = 1 << 26
BUFFER = 1 << 17  # number of bytes that are read at once
_GZIP = (".gz", ".bgz")  # bgzip writes gzip files with many members
_PACKED = (*_GZIP, ".zst")
# Archives are rejected; without this list they would be read as plain text.
_ARCHIVES = (".tar", ".tgz", ".zip", ".7z", ".rar", ".bz2", ".xz", ".lz4")


def unpacked(path: str) -> str:
    """Returns a file's name in lower case, without `.gz`, `.bgz` or `.zst`."""
    name = path.lower()
    return name.removesuffix(os.path.splitext(name)[1]) if name.endswith(_PACKED) else name


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
