"""What a data edge hands to `train.py`, whatever it reads from.

`tasks.corpora` (SeqIO, text files, Python's own library) and `training.token_arrays` (NumPy files,
no TensorFlow) each provide functions that return a `Corpus`; gin says which one a run uses.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from objectives import TokenIds


class DocumentStream(Protocol):
    """An endless, deterministic stream of tokenised documents that can stop and go on."""

    def next_document(self) -> np.ndarray:
        """The next document, int32[n] with n >= 1: text ids only, nothing appended."""

    def state(self) -> dict[str, np.ndarray]:
        """The position as a few small arrays, the same keys at every call."""

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Goes on exactly where the stream that gave `state` stood."""


class Codec(NamedTuple):
    """Text to token ids and back, for showing people what a model does."""

    encode: Callable[[str], list[int]]
    decode: Callable[[list[int]], str]  # special tokens are shown by name, e.g. <extra_id_0>


class Corpus(NamedTuple):
    """What a data edge gives to `train.py`."""

    ids: TokenIds
    # (shard, of how many) -> that shard's endless stream. The number of shards is a setting of the
    # run, not the number of hosts: the data order does not depend on the machines it is read on.
    train: Callable[[int, int], DocumentStream]
    # n -> held-out documents, always the same ones, until they hold n tokens or there are no more
    heldout: Callable[[int], list[np.ndarray]]
    codec: Codec | None = None  # None: ids only, nothing can be shown as text
    summary: str = ""  # what was read, for people: documents, tokens, skipped lines
