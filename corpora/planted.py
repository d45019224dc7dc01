"""A corpus in which some passages are repeated many times, to measure what a model memorizes."""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ..constraints import AtLeastTwo, Count, OpenShare, checked, listed
from ..data.corpus import Corpus, Document, DocumentStream, Progress, first_documents, state_within
from ..data.documents import UNCUT


class Passages(NamedTuple):
    """Passages of equal length that are planted, and the documents that they were taken from."""

    passages: list[np.ndarray]  # int32[tokens] each
    sources: frozenset[bytes]  # the tokens of the held-out documents that must not be evaluated
    source_tokens: int  # number of tokens of these documents


@checked
def planted_passages(
    run_dir: str,
    *,
    corpus: Callable,
    passages: Count = 64,
    passage_tokens: AtLeastTwo = 96,
    share: OpenShare = 0.1,
) -> Corpus:
    """Another corpus, with passages of its held-out text repeated throughout the training text.

        training.Run.corpus = @corpora.planted_passages
        corpora.planted_passages.corpus = @corpora.python_library

    The eval metric `memorization` measures how much of the passages a model can repeat. The
    passages are consecutive tokens from the middle of held-out documents. They take turns, each as
    a separate document. The documents that they come from are not evaluated.

    Training for n tokens repeats each passage `share * n / (passages * passage_tokens)` times.

    Args:
        corpus: function of a run directory that returns the other corpus.
        passages: number of passages.
        passage_tokens: number of tokens of each passage.
        share: share of the training tokens that are planted.

    Raises ValueError for a corpus whose documents have parts or labels, and for one with too few
    held-out documents of at least `passage_tokens` tokens.
    """
    whole = corpus(run_dir)
    planted = passages_of(whole, passages, passage_tokens)

    def open_shard(shard: int, num_shards: int) -> DocumentStream:
        stream = whole.open_shard(shard, num_shards)
        return _PlantedStream(stream, planted.passages, share, shard, num_shards)

    return whole._replace(
        open_shard=open_shard,
        heldout=functools.partial(other_documents, whole, planted),
        summary=f"{whole.summary}. Planted: {passages:,} passages of {passage_tokens:,} tokens, "
        f"{share:.1%} of the training tokens",
    )


def passages_of(corpus: Corpus, passages: int, passage_tokens: int) -> Passages:
    """Returns the passages that `planted_passages` takes from a corpus.

    They depend on the held-out documents alone, so they are the same for every seed.

    Raises ValueError as `planted_passages`.
    """
    if corpus.columns or corpus.sources:
        kind = f"documents with {listed(corpus.columns)}" if corpus.columns else "a mixture"
        raise ValueError(
            f"Got a corpus of {kind}, expected a single corpus of plain text: plant passages in a "
            "corpus such as corpora.python_library or corpora.text_files."
        )
    documents = _long_documents(corpus, passages + 1, passage_tokens)
    if len(documents) <= passages:
        raise ValueError(
            f"Got {len(documents)} held-out documents of at least {passage_tokens:,} tokens, "
            f"expected more than passages={passages}, since other documents are evaluated: hold "
            "out more text, or lower corpora.planted_passages.passages or passage_tokens."
        )
    sources = [document.tokens for document in documents[:passages]]
    return Passages(
        [middle(tokens, passage_tokens) for tokens in sources],
        frozenset(tokens.tobytes() for tokens in sources),
        sum(tokens.size for tokens in sources),
    )


def other_documents(corpus: Corpus, planted: Passages, n: int) -> list[Document]:
    """Returns the first held-out documents with n tokens, without the documents of passages."""
    documents = corpus.heldout(n + planted.source_tokens)
    others = (each for each in documents if each.tokens.tobytes() not in planted.sources)
    return first_documents(others, n)


def middle(tokens: np.ndarray, size: int) -> np.ndarray:
    """Returns `size` consecutive tokens from the middle.

    >>> middle(np.arange(10), 4)
    array([3, 4, 5, 6])
    """
    start = (tokens.size - size) // 2
    return tokens[start : start + size]


def _long_documents(corpus: Corpus, number: int, tokens: int) -> list[Document]:
    """Returns up to `number` distinct held-out documents of at least `tokens` tokens, in order."""
    wanted = number * tokens
    read = -1
    while True:
        documents = corpus.heldout(wanted)
        long = {each.tokens.tobytes(): each for each in documents if each.tokens.size >= tokens}
        if len(long) >= number or len(documents) == read:
            return list(itertools.islice(long.values(), number))
        read = len(documents)
        wanted += number * UNCUT


class _PlantedStream(DocumentStream):
    """Another stream's documents, and passages whenever their share of the tokens is too small.

    Together, the shards plant the passages in turn.
    """

    def __init__(
        self,
        stream: DocumentStream,
        passages: Sequence[np.ndarray],
        share: float,
        shard: int,
        num_shards: int,
    ):
        self._stream = stream
        self._passages = passages
        self._share = share
        self._shard = shard
        self._num_shards = num_shards
        self._planted = 0  # number of passages planted by this shard
        self._read = 0  # number of tokens that this shard has read from the other stream

    def next_document(self) -> Document:
        size = self._passages[0].size
        planted_tokens = self._planted * size
        if planted_tokens < self._share * (planted_tokens + self._read):
            number = self._planted * self._num_shards + self._shard
            self._planted += 1
            return Document(self._passages[number % len(self._passages)])
        document = self._stream.next_document()
        self._read += document.tokens.size
        return document

    def state(self) -> dict[str, np.ndarray]:
        own = {"planted": np.array(self._planted), "read": np.array(self._read)}
        return own | {f"corpus.{name}": x for name, x in self._stream.state().items()}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        self._stream.restore(state_within(state, "corpus."))
        self._planted = int(state["planted"])
        self._read = int(state["read"])

    def reshard(self, states: Sequence[dict[str, np.ndarray]]) -> None:
        self._stream.reshard([state_within(state, "corpus.") for state in states])
        self._planted = sum(int(state["planted"]) for state in states) // self._num_shards
        self._read = sum(int(state["read"]) for state in states) // self._num_shards

    def begin_step(self, step: int) -> None:
        self._stream.begin_step(step)

    def progress(self) -> dict[str, Progress]:
        return self._stream.progress()
