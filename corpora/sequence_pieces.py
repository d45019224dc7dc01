"""Cuts the records of sequence files into pieces without gaps, and turns pieces around."""

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from ..data.corpus import Document
from ..data.reading import Bad, RawDocument, malformed
from .alphabets import ALPHABETS, Alphabet
from .text_readers import LeftOut
from .vocabularies.letters import OVERLAPPING
from .vocabularies.tokenization import Tokenizer, located
from .weighted_texts import WeightedText, token_means

MAX_LETTERS = 1 << 17  # Largest number of letters of a piece without a window
_CLEAR = 60  # Number of letters of DNA in a row that proteins never begin with


def pieces(
    records: Iterable[RawDocument],
    alphabet: Alphabet,
    left_out: LeftOut,
    *,
    window: int | None = None,
    overlap: int = 0,
    lowercase_weight: float = 1.0,
) -> Iterator[RawDocument]:
    """Yields the letters of each record, in uppercase, between its gaps.

    A record `aCGNNNTT` has the pieces `ACG` and `TT`. Only the last piece of a record ends its
    document. The text of a piece is a `WeightedText` if `lowercase_weight` is not 1.

    Args:
      records: the records of files in FASTA or FASTQ. A long record is in several parts.
      left_out: counts the records without letters.
      window: largest number of letters of a piece.
      overlap: number of letters that a window shares with the window before it, less than `window`.
      lowercase_weight: weight of lowercase letters; uppercase letters have a weight of 1.

    Raises MalformedLine for a letter that is not in the alphabet, and for DNA or RNA that is read
    as proteins.
    """
    if alphabet == ALPHABETS["protein"]:
        records = _without_nucleotides(records)
    table = alphabet.table.tobytes()
    gap = (alphabet.gap or "\0").encode()
    runs = re.compile(b"(?s)[^" + re.escape(gap) + b"]+")
    rest = b""  # the letters of a run that continues in the next part
    shared = 0  # number of letters of `rest` that the last window has, too
    before = 0  # number of letters in earlier parts of the record
    waiting: Any = None  # the text of the last piece, which may end the document
    for record in records:
        part = record.text.encode("ascii")
        cased = rest + part
        letters = cased.translate(table)
        check_letters(record, part, letters[len(rest) :], before, alphabet)
        before += len(part)
        rest = b""
        spans_of_runs: Iterable[tuple[int, int]] = [(0, len(letters))]
        if gap in letters:
            spans_of_runs = (run.span() for run in runs.finditer(letters))
        for start, end in spans_of_runs:
            ended = record.ends_document or end < len(letters)
            shared = 0 if start else shared
            spans, start, shared = _windows(
                start, end, ended, window or MAX_LETTERS, overlap, shared
            )
            for first, last in spans:
                if waiting is not None:
                    yield _piece(record, waiting, ends_document=False)
                text: Any = letters[first:last].decode("ascii")
                if lowercase_weight != 1:
                    text = WeightedText(text, _weights(cased[first:last], lowercase_weight))
                waiting = text
            if not ended:
                rest = cased[start:]
        shared = shared if rest else 0
        if record.ends_document:
            if waiting is None:
                left_out["records without known letters"] += 1
            else:
                yield _piece(record, waiting, ends_document=True)
            waiting = None
            before = 0


def _piece(record: RawDocument, text: Any, *, ends_document: bool) -> RawDocument:
    # Files of proteins have many short records, for which `_replace` is slow.
    return RawDocument(text, record.path, record.at, record.line, record.fields, ends_document)


def _windows(
    start: int, end: int, ended: bool, window: int, overlap: int, shared: int
) -> tuple[list[tuple[int, int]], int, int]:
    """Returns the windows of a run, the start of the next window, and how much of it is read.

    The first `shared` letters of the run were in an earlier window. The last window of a run that
    has `ended` may be shorter.

    >>> _windows(0, 10, True, window=4, overlap=1, shared=0)
    ([(0, 4), (3, 7), (6, 10)], 9, 1)
    """
    step = window - overlap
    count = max(0, (end - start - overlap) // step)
    spans = [(first, first + window) for first in range(start, start + count * step, step)]
    following = start + count * step
    shared = overlap if count else shared
    if ended and end - following > shared:
        spans.append((following, end))
    return spans, following, shared


def overlapping_windows(window: int | None, overlap: int) -> int:
    """Returns the number of windows after a window that share letters with it.

    >>> overlapping_windows(10, overlap=0), overlapping_windows(10, overlap=4)
    (0, 1)
    >>> overlapping_windows(10, overlap=5), overlapping_windows(10, overlap=6)
    (1, 2)
    """
    return (window - 1) // (window - overlap) if window else 0


def shared_letters(tokenizer: Tokenizer, alphabet: Alphabet) -> int:
    """Returns the number of letters that a token shares with the next: k - 1 of overlapping k-mers.

    It is also the number of tokens after a token that have some of its letters.
    """
    if tokenizer.kind != OVERLAPPING:
        return 0
    text = alphabet.known[0] * 64  # more letters than any k
    (ids,) = tokenizer.encode_batch([text])
    return len(text) - len(ids)


def _weights(letters: bytes, lowercase_weight: float) -> np.ndarray:
    is_lowercase = np.frombuffer(letters, np.uint8) >= ord("a")
    return np.where(is_lowercase, np.float32(lowercase_weight), np.float32(1))


def check_letters(
    record: RawDocument, part: bytes, letters: bytes, before: int, alphabet: Alphabet
) -> None:
    """Raises MalformedLine for a part of a record, read as `letters`, of another alphabet."""
    position = letters.find(0)
    if position < 0:
        return
    kinds = [kind for kind, one in ALPHABETS.items() if 0 not in one.table[list(part)]]
    change = _other_alphabet(kinds[0]) if kinds else "Fix it."
    known = "".join(dict.fromkeys(alphabet.letters + alphabet.read_as[0] + alphabet.gap))
    place = f"at position {before + position + 1:,}"
    reason = f"has {chr(part[position])!r} {place}, expected one of {known}"
    raise _malformed(record, reason, change)


def _without_nucleotides(records: Iterable[RawDocument]) -> Iterator[RawDocument]:
    """Yields the records. Raises MalformedLine for a file of DNA or RNA instead of proteins."""
    for _, records_of_file in itertools.groupby(records, key=lambda record: record.path):
        yield from _without_nucleotides_in_file(records_of_file)


def _without_nucleotides_in_file(records: Iterable[RawDocument]) -> Iterator[RawDocument]:
    """Yields the records of a file, as `_without_nucleotides` does.

    All letters of DNA are also amino acids, so one short record proves nothing. The first letters
    of consecutive records are therefore taken together, until a record begins with other letters.
    They are rejected once there are `_CLEAR` letters, or if the whole file has no other letters.
    """
    found = ""
    has_proteins = False
    begins = True
    record = None
    for record in records:
        start = record.text[:_CLEAR].upper() if begins else ""
        if start.strip("ACGTUN"):
            found = ""
            has_proteins = True
        elif begins:
            # Chromosomes may begin with a long run of N.
            start = start if start.strip("N") else record.text.upper().lstrip("N")[:_CLEAR]
            found += start.replace("N", "")
            if len(found) >= _CLEAR:
                _check_not_nucleotides(record, found)
        begins = record.ends_document
        yield record
    if record is not None and not has_proteins:
        _check_not_nucleotides(record, found)


def _check_not_nucleotides(record: RawDocument, found: str) -> None:
    """Raises MalformedLine if the letters of the records up to this record are DNA or RNA."""
    for kind, letters in (("dna", "ACGT"), ("rna", "ACGU")):
        if {*found} == {*letters}:
            reason = f"and the records before it have {len(found)} letters, all of {kind.upper()} "
            reason += f"({', '.join(letters)}), expected proteins"
            raise _malformed(record, reason, _other_alphabet(kind))


def _other_alphabet(kind: str) -> str:
    return (
        f"It may be {kind}: choose another run, or set the alphabet of the sequences and of their "
        f"vocabulary to {kind!r}."
    )


def _malformed(record: RawDocument, reason: str, change: str) -> Exception:
    bad = Bad(record.place, "malformed", f"record {record.fields['id']!r} {reason}")
    return malformed(bad, change)


def other_strand(tokenizer: Tokenizer, alphabet: Alphabet, document: Document) -> Document:
    """Returns the reverse complement of a document, with the weights of its letters.

    Source: Shrikumar et al. 2017, "Reverse-complement parameter sharing improves deep learning
    models for genomics", for training on both strands.
    """
    text = tokenizer.decode(document.tokens.tolist()).replace(" ", "")
    complements = str.maketrans(alphabet.letters, alphabet.complements)
    other = text.translate(complements)[::-1]
    weights = document.weights
    if weights is None or tokenizer.kind == OVERLAPPING:
        (tokens,) = tokenizer.encode_batch([other])
        # An overlapping k-mer has the letters of a k-mer of the other strand.
        return document._replace(tokens=tokens, weights=None if weights is None else weights[::-1])
    tokens, spans = located(tokenizer, other)
    distinct, numbers = np.unique(document.tokens, return_inverse=True)
    lengths = np.array([len(tokenizer.piece(i)) for i in distinct.tolist()])
    weights = np.repeat(weights, lengths[numbers])
    return document._replace(tokens=tokens, weights=token_means(weights[::-1], spans))
