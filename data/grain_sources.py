"""A token store as a data source for your own Grain pipeline; Grain itself is not needed.

For example:

    dataset = grain.MapDataset.source(StoreSource("stores/web")).shuffle(seed=0).repeat()
    dataset[0]["tokens"]
"""

import functools
import os
from typing import Any

import numpy as np

from .token_store import TRAIN, open_store

_MAX_BLOCKS = 64  # Number of blocks in memory, each of 256 records, or fewer with 2**20 tokens


class StoreSource:
    """The records of a split of a token store, in the order in which they were written.

    This class implements `grain.sources.RandomAccessDataSource`. Checkpoints of Grain identify it
    by its `repr`, and it can be pickled for Grain's workers.

        source = StoreSource("stores/web", "heldout")
        source[0]        # {"tokens": i32[n], "ends_document": True}

    A record is a document, or a piece of a document of more than 16,384 tokens. It also has "parts"
    or "labels" if the store has them. `ends_document` is True if the document ends with the record.

    Raises ValueError for an unfinished store, and for a split that the store does not have. Reading
    a record raises ValueError for a block whose checksums differ, and IndexError for a record
    number that does not exist.
    """

    def __init__(self, path: str | os.PathLike, split: str = TRAIN):
        self._path = os.fspath(path)
        self._split = split
        store = open_store(path)
        if split not in store.splits:
            raise ValueError(
                f"{self._path} has no split {split!r}, expected one of {list(store.splits)}."
            )
        self._records = store.records(split)
        # Number of records up to the end of each block.
        self._stops = np.cumsum(self._records.counts, dtype=np.int64)
        self._block = functools.lru_cache(maxsize=_MAX_BLOCKS)(
            lambda block: self._records.load(np.array([block]))
        )

    def __len__(self) -> int:
        return int(self._stops[-1])

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < len(self):
            raise IndexError(f"Got record {index}, expected one of 0 … {len(self) - 1}.")
        block = int(np.searchsorted(self._stops, index, side="right"))
        first = int(self._stops[block] - self._records.counts[block])
        piece = self._block(block).document(index - first)
        return {name: x for name, x in piece._asdict().items() if x is not None}

    def __repr__(self) -> str:
        return f"StoreSource({self._path!r}, {self._split!r}, {self._records.fingerprint:#010x})"

    def __reduce__(self):
        return StoreSource, (self._path, self._split)
