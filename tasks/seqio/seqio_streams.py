"""Endless, resumable streams of documents from SeqIO tasks and mixtures."""

import functools
import itertools
import zlib
from collections.abc import Iterator, Sequence

import numpy as np

from ...data import stable_draws
from ...data.corpus import Document, DocumentStream, check_shard, first_documents
from .quiet_tensorflow import seqio
from .seqio_examples import TaskExamples
from .seqio_tasks import REPEATABLE_SEED

_DRAWS = 1024  # number of documents whose tasks are drawn together


class MixtureStream(DocumentStream):
    """One shard's endless stream over the tasks of a mixture: a `DocumentStream`.

    The task of each document is drawn by the rates, from `(seed, shard, document number)`. A task
    is read file by file, in an order that is drawn for every epoch. Files are the shards of its
    source, or groups of small files of a cache. Shard k of S reads the files k, k + S, …, or every
    S-th example if there are fewer files than shards.

    The state is a few integers: the number of documents, and for each task the epoch, the index in
    the order of files, and the number of examples read from this file. Restoring skips these
    examples (`tasks.seqio.seqio_skipping`). A saved `tf.data` iterator would contain the shuffle
    buffer, which takes tens of megabytes for every shard in each checkpoint.
    """

    def __init__(
        self,
        texts: Sequence[TaskExamples],
        rates: Sequence[float],
        split: str,
        shard: int,
        num_shards: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
    ):
        check_shard(shard, num_shards)
        self._tasks = [_TaskStream(t, split, shard, num_shards, shuffle, seed) for t in texts]
        self._rates = tuple(rates)
        self._key = (seed, shard)
        self._documents = 0
        settings = repr((split, shard, num_shards, shuffle, seed, list(rates)))
        units = [(t.name, t.cached, task.num_units) for t, task in zip(texts, self._tasks)]
        self._fingerprint = zlib.crc32((settings + repr(units)).encode())

    def next_document(self) -> Document:
        block, place = divmod(self._documents, _DRAWS)
        task = drawn_tasks(self._rates, self._key, block)[place]
        document = self._tasks[task].next_document()
        self._documents += 1
        return document

    def state(self) -> dict[str, np.ndarray]:
        places = np.asarray([task.place for task in self._tasks], np.int64)
        return {
            "documents": np.array(self._documents, np.int64),
            "places": places,  # [tasks, 3]
            "fingerprint": np.array(self._fingerprint, np.int64),
        }

    def restore(self, state: dict[str, np.ndarray]) -> None:
        if int(state["fingerprint"]) != self._fingerprint:
            raise ValueError(
                "The saved data position belongs to another mixture, split, seed or number of "
                "shards, or to tasks with another number of files or another use of caches: set "
                "them back, or start a new run directory."
            )
        self._documents = int(state["documents"])
        for task, place in zip(self._tasks, np.asarray(state["places"]), strict=True):
            task.go_to([int(x) for x in place])


@functools.lru_cache(maxsize=1024)
def drawn_tasks(rates: tuple[float, ...], key: tuple[int, int], block: int) -> np.ndarray:
    """Returns i64[_DRAWS] task indices of the documents of a shard from `_DRAWS * block`.

    Args:
        key: (seed, shard).
    """
    limits = np.cumsum(np.asarray(rates, np.float64) / np.sum(rates))[:-1]
    draws = stable_draws.uniform(stable_draws.drawn_bits((*key, block), _DRAWS))
    return np.searchsorted(limits, draws, side="right")


class _TaskStream:
    def __init__(
        self, text: TaskExamples, split: str, shard: int, num_shards: int, shuffle: bool, seed: int
    ):
        self._text = text
        self._split = split
        self._shuffle = shuffle
        self.num_units = text.num_units(split, num_shards)
        self._by_file = self.num_units >= num_shards
        self._num_shards = max(self.num_units, num_shards)
        self._units = np.arange(shard, self._num_shards, num_shards)
        self._seed = (seed, zlib.crc32(text.name.encode()))
        self._shard = shard
        self.go_to([0, 0, 0])

    def next_document(self) -> Document:
        empty_epochs = 0
        while True:
            for document in self._reader:
                self.place[2] += 1
                if document is not None:
                    return document
            epoch, unit, _ = self.place
            if unit + 1 < len(self._units):
                self.go_to([epoch, unit + 1, 0])
                continue
            empty_epochs += 1
            if empty_epochs > 1:
                raise ValueError(
                    f"Task {self._text.name!r}: one of the shards of split {self._split!r} has no "
                    f"text in {' and '.join(self._text.features)}: use fewer shards or another "
                    "split."
                )
            self.go_to([epoch + 1, 0, 0])

    def go_to(self, place: list[int]) -> None:
        self.place = place
        self._reader = self._read(*place)

    def _read(self, epoch: int, unit: int, examples: int) -> Iterator[Document | None]:
        order = np.arange(len(self._units))
        if self._shuffle:
            order = stable_draws.permutation((*self._seed, epoch, self._shard), len(order))
        file = int(self._units[order[unit]])
        # Shards that share files read every S-th example of the same order, so they share a seed.
        file_seed = (file,) if self._by_file else ()
        seeds = np.random.SeedSequence((*self._seed, epoch, *file_seed)).generate_state(1)
        yield from self._text.documents(
            self._split,
            skip=examples,
            shuffle=self._shuffle,
            seed=int(seeds[0] >> 2),  # SeqIO adds small numbers to it
            shard_info=seqio.ShardInfo(index=file, num_shards=self._num_shards),
        )


def heldout_documents(texts: Sequence[TaskExamples], split: str, n: int) -> list[Document]:
    """Returns documents, alternating between the tasks, until they have `n` tokens in total.

    Every call returns the same documents, even if a step of a task is random.
    """
    read = functools.partial(TaskExamples.documents, split=split, shuffle=False)
    readers = [filter(None, read(text, seed=REPEATABLE_SEED)) for text in texts]
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(*readers))
    documents = first_documents(filter(None, in_turn), n)
    if not documents:
        raise ValueError(
            f"Split {split!r} of {texts[0].name!r} has no text to hold out: choose another split."
        )
    return documents
