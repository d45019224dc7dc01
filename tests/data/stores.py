"""Small token stores, and documents to write to them."""

import numpy as np

from pretrax.data.records import DocumentArrays, RecordStream, Shuffled
from pretrax.data.token_store import open_store
from pretrax.data.token_store_files import (
    StoreWriter,
    seal,
)
from pretrax.objectives import TokenIds


class Numbers:
    """Records of consecutive tokens in blocks of these sizes.

    Record i is the token `first` + i, or it has its own `length` consecutive tokens.
    """

    name, fingerprint = "numbers", 7

    def __init__(self, *counts: int, tokens: int = 1, first: int = 0):
        self.counts, self._each = np.asarray(counts, np.int64), tokens
        self._first = first
        self.tokens = tokens * sum(counts)
        self.loaded: list[list[int]] = []

    def load(self, blocks):
        self.loaded.append(blocks.tolist())
        first = np.cumsum(self.counts) - self.counts
        starts = np.concatenate([first[b] + np.arange(self.counts[b]) for b in blocks])
        starts, stops = starts * self._each, (starts + 1) * self._each
        column = np.arange(self._first, self._first + self.tokens, dtype=np.uint16)
        zeros = np.zeros(len(starts), np.int64)
        return DocumentArrays(self.name, [{"tokens": column}], zeros, starts, stops, starts >= 0)


IDS = TokenIds(size=300, text=(3, 260), mask=260, sentinels=(299, 298))


def documents(n, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(3, 260, rng.integers(1, 40)) for _ in range(n)]


def store_of(path, *parts, heldout=None, **settings):
    """Writes and opens a store with one part for each list of documents."""
    splits = {"train": parts} | ({} if heldout is None else {"heldout": [heldout]})
    for split, parts_of_split in splits.items():
        for i, pieces in enumerate(parts_of_split):
            with StoreWriter(path, split, i, IDS, **settings) as writer:
                for piece in pieces:
                    writer.add(piece)
    seal(path, {split: len(parts_of_split) for split, parts_of_split in splits.items()})
    return open_store(path)


def read(records, n, seed=0):
    stream = RecordStream(Shuffled(records, seed), 0, 1)
    return [stream.next_document() for _ in range(n)]
