"""The text of token stores, alone or mixed at rates."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .corpus import Corpus, Document, DocumentStream, Progress, state_within
from .documents import UNCUT, joined, split_heldout, text_size, training_documents
from .records import DocumentArrays, Records, RecordStream, Shuffled, first_tokens
from .token_store import HELDOUT, TRAIN, StoreRecords, TokenStore, open_store

Rate = float | Callable[[int], float]  # of a store, or a function of the step

_DRAWS = 1024  # draws of the mixture made at a time
_HELDOUT_EVERY = 20  # one block in so many is held out of a store without held-out text
_FEW = 512  # records, of fewer of which rows of one step would be of one document


def open_stores(stores: str | Sequence[str] | Mapping[str, Any]) -> list[TokenStore]:
    """Returns the stores, opened. Raises ValueError for those that cannot be read together."""
    paths = [stores] if isinstance(stores, str) else list(stores)
    if not paths:
        raise ValueError("stores is empty: give the folder of a token store.")
    first, *others = opened = [open_store(path) for path in paths]
    for store in opened:
        if TRAIN not in store.splits:
            raise ValueError(
                f"{store.folder.path} has no split {TRAIN!r}, got {list(store.splits)}."
            )
    prints = [store.splits[TRAIN]["blocks_crc32"] for store in opened]
    if len(set(prints)) < len(prints):
        raise ValueError(f"Of the stores {', '.join(paths)} two are the same: leave one out.")
    for other in others:
        if (other.ids, other.columns) != (first.ids, first.columns):
            raise ValueError(
                f"{other.folder.path} has other token ids or columns than {first.folder.path}: "
                "write both with one vocabulary."
            )
    return opened


def rates_of(
    opened: Sequence[TokenStore],
    stores: str | Sequence[str] | Mapping[str, Any],
    temperature: float,
) -> list[Rate]:
    """Returns the rate of each store: its given one, or that of its size relative to the largest.

    rates_of(opened, ["a", "b"], 2.0)    # of 900 and 100 tokens: [1.0, 0.333…]
    """
    if isinstance(stores, Mapping):
        if temperature != 1.0:
            raise ValueError("Got rates and a temperature, expected one of them: leave one out.")
        return list(stores.values())
    tokens = np.asarray([store.counts(TRAIN).tokens for store in opened])
    return ((tokens / tokens.max()) ** (1 / temperature)).tolist()


def corpus_of_stores(stores: Sequence[TokenStore], rates: Sequence[Rate], *, seed: int) -> Corpus:
    """Returns the `Corpus` of open stores at these rates; held-out text is of all equally."""

    @functools.cache
    def splits() -> list[tuple[Records, Records]]:
        return [training_and_heldout(store) for store in stores]

    @functools.cache
    def orders() -> list[Shuffled]:
        return [Shuffled(train, seed) for train, _ in splits()]

    def train(shard: int, num_shards: int) -> DocumentStream:
        streams = [RecordStream(order, shard, num_shards) for order in orders()]
        # Mean tokens of the pieces that are read; a small store is read in pieces of its records.
        mean_tokens = [order.records.tokens / order.size for order in orders()]
        return MixedStream(dict(zip(_names(stores), streams)), rates, mean_tokens, seed)

    MixedStream.check(rates, 0)
    longest = max(split["longest"] for store in stores for split in store.splits.values())
    return Corpus(
        ids=stores[0].ids,
        train=train,
        heldout=lambda n: first_tokens([heldout for _, heldout in splits()], n),
        longest=longest if stores[0].columns else None,
        columns=stores[0].columns,
        summary="\n".join(map(_summary, stores)),
    )


def training_and_heldout(store: TokenStore) -> tuple[Records, Records]:
    """Returns the records of both splits. Without a held-out split, one block in 20 is held out.

    Documents that continue in a training block are left out of the held-out text. If there are few
    blocks, single documents are shuffled and held out; if there are few records, they are cut
    shorter.
    """
    train = store.records(TRAIN)

    def one_by_one(documents: DocumentArrays) -> Records:
        uncut = store.splits[TRAIN]["longest"] if store.columns else UNCUT
        return training_documents(documents, uncut, train.fingerprint)

    if HELDOUT in store.splits:
        few = train.counts.sum() < _FEW
        kept = one_by_one(joined(store.documents(TRAIN))) if few else train
        return kept, store.records(HELDOUT)
    if len(train.blocks) < _HELDOUT_EVERY:
        both = split_heldout(joined(store.documents(TRAIN)), every=_HELDOUT_EVERY)
        return one_by_one(both[0]), one_by_one(both[1])
    held = np.arange(len(train.blocks)) % _HELDOUT_EVERY == _HELDOUT_EVERY - 1
    kept = StoreRecords(store, TRAIN, train.blocks[~held])
    held_out = StoreRecords(store, TRAIN, train.blocks[held])
    counts = store.counts(TRAIN)
    if counts.documents == counts.records:  # none is in several pieces
        return kept, held_out
    before = StoreRecords(store, TRAIN, train.blocks[np.flatnonzero(held) - 1])
    return kept, _whole_documents(held_out, before) or held_out


def _whole_documents(records: StoreRecords, before: StoreRecords) -> Records | None:
    """Returns the records of documents that are whole in their block; None if there are none.

    `before` has the block before each block of the records.
    """
    firsts = []
    ends = []
    tokens = 0
    for index, previous in zip(records.index(), before.index()):
        closed = np.append(-1, np.flatnonzero(index & 1))
        continues = not previous[-1] & 1
        first = int(closed[:2][-1]) + 1 if continues else 0
        end = max(first, int(closed[-1]) + 1)
        firsts.append(first)
        ends.append(end)
        tokens += int((index[first:end] >> 1).sum(dtype=np.int64))
    kept = _SomeRecords(records, np.array(firsts), np.array(ends), tokens)
    return kept if tokens else None


class _SomeRecords:
    """Consecutive records of each block of others, from the numbers `firsts` up to `ends`."""

    def __init__(self, records: Records, firsts: np.ndarray, ends: np.ndarray, tokens: int):
        self._blocks = np.flatnonzero(ends > firsts)  # a block has a record or more
        self._firsts = firsts[self._blocks]
        self._records = records
        self.name = records.name
        self.counts = (ends - firsts)[self._blocks]
        self.tokens = tokens
        self.fingerprint = records.fingerprint

    def load(self, blocks: np.ndarray) -> DocumentArrays:
        own = self._blocks[blocks]
        sizes = self._records.counts[own].astype(np.int64)
        starts = np.cumsum(sizes) - sizes + self._firsts[blocks]
        some = [np.arange(n) + start for start, n in zip(starts, self.counts[blocks])]
        return self._records.load(own).take(np.concatenate(some))


class MixedStream(DocumentStream):
    """One shard's endless stream over several streams of records, at rates of tokens.

    Shard s of S draws the stores of its documents by numbers s, s + S, … of the seed. So each store
    is read in its own order, whatever the rates, and they may change at any time. A store of long
    documents is drawn less often in proportion, so that rates are shares of tokens.
    """

    def __init__(
        self,
        streams: Mapping[str, RecordStream],
        rates: Sequence[Rate],
        mean_tokens: Sequence[float],  # of a record of each
        seed: int,
    ):
        self._names = list(streams)
        self._streams = list(streams.values())
        self._rates = list(rates)
        self._mean_tokens = list(mean_tokens)
        self._seed = seed
        self._prefixes = tuple(f"{stream.fingerprint:08x}." for stream in self._streams)
        self._tokens = [0] * len(self._streams)
        self._draw, self._stride = self._streams[0].shard, self._streams[0].num_shards
        self._limits = self._drawn_below(0)

    @staticmethod
    def check(rates: Sequence[Rate], step: int) -> np.ndarray:
        """Returns the rates at a step, f64[stores].

        Raises ValueError for one below 0, or none above.
        """
        try:
            now = np.asarray([float(rate(step) if callable(rate) else rate) for rate in rates])
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"The rates of the stores are {list(rates)}, expected of each a number, or a "
                "function that gives one of the step, such as @optax.linear_schedule() in gin: "
                f"{error}."
            ) from error
        if not (np.isfinite(now).all() and (now >= 0).all() and now.sum() > 0):
            raise ValueError(
                f"The rates of the stores came to {now.tolist()} at step {step}, expected none "
                "below 0 and some above: change them, or their schedule."
            )
        return now

    def next_document(self) -> Document:
        i = 0
        if len(self._streams) > 1:
            block, at = divmod(self._draw, _DRAWS)
            i = int(np.searchsorted(self._limits, _uniform(self._seed, block)[at], side="right"))
        self._draw += self._stride
        piece = self._streams[i].next_document()
        self._tokens[i] += len(piece.tokens)
        return piece

    def begin_step(self, step: int) -> None:
        if any(map(callable, self._rates)):
            self._limits = self._drawn_below(step)

    def _drawn_below(self, step: int) -> np.ndarray:
        """Returns for each store but the last below which number it, or one before, is drawn."""
        shares = self.check(self._rates, step) / np.asarray(self._mean_tokens)
        return np.cumsum(shares / shares.sum())[:-1]

    def progress(self) -> dict[str, Progress]:
        epochs = [stream.epochs for stream in self._streams]
        return dict(zip(self._names, map(Progress, self._tokens, epochs)))

    def state(self) -> dict[str, np.ndarray]:
        state = {"draw": np.array(self._draw, np.int64)}
        for prefix, stream, tokens in zip(self._prefixes, self._streams, self._tokens):
            own = stream.state() | {"tokens": np.array(tokens, np.int64)}
            state |= {f"{prefix}{name}": value for name, value in own.items()}
        return state

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Continues where the state was taken; stores that it does not have begin at their start.

        Raises ValueError if the state has stores that the mixture does not have.
        """
        self._check_known(state)
        self._draw = int(state["draw"])
        for i, stream in enumerate(self._streams):
            if own := state_within(state, self._prefixes[i]):
                self._tokens[i] = int(own["tokens"])
                stream.restore(own)

    def reshard(self, states: Sequence[dict[str, np.ndarray]]) -> None:
        for state in states:
            self._check_known(state)
        shard = self._streams[0].shard
        self._draw = max(int(state["draw"]) for state in states) + shard
        for i, stream in enumerate(self._streams):
            own = [state_within(state, self._prefixes[i]) for state in states]
            if own[0]:
                # The first shard counts what all have read, so that their sum stays.
                self._tokens[i] = 0 if shard else sum(int(one["tokens"]) for one in own)
                stream.reshard(own)

    def _check_known(self, state: Mapping[str, np.ndarray]) -> None:
        others = [name for name in state if not name.startswith(("draw", *self._prefixes))]
        if "draw" not in state or others:
            raise ValueError(
                f"The saved data position belongs to other data than {', '.join(self._names)} as "
                "they are now (another store or seed): bring back what the run was started with, "
                "with a rate of 0 for a store that it shall read no more."
            )


@functools.lru_cache(maxsize=64)
def _uniform(seed: int, block: int) -> np.ndarray:
    """Returns draws `_DRAWS * block` and following, f64[_DRAWS] in [0, 1)."""
    # Raw Philox bits: NumPy promises the same in every version. The last numbers make the key
    # another one than those of the orders of records.
    bits = np.random.Philox(np.random.SeedSequence((seed, block, 0, 2))).random_raw(_DRAWS)
    return (bits >> np.uint64(11)) / 2.0**53


def _names(stores: Sequence[TokenStore]) -> list[str]:
    """Returns their last path components, or paths where those are not unique."""
    short = [store.name for store in stores]
    return short if len(set(short)) == len(short) else [store.folder.path for store in stores]


def _summary(store: TokenStore) -> str:
    def counted(split: str) -> str:
        counts = store.counts(split)
        return text_size(counts.documents, counts.tokens)

    held = counted(HELDOUT) if HELDOUT in store.splits else f"one in {_HELDOUT_EVERY}"
    return f"{store.folder.path}: {counted(TRAIN)} to train on; {held} held out"
