"""The text of a corpus as token arrays in the run directory, tokenised once."""

import dataclasses
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from ...data.corpus import Corpus, Piece
from ...data.token_array_files import TokenArray, open_token_array, write_token_array
from ...data.token_arrays import array_corpus
from ...training.run_directory import DATA, is_run
from ..progress_bar import progress_bar
from ..vocabularies import Vocabulary
from ..vocabularies.tokenization import Tokenizer, batches
from .text_readers import TextPart


class EmptyText(ValueError):
    """A split without any token."""


class LeftOut(Protocol):
    """Counts of what reading and tokenising leave out."""

    def describe(self) -> str:
        """The counts in words; "" for nothing."""


def encode_documents(
    tokenizer: Tokenizer, documents: Iterable[TextPart], left_out: LeftOut
) -> Iterator[Piece]:
    """The token ids of each text."""
    del left_out
    for batch in batches(documents, lambda part: len(part.text)):
        tokens = tokenizer.encode_batch([part.text for part in batch])
        yield from map(Piece, tokens, [part.ends for part in batch])


class SplitText(NamedTuple):
    """The text of one split, and how it becomes documents of token ids."""

    read: Callable[[Callable[[int], None]], Iterable]  # read(advance) -> what `encode` takes
    total: int  # how far `advance` goes
    version: Sequence[Any]  # plain values, of which one changes when the text or its reading does
    left_out: LeftOut
    # (tokenizer, what was read, left_out) -> documents, in batches, on all cores
    encode: Callable[[Tokenizer, Iterable, Any], Iterator[Piece]] = encode_documents


def tokenised(run_dir: str, name: str, text: SplitText, vocabulary: Vocabulary) -> TokenArray:
    """The token array `data/NAME` of a run: written on first use, and when text or vocabulary changed.

    A run that has a checkpoint keeps its tokens, whatever became of the text.

    Raises:
        EmptyText: no token in the text.
    """
    path = os.path.join(run_dir, DATA, name)
    version = [*text.version, sorted(vocabulary.about.items())]
    source = hashlib.sha256(repr(version).encode()).hexdigest()[:16]
    if os.path.isdir(path):
        kept = open_token_array(path)
        if kept.about.get("source") == source and kept.ids == vocabulary.ids:
            return kept
        if kept.ids == vocabulary.ids and has_checkpoint(run_dir):
            return dataclasses.replace(kept, about=kept.about | {"text": "gone or changed"})

    def left_out(empty: int) -> str:
        parts = [text.left_out.describe(), f"{empty:,} empty documents" if empty else ""]
        return ", ".join(filter(None, parts))

    with progress_bar(f"Tokenising ({name})", text.total) as advance:
        written = write_token_array(
            path,
            text.encode(vocabulary.tokenizer, text.read(advance), text.left_out),
            vocabulary.ids,
            about=lambda empty: {"source": source, "left_out": left_out(empty)},
        )
    if not written.documents:
        raise EmptyText(
            f"Got no token of text ({name}; left out: {left_out(written.empty) or 'nothing'}): give "
            "files that hold text."
        )
    return open_token_array(path)


def has_checkpoint(run_dir: str) -> bool:
    """Whether a directory holds a run that has saved a checkpoint."""
    from ...training.saved import resuming

    return is_run(run_dir) and resuming.has_checkpoint(run_dir)


def corpus_of(
    what: str,
    arrays: dict[str, TokenArray],
    vocabulary: Vocabulary,
    *,
    held_out: str,
    seed: int,
    longest: int | None = None,
) -> Corpus:
    """The `Corpus` of the arrays "train" and "heldout", with a summary for people.

    Args:
        what: the text, in words.
        arrays: of one vocabulary.
        vocabulary: the run's.
        held_out: how the held-out text was chosen, in words.
        seed: of the order of the documents.
        longest: as in `Corpus`.
    """
    train, heldout = arrays["train"], arrays["heldout"]
    note = ""
    if "text" in train.about:
        note = (
            f". That text is {train.about['text']}: these are the tokens that the run has kept; "
            "other text needs a run directory of its own"
        )
    left_out = dict.fromkeys(array.about["left_out"] for array in (train, heldout))
    return array_corpus(
        train,
        heldout,
        seed=seed,
        codec=vocabulary.codec,
        longest=longest,
        summary=(
            f"{what}: {_counts(train)} to train on; {_counts(heldout)} held out ({held_out}); "
            f"left out: {'; '.join(filter(None, left_out)) or 'nothing'}{note}"
        ),
    )


def _counts(array: TokenArray) -> str:
    return f"{array.documents:,} documents, {array.size:,} tokens"
