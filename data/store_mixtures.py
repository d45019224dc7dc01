"""The corpus of one token store, or of several token stores mixed at rates."""

import functools
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from . import stable_draws
from .corpus import Corpus, Document, DocumentStream, Progress, state_within
from .documents import UNCUT, joined, split_heldout, text_size, training_documents
from .records import DocumentArrays, Records, RecordStream, Shuffled, first_tokens
from .token_store import HELDOUT, TRAIN, StoreRecords, TokenStore, open_store
from .token_store_files import SHARED

Rate = float | Callable[[int], float]  # The rate of a store: a number, or a function of the step

_DRAWS = 1024  # Number of draws of the mixture that are made together
_HELDOUT_EVERY = 20  # One block in this number is held out if a store has no held-out split.
_FEW = 512  # With fewer records, the rows of a step would come from one document.


def open_stores(stores: str | Sequence[str] | Mapping[str, Any]) -> list[TokenStore]:
    """Opens stores. Raises ValueError for stores that cannot be read together."""
    paths = [stores] if isinstance(stores, str) else list(stores)
    if not paths:
        raise ValueError("stores is empty, expected at least one store: name a token store folder.")
    first, *others = opened = [open_store(path) for path in paths]
    for store in opened:
        if TRAIN not in store.splits:
            raise ValueError(
                f"{store.folder.path} has the splits {list(store.splits)}, expected the split "
                f"{TRAIN!r}, too: give a store with training text."
            )
    prints = [store.splits[TRAIN]["blocks_crc32"] for store in opened]
    if len(set(prints)) < len(prints):
        raise ValueError(
            f"Two of the stores {', '.join(paths)} have the same text: leave one of them out."
        )
    for other in others:
        if any(getattr(other, name) != getattr(first, name) for name in SHARED):
            raise ValueError(
                f"{other.folder.path} and {first.folder.path} have different token ids or columns: "
                "write both stores with the same vocabulary and the same columns."
                + (use_vocabulary(first) if other.ids != first.ids else "")
            )
    return opened


def use_vocabulary(store: TokenStore) -> str:
    """Returns how to prepare another store with the vocabulary of a store, for an error.

    Returns "" for a store without a vocabulary.
    """
    if not store.vocabulary:
        return ""
    folder = shlex.quote(store.folder.path) if store.folder.is_local else "FOLDER"
    copied = f"{', '.join(store.vocabulary)} of {store.folder.path}"
    return (
        " `pretrax prepare` uses the vocabulary of another store with "
        "`--gin.outputs.token_store.vocabulary=@vocabularies.from_run "
        f"--gin.vocabularies.from_run.run={folder}`"
        + ("." if store.folder.is_local else f", where FOLDER has a copy of {copied}.")
    )


def rates_of(
    opened: Sequence[TokenStore],
    stores: str | Sequence[str] | Mapping[str, Any],
    temperature: float,
) -> list[Rate]:
    """Returns the rate of each store, which is given or follows from its size.

    rates_of(opened, ["a", "b"], 2.0)    # [1.0, 0.333…] for stores of 900 and 100 tokens
    """
    if isinstance(stores, Mapping):
        if temperature != 1.0:
            raise ValueError(
                f"Got rates and the temperature {temperature}, expected only one of the two: leave "
                "out the rates or the temperature."
            )
        return list(stores.values())
    tokens = np.asarray([store.counts(TRAIN).tokens for store in opened])
    return ((tokens / tokens.max()) ** (1 / temperature)).tolist()


def corpus_of_stores(stores: Sequence[TokenStore], rates: Sequence[Rate], *, seed: int) -> Corpus:
    """Returns the `Corpus` of open stores at these rates.

    All stores contribute equally to the held-out text.
    """

    @functools.cache
    def splits() -> list[tuple[Records, Records]]:
        return [training_and_heldout(store) for store in stores]

    @functools.cache
    def orders() -> list[Shuffled]:
        return [Shuffled(train, seed) for train, _ in splits()]

    def open_shard(shard: int, num_shards: int) -> DocumentStream:
        streams = [RecordStream(order, shard, num_shards) for order in orders()]
        # Mean number of tokens of what is read. Small stores are read in pieces of their records.
        mean_tokens = [order.records.tokens / order.size for order in orders()]
        return MixedStream(dict(zip(_names(stores), streams)), rates, mean_tokens, seed)

    MixedStream.check(rates, 0)
    longest = max(split["longest"] for store in stores for split in store.splits.values())
    return Corpus(
        ids=stores[0].ids,
        open_shard=open_shard,
        heldout=lambda n: first_tokens([heldout for _, heldout in splits()], n),
        longest=None if stores[0].may_cut else longest,
        columns=stores[0].columns,
        summary="\n".join(map(_summary, stores)),
    )


def training_and_heldout(store: TokenStore) -> tuple[Records, Records]:
    """Returns the records of both splits. Without a held-out split, one block in 20 is held out.

    Documents with a part in a training block are left out of the held-out text. If there are few
    blocks, documents are shuffled and held out individually. If there are few records, documents
    are cut into shorter pieces.
    """
    train = store.records(TRAIN)

    def one_by_one(documents: DocumentArrays) -> Records:
        uncut = UNCUT if store.may_cut else store.splits[TRAIN]["longest"]
        return training_documents(documents, uncut, train.fingerprint)

    if HELDOUT in store.splits:
        few = train.counts.sum() < _FEW
        train_records = one_by_one(joined(store.documents(TRAIN))) if few else train
        return train_records, store.records(HELDOUT)
    if len(train.blocks) < _HELDOUT_EVERY:
        both = split_heldout(joined(store.documents(TRAIN)), every=_HELDOUT_EVERY)
        return one_by_one(both[0]), one_by_one(both[1])
    held = np.arange(len(train.blocks)) % _HELDOUT_EVERY == _HELDOUT_EVERY - 1
    train_records = StoreRecords(store, TRAIN, train.blocks[~held])
    held_out = StoreRecords(store, TRAIN, train.blocks[held])
    counts = store.counts(TRAIN)
    if counts.documents == counts.records:  # No document has several pieces.
        return train_records, held_out
    before = StoreRecords(store, TRAIN, train.blocks[np.flatnonzero(held) - 1])
    return train_records, _whole_documents(held_out, before) or held_out


def _whole_documents(records: StoreRecords, before: StoreRecords) -> Records | None:
    """Returns the records of documents that are wholly in one block, or None if there are none.

    `before` has the block before each block of `records`.
    """
    firsts = []
    ends = []
    tokens = 0
    for index, previous in zip(records.index(), before.index()):
        ending = np.append(-1, np.flatnonzero(index & 1))
        continues = not previous[-1] & 1
        first = int(ending[:2][-1]) + 1 if continues else 0
        end = max(first, int(ending[-1]) + 1)
        firsts.append(first)
        ends.append(end)
        tokens += int((index[first:end] >> 1).sum(dtype=np.int64))
    whole = _RecordRanges(records, np.array(firsts), np.array(ends), tokens)
    return whole if tokens else None


class _RecordRanges:
    """Consecutive records of each block of other records: from `firsts` to `ends`, exclusive."""

    def __init__(self, records: Records, firsts: np.ndarray, ends: np.ndarray, tokens: int):
        self._blocks = np.flatnonzero(ends > firsts)  # Every block must have a record.
        self._firsts = firsts[self._blocks]
        self._records = records
        self.name = records.name
        self.counts = (ends - firsts)[self._blocks]
        self.tokens = tokens
        self.fingerprint = records.fingerprint

    def load(self, blocks: np.ndarray) -> DocumentArrays:
        source_blocks = self._blocks[blocks]
        sizes = self._records.counts[source_blocks].astype(np.int64)
        starts = np.cumsum(sizes) - sizes + self._firsts[blocks]
        numbers = [np.arange(n) + start for start, n in zip(starts, self.counts[blocks])]
        return self._records.load(source_blocks).take(np.concatenate(numbers))


class MixedStream(DocumentStream):
    """One shard's endless mixture of several streams of records. The rates are shares of tokens.

    Shard s of S uses the random numbers s, s + S, … of the seed to choose the store of each
    document. Each store is read in its own order, so the rates may change at any time. A store with
    longer documents is chosen less often, in proportion to its mean length.
    """

    def __init__(
        self,
        streams: Mapping[str, RecordStream],
        rates: Sequence[Rate],
        mean_tokens: Sequence[float],  # mean number of tokens of a record of each stream
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

        Raises ValueError if a rate is below 0, if no rate is above 0, and for a rate that is not a
        number.
        """
        try:
            now = np.asarray([float(rate(step) if callable(rate) else rate) for rate in rates])
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"The rates of the stores are {list(rates)}, expected a number, or a function of "
                "the step that returns a number, for each store. Use, for example, "
                f"@optax.linear_schedule() in gin ({error})."
            ) from error
        if not (np.isfinite(now).all() and (now >= 0).all() and now.sum() > 0):
            raise ValueError(
                f"The rates of the stores are {now.tolist()} at step {step}, expected no rate "
                "below 0 and at least one above 0: change the rates, or their schedule."
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
        """Returns the upper limit of the random numbers of each store, except the last store."""
        shares = self.check(self._rates, step) / np.asarray(self._mean_tokens)
        return np.cumsum(shares / shares.sum())[:-1]

    def progress(self) -> dict[str, Progress]:
        epochs = [stream.epochs for stream in self._streams]
        return dict(zip(self._names, map(Progress, self._tokens, epochs)))

    def state(self) -> dict[str, np.ndarray]:
        state = {"draw": np.array(self._draw, np.int64)}
        for prefix, stream, tokens in zip(self._prefixes, self._streams, self._tokens):
            stream_state = stream.state() | {"tokens": np.array(tokens, np.int64)}
            state |= {f"{prefix}{name}": value for name, value in stream_state.items()}
        return state

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Continues where the state was taken. New stores start from the beginning.

        Raises ValueError if the state has a store that the mixture does not have.
        """
        self._check_known(state)
        self._draw = int(state["draw"])
        for i, stream in enumerate(self._streams):
            if stream_state := state_within(state, self._prefixes[i]):
                self._tokens[i] = int(stream_state["tokens"])
                stream.restore(stream_state)

    def reshard(self, states: Sequence[dict[str, np.ndarray]]) -> None:
        for state in states:
            self._check_known(state)
        shard = self._streams[0].shard
        self._draw = max(int(state["draw"]) for state in states) + shard
        for i, stream in enumerate(self._streams):
            stream_states = [state_within(state, self._prefixes[i]) for state in states]
            if stream_states[0]:
                # The first shard counts the tokens of all shards, so that the sum stays the same.
                self._tokens[i] = 0 if shard else sum(int(each["tokens"]) for each in stream_states)
                stream.reshard(stream_states)

    def _check_known(self, state: Mapping[str, np.ndarray]) -> None:
        others = [name for name in state if not name.startswith(("draw", *self._prefixes))]
        if "draw" not in state or others:
            raise ValueError(
                "The saved data position does not match the present stores "
                f"{', '.join(self._names)}, because a store or the seed differs: restore the "
                "stores and the seed that the run was started with. To stop reading a store, set "
                "its rate to 0."
            )


@functools.lru_cache(maxsize=64)
def _uniform(seed: int, block: int) -> np.ndarray:
    """Returns the draws from `_DRAWS * block` on, f64[_DRAWS] in [0, 1)."""
    # The last numbers of the key distinguish it from the keys of the orders of records.
    return stable_draws.uniform(stable_draws.drawn_bits((seed, block, 0, 2), _DRAWS))


def _names(stores: Sequence[TokenStore]) -> list[str]:
    """Returns the folder names of the stores, or their paths if the names are not unique."""
    short = [store.name for store in stores]
    return short if len(set(short)) == len(short) else [store.folder.path for store in stores]


def _summary(store: TokenStore) -> str:
    def counted(split: str) -> str:
        counts = store.counts(split)
        return text_size(counts.documents, counts.tokens)

    held = counted(HELDOUT) if HELDOUT in store.splits else f"one in {_HELDOUT_EVERY}"
    return f"{store.folder.path}: {counted(TRAIN)} to train on; {held} held out"
