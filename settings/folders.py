"""A folder on a disk or in a bucket: `Folder("stores/mine")`, `Folder("gs://bucket/stores/mine")`.

fsspec chooses a bucket's file system by its address. Files on a disk are memory-mapped. From a
bucket, many ranges of files are read at once.
"""

import os
import posixpath
import tempfile
from collections.abc import Sequence
from typing import BinaryIO

import numpy as np
from fsspec.core import url_to_fs

from .atomic_writes import write_bytes
from .extras import missing_package_message


class Folder:
    """A folder whose files are named by their paths in it, such as `"train/00003.json"`."""

    def __init__(self, path: str | os.PathLike):
        self.path = os.fspath(path)
        self.is_local = "://" not in self.path
        try:
            # Listings are not cached, so that files of other processes are seen.
            self._files, self._root = url_to_fs(self.path, use_listings_cache=False)
        except ImportError as error:
            # The message of fsspec's own error also says what package to install.
            message = missing_package_message(error) or error
            raise ValueError(f"{self.path} cannot be opened: {message}") from error
        except ValueError as error:
            raise ValueError(f"{self.path} cannot be opened: {error}") from error
        self._maps: dict[str, np.ndarray] = {}

    def where(self, name: str) -> str:
        """Returns the address of a file."""
        return posixpath.join(self.path, name)

    def exists(self, name: str) -> bool:
        return self._files.exists(self._within(name))

    def names(self, folder: str = "") -> list[str]:
        """Returns the sorted names of the files in a subfolder; [] if it does not exist."""
        try:
            listed = self._files.ls(self._within(folder), detail=False)
        except FileNotFoundError:
            return []
        return sorted(posixpath.basename(file) for file in listed)

    def tree(self) -> list[str]:
        """Returns the sorted names of all files, such as `"train/00003.json"`."""
        return sorted(posixpath.relpath(file, self._root) for file in self._files.find(self._root))

    def read(self, name: str) -> bytes:
        """Returns the content of a file. Raises FileNotFoundError if the file does not exist."""
        return self._files.cat_file(self._within(name))

    def mapped(self, name: str) -> np.ndarray:
        """Returns the content of a file, u8[n], memory-mapped.

        The system loads its pages when they are read and may drop them again. A file in a bucket
        is copied to the folder of temporary files first.

        Raises FileNotFoundError if the file does not exist.
        """
        if self.is_local:
            return self._map(name)
        # The map stays valid after the temporary file is deleted.
        with tempfile.NamedTemporaryFile(prefix="pretrax-") as copy:
            self._files.get_file(self._within(name), copy.name)
            return _mapped(copy.name)

    def ranges(self, wanted: Sequence[tuple[str, int, int]]) -> list[np.ndarray]:
        """Returns the bytes start:end of each (name, start, end), u8[n].

        A range that reaches past the end of its file is cut there.
        """
        if self.is_local:
            return [self._map(name)[start:end] for name, start, end in wanted]
        files, starts, ends = zip(*((self._within(name), a, b) for name, a, b in wanted))
        listed = self._files.cat_ranges(list(files), list(starts), list(ends), on_error="raise")
        return [np.frombuffer(content, np.uint8) for content in listed]

    def write(self, name: str, content: bytes) -> None:
        """Writes a file atomically."""
        if self.is_local:
            write_bytes(self._within(name), content)
        else:  # a bucket shows an object only when it is complete
            self._files.pipe_file(self._within(name), content)

    def open_to_write(self, name: str) -> BinaryIO:
        """Returns a new file to write sequentially."""
        self._files.makedirs(posixpath.dirname(self._within(name)), exist_ok=True)
        return self._files.open(self._within(name), "wb")

    def remove(self, name: str) -> None:
        """Removes a file if it exists."""
        if self.exists(name):
            self._files.rm_file(self._within(name))

    def _within(self, name: str) -> str:
        return posixpath.join(self._root, name) if name else self._root

    def _map(self, name: str) -> np.ndarray:
        if name not in self._maps:
            self._maps[name] = _mapped(self._within(name))
        return self._maps[name]


def _mapped(file: str) -> np.ndarray:
    if os.path.getsize(file) == 0:  # an empty file cannot be mapped
        return np.zeros(0, np.uint8)
    # Slicing an ndarray is three times as fast as slicing a memmap.
    return np.asarray(np.memmap(file, np.uint8, mode="r"))
