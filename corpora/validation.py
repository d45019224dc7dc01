"""A corpus that holds out some of the training documents of another corpus."""

import functools
import zlib
from collections.abc import Callable

from ..constraints import AtLeastTwo, checked
from ..data.corpus import Corpus, Document, DocumentStream, StreamOf
from ..data.documents import UNCUT

# Draws, in units of `every`, until the search for a document stops. If the corpus has enough
# different documents, all of these draws fail with a probability of about e^-100.
_PATIENCE = 100


@checked
def validation_split(run_dir: str, *, corpus: Callable, every: AtLeastTwo = 20) -> Corpus:
    """Another corpus, with some of its training documents as the held-out text.

        training.Run.corpus = @corpora.validation_split
        corpora.validation_split.corpus = @corpora.python_library

    Use it to choose hyperparameters, such as a learning rate, without the held-out text on which
    results are reported. A checksum of its tokens decides whether a document is held out, so every
    epoch and shard holds out the same documents and their duplicates. If the corpus reads long
    documents in pieces, pieces are held out. At most 2,048 tokens of each document are evaluated.

    Args:
        corpus: function of a run directory that returns the other corpus.
        every: one training document in `every` is held out.

    Reading raises ValueError if the corpus has so few different documents that a split is empty.
    """
    whole = corpus(run_dir)

    def open_shard(shard: int, num_shards: int) -> DocumentStream:
        read = functools.partial(_next, every=every, held_out=False)
        return StreamOf(whole.open_shard(shard, num_shards), read)

    return whole._replace(
        open_shard=open_shard,
        heldout=functools.partial(_first, whole, every),
        summary=f"{whole.summary}. Held out instead: one training document in {every}",
    )


def _first(whole: Corpus, every: int, n: int) -> list[Document]:
    """Returns distinct held-out documents with at least n tokens together, or all of them.

    The search ends after `_PATIENCE` known documents in a row.
    """
    stream = whole.open_shard(0, 1)
    documents = list[Document]()
    seen = set[int]()
    repeats = tokens = 0
    while tokens < n and repeats < _PATIENCE:
        piece = _next(stream, every, held_out=True)
        repeats = repeats + 1 if (key := _checksum(piece)) in seen else 0
        if not repeats:
            seen.add(key)
            documents.append(piece.cut(UNCUT)[0] if piece.tokens.size > UNCUT else piece)
            tokens += documents[-1].tokens.size
    return documents


def _next(stream: DocumentStream, every: int, held_out: bool) -> Document:
    for _ in range(_PATIENCE * every):
        piece = stream.next_document()
        if (_checksum(piece) % every == 0) == held_out:
            return piece
    which = "to hold out" if held_out else "to train on"
    raise ValueError(
        f"Got {_PATIENCE * every:,} training documents in a row with none {which}: the corpus has "
        f"too few different documents to hold out one in {every}. Change "
        "corpora.validation_split.every, or use another corpus."
    )


def _checksum(piece: Document) -> int:
    return zlib.crc32(piece.tokens.tobytes())
