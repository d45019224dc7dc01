"""The data of a run, independent of its source: `Corpus`, document streams and documents.

A run names a function that returns its `Corpus`, such as a function of `corpora` or of
`tasks.seqio.seqio_corpora`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..objectives import TokenIds

UNCUT_COLUMNS = frozenset({"parts", "labels"})  # columns whose documents must not be cut


def column_dtype(name: str) -> np.dtype:
    """Returns the dtype of a column of documents: float32 for "weights", int32 for all others."""
    return np.dtype("<f4" if name == "weights" else "<i4")


class Document(NamedTuple):
    """A document as token ids, or consecutive tokens of a document that was cut.

    For example, a text with its answer is `Document(tokens, parts=[0, 0, 0, 1, 1])`, and a text of
    class 4 is `Document(tokens, labels=[4, 4, 4, 4, 4])`. With weights of [0, 0, 0, 1, 1],
    there is no loss on the first three tokens.
    """

    tokens: np.ndarray  # int32[n] with n >= 1: text ids only, nothing appended
    # Whether the document ends with these tokens. Otherwise it continues in another `Document`,
    # which may be anywhere in the stream.
    ends_document: bool = True
    parts: np.ndarray | None = None  # int32[n], as in `objectives.Row`; None without parts
    labels: np.ndarray | None = None  # int32[n], as in `objectives.Row`; None without labels
    # float32[n]: how much the loss of each token counts, from 0 to 1,000; None: 1 each
    weights: np.ndarray | None = None
    # int32[n, 2, N]: a teacher's predictions of each token, as in `objectives.Row`; None without
    teacher: np.ndarray | None = None

    @property
    def columns(self) -> dict[str, Any]:
        """The arrays by name: "tokens", and each other column that the document has."""
        columns = self._asdict()
        del columns["ends_document"]
        return {name: x for name, x in columns.items() if x is not None}

    def cut(self, at: int) -> tuple["Document", "Document"]:
        """Splits the document before token `at`; only the second piece may end the document.

        >>> first, rest = Document(np.arange(5), parts=np.array([0, 0, 1, 1, 1])).cut(2)
        >>> first.ends_document, rest.ends_document, rest.columns
        (False, True, {'tokens': array([2, 3, 4]), 'parts': array([1, 1, 1])})
        """
        first = {name: x[:at] for name, x in self.columns.items()}
        rest = {name: x[at:] for name, x in self.columns.items()}
        return (
            Document(ends_document=False, **first),
            Document(ends_document=self.ends_document, **rest),
        )


def in_parts(*parts: Sequence[int] | np.ndarray) -> Document:
    """Returns the document whose parts are these token sequences.

    >>> piece = in_parts([5, 6], [7])
    >>> piece.tokens.tolist(), piece.parts.tolist(), piece.ends_document
    ([5, 6, 7], [0, 0, 1], True)
    """
    tokens = np.concatenate([np.asarray(part, np.int32) for part in parts])
    numbers = np.arange(len(parts), dtype=np.int32)
    return Document(tokens, parts=np.repeat(numbers, [len(part) for part in parts]))


def first_documents(documents: Iterator[Document], tokens: int) -> list[Document]:
    """Returns the first documents that have at least this number of tokens, or all documents."""
    first: list[Document] = []
    while tokens > 0 and (document := next(documents, None)) is not None:
        first.append(document)
        tokens -= document.tokens.size
    return first


def check_shard(shard: int, num_shards: int) -> None:
    """Raises ValueError for a shard outside 0 … num_shards - 1."""
    if not 0 <= shard < num_shards:
        raise ValueError(f"The shard must be in 0…{num_shards - 1}, got {shard}.")


class DocumentStream(Protocol):
    """An endless, deterministic, resumable stream of tokenized documents.

    A thread reads it ahead of the steps (`training.prefetch`), so state that several streams share
    must be safe to use from several threads.
    """

    def next_document(self) -> Document:
        """Returns the next document, or the next piece of a document that was cut.

        Its arrays are kept without a copy until they are packed, so they must not change later.
        """

    def state(self) -> dict[str, np.ndarray]:
        """Returns the data position as a few small arrays, with the same keys in every call."""

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Continues exactly where the stream was when it returned `state`."""

    def reshard(self, states: Sequence[dict[str, np.ndarray]]) -> None:
        """Continues from the states of all shards of a run with another number of shards.

        Over all new shards, no document is lost or read twice. Raises ValueError if the corpus
        cannot change its number of shards, which is the default.
        """
        raise ValueError(
            f"The run was started with data_shards = {len(states)}, and this corpus cannot change "
            "it: restore this value, or start a new run directory. A token store can change it."
        )

    def begin_step(self, step: int) -> None:
        """Called before the documents of each step are read; rates may depend on the step."""
        return None

    def progress(self) -> dict[str, "Progress"]:
        """Returns how much of each store was read, by name; empty for a corpus without stores."""
        return {}


class StreamOf(DocumentStream):
    """The documents that a function reads from another stream. It has that stream's state."""

    def __init__(self, stream: DocumentStream, read: Callable[[DocumentStream], Document]):
        self._stream = stream
        self._read = read

    def next_document(self) -> Document:
        return self._read(self._stream)

    def state(self) -> dict[str, np.ndarray]:
        return self._stream.state()

    def restore(self, state: dict[str, np.ndarray]) -> None:
        self._stream.restore(state)

    def reshard(self, states: Sequence[dict[str, np.ndarray]]) -> None:
        self._stream.reshard(states)

    def begin_step(self, step: int) -> None:
        self._stream.begin_step(step)

    def progress(self) -> dict[str, "Progress"]:
        return self._stream.progress()


def state_within(state: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """Returns the arrays of a state whose names have the prefix, under names without it."""
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


class Progress(NamedTuple):
    """How much of a store a stream has read."""

    tokens: int
    epochs: float


class Codec(NamedTuple):
    """Conversion of text to token ids and back, for display and for tasks."""

    encode: Callable[[str], list[int]]
    decode: Callable[[Sequence[int]], str]  # shows special tokens by name, e.g. <extra_id_0>


class Corpus(NamedTuple):
    """The text of a run as token ids: streams of training documents, and held-out documents."""

    ids: TokenIds
    # A function (shard, number of shards) -> the shard's endless stream of training documents. The
    # number of shards is a setting of the run and not the number of hosts, so the data order does
    # not depend on machines.
    open_shard: Callable[[int, int], DocumentStream]
    # A function n -> the first held-out documents with at least n tokens, or all of them.
    heldout: Callable[[int], list[Document]]
    codec: Codec | None = None  # None if the corpus has ids without text
    classes: tuple[str, ...] = ()  # the names of the classes of labels, or of all answers
    # Number of tokens of the longest document, if documents must not be cut: they have parts or
    # labels, or an order that a cut would break. Otherwise None.
    longest: int | None = None
    # The columns of its documents in addition to tokens: "parts" or "labels", and "weights", as in
    # `Document`.
    columns: tuple[str, ...] = ()
    labels_of: str | None = None  # whether labels are of "documents" or "tokens"; None if unknown
    # The corpora of a mixture whose members do not all read the same text, and for each member of
    # the objective the index of its corpus. `open_shard` and `heldout` then give all texts
    # together. If empty, every member reads the text of this corpus.
    sources: tuple["Corpus", ...] = ()
    member_sources: tuple[int, ...] = ()
    summary: str = ""  # a description of what was read: documents, tokens, skipped lines

    @property
    def texts(self) -> tuple["Corpus", ...]:
        """The corpora of a mixture, or this corpus alone if all members read the same text."""
        return self.sources or (self,)

    def source_of(self, member: int) -> int:
        """Returns the index in `texts` of the text that a member of the objective reads."""
        return self.member_sources[member] if self.member_sources else 0

    def text_of(self, member: int) -> "Corpus":
        """Returns the corpus that a member of the objective, given by its index, reads."""
        return self.texts[self.source_of(member)]
