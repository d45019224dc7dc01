"""Corpora of token arrays: their documents as records, and held-out documents.

The files are described in `data.token_array_files`, the order in `data.records`.
"""

import dataclasses
import functools
import zlib

import numpy as np

from ..objectives import TokenIds
from .corpus import Codec, Corpus, Piece
from .records import Loaded, RecordStream, Shuffled
from .token_array_files import COLUMNS, TokenArray, open_token_array

LONGEST_PIECE = 16384  # tokens; longer documents are read in pieces, so that shuffling can mix them
UNCUT = 2048  # tokens; shorter documents are never cut, so that the following is had
PIECES = 256  # pieces of an array: with fewer, rows of one step would be of one piece
BLOCK = 256  # pieces of a block, see `data.records`
LONGEST_HELDOUT_PIECE = 2048  # shorter, so that a few thousand held-out tokens span many documents


def token_array(
    run_dir: str,
    *,
    path: str,
    heldout_path: str | None = None,
    ids: TokenIds | None = None,
    seed: int = 0,
) -> Corpus:
    """Returns the corpus of token arrays; needs NumPy alone.

        training.Run.corpus = @token_arrays.token_array
        token_arrays.token_array.path = "data/train"
        token_arrays.token_array.heldout_path = "data/heldout"

    Args:
        run_dir: unused; everything is in the arrays.
        path: a token array's folder, or a bare one-dimensional `.npy` file of ids with `ids` given.
        heldout_path: the same for held-out text; without it `split_heldout` chooses some.
        ids: the special ids, where the folder has no `ids.json`.
        seed: of the order of the documents.

    Raises:
        ValueError, FileNotFoundError: the file, what was got, what is expected.
    """
    del run_dir
    array = open_token_array(path, ids)
    if heldout_path is None:
        array, heldout = split_heldout(array)
    else:
        heldout = open_token_array(heldout_path, ids)
        if heldout.ids != array.ids:
            raise ValueError(
                f"{heldout_path} has other token ids than {path}: got {heldout.ids}, "
                f"expected {array.ids}. Write both with one vocabulary."
            )
    return array_corpus(array, heldout, seed=seed, longest=_longest_example(array, heldout))


def _longest_example(*arrays: TokenArray) -> int | None:
    """Returns the tokens of the longest document with parts or labels, which must not be cut."""
    examples = [a for a in arrays if a.parts is not None or a.labels is not None]
    return max((int(np.max(a.ends - a.starts, initial=0)) for a in examples), default=None)


def array_corpus(
    array: TokenArray,
    heldout: TokenArray,
    *,
    seed: int = 0,
    codec: Codec | None = None,
    longest: int | None = None,
    summary: str = "",
) -> Corpus:
    """Returns the `Corpus` of an open training array and an open held-out array; see `Corpus.longest`."""
    summary = summary or (
        f"{array.path}: {array.documents:,} documents, {array.size:,} tokens; held out "
        f"{heldout.path}: {heldout.documents:,} documents, {heldout.size:,} tokens"
    )

    @functools.cache
    def order() -> Shuffled:
        return Shuffled(ArrayRecords(array, longest or UNCUT), seed)

    return Corpus(
        ids=array.ids,
        train=lambda shard, shards: RecordStream(order(), shard, shards),
        heldout=lambda n: heldout_documents(heldout, n, longest or LONGEST_HELDOUT_PIECE),
        codec=codec,
        longest=longest,
        columns=tuple(name for name in COLUMNS if getattr(array, name) is not None),
        summary=summary,
    )


class ArrayRecords:
    """The documents of a token array as `Records`, of which those over `LONGEST_PIECE` are cut.

    Should there be fewer than `PIECES` pieces (one file of text, say), they are made shorter, but
    documents of `uncut` tokens are left whole. The `checksum` of all that the array was made of, where
    it is known, tells it from others that begin and end as it does.
    """

    def __init__(self, array: TokenArray, uncut: int = UNCUT, checksum: int = 0):
        self.name = array.path
        self._starts, self._ends, self._closed = _pieces(array, _longest_piece(array, uncut))
        columns = {name: getattr(array, name) for name in ("tokens", *COLUMNS)}
        self._columns = {n: np.asarray(x) for n, x in columns.items() if x is not None}
        whole, rest = divmod(len(self._starts), BLOCK)
        self.counts = np.asarray([BLOCK] * whole + [rest] * (rest > 0), np.int64)
        self.tokens = array.size
        self.fingerprint = _fingerprint(array, len(self._starts), checksum)

    def load(self, blocks: np.ndarray) -> Loaded:
        records = (blocks[:, None] * BLOCK + np.arange(BLOCK)).ravel()
        records = records[records < len(self._starts)]
        pieces = (self._starts[records], self._ends[records], self._closed[records])
        return Loaded(
            [self._columns], np.zeros(len(records), np.int64), *pieces, records.nbytes * 4
        )


def heldout_documents(
    array: TokenArray, n: int, longest: int = LONGEST_HELDOUT_PIECE
) -> list[Piece]:
    """Returns held-out documents in a fixed shuffled order, of `n` tokens or all.

    Those of more than `longest` tokens are cut into pieces.
    """
    starts, ends, closed = _pieces(array, longest)
    bits = np.random.Philox(np.random.SeedSequence(0)).random_raw(len(starts))
    documents, held = [], 0
    for i in np.argsort(bits, kind="stable"):
        if held >= n:
            break
        documents.append(array.piece(starts[i], ends[i], closed[i]))
        held += len(documents[-1].tokens)
    return documents


def split_heldout(array: TokenArray, *, every: int = 20) -> tuple[TokenArray, TokenArray]:
    """Returns (training, held-out) parts of `array`: one document in `every` is held out.

    With fewer documents than that, the last of `every` equal parts of the tokens is held out, and a
    document may be cut in two. Nothing is copied, and the split is deterministic.

    Raises ValueError for `every` below 2, and for an array of one token.
    """
    if every < 2:
        raise ValueError(f"heldout_every must be at least 2, got {every}.")
    if array.documents >= every:
        held = np.arange(array.documents) % every == every - 1
        training, heldout = (
            dataclasses.replace(
                array, starts=array.starts[some], ends=array.ends[some], closed=array.closed[some]
            )
            for some in (~held, held)
        )
        return training, heldout
    if array.size < 2:
        raise ValueError(
            f"{array.path}: got {array.size} token, expected at least 2, to hold some out."
        )
    kept = max(1, int(array.size * (1 - 1 / every)))
    lengths = array.ends - array.starts
    before = np.cumsum(lengths) - lengths  # tokens in earlier documents
    cut = array.starts + np.clip(kept - before, 0, lengths)  # where each document is cut
    first, second = cut > array.starts, cut < array.ends
    return (
        dataclasses.replace(
            array,
            starts=array.starts[first],
            ends=cut[first],
            closed=(array.closed & ~second)[first],
        ),
        dataclasses.replace(
            array, starts=cut[second], ends=array.ends[second], closed=array.closed[second]
        ),
    )


def _longest_piece(array: TokenArray, uncut: int) -> int:
    """Returns the tokens of the longest piece, see `ArrayRecords`."""
    longest = max(LONGEST_PIECE, uncut)
    while np.sum(-(-(array.ends - array.starts) // longest)) < PIECES and longest >= 2 * uncut:
        longest //= 2
    return longest


def _pieces(array: TokenArray, longest: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns starts and ends of the documents, those longer than `longest` cut into equal pieces,
    and whether each piece ends its document.
    """
    starts, ends, closed = (np.asarray(x) for x in (array.starts, array.ends, array.closed))
    counts = -(-(ends - starts) // longest)
    if (counts == 1).all():
        return starts, ends, closed
    document = np.repeat(np.arange(len(counts)), counts)
    piece = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
    length, start, parts = (ends - starts)[document], starts[document], counts[document]
    return (
        start + length * piece // parts,
        start + length * (piece + 1) // parts,
        closed[document] & (piece == parts - 1),
    )


def _fingerprint(array: TokenArray, pieces: int, checksum: int) -> int:
    """Returns a fingerprint of an array: of its shape and of the ends of its tokens."""
    tokens = array.tokens
    ends = np.concatenate([tokens[:4096], tokens[-4096:]]).astype(np.int32)
    numbers = np.asarray([len(tokens), array.documents, pieces], np.int64)
    return zlib.crc32(ends.tobytes() + numbers.tobytes(), checksum)
