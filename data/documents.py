"""Documents that are shuffled one by one: a run's text, small stores, files of other programs."""

import dataclasses
import zlib

import numpy as np

from .records import BLOCK, LONGEST, DocumentArrays

UNCUT = 2048  # tokens; shorter documents are never cut, and held-out ones of more always are
PIECES = 256  # of a corpus: with fewer, rows of one step would be of one document


class DocumentRecords:
    """Documents as `Records`, of which those of more than `longest` tokens are cut.

    The `checksum` of all that the documents were made of, where it is known, tells them from others
    that begin and end as they do. Blocks are of `block` records.
    """

    def __init__(
        self, documents: DocumentArrays, longest: int, *, checksum: int = 0, block: int = BLOCK
    ):
        self._pieces, self._block = _cut(documents, longest), block
        self.name, self.tokens = documents.name, documents.tokens
        whole, rest = divmod(len(self._pieces), block)
        self.counts = np.asarray([block] * whole + [rest] * (rest > 0), np.int64)
        self.fingerprint = _fingerprint(documents, len(self._pieces), checksum)

    def load(self, blocks: np.ndarray) -> DocumentArrays:
        firsts = blocks * self._block
        lasts = np.minimum(firsts + self._block, len(self._pieces))
        numbers = np.concatenate([np.arange(*each) for each in zip(firsts, lasts)])
        return self._pieces.take(numbers)


def training_records(
    documents: DocumentArrays, uncut: int = UNCUT, checksum: int = 0
) -> DocumentRecords:
    """Returns the records of training documents, of at most 16,384 tokens.

    Should there be fewer than `PIECES` pieces (one file of text, say), they are made shorter, but
    documents of `uncut` tokens are left whole.
    """
    longest = max(LONGEST, uncut)
    lengths = documents.ends - documents.starts
    while np.sum(-(-lengths // longest)) < PIECES and longest >= 2 * uncut:
        longest //= 2
    return DocumentRecords(documents, longest, checksum=checksum)


def heldout_records(documents: DocumentArrays, longest: int = UNCUT) -> DocumentRecords:
    """Returns held-out documents as one block of records, so short that few tokens are of many."""
    return DocumentRecords(documents, longest, block=np.iinfo(np.int64).max)


def split_heldout(
    documents: DocumentArrays, *, every: int = 20
) -> tuple[DocumentArrays, DocumentArrays]:
    """Returns the (training, held-out) ones of documents: one in `every` is held out.

    With fewer documents than that, the last of `every` equal parts of the tokens is held out, and a
    document may be cut in two. Nothing is copied.

    Raises ValueError for `every` below 2, and for documents of one token.
    """
    if every < 2:
        raise ValueError(f"heldout_every must be at least 2, got {every}.")
    if len(documents) >= every:
        held = np.arange(len(documents)) % every == every - 1
        return documents.take(~held), documents.take(held)
    if documents.tokens < 2:
        raise ValueError(
            f"{documents.name}: got {documents.tokens} token, expected at least 2, to hold some "
            "out."
        )
    kept = max(1, int(documents.tokens * (1 - 1 / every)))
    starts, ends, closed = documents.starts, documents.ends, documents.closed
    before = np.cumsum(ends - starts) - (ends - starts)  # tokens in earlier documents
    cut = starts + np.clip(kept - before, 0, ends - starts)  # where each document is cut
    first, second = cut > starts, cut < ends
    return (
        dataclasses.replace(documents, ends=cut, closed=closed & ~second).take(first),
        dataclasses.replace(documents, starts=cut).take(second),
    )


def joined(documents: DocumentArrays) -> DocumentArrays:
    """Returns documents whose pieces follow each other as whole ones again, with copied columns."""
    columns = {
        name: np.concatenate([each[name] for each in documents.columns])
        for name in documents.columns[0]
    }
    first = np.append(True, documents.closed[:-1])
    last = np.append(first[1:], True)
    ends = np.cumsum(documents.ends - documents.starts)
    starts = np.append(0, ends[:-1])[first]
    block, closed = np.zeros(len(starts), np.int64), documents.closed[last]
    return DocumentArrays(documents.name, [columns], block, starts, ends[last], closed)


def text_size(documents: int, tokens: int) -> str:
    """How much text there is, in words: "1 document, 2,345 tokens"."""
    return f"{documents:,} document{'' if documents == 1 else 's'}, {tokens:,} tokens"


def _cut(documents: DocumentArrays, longest: int) -> DocumentArrays:
    """Returns documents of which those of more than `longest` tokens are cut into equal pieces."""
    counts = -(-(documents.ends - documents.starts) // longest)
    if (counts == 1).all():
        return documents
    whole = documents.take(np.repeat(np.arange(len(counts)), counts))
    piece = np.arange(len(whole)) - np.repeat(np.cumsum(counts) - counts, counts)
    length, pieces = whole.ends - whole.starts, np.repeat(counts, counts)
    return dataclasses.replace(
        whole,
        starts=whole.starts + length * piece // pieces,
        ends=whole.starts + length * (piece + 1) // pieces,
        closed=whole.closed & (piece == pieces - 1),
    )


def _fingerprint(documents: DocumentArrays, pieces: int, checksum: int) -> int:
    """Returns a fingerprint of documents: of their numbers, and of the ends of all tokens there."""
    tokens = [columns["tokens"] for columns in documents.columns]
    first = np.concatenate([some[:4096] for some in tokens[:4096]])[:4096]
    last = np.concatenate([some[-4096:] for some in tokens[-4096:]])[-4096:]
    ends = np.concatenate([first, last]).astype(np.int32)
    numbers = np.asarray([sum(map(len, tokens)), len(documents), pieces], np.int64)
    return zlib.crc32(ends.tobytes() + numbers.tobytes(), checksum)
