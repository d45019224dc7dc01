"""The order in which a corpus is read: records, shuffled as a function of their position alone.

A record is a document or a piece of one. A corpus gives its records in blocks (`Records`): those
that a token store has on disk, or 256 documents of any kind (`data.documents`). Every epoch passes
over all records once, in an order drawn from (seed, epoch): blocks are permuted, 64 successive ones
of that order make a group, and the records of a group are permuted. So any position is found
without reading those before it, neighbours in the order are of 64 places of the corpus, and a
corpus of one group (up to 16,384 records) is permuted as a whole.

Shard s of S reads the positions s, s + S, s + 2 S, … The number of shards may change: the new ones
share what the old ones had not read (`Unread`).
"""

import concurrent.futures
import dataclasses
import functools
import threading
import zlib
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from .corpus import DocumentStream, Piece, check_shard

LONGEST = 16384  # tokens of a record; longer documents are read in pieces, to be mixed with others
BLOCK = 256  # records of a block
GROUP = 64  # blocks of a group
CACHED_BYTES = 1 << 30  # of groups that a process keeps, which its shards share


@dataclasses.dataclass(frozen=True)
class DocumentArrays:
    """Documents, or pieces of them, in memory or mapped: each says where its columns are."""

    name: str  # for error messages
    # By "tokens", "parts" or "labels": piece i has columns[block[i]][name][starts[i] : ends[i]].
    columns: Sequence[Mapping[str, np.ndarray]]
    block: np.ndarray  # int64 [pieces]
    starts: np.ndarray  # int64 [pieces]
    ends: np.ndarray  # int64 [pieces]
    closed: np.ndarray  # bool [pieces]: the document ends with the piece
    bytes: int = 0  # of memory that they take

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def tokens(self) -> int:
        """Returns the tokens of all."""
        return int((self.ends - self.starts).sum())

    def take(self, some: np.ndarray) -> "DocumentArrays":
        """Returns those of these numbers, in this order, or those where a mask is true."""
        return dataclasses.replace(self, **{name: getattr(self, name)[some] for name in _OF_PIECES})

    def piece(self, i: int) -> Piece:
        columns, cut = self.columns[self.block[i]], slice(self.starts[i], self.ends[i])
        values = {name: column[cut].astype(np.int32) for name, column in columns.items()}
        return Piece(ends=bool(self.closed[i]), **values)


_OF_PIECES = ("block", "starts", "ends", "closed")  # the fields of `DocumentArrays` of each piece


class Records(Protocol):
    """The records of a corpus, in blocks."""

    name: str  # for error messages
    counts: np.ndarray  # int64 [blocks]: the records of each, at least 1
    tokens: int  # of all of them
    fingerprint: int  # of other records it is another one

    def load(self, blocks: np.ndarray) -> DocumentArrays:
        """Returns the records of these blocks, one block after another."""


# Loads groups before they are read, so that no step waits for a disk or a bucket.
_LOADER = concurrent.futures.ThreadPoolExecutor(1, "records")


class Shuffled:
    """Records in their shuffled order, by position; epoch after epoch. A process's shards share it.

    It keeps as many groups as `cached_bytes` hold, two in any case.
    """

    def __init__(self, records: Records, seed: int, cached_bytes: int = CACHED_BYTES):
        if seed < 0:
            raise ValueError(f"The seed of a corpus must be 0 or more, got {seed}.")
        self.records, self.seed, self._cached_bytes = records, seed, cached_bytes
        self.size = int(records.counts.sum())  # records
        self._epoch = functools.lru_cache(maxsize=3)(self._drawn)
        # By epoch and number, the one that was used last at the end.
        self._groups: dict[tuple[int, int], concurrent.futures.Future[DocumentArrays]] = {}
        self._lock = threading.Lock()  # of the groups: training reads ahead on a thread

    def group(self, position: int) -> tuple[int, DocumentArrays]:
        """Returns the first position of the group that holds `position`, and its records."""
        epoch, at = divmod(position, self.size)
        _, ends = self._epoch(epoch)
        number = int(np.searchsorted(ends, at, side="right"))
        last = number == len(ends) - 1
        with self._lock:
            group = self._loading(epoch, number).result()
            self._loading(*((epoch + 1, 0) if last else (epoch, number + 1)))
            while len(self._groups) > 2 and self._bytes() > self._cached_bytes:
                self._groups.pop(next(iter(self._groups)))
        return epoch * self.size + int(ends[number]) - len(group), group

    def _loading(self, epoch: int, number: int) -> concurrent.futures.Future[DocumentArrays]:
        key = (epoch, number)
        group = self._groups.pop(key, None) or _LOADER.submit(self._load, epoch, number)
        self._groups[key] = group
        return group

    def _load(self, epoch: int, number: int) -> DocumentArrays:
        blocks, _ = self._epoch(epoch)
        loaded = self.records.load(np.sort(blocks[number * GROUP : (number + 1) * GROUP]))
        return loaded.take(_permutation((self.seed, epoch, number), len(loaded)))

    def _bytes(self) -> int:
        ready = (group for group in self._groups.values() if group.done() and not group.exception())
        return sum(group.result().bytes for group in ready)

    def _drawn(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the order of blocks, and the number of records up to the end of each group."""
        # SeedSequence takes (seed, epoch) for (seed, epoch, 0), the key of the first group.
        blocks = _permutation((self.seed, epoch, 0, 1), len(self.records.counts))
        counts = self.records.counts[blocks]
        return blocks, np.cumsum(np.add.reduceat(counts, np.arange(0, len(counts), GROUP)))


def _permutation(key: tuple[int, ...], n: int) -> np.ndarray:
    # Raw Philox bits and a stable sort: NumPy promises the same bits in every version, which it
    # does not for Generator.permutation.
    bits = np.random.Philox(np.random.SeedSequence(key)).random_raw(n)
    return np.argsort(bits, kind="stable")


@dataclasses.dataclass(frozen=True)
class Unread:
    """The positions that were not read when the number of shards last changed.

    They are those from `first` on without `taken`. Shard s of S reads the s-th, the (s + S)-th, …
    """

    first: int
    taken: np.ndarray  # int64, ascending, all above `first`

    def position(self, i: int) -> int:
        """Returns the i-th unread position, from 0."""
        return self.first + i + int(np.searchsorted(self.before, i, side="right"))

    def after(self, read: Sequence[int]) -> "Unread":
        """Returns what is unread when each of len(read) shards has read so many more.

        >>> Unread(0, np.zeros(0, int)).after([3, 1])    # 0, 2, 4 and 1 were read
        Unread(first=3, taken=array([4]))
        """
        shards, counts = len(read), np.asarray(read, np.int64)
        least = int(np.min(np.arange(shards) + counts * shards))  # the first that nobody has read
        beyond = [
            np.arange(s + shards * max(-(-(least - s) // shards), 0), s + shards * n, shards)
            for s, n in enumerate(counts)
        ]
        found = np.concatenate(beyond).astype(np.int64)
        positions = self.first + found + np.searchsorted(self.before, found, side="right")
        first = self.position(least)
        return Unread(first, np.sort(np.append(positions, self.taken[self.taken > first])))

    @functools.cached_property
    def before(self) -> np.ndarray:
        """Returns how many unread positions come before each taken one, int64."""
        return self.taken - self.first - np.arange(len(self.taken))


ALL = Unread(0, np.zeros(0, np.int64))


class RecordStream(DocumentStream):
    """One shard's endless stream of shuffled records.

    Its state is the number of records that it has read, and those that all shards had read before
    each change of their number.
    """

    def __init__(self, order: Shuffled, shard: int, num_shards: int):
        check_shard(shard, num_shards)
        self._order, self.shard, self.num_shards = order, shard, num_shards
        self.fingerprint = zlib.crc32(repr((order.records.fingerprint, order.seed)).encode())
        self._start([], 0)

    def _start(self, earlier: list[np.ndarray], read: int) -> None:
        """Continues after `read` records, where `earlier` shards had read these numbers before."""
        self._earlier, self._read = earlier, read
        self._unread = functools.reduce(Unread.after, map(list, earlier), ALL)
        # From this one on, none is taken.
        self._plain = int(np.max(self._unread.before, initial=-1)) + 1
        self._shift = self._unread.first + len(self._unread.taken)
        self._first, self._end = 0, 0  # positions of the group

    def next_document(self) -> Piece:
        position = self.position
        self._read += 1
        if not self._first <= position < self._end:
            self._first, self._group = self._order.group(position)
            self._end = self._first + len(self._group)
        return self._group.piece(position - self._first)

    @property
    def position(self) -> int:
        """Returns the position of the next record in the order of all."""
        i = self.shard + self._read * self.num_shards
        return i + self._shift if i >= self._plain else self._unread.position(i)

    @property
    def epochs(self) -> float:
        """Returns how often the records were read, if all shards have read as many as this one."""
        before = sum(int(counts.sum()) for counts in self._earlier)
        return (before + self._read * self.num_shards) / self._order.size

    def state(self) -> dict[str, np.ndarray]:
        earlier = [np.append(len(counts), counts) for counts in self._earlier]
        return {
            "read": np.array(self._read, np.int64),
            "earlier": np.concatenate([np.zeros(0, np.int64), *earlier]),
            "fingerprint": np.array(self.fingerprint, np.int64),
        }

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Raises ValueError for a state of other records."""
        self._check(state)
        self._start(_counts(state["earlier"]), int(state["read"]))

    def reshard(self, states: Sequence[dict[str, np.ndarray]]) -> None:
        for state in states:
            self._check(state)
        read = np.asarray([int(state["read"]) for state in states], np.int64)
        self._start([*_counts(states[0]["earlier"]), read], 0)

    def _check(self, state: Mapping[str, np.ndarray]) -> None:
        # Those of versions that read in another order are refused before, by packing.
        if "read" not in state or int(state["fingerprint"]) != self.fingerprint:
            raise ValueError(
                f"The saved data position belongs to other data than {self._order.records.name} as "
                "it is now (other text or another seed): bring back what the run was started with, "
                "or start a new run directory."
            )


def _counts(flat: np.ndarray) -> list[np.ndarray]:
    """Returns the arrays that follow their lengths in a flat one.

    >>> _counts(np.array([2, 7, 8, 1, 9]))
    [array([7, 8]), array([9])]
    """
    counts, at = [], 0
    while at < len(flat):
        counts.append(flat[at + 1 : at + 1 + flat[at]])
        at += 1 + int(flat[at])
    return counts


class Joined:
    """The records of several corpora, one after another, as `Records`."""

    def __init__(self, records: Sequence[Records]):
        self._records = list(records)
        self.name = ", ".join(one.name for one in records)
        self.counts = np.concatenate([one.counts for one in records])
        self.tokens = sum(one.tokens for one in records)
        self.fingerprint = zlib.crc32(repr([one.fingerprint for one in records]).encode())
        self._ends = np.cumsum([len(one.counts) for one in records])

    def load(self, blocks: np.ndarray) -> DocumentArrays:
        owners = np.searchsorted(self._ends, blocks, side="right")
        loaded, before = [], 0
        for i in np.unique(owners):
            first = self._ends[i] - len(self._records[i].counts)
            one = self._records[i].load(blocks[owners == i] - first)
            loaded.append(dataclasses.replace(one, block=one.block + before))
            before += len(one.columns)
        columns = [each for one in loaded for each in one.columns]
        pieces = {n: np.concatenate([getattr(one, n) for one in loaded]) for n in _OF_PIECES}
        size = sum(one.bytes for one in loaded)
        return DocumentArrays(self.name, columns, bytes=size, **pieces)


def first_tokens(heldout: Sequence[Records], n: int) -> list[Piece]:
    """Returns records in a fixed shuffled order, of `n` tokens or all, of each corpus equally."""
    pieces: list[Piece] = []
    for records in heldout:
        order = Shuffled(records, 0)
        stream, left = RecordStream(order, 0, 1), -(-n // len(heldout))
        for _ in range(order.size):
            if left <= 0:
                break
            pieces.append(stream.next_document())
            left -= len(pieces[-1].tokens)
    return pieces
