"""A folder on a disk or in a bucket: `Folder("stores/mine")`, `Folder("gs://bucket/stores/mine")`.

fsspec finds a bucket's file system by its address. Files on a disk are mapped to memory; of a
bucket's files, ranges are read, many at once.
"""

import os
import posixpath
import tempfile
from collections.abc import Sequence
from typing import BinaryIO

import numpy as np
from fsspec.core import url_to_fs

from .extras import words_of_absent
from .atomic_writes import write_bytes


class Folder:
    """A folder, and its files by their names in it, such as `"train/00003.json"`."""

    def __init__(self, path: str | os.PathLike):
        self.path = os.fspath(path)
        self.is_local = "://" not in self.path
        try:
            # What other processes write must be seen.
            self._files, self._root = url_to_fs(self.path, use_listings_cache=False)
        except ImportError as error:
            words = words_of_absent(error) or error  # which says what package to install
            raise ValueError(f"{self.path} cannot be opened: {words}") from error
        except ValueError as error:
            raise ValueError(f"{self.path} cannot be opened: {error}") from error
        self._maps: dict[str, np.ndarray] = {}

    def where(self, name: str) -> str:
        """Returns the address of a file."""
        return posixpath.join(self.path, name)

    def exists(self, name: str) -> bool:
        return self._files.exists(self._within(name))

    def names(self, folder: str = "") -> list[str]:
        """Returns the names of the files in a folder of it, sorted; none where there is none."""
        try:
            listed = self._files.ls(self._within(folder), detail=False)
        except FileNotFoundError:
            return []
        return sorted(posixpath.basename(file) for file in listed)

    def tree(self) -> list[str]:
        """Returns the names of all files in it, such as `"train/00003.json"`, sorted."""
        return sorted(posixpath.relpath(file, self._root) for file in self._files.find(self._root))

    def read(self, name: str) -> bytes:
        """Returns the content of a file. Raises FileNotFoundError where there is none."""
        return self._files.cat_file(self._within(name))

    def mapped(self, name: str) -> np.ndarray:
        """Returns the content of a file, u8[n], that takes no memory until it is read, and can be
        given up: mapped, from a bucket a copy of it in the folder of temporary files.

        Raises FileNotFoundError where there is none.
        """
        if self.is_local:
            return self._map(name)
        with tempfile.NamedTemporaryFile(prefix="pretrax-") as copy:  # mapped, it needs no name
            self._files.get_file(self._within(name), copy.name)
            return _mapped(copy.name)

    def ranges(self, wanted: Sequence[tuple[str, int, int]]) -> list[np.ndarray]:
        """Returns for each (name, start, end) those bytes of a file, u8[n], up to its end."""
        if self.is_local:
            return [self._map(name)[start:end] for name, start, end in wanted]
        files, starts, ends = zip(*((self._within(name), a, b) for name, a, b in wanted))
        listed = self._files.cat_ranges(list(files), list(starts), list(ends), on_error="raise")
        return [np.frombuffer(content, np.uint8) for content in listed]

    def write(self, name: str, content: bytes) -> None:
        """Writes a file whole or not at all."""
        if self.is_local:
            write_bytes(self._within(name), content)
        else:  # where an object appears when it is complete
            self._files.pipe_file(self._within(name), content)

    def open_to_write(self, name: str) -> BinaryIO:
        """Returns a new file, to be written from its beginning to its end."""
        self._files.makedirs(posixpath.dirname(self._within(name)), exist_ok=True)
        return self._files.open(self._within(name), "wb")

    def remove(self, name: str) -> None:
        """Removes a file, where there is one."""
        if self.exists(name):
            self._files.rm_file(self._within(name))

    def _within(self, name: str) -> str:
        return posixpath.join(self._root, name) if name else self._root

    def _map(self, name: str) -> np.ndarray:
        if name not in self._maps:
            self._maps[name] = _mapped(self._within(name))
        return self._maps[name]


def _mapped(file: str) -> np.ndarray:
    if os.path.getsize(file) == 0:  # which cannot be mapped
        return np.zeros(0, np.uint8)
    # Slices of a memmap take three times as long.
    return np.asarray(np.memmap(file, np.uint8, mode="r"))
