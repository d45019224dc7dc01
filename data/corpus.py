"""The data of a run, independent of its source: `Corpus`, its streams and documents.

A run names a function that returns its `Corpus`: one of `corpora`, or of
`tasks.seqio.seqio_corpora`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..objectives import TokenIds


class Document(NamedTuple):
    """A document as token ids, or consecutive tokens of a document that was cut.

    A text and its answer are `Document(tokens, parts=[0, 0, 0, 1, 1])`, a text of class 4
    `Document(tokens, labels=[4, 4, 4, 4, 4])`.
    """

    tokens: np.ndarray  # int32[n] with n >= 1: text ids only, nothing appended
    # Whether the document ends here. Otherwise it continues in another one, which may be anywhere
    # in the stream.
    ends: bool = True
    parts: np.ndarray | None = None  # int32[n], as in `objectives.Row`; None: the corpus has none
    labels: np.ndarray | None = None  # int32[n], as in `objectives.Row`; None: the corpus has none

    @property
    def columns(self) -> dict[str, Any]:
        """Returns the arrays of the document by name: "tokens" and, where known, the others."""
        return {name: x for name, x in self._asdict().items() if name != "ends" and x is not None}

    def cut(self, at: int) -> tuple["Document", "Document"]:
        """Returns the first `at` tokens, which do not end the document, and the tokens after them.

        >>> first, rest = Document(np.arange(5), parts=np.array([0, 0, 1, 1, 1])).cut(2)
        >>> first.ends, rest.ends, rest.columns
        (False, True, {'tokens': array([2, 3, 4]), 'parts': array([1, 1, 1])})
        """
        first = {name: x[:at] for name, x in self.columns.items()}
        rest = {name: x[at:] for name, x in self.columns.items()}
        return Document(ends=False, **first), self._replace(**rest)


def in_parts(*parts: Sequence[int] | np.ndarray) -> Document:
    """Returns the document of these parts, each the tokens of one.

    >>> piece = in_parts([5, 6], [7])
    >>> piece.tokens.tolist(), piece.parts.tolist(), piece.ends
    ([5, 6, 7], [0, 0, 1], True)
    """
    tokens = np.concatenate([np.asarray(part, np.int32) for part in parts])
    numbers = np.arange(len(parts), dtype=np.int32)
    return Document(tokens, parts=np.repeat(numbers, [len(part) for part in parts]))


def first_documents(documents: Iterator[Document], tokens: int) -> list[Document]:
    """Returns the first documents, until they have this number of tokens or there are no more."""
    found: list[Document] = []
    while tokens > 0 and (document := next(documents, None)) is not None:
        found.append(document)
        tokens -= document.tokens.size
    return found


def check_shard(shard: int, num_shards: int) -> None:
    """Raises ValueError for a shard that is none of 0 … num_shards - 1: ranks begin at 0."""
    if not 0 <= shard < num_shards:
        raise ValueError(f"The shard must be in 0…{num_shards - 1}, got {shard}.")


class DocumentStream(Protocol):
    """An endless, deterministic, resumable stream of tokenized documents.

    A thread reads it ahead of the steps (`training.prefetch`), so what several streams share must
    bear that others are read on the main thread.
    """

    def next_document(self) -> Document:
        """Returns the next document, or the next piece of one that was cut.

        Its arrays are kept as they are until they are in a row, so nobody may change them later.
        """

    def state(self) -> dict[str, np.ndarray]:
        """Returns the data position as a few small arrays, with the same keys at every call."""

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Continues exactly where the stream that returned `state` was."""

    def reshard(self, states: Sequence[dict[str, np.ndarray]]) -> None:
        """Continues where shards of another number, of which these are all states, were together.

        Over all new shards, no document is lost and none is read twice. Raises ValueError where a
        corpus cannot change its number of shards, as one that does not define this.
        """
        raise ValueError(
            f"The run was begun with data_shards = {len(states)}, and this corpus cannot change "
            "it: set it back, or start a new run directory. A token store can."
        )

    def begin_step(self, step: int) -> None:
        """Is called before the documents of each step are read; rates may follow the step."""
        return None

    def progress(self) -> dict[str, "Progress"]:
        """Returns how much of each store was read, by name; nothing for a corpus without stores."""
        return {}


def state_within(state: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """Returns the arrays of a state whose names begin with a prefix, without it."""
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


class Progress(NamedTuple):
    """How much of a store a stream has read."""

    tokens: int
    epochs: float


class Codec(NamedTuple):
    """Conversion of text to token ids and back, for display and for tasks."""

    encode: Callable[[str], list[int]]
    decode: Callable[[Sequence[int]], str]  # special tokens are shown by name, e.g. <extra_id_0>


class Corpus(NamedTuple):
    """The text of a run as token ids: streams of training documents, and held-out documents."""

    ids: TokenIds
    # (shard, number of shards) -> the shard's endless stream. The number of shards is a setting of
    # the run, not the number of hosts: the data order does not depend on the machines.
    train: Callable[[int, int], DocumentStream]
    # n -> the first held-out documents, until they have n tokens or there are no more
    heldout: Callable[[int], list[Document]]
    codec: Codec | None = None  # None: ids only, without text
    classes: tuple[str, ...] = ()  # the names of the classes of labels, or of all answers
    # Tokens of the longest document, where they must not be cut: they have parts or labels, or are
    # in an order that a cut would break.
    longest: int | None = None
    # The columns of its documents in addition to tokens: "parts" or "labels", as in `Document`.
    columns: tuple[str, ...] = ()
    labels_of: str | None = None  # "documents" or "tokens": what a label is of; None: not known
    # The texts of a mixture whose members do not all read the same text, and for each member of the
    # objective the index of its text. `train` and `heldout` then give all texts together. Empty:
    # every member reads the text of this corpus.
    sources: tuple["Corpus", ...] = ()
    member_sources: tuple[int, ...] = ()
    summary: str = ""  # a description of what was read: documents, tokens, skipped lines


def read_by(member: int, corpus: Corpus) -> Corpus:
    """Returns the corpus whose text a member of the objective reads, given by its index."""
    return corpus.sources[corpus.member_sources[member]] if corpus.sources else corpus
