"""The order in which a corpus is read. The shuffled order is a function of the position alone.

A record is a document or a piece of a document. The records of a corpus are in blocks (`Records`):
the blocks of a token store on disk, or blocks of 256 documents (`data.documents`). Every epoch
reads all records once, in an order drawn from (seed, epoch).

First the blocks are permuted, and every 128 consecutive blocks of this order make a round. The
records of a round are divided among 32 lanes, and the records of each lane are permuted. The lanes
are read in turn, one record at a time. Any position can therefore be found without reading the
positions before it, and 32 consecutive records come from different places of the corpus. A corpus
of up to 64 blocks (16,384 records) is permuted as a whole.

Shard s of S reads the positions s, s + S, s + 2 S and so on. If S divides 32, or is a multiple of
32, these positions are in few lanes. A host then reads only the blocks of these lanes. The number
of shards may change. The new shards then share the records that the old shards have not read
(`Unread`).
"""

import concurrent.futures
import dataclasses
import functools
import itertools
import threading
import zlib
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from .corpus import Document, DocumentStream, check_shard, column_dtype, first_documents
from .stable_draws import permutation

# Largest number of tokens of a record. Longer documents are read in pieces.
MAX_RECORD_TOKENS = 16384
BLOCK = 256  # Number of records of a block
WHOLE = 64  # Largest number of blocks that are permuted as a whole
ROUND = 128  # Number of blocks of a round in a corpus with more than `WHOLE` blocks
LANES = 32  # Number of lanes of a round


@dataclasses.dataclass(frozen=True)
class DocumentArrays:
    """Documents, or pieces of them, as arrays in memory or mapped from files.

    As `Records`, they are in blocks of 256 pieces, or of `block_sizes` pieces.
    """

    name: str  # for error messages
    # Arrays by "tokens", "parts", "labels" or "weights". Piece i is
    # columns[chunk[i]][name][starts[i] : stops[i]].
    columns: Sequence[Mapping[str, np.ndarray]]
    chunk: np.ndarray  # int64[pieces]
    starts: np.ndarray  # int64[pieces]
    stops: np.ndarray  # int64[pieces]
    ends_document: np.ndarray  # bool[pieces]: whether the document ends with the piece
    block_sizes: np.ndarray | None = None  # int64[blocks]; None: blocks of 256 pieces
    checksum: int = 0  # checksum of the source of the documents, if it is known

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def tokens(self) -> int:
        """Returns the number of tokens of all pieces."""
        return int((self.stops - self.starts).sum())

    @functools.cached_property
    def counts(self) -> np.ndarray:
        """Returns the number of pieces in each block, int64[blocks]."""
        if self.block_sizes is None:
            return np.diff(np.append(np.arange(0, len(self), BLOCK), len(self)))
        return self.block_sizes

    @functools.cached_property
    def fingerprint(self) -> int:
        """Returns a checksum of the first and last tokens, the sizes and the `checksum`."""
        tokens = [columns["tokens"] for columns in self.columns]
        first = np.concatenate([chunk[:4096] for chunk in tokens[:4096]])[:4096]
        last = np.concatenate([chunk[-4096:] for chunk in tokens[-4096:]])[-4096:]
        sizes = np.asarray([sum(map(len, tokens)), len(self), self.tokens], np.int64)
        sample = np.concatenate([first, last]).astype(np.int32)
        return zlib.crc32(sample.tobytes() + sizes.tobytes(), self.checksum)

    def load(self, blocks: np.ndarray) -> "DocumentArrays":
        """Returns the pieces of these blocks, one block after another."""
        stops = np.cumsum(self.counts)
        starts = stops - self.counts
        return self.take(np.concatenate([np.arange(starts[i], stops[i]) for i in blocks]))

    def take(self, pieces: np.ndarray) -> "DocumentArrays":
        """Returns the pieces with these numbers, in this order, or those where a mask is true."""
        arrays = {name: getattr(self, name)[pieces] for name in _PIECE_FIELDS}
        return dataclasses.replace(self, block_sizes=None, **arrays)

    def document(self, i: int) -> Document:
        columns = self.columns[self.chunk[i]]
        cut = slice(self.starts[i], self.stops[i])
        values = {name: x[cut].astype(column_dtype(name)) for name, x in columns.items()}
        return Document(ends_document=bool(self.ends_document[i]), **values)


# The arrays with one value for each piece.
_PIECE_FIELDS = ("chunk", "starts", "stops", "ends_document")


def concatenated(several: Sequence[DocumentArrays]) -> DocumentArrays:
    """Returns the documents of several files, one file after another, in separate blocks."""
    sizes = [len(each.columns) for each in several]
    before = np.repeat(np.cumsum(sizes) - sizes, [len(each) for each in several])
    arrays = {
        name: np.concatenate([getattr(each, name) for each in several]) for name in _PIECE_FIELDS
    }
    return DocumentArrays(
        ", ".join(each.name for each in several),
        [columns for each in several for columns in each.columns],
        **arrays | {"chunk": arrays["chunk"] + before},
        block_sizes=np.concatenate([each.counts for each in several]),
        checksum=zlib.crc32(repr([each.fingerprint for each in several]).encode()),
    )


class Records(Protocol):
    """The records of a corpus in blocks, such as `DocumentArrays` or the records of a store."""

    # A name for error messages.
    @property
    def name(self) -> str: ...

    # Number of records of each block, at least 1, integers[blocks].
    @property
    def counts(self) -> np.ndarray: ...

    # Number of tokens of all records.
    @property
    def tokens(self) -> int: ...

    # A checksum that differs between different records.
    @property
    def fingerprint(self) -> int: ...

    def load(self, blocks: np.ndarray) -> DocumentArrays:
        """Returns the records of these blocks, one block after another."""
        ...


# Loads lanes before they are read, so that no step waits for a disk or a bucket.
_LOADER = concurrent.futures.ThreadPoolExecutor(1, "records")


class Shuffled:
    """Records in their shuffled order, by position, for any number of epochs.

    The shards of a process share it. The lanes that they read of the present and the next round are
    in memory, or memory-mapped.
    """

    def __init__(self, records: Records, seed: int):
        if seed < 0:
            raise ValueError(f"The seed of a corpus must be 0 or more, got {seed}.")
        self.records = records
        self.seed = seed
        self.size = int(records.counts.sum())  # number of records
        how = () if len(records.counts) <= WHOLE else (ROUND, LANES)
        self.fingerprint = zlib.crc32(repr((records.fingerprint, seed, *how)).encode())
        self._epoch = functools.lru_cache(maxsize=3)(self._drawn)
        self._round = functools.lru_cache(maxsize=2)(self._opened)
        self._lock = threading.Lock()  # Training reads ahead on a thread.

    def round(self, position: int) -> "_Round":
        """Returns the round of a position."""
        epoch, at = divmod(position, self.size)
        with self._lock:
            _, stops = self._epoch(epoch)
            return self._round(epoch, int(np.searchsorted(stops, at, side="right")))

    def _opened(self, epoch: int, number: int) -> "_Round":
        blocks, stops = self._epoch(epoch)
        first = epoch * self.size + (int(stops[number - 1]) if number else 0)
        round_blocks = blocks[number * ROUND : (number + 1) * ROUND].astype(np.int64)
        return _Round(self.records, (self.seed, epoch, number), first, round_blocks)

    def _drawn(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the order of blocks, and the number of records up to the end of each round."""
        # SeedSequence treats (seed, epoch) like (seed, epoch, 0), the key of the first round.
        blocks = permutation((self.seed, epoch, 0, 1), len(self.records.counts)).astype(np.uint32)
        counts = self.records.counts[blocks]
        firsts = np.arange(0, len(blocks), ROUND)
        return blocks, np.cumsum(np.add.reduceat(counts, firsts, dtype=np.int64))


class _Round:
    """Blocks whose records are read from several lanes in turn, beginning at position `first`."""

    def __init__(self, records: Records, key: tuple[int, int, int], first: int, blocks: np.ndarray):
        self._records = records
        self._key = key
        self._blocks = blocks
        self._counts = records.counts[blocks].astype(np.int64)
        self._stops = np.cumsum(self._counts)
        self.first, self.end = first, first + int(self._stops[-1])
        self.half = (first + self.end) // 2  # From here on, the next round is loaded.
        self.lanes = 1 if len(blocks) <= WHOLE else LANES
        self._loading: dict[int, concurrent.futures.Future[DocumentArrays]] = {}
        self._loaded: dict[int, DocumentArrays] = {}
        self._lock = threading.Lock()

    def document(self, position: int) -> Document:
        i, lane = divmod(position - self.first, self.lanes)
        if lane not in self._loaded:
            self._loaded[lane] = self.loading(lane).result()
        return self._loaded[lane].document(i)

    def loading(self, lane: int) -> concurrent.futures.Future[DocumentArrays]:
        with self._lock:
            if lane not in self._loading:
                self._loading[lane] = _LOADER.submit(self._load, lane)
            return self._loading[lane]

    def _load(self, lane: int) -> DocumentArrays:
        # Lanes have the same number of records. The first lanes have one more if it is not even.
        per_lane, remainder = divmod(int(self._stops[-1]), self.lanes)
        start = lane * per_lane + min(lane, remainder)
        end = start + per_lane + (lane < remainder)
        i, j = np.searchsorted(self._stops, (start, end - 1), side="right")
        loaded = i + np.argsort(self._blocks[i : j + 1])
        counts = self._counts[loaded]
        before = np.repeat(
            (self._stops - self._counts)[loaded] - np.cumsum(counts) + counts, counts
        )
        at = before + np.arange(len(before))  # index of each loaded record in the round
        indices = np.flatnonzero((start <= at) & (at < end))
        order = permutation((*self._key, 0, lane) if lane else self._key, len(indices))
        return self._records.load(self._blocks[loaded]).take(indices[order])


@dataclasses.dataclass(frozen=True)
class Unread:
    """The positions that were not read when the number of shards last changed.

    They are all positions from `first` on, except `taken`. Shard s of S reads the unread positions
    with the indices s, s + S, s + 2 S, …
    """

    first: int
    taken: np.ndarray  # int64, ascending, all above `first`

    def position(self, i: int) -> int:
        """Returns the i-th unread position, from 0."""
        return self.first + i + int(np.searchsorted(self.before, i, side="right"))

    def after(self, read: Sequence[int]) -> "Unread":
        """Returns the unread positions after shard s has read `read[s]` more of them.

        >>> Unread(0, np.zeros(0, int)).after([3, 1])    # 0, 2, 4 and 1 were read
        Unread(first=3, taken=array([4]))
        """
        shards = len(read)
        counts = np.asarray(read, np.int64)
        least = int(np.min(np.arange(shards) + counts * shards))  # the first index that is unread
        beyond = [
            np.arange(s + shards * max(-(-(least - s) // shards), 0), s + shards * n, shards)
            for s, n in enumerate(counts)
        ]
        read_beyond = np.concatenate(beyond).astype(np.int64)
        taken_before = np.searchsorted(self.before, read_beyond, side="right")
        positions = self.first + read_beyond + taken_before
        first = self.position(least)
        return Unread(first, np.sort(np.append(positions, self.taken[self.taken > first])))

    @functools.cached_property
    def before(self) -> np.ndarray:
        """Returns the number of unread positions before each taken position, int64."""
        return self.taken - self.first - np.arange(len(self.taken))


ALL = Unread(0, np.zeros(0, np.int64))


class RecordStream(DocumentStream):
    """One shard's endless stream of shuffled records.

    The state is the number of records that were read since the number of shards last changed, and
    the positions that were unread at that time.
    """

    def __init__(self, order: Shuffled, shard: int, num_shards: int):
        check_shard(shard, num_shards)
        self._order = order
        self.shard = shard
        self.num_shards = num_shards
        self.fingerprint = order.fingerprint
        self._start(ALL, 0)

    def _start(self, unread: Unread, read: int) -> None:
        """Continues after this shard has read `read` of the unread positions."""
        self._unread = unread
        self._read = read
        # From this index on, no position is taken.
        self._plain = int(np.max(unread.before, initial=-1)) + 1
        self._shift = unread.first + len(unread.taken)
        self._round: _Round | None = None

    def next_document(self) -> Document:
        position = self.position
        now = self._round
        self._read += 1
        if now is None or not now.first <= position < now.end:
            now = self._round = self._order.round(position)
        piece = now.document(position)
        if now.half <= position < now.half + LANES * self.num_shards:
            following = self._order.round(now.end)
            following.loading((position - now.end) % following.lanes)
        return piece

    @property
    def position(self) -> int:
        """Returns the position of the next record in the order of all records."""
        i = self.shard + self._read * self.num_shards
        return i + self._shift if i >= self._plain else self._unread.position(i)

    @property
    def epochs(self) -> float:
        """Returns the number of epochs read, if all shards have read equally many records."""
        return (self._shift + self._read * self.num_shards) / self._order.size

    def state(self) -> dict[str, np.ndarray]:
        return {
            "read": np.array(self._read, np.int64),
            "first": np.array(self._unread.first, np.int64),
            "taken": self._unread.taken,
            "fingerprint": np.array(self.fingerprint, np.int64),
        }

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Continues where the state was taken. Raises ValueError for a state of other records."""
        self._start(self._unread_in(state), int(state["read"]))

    def reshard(self, states: Sequence[dict[str, np.ndarray]]) -> None:
        unread = [self._unread_in(state) for state in states]
        self._start(unread[0].after([int(state["read"]) for state in states]), 0)

    def _unread_in(self, state: Mapping[str, np.ndarray]) -> Unread:
        """Returns a state's unread positions. Raises ValueError for a state of other records."""
        # Packing has already rejected states of versions with another order.
        if "read" not in state or int(state["fingerprint"]) != self.fingerprint:
            raise ValueError(
                f"The saved data position does not match the present {self._order.records.name}, "
                "because the text, the seed, or the order in this version of pretrax differs: "
                "restore the text, the seed and the version that the run was started with, or "
                "start a new run directory."
            )
        return Unread(int(state["first"]), state["taken"])


def first_tokens(heldout: Sequence[Records], n: int) -> list[Document]:
    """Returns records with about `n` tokens, or all records, in a fixed shuffled order.

    Each of the corpora contributes the same number of tokens.
    """
    pieces: list[Document] = []
    for records in heldout:
        order = Shuffled(records, 0)
        stream = RecordStream(order, 0, 1)
        epoch = itertools.islice(iter(stream.next_document, None), order.size)
        pieces += first_documents(epoch, -(-n // len(heldout)))
    return pieces
