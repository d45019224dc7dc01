"""What a data edge hands to `train.py`, whatever it reads from.

`tasks.corpora` (text files, Python's own library), `tasks.seqio_corpora` (SeqIO) and
`training.token_arrays` (NumPy files) each provide functions that return a `Corpus`; gin says which
one a run uses.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from pretrax.objectives import TokenIds


class Piece(NamedTuple):
    """A document, or a stretch of one that was cut.

    A text and its answer are `Piece(tokens, True, parts=[0, 0, 0, 1, 1])`, a text of class 4
    `Piece(tokens, True, labels=[4, 4, 4, 4, 4])`.
    """

    tokens: np.ndarray  # int32[n] with n >= 1: text ids only, nothing appended
    ends: bool  # the document ends here; else it goes on in another piece, anywhere in the stream
    parts: np.ndarray | None = None  # int32[n], as in `objectives.Row`, where a corpus has parts
    labels: np.ndarray | None = None  # int32[n], as in `objectives.Row`, where it has labels


def in_parts(*parts: Sequence[int] | np.ndarray) -> Piece:
    """The document of these parts, each the tokens of one.

    >>> in_parts([5, 6], [7])
    Piece(tokens=array([5, 6, 7]), ends=True, parts=array([0, 0, 1]), labels=None)
    """
    tokens = np.concatenate([np.asarray(part, np.int32) for part in parts])
    numbers = np.arange(len(parts), dtype=np.int32)
    return Piece(tokens, True, parts=np.repeat(numbers, [len(part) for part in parts]))


class DocumentStream(Protocol):
    """An endless, deterministic stream of tokenised documents that can stop and go on."""

    def next_document(self) -> Piece:
        """The next document, or the next piece of one that was cut."""

    def state(self) -> dict[str, np.ndarray]:
        """The position as a few small arrays, the same keys at every call."""

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Goes on exactly where the stream that gave `state` stood."""


class Codec(NamedTuple):
    """Text to token ids and back, for showing people what a model does."""

    encode: Callable[[str], list[int]]
    decode: Callable[[Sequence[int]], str]  # special tokens are shown by name, e.g. <extra_id_0>


class Corpus(NamedTuple):
    """What a data edge gives to `train.py`."""

    ids: TokenIds
    # (shard, of how many) -> that shard's endless stream. The number of shards is a setting of the
    # run, not the number of hosts: the data order does not depend on the machines it is read on.
    train: Callable[[int, int], DocumentStream]
    # n -> held-out documents, always the same ones, until they hold n tokens or there are no more
    heldout: Callable[[int], list[Piece]]
    codec: Codec | None = None  # None: ids only, nothing can be shown as text
    classes: tuple[str, ...] = ()  # the names of what `sequence_classification` tells apart
    # Tokens of the longest document, where one that is cut in two means something else.
    longest: int | None = None
    summary: str = ""  # what was read, for people: documents, tokens, skipped lines
