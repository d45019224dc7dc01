"""A corpus whose held-out documents are some of another's training documents."""

import functools
import zlib
from collections.abc import Callable
from typing import Any, cast

from ..constraints import AtLeastTwo, checked
from ..data.corpus import Corpus, Document, DocumentStream
from ..data.documents import UNCUT

_PATIENCE = 100  # of a text with enough documents, the chance to find none in so many is e^-100


@checked
def validation_split(run_dir: str, *, corpus: Callable, every: AtLeastTwo = 20) -> Corpus:
    """Another corpus, of whose training documents one in `every` is held out, in place of its own.

        training.Run.corpus = @corpora.validation_split
        corpora.validation_split.corpus = @corpora.python_library

    What is chosen by its held-out loss, as a learning rate is, has then not been chosen by the
    held-out text that results are measured on. A document is held out by a checksum of its tokens,
    so that it is in every epoch and shard, and so is one of the same tokens. Of documents that the
    corpus reads in pieces, each piece is one here. At most 2,048 tokens of each are evaluated.

    Args:
        corpus: `run_dir -> Corpus`.
        every: one training document in so many is held out.

    Raises ValueError, as it is read, where so few documents differ that one side has none.
    """
    whole = corpus(run_dir)

    def train(shard: int, num_shards: int) -> DocumentStream:
        return cast(DocumentStream, _TrainingStream(whole.train(shard, num_shards), every))

    return whole._replace(
        train=train,
        heldout=functools.partial(_first, whole, every),
        summary=f"{whole.summary}. In place of the held-out text: one training document in {every}",
    )


class _TrainingStream:
    """The documents of a stream that are not held out, at the position of that stream."""

    def __init__(self, stream: DocumentStream, every: int):
        self._stream = stream
        self._every = every

    def next_document(self) -> Document:
        return _next(self._stream, self._every, held_out=False)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # while it is copied, before it has a stream
            raise AttributeError(name)
        return getattr(self._stream, name)


def _first(whole: Corpus, every: int, n: int) -> list[Document]:
    """Returns held-out documents of at least n tokens, or all: those that come again are few."""
    stream = whole.train(0, 1)
    found = list[Document]()
    known = set[int]()
    again = tokens = 0
    while tokens < n and again < _PATIENCE:
        piece = _next(stream, every, held_out=True)
        again = again + 1 if (key := _checksum(piece)) in known else 0
        if not again:
            known.add(key)
            found.append(piece.cut(UNCUT)[0] if piece.tokens.size > UNCUT else piece)
            tokens += found[-1].tokens.size
    return found


def _next(stream: DocumentStream, every: int, held_out: bool) -> Document:
    for _ in range(_PATIENCE * every):
        piece = stream.next_document()
        if (_checksum(piece) % every == 0) == held_out:
            return piece
    which = "to hold out" if held_out else "to train on"
    raise ValueError(
        f"Of {_PATIENCE * every:,} training documents in turn none is {which}: the corpus has too "
        f"few that differ to hold out one in {every} (corpora.validation_split.every)."
    )


def _checksum(piece: Document) -> int:
    return zlib.crc32(piece.tokens.tobytes())
