"""Cuts and splits documents in memory: a run's text, small stores, or other programs' files."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from .records import MAX_RECORD_TOKENS, DocumentArrays

# Number of tokens up to which documents are never cut. Longer held-out documents are always cut.
UNCUT = 2048
# Number of pieces to aim for. With fewer pieces, rows of one step would come from one document.
PIECES = 256


def training_documents(
    documents: DocumentArrays, uncut: int = UNCUT, checksum: int = 0
) -> DocumentArrays:
    """Returns training documents cut into pieces of at most 16,384 tokens.

    If there would be fewer than `PIECES` pieces (for example, of a single file), the pieces are
    made shorter. Documents of at most `uncut` tokens stay whole.
    """
    longest = max(MAX_RECORD_TOKENS, uncut)
    lengths = documents.stops - documents.starts
    while np.sum(-(-lengths // longest)) < PIECES and longest >= 2 * uncut:
        longest //= 2
    return dataclasses.replace(_cut(documents, longest), checksum=checksum)


def heldout_documents(documents: DocumentArrays, longest: int = UNCUT) -> DocumentArrays:
    """Returns held-out documents as one block of pieces with at most `longest` tokens.

    The pieces are short, so that even a few tokens come from many documents.
    """
    cut = _cut(documents, longest)
    return dataclasses.replace(cut, block_sizes=np.array([len(cut)]))


def document_count(documents: DocumentArrays) -> int:
    """Returns the number of documents. A document may have several pieces."""
    return int(_document_numbers(documents)[-1]) + 1 if len(documents) else 0


def split_heldout(
    documents: DocumentArrays, *, every: int = 20, overlapping: int = 0, shared: int = 0
) -> tuple[DocumentArrays, DocumentArrays]:
    """Splits documents into training documents and held-out documents: one in `every` is held out.

    All pieces of a document are in the same split. With fewer documents than `every`, the
    held-out documents are chosen by size (`choose_held_out`). A single document is cut: the last of
    `every` equal parts of its tokens is held out. The columns are not copied.

    Args:
      every: one document in this number is held out.
      overlapping: number of pieces after a piece that repeat some of its tokens. A single document
        is then cut between two pieces, and this number of pieces at the cut is in neither split.
      shared: number of tokens after a token that repeat some of its text, as overlapping k-mers do.
        If a single document is cut within a piece, this number of tokens is in neither split.

    Raises ValueError for `every` below 2, for documents of one token, and for a single document
    with too few pieces that overlap or too few tokens that share text.
    """
    if every < 2:
        raise ValueError(f"heldout_every must be at least 2, got {every}.")
    if documents.tokens < 2:
        raise ValueError(
            f"{documents.name}: got {documents.tokens} tokens, expected at least 2, because some "
            "are held out: give more text."
        )
    numbers = _document_numbers(documents)
    if numbers[-1] == 0:
        if overlapping:
            return _cut_between_pieces(documents, every, overlapping)
        return _cut_in_two(documents, every, shared)
    held = choose_held_out(np.bincount(numbers, documents.stops - documents.starts), every)[numbers]
    return documents.take(~held), documents.take(held)


def split_heldout_of_files(
    files: Sequence[DocumentArrays], *, every: int = 20
) -> tuple[list[DocumentArrays], list[DocumentArrays]]:
    """Returns the (training, held-out) documents of several files.

    Each file with several documents is split by `split_heldout`. A file with one document is cut
    only if it is the only file. If all files have one document, whole files are held out.

    Raises ValueError as `split_heldout`.
    """
    if len(files) == 1:
        train, heldout = split_heldout(files[0], every=every)
        return [train], [heldout]
    single = np.array([document_count(file) == 1 for file in files])
    held = np.zeros(len(files), bool)
    if single.all():
        held = choose_held_out(np.array([file.tokens for file in files]), every)
    trained = []
    held_out = []
    for i, file in enumerate(files):
        if not single[i]:
            train, heldout = split_heldout(file, every=every)
            trained.append(train)
            held_out.append(heldout)
        elif held[i]:
            held_out.append(file)
        else:
            trained.append(file)
    return trained, held_out


def _document_numbers(documents: DocumentArrays) -> np.ndarray:
    """Returns the number of each piece's document, int64[pieces], from 0."""
    return np.cumsum(np.append(False, documents.ends_document[:-1]))


def choose_held_out(sizes: np.ndarray, every: int) -> np.ndarray:
    """Returns which of two or more documents with these sizes are held out, bool[documents].

    One document in `every` is held out. With fewer documents than `every`, they are tried from the
    last to the first, and held out if that brings the held-out tokens closer to their share of the
    text. If none does, the last of the smallest documents is held out.

    >>> choose_held_out(np.array([50, 3, 60, 2]), 20)    # The share is 5.75 of 115 tokens.
    array([False,  True, False,  True])
    """
    if len(sizes) >= every:
        return np.arange(len(sizes)) % every == every - 1
    held = np.zeros(len(sizes), bool)
    left = sizes.sum() / every
    for i in reversed(range(len(sizes))):
        if abs(left - sizes[i]) < abs(left):
            held[i] = True
            left -= sizes[i]
    if not held.any():
        held[len(sizes) - 1 - np.argmin(sizes[::-1])] = True
    return held


def _cut_in_two(
    documents: DocumentArrays, every: int, shared: int
) -> tuple[DocumentArrays, DocumentArrays]:
    """Cuts documents before the last of `every` equal parts of their tokens.

    The first part lacks the `shared` tokens before a cut within a piece.
    """
    train_tokens = max(1, int(documents.tokens * (1 - 1 / every)))
    starts = documents.starts
    stops = documents.stops
    ends_document = documents.ends_document
    before = np.cumsum(stops - starts) - (stops - starts)  # tokens in earlier pieces
    cut = starts + np.clip(train_tokens - before, 0, stops - starts)  # where each piece is cut
    second = cut < stops
    trained_stops = np.where(second, np.maximum(cut - shared, starts), cut)
    first = trained_stops > starts
    if not first.any():
        raise ValueError(
            f"{documents.name}: got one document of {documents.tokens} tokens, each of which "
            f"shares text with the next {shared}, expected more tokens, so that training and "
            "held-out tokens share no text: give more text, or choose the held-out text yourself."
        )
    train = dataclasses.replace(
        documents, stops=trained_stops, ends_document=ends_document & ~second
    )
    return (
        train.take(first),
        dataclasses.replace(documents, starts=cut).take(second),
    )


def _cut_between_pieces(
    documents: DocumentArrays, every: int, overlapping: int
) -> tuple[DocumentArrays, DocumentArrays]:
    """Returns the first and the last pieces, without the pieces between them that overlap both."""
    pieces = len(documents)
    held_out = max(1, pieces // every)
    train_pieces = pieces - held_out - overlapping
    if train_pieces < 1:
        raise ValueError(
            f"{documents.name}: got one document of {pieces} pieces, each of which overlaps the "
            f"next {overlapping}, expected at least {overlapping + 2}, so that training and "
            "held-out pieces share no text: choose a smaller overlap, give more text, or choose "
            "the held-out text yourself."
        )
    numbers = np.arange(pieces)
    return documents.take(numbers[:train_pieces]), documents.take(numbers[-held_out:])


def joined(documents: DocumentArrays) -> DocumentArrays:
    """Joins the consecutive pieces of each document. The columns are copied."""
    columns = {
        name: np.concatenate([each[name] for each in documents.columns])
        for name in documents.columns[0]
    }
    first = np.append(True, documents.ends_document[:-1])
    last = np.append(first[1:], True)
    stops = np.cumsum(documents.stops - documents.starts)
    starts = np.append(0, stops[:-1])[first]
    chunk = np.zeros(len(starts), np.int64)
    return DocumentArrays(
        name=documents.name,
        columns=[columns],
        chunk=chunk,
        starts=starts,
        stops=stops[last],
        ends_document=documents.ends_document[last],
    )


def text_size(documents: int, tokens: int) -> str:
    """Returns the size of a text for a message, such as "1 document, 2,345 tokens"."""
    return f"{documents:,} document{'' if documents == 1 else 's'}, {tokens:,} tokens"


def _cut(documents: DocumentArrays, longest: int) -> DocumentArrays:
    """Cuts documents of more than `longest` tokens into pieces of equal length."""
    counts = -(-(documents.stops - documents.starts) // longest)
    if (counts == 1).all():
        return documents
    whole = documents.take(np.repeat(np.arange(len(counts)), counts))
    piece = np.arange(len(whole)) - np.repeat(np.cumsum(counts) - counts, counts)
    length = whole.stops - whole.starts
    pieces = np.repeat(counts, counts)
    return dataclasses.replace(
        whole,
        starts=whole.starts + length * piece // pieces,
        stops=whole.starts + length * (piece + 1) // pieces,
        ends_document=whole.ends_document & (piece == pieces - 1),
    )
