"""The corpus of text files, and the functions that all corpora of files share."""

import functools
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from ..constraints import AtLeastTwo, checked
from ..data.corpus import Corpus, Document
from ..data.documents import document_count, split_heldout
from ..data.finding import find_files, versions_of
from ..data.reading import DocumentOf, has_fields
from ..data.token_store import HELDOUT, TRAIN
from ..settings.saved_states import has_checkpoint
from .text_readers import read_documents
from .tokenizing import (
    Tokenized,
    corpus_of,
    encode_documents,
    kept_store,
    text_of_files,
    tokenized,
)
from .vocabularies import Factory, Vocabulary, VocabularySource
from .vocabularies.training_sample import MAX_SAMPLE_CHARACTERS, first_texts
from .weighted_texts import encode_weighted, weighted_text_of

OnMalformed = Literal["error", "skip"]


@checked
def text_files(
    run_dir: str,
    *,
    files: str | Sequence[str],
    vocabulary: Factory,
    heldout_files: str | Sequence[str] | None = None,
    text_field: str = "text",
    weights_field: str | None = None,
    on_malformed: OnMalformed = "error",
    heldout_every: AtLeastTwo = 20,
    seed: int = 0,
) -> Corpus:
    """Text files of any size: plain text, JSONL, Parquet, Arrow, WARC or WET, also as .gz or .zst.

        training.Run.corpus = @corpora.text_files
        corpora.text_files.files = "texts/*.txt, more/*.jsonl.gz"

    A document is a plain-text file, a JSONL line, a row of a table or a web page. Plain-text files
    of more than 128 kB are read in parts that end at line ends. The parts are shuffled like
    documents, but all parts of a file are in the same split. The text is tokenized once, and the
    tokens are stored in the run directory.

    Args:
        files: paths, glob patterns or bucket URLs ("gs://…"), as a list or separated by commas.
        heldout_files: paths or patterns of the held-out text, instead of `heldout_every`.
        text_field: the field of a JSONL line, or the column of a table, that has the text.
        weights_field: the field or column that says how much the loss on the text counts, or None.
            Its value is a number for the whole text, or ranges [start, end, weight] of characters
            (`weighted_texts.weighted_text_of`). A token has the mean weight of its characters.
        on_malformed: "error" to stop at a malformed line, or "skip" to skip and count such lines.
        heldout_every: one document in `heldout_every` is held out. Fewer documents are tried from
            the last, and held out if that brings the held-out tokens closer to this share. A single
            document is cut: 10 holds out its last tenth.

    Raises ValueError for invalid settings or text (`data.reading.MalformedLine` for a line),
    FileNotFoundError for a pattern without files, and OSError for a file that cannot be opened.
    """
    paths = found_files(run_dir, files, heldout_files)
    split = FileSplit(paths, heldout_every, text_field, on_malformed)
    vocab = vocabulary(run_dir, vocabulary_source(split))
    if weights_field is None:
        tokens = tokenized_files(run_dir, split, vocab)
    else:
        tokens = _tokenized_with_weights(run_dir, split, vocab, text_field, weights_field)
    tokens, held_out = with_heldout(tokens, split)
    what = f"Text of {counted(paths[TRAIN])}"
    corpus = corpus_of(what, tokens, vocab, held_out=held_out, seed=seed)
    warning = "" if heldout_files else skew_warning(tokens, heldout_every)
    return corpus._replace(summary=corpus.summary + warning)


def _tokenized_with_weights(
    run_dir: str, split: "FileSplit", vocabulary: Vocabulary, text_field: str, weights_field: str
) -> Tokenized:
    for path in itertools.chain.from_iterable(split.paths.values()):
        if not has_fields(path):
            raise ValueError(
                f"{path} has no fields, expected JSONL, Parquet or Arrow with a field "
                f"{weights_field!r}: write each text as a line or a row, or leave out "
                "corpora.text_files.weights_field."
            )
    weighted = split._replace(document_of=weighted_text_of(text_field, weights_field))
    settings = [text_field, weights_field]
    return tokenized_files(run_dir, weighted, vocabulary, encode=encode_weighted, settings=settings)


class FileSplit(NamedTuple):
    """The files of a corpus, and how their documents are read and held out."""

    paths: dict[str, list[str]]  # the files of "train", and of "heldout" if there are any
    heldout_every: int  # Without held-out files, one document in this number is held out.
    document_of: str | DocumentOf  # the argument of `read_documents`
    on_malformed: OnMalformed

    @property
    def reading(self) -> tuple[str, OnMalformed]:
        """The name of the field or function that gives a document, and `on_malformed`."""
        of = self.document_of
        return of if isinstance(of, str) else of.__name__, self.on_malformed


def found_files(
    run_dir: str, files: str | Sequence[str], heldout_files: str | Sequence[str] | None
) -> dict[str, list[str]]:
    """Returns the files of "train", and of "heldout" if `heldout_files` is given.

    If files are missing, but the run has a checkpoint, the lists are empty, since the run has
    stored the tokens.

    Raises ValueError for a file in both lists, and FileNotFoundError for a pattern that matches
    nothing.
    """
    patterns = {TRAIN: files} | ({} if heldout_files is None else {HELDOUT: heldout_files})
    try:
        paths = {name: sorted(find_files(given)) for name, given in patterns.items()}
    except FileNotFoundError:
        if not has_checkpoint(run_dir) or kept_store(run_dir) is None:
            raise
        paths = {name: [] for name in patterns}
    training = set(map(os.path.realpath, paths[TRAIN]))
    for path in paths.get(HELDOUT, ()):
        if os.path.realpath(path) in training:
            raise ValueError(
                f"{path} is in both `files` and `heldout_files`: remove it from one of them."
            )
    return paths


def vocabulary_source(split: FileSplit, text_of: Callable[[Any], str] = str) -> VocabularySource:
    """Returns a bounded amount of training text for a vocabulary.

    `text_of` makes a text of a document that is not a text, such as the turns of a dialogue.
    """
    paths = split.paths[TRAIN]

    def sample() -> Iterator[str]:
        for path in paths:  # each file has the same limit
            documents = read_documents([path], split.document_of, on_malformed=split.on_malformed)
            texts = (text_of(document.text) for document in documents)
            yield from first_texts(texts, max(MAX_SAMPLE_CHARACTERS // len(paths), 1))

    return VocabularySource(texts=sample, version=[*split.reading, *versions_of(paths)])


def tokenized_files(
    run_dir: str,
    split: FileSplit,
    vocabulary: Vocabulary,
    *,
    encode: Callable[..., Iterator[Document]] = encode_documents,
    settings: Sequence[Any] = (),
) -> Tokenized:
    """Returns the tokenized text of the files.

    `encode` is as in `SplitText`. If one of its `settings` changes, the text is tokenized again.
    """
    reading = (*split.reading, *settings)
    texts = {}
    for name, paths in split.paths.items():
        read = functools.partial(
            read_documents, paths, split.document_of, on_malformed=split.on_malformed
        )
        texts[name] = text_of_files(read, paths, reading, encode)
    return tokenized(run_dir, texts, vocabulary)


def counted(paths: Sequence[str]) -> str:
    """Returns the number of files for a message, such as "2 files"; without files, "files"."""
    return f"{len(paths) or ''} file{'' if len(paths) == 1 else 's'}".strip()


def skew_warning(tokens: Tokenized, every: int) -> str:
    """Returns a warning if much more than one token in `every` is held out, else ""."""
    train, heldout = (tokens.documents[split].tokens for split in (TRAIN, HELDOUT))
    share = heldout / (train + heldout)
    if share <= 4 / every:
        return ""
    return (
        f"\nwarning: {share:.1%} of the tokens are held out, which leaves {train:,} tokens for "
        "training: documents are held out whole, and one of them is large. Choose the held-out "
        "files yourself (heldout_files), or split the large document."
    )


def with_heldout(
    tokens: Tokenized, split: FileSplit, overlapping: int = 0, shared: int = 0
) -> tuple[Tokenized, str]:
    """Returns the tokens with held-out documents, and a description of how these were chosen.

    `overlapping` and `shared` are as in `split_heldout`.
    """
    if HELDOUT in tokens.documents:
        return tokens, f"from {counted(split.paths.get(HELDOUT, []))}"
    documents = tokens.documents[TRAIN]
    every = split.heldout_every
    train, heldout = split_heldout(documents, every=every, overlapping=overlapping, shared=shared)
    tokens = tokens._replace(documents={TRAIN: train, HELDOUT: heldout})
    count = document_count(documents)
    if count >= every:
        return tokens, f"one document in {every}"
    if count > 1:
        share = f"{100 * heldout.tokens / documents.tokens:.3g}% of the tokens"
        return tokens, f"{document_count(heldout)} of {count} documents, {share}"
    held_out = f"the last {100 / every:.3g}% of the tokens of the only document"
    if overlapping:
        held_out += f"; pieces before them that overlap training, in neither split: {overlapping}"
    return tokens, held_out
