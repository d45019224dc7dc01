"""Opens token stores in constant time and memory, and reads them by blocks.

`data.token_store_files` describes the files, `data.records` the order in which records are read,
and `data.store_mixtures` mixtures of stores.
"""

import contextlib
import dataclasses
import math
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..objectives import TokenIds, check_token_ids
from ..settings.atomic_writes import UNLIKE, damaged
from ..settings.folders import Folder
from ..settings.system_errors import in_words
from .corpus import UNCUT_COLUMNS, column_dtype
from .records import DocumentArrays
from .token_ids_json import ids_from_json
from .token_store_files import (
    STORE,
    Counts,
    block_dtype,
    read_description,
    token_dtype,
)

# The splits that a run reads.
TRAIN = "train"
HELDOUT = "heldout"


@dataclasses.dataclass(frozen=True)
class TokenStore:
    """The description of a store. `records` opens a split."""

    folder: Folder
    ids: TokenIds
    columns: tuple[str, ...]  # the columns in addition to tokens, as in `Document`
    shapes: Mapping[str, Sequence[int]]  # {column: shape of a token's entry}, if it is an array
    about: Mapping[str, Any]  # the source of the text
    vocabulary: tuple[str, ...]  # names of the vocabulary's files in the folder
    splits: Mapping[str, Mapping[str, Any]]  # the descriptions of the splits by name

    @property
    def name(self) -> str:
        return os.path.basename(self.folder.path.rstrip("/"))

    @property
    def may_cut(self) -> bool:
        """Whether documents may be cut, since they have neither parts nor labels."""
        return not UNCUT_COLUMNS.intersection(self.columns)

    def counts(self, split: str) -> Counts:
        return Counts(**self.splits[split]["counts"])

    def records(self, split: str) -> "StoreRecords":
        """Opens a split. Raises ValueError if the table of its blocks is damaged."""
        with _all_there(self.folder):
            table = self.folder.mapped(f"{split}.blocks")
        if zlib.crc32(table.data) != self.splits[split]["blocks_crc32"]:
            raise ValueError(
                f"{self.folder.where(split)}.blocks is damaged, because its checksum differs: "
                "restore it from a copy, or write the store again."
            )
        return StoreRecords(self, split, table.view(block_dtype(self.columns)))

    def documents(self, split: str) -> DocumentArrays:
        """Reads all records of a split, and verifies their checksums."""
        records = self.records(split)
        return records.load(np.arange(len(records.blocks)))


def open_store(path: str | os.PathLike) -> TokenStore:
    """Opens a token store. Only its description is read.

    Raises ValueError if the folder is not a finished store of this format, or is damaged.
    """
    folder = Folder(path)
    try:
        description = read_description(folder, STORE)
    except (FileNotFoundError, NotADirectoryError):
        if not folder.exists(""):
            raise ValueError(
                f"No token store at {folder.path}: check the path, or make the store with "
                "`pretrax prepare` or `write_store`."
            ) from None
        raise ValueError(
            f"{folder.path} is not a finished token store, because it has no {STORE}, which is "
            "written last: give a folder that `pretrax prepare` or `write_store` has finished, or "
            "write the store again."
        ) from None
    try:
        return TokenStore(
            folder,
            check_token_ids(ids_from_json(description["ids"])),
            tuple(description["columns"]),
            description.get("shapes", {}),  # older stores have only columns of numbers
            description["about"],
            tuple(description["vocabulary"]),
            description["splits"],
        )
    except UNLIKE as error:
        raise damaged(folder.where(STORE), f"{type(error).__name__}: {error}") from error


@contextlib.contextmanager
def _all_there(folder: Folder) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"The token store {folder.path} lacks a file that its {STORE} names "
            f"({in_words(error).rstrip('.')}): restore the file from a copy, or write the store "
            "again."
        ) from error


class StoreRecords:
    """The `Records` of a split of a store, or of some of its blocks.

    The columns of a store on disk are memory-mapped, and the checksums of a block are verified on
    its first read. For a store in a bucket, blocks are downloaded and verified on every read.
    """

    def __init__(self, store: TokenStore, split: str, blocks: np.ndarray):
        # `blocks` has the dtype `block_dtype`.
        self.name = store.folder.where(split)
        self.blocks = blocks
        self._folder = store.folder
        self._files = store.splits[split]["files"]
        self._dtypes = {"tokens": token_dtype(store.ids)}
        self._dtypes |= {name: column_dtype(name) for name in store.columns}
        self._shapes = {name: tuple(store.shapes.get(name, ())) for name in self._dtypes}
        self.counts = blocks["records"].astype(np.uint16)  # at most BLOCK
        self.tokens = int(blocks["tokens"].sum(dtype=np.int64))
        self.fingerprint = zlib.crc32(blocks.view(np.uint8).data)
        self._verified = np.zeros(len(blocks), bool)

    def load(self, blocks: np.ndarray) -> DocumentArrays:
        """Reads blocks. Raises ValueError, with the file's name, if a checksum differs."""
        rows = self.blocks[blocks]
        kinds = ("index", *self._dtypes)
        with _all_there(self._folder):
            ranges = self._folder.ranges([self._range(row, kind) for row in rows for kind in kinds])
        contents = [
            dict(zip(kinds, ranges[i : i + len(kinds)])) for i in range(0, len(ranges), len(kinds))
        ]
        for block, content in zip(blocks, contents):
            self._verify(int(block), content)
        entries = np.concatenate([content["index"].view("<u4") for content in contents])
        block_of_record = np.repeat(np.arange(len(rows)), rows["records"])
        stops = np.cumsum(entries >> 1, dtype=np.int64)
        stops -= np.append(0, np.cumsum(rows["tokens"], dtype=np.int64)[:-1])[block_of_record]
        columns = [
            {
                kind: content[kind].view(dtype).reshape(-1, *self._shapes[kind])
                for kind, dtype in self._dtypes.items()
            }
            for content in contents
        ]
        return DocumentArrays(
            name=self.name,
            columns=columns,
            chunk=block_of_record,
            starts=stops - (entries >> 1),
            stops=stops,
            ends_document=(entries & 1).astype(bool),
        )

    def index(self) -> list[np.ndarray]:
        """Returns the index of each block: 2 · tokens of each record, plus 1 if its document ends.

        Nothing else is read. Raises ValueError for a block with another checksum.
        """
        with _all_there(self._folder):
            ranges = self._folder.ranges([self._range(row, "index") for row in self.blocks])
        for row, content in zip(self.blocks, ranges):
            self._check(row, "index", content)
        return [content.view("<u4") for content in ranges]

    def verify(self) -> None:
        """Reads all blocks. Raises ValueError for the first block with another checksum."""
        self._verified[:] = False
        for block in range(len(self.blocks)):
            self.load(np.array([block]))

    def _range(self, row: np.void, kind: str) -> tuple[str, int, int]:
        """Returns the file with an index or column of a block, and its range of bytes there."""
        if kind == "index":
            start = row["first_record"]
            count = row["records"]
            size = 4
        else:
            start = row["first_token"]
            count = row["tokens"]
            size = self._dtypes[kind].itemsize * math.prod(self._shapes[kind])
        first = int(start) * size
        return f"{self._files[row['file']]}.{kind}", first, first + int(count) * size

    def _verify(self, block: int, contents: Mapping[str, np.ndarray]) -> None:
        if self._folder.is_local and self._verified[block]:
            return
        for kind, content in contents.items():
            self._check(self.blocks[block], kind, content)
        self._verified[block] = True

    def _check(self, row: np.void, kind: str, content: np.ndarray) -> None:
        if zlib.crc32(content.data) != row[f"{kind}_crc32"]:
            name, start, end = self._range(row, kind)
            raise ValueError(
                f"{self._folder.where(name)} is damaged, because the checksum of its bytes "
                f"{start:,} to {end:,} differs: restore the file from a copy, or write the store "
                "again."
            )
