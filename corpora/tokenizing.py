"""Tokenizes the text of a corpus once, into a token store in the run directory."""

import functools
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..data.corpus import Corpus, Document
from ..data.documents import UNCUT, document_count, heldout_documents, text_size, training_documents
from ..data.finding import versions_of
from ..data.reading import RawDocument
from ..data.records import DocumentArrays, RecordStream, Shuffled, first_tokens
from ..data.token_store import HELDOUT, TRAIN, TokenStore, open_store
from ..data.token_store_files import is_sealed, write_store
from ..settings.progress_bar import progress_bar
from ..settings.run_directory import DATA
from ..settings.saved_states import has_checkpoint
from .text_readers import LeftOut
from .vocabularies import Vocabulary
from .vocabularies.tokenization import Tokenizer, batches


def encode_documents(
    tokenizer: Tokenizer, documents: Iterable[RawDocument], _left_out: LeftOut
) -> Iterator[Document]:
    """Yields the token ids of each text as a document."""
    for batch in batches(documents, lambda part: len(part.text)):
        tokens = tokenizer.encode_batch([part.text for part in batch])
        yield from map(Document, tokens, [part.ends_document for part in batch])


class SplitText(NamedTuple):
    """The text of one split, and how it is read and tokenized.

    Reading and tokenizing count in `left_out` what they leave out.
    """

    # read(advance, left_out) returns what `encode` takes.
    read: Callable[[Callable[[int], None], LeftOut], Iterable]
    total: int  # The sum of all numbers passed to `advance`
    version: Sequence[Any]  # Plain values; one of them changes if the text or its reading changes
    # encode(tokenizer, text, left_out) yields the documents of what `read` returned.
    encode: Callable[[Tokenizer, Iterable, LeftOut], Iterator[Document]] = encode_documents


def text_of_files(
    read: Callable, paths: Sequence[str], settings: Sequence[Any], encode: Callable
) -> SplitText:
    """Returns the text of files, whose version includes the `settings` with which it is read."""
    versions = versions_of(paths)
    return SplitText(read, sum(size for _, size, _ in versions), [*settings, *versions], encode)


class Tokenized(NamedTuple):
    """The tokenized text of a run."""

    store: TokenStore  # the token store in the run directory
    documents: dict[str, DocumentArrays]  # the documents of "train", and of "heldout" if known
    outdated: bool  # whether the text is missing or has changed since it was tokenized


def tokenized(run_dir: str, texts: Mapping[str, SplitText], vocabulary: Vocabulary) -> Tokenized:
    """Returns the texts of the splits, tokenized, from the token store `data` of the run directory.

    The store is written on first use, and again if a text or the vocabulary has changed. A run that
    has a checkpoint keeps its tokens even if the text has changed.

    Raises ValueError for a text without any token.
    """
    versions = [(split, *text.version) for split, text in texts.items()]
    identity = repr([*versions, *sorted(vocabulary.about.items())])
    source = hashlib.sha256(identity.encode()).hexdigest()[:16]
    store = kept_store(run_dir)
    outdated = store is None or store.about["source"] != source
    if store is None or store.ids != vocabulary.ids or outdated and not has_checkpoint(run_dir):
        notes: list[str] = []
        pieces = {split: _pieces(split, texts[split], vocabulary, notes) for split in texts}
        write_store(
            os.path.join(run_dir, DATA),
            pieces[TRAIN],
            vocabulary.ids,
            heldout=pieces.get(HELDOUT),
            longest=None,
            about=lambda: {"source": source, "left_out": notes},
        )
        store = open_store(os.path.join(run_dir, DATA))
        outdated = False
    documents = {split: store.documents(split) for split in store.splits}
    return Tokenized(store, documents, outdated)


def _pieces(
    split: str, text: SplitText, vocabulary: Vocabulary, notes: list[str]
) -> Iterator[Document]:
    """Yields the documents of a text, and then appends a note of what is left out."""
    left_out = LeftOut()
    tokens = empty = unknown = 0
    with progress_bar(f"Tokenizing ({split})", text.total) as advance:
        for piece in text.encode(vocabulary.tokenizer, text.read(advance, left_out), left_out):
            yield piece
            tokens += piece.tokens.size
            empty += not piece.tokens.size
            unknown += int(np.count_nonzero(piece.tokens == vocabulary.tokenizer.unknown))
    left_out["empty documents"] += empty
    left_out["tokens of text unknown to the vocabulary"] += unknown
    notes.append(left_out.describe())
    if not tokens:
        change = "give files that have text"
        if split == HELDOUT:
            change += ", or hold out more of the texts (a smaller heldout_every, or heldout_files)"
        raise ValueError(
            f"Got no token of text ({split}; left out: {notes[-1] or 'nothing'}): {change}."
        )


def kept_store(run_dir: str) -> TokenStore | None:
    """Returns the token store in a run directory, or None if there is none."""
    path = os.path.join(run_dir, DATA)
    return open_store(path) if is_sealed(path) else None


def corpus_of(
    what: str,
    tokens: Tokenized,
    vocabulary: Vocabulary,
    *,
    held_out: str,
    seed: int,
    longest: int | None = None,
) -> Corpus:
    """Returns the `Corpus` of tokenized text.

    Args:
        what: description of the text, for the summary.
        held_out: description of the held-out text, for the summary.
        longest: largest number of tokens of a document that must not be cut, or None for text that
            may be cut.
    """
    train = tokens.documents[TRAIN]
    heldout = tokens.documents[HELDOUT]
    note = ""
    if tokens.outdated:
        note = (
            ". That text is missing or has changed, so the run continues with its stored tokens. "
            "To train on other text, start a new run directory"
        )
    left_out = dict.fromkeys(filter(None, tokens.store.about["left_out"]))

    @functools.cache
    def order() -> Shuffled:
        return Shuffled(training_documents(train, longest or UNCUT), seed)

    return Corpus(
        ids=vocabulary.ids,
        open_shard=lambda shard, num_shards: RecordStream(order(), shard, num_shards),
        heldout=lambda n: first_tokens([heldout_documents(heldout, longest or UNCUT)], n),
        codec=vocabulary.codec,
        longest=longest,
        columns=tokens.store.columns,
        summary=(
            f"{what}: {_counts(train)} to train on; {_counts(heldout)} held out ({held_out}); "
            f"left out: {'; '.join(left_out) or 'nothing'}{note}"
        ),
    )


def _counts(documents: DocumentArrays) -> str:
    return text_size(document_count(documents), documents.tokens)
