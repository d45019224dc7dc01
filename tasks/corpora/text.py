"""The corpus of plain text and JSONL files, and what every corpus of files shares."""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from ...data.corpus import Corpus, Piece
from ...data.documents import split_heldout
from ...data.finding import find_files, size_and_version
from ...data.reading import DocumentOf
from ...data.token_store import HELDOUT, TRAIN
from ..vocabularies import Factory, Vocabulary, VocabularySource
from .text_readers import ReadingReport, TextPart, read_documents
from .tokenising import (
    SplitText,
    Tokenised,
    corpus_of,
    encode_documents,
    has_checkpoint,
    kept_store,
    tokenised,
)

_VOCABULARY_CHARACTERS = 30_000_000  # text read at most to sample a vocabulary's training text from


def text_files(
    run_dir: str,
    *,
    files: str | Sequence[str],
    vocabulary: Factory,
    heldout_files: str | Sequence[str] | None = None,
    text_field: str = "text",
    on_malformed: str = "error",
    heldout_every: int = 20,
    seed: int = 0,
) -> Corpus:
    """Files of text of any size: plain, JSONL, Parquet, Arrow, WARC, WET, each also as .gz or .zst.

        training.Run.corpus = @corpora.text_files
        corpora.text_files.files = "data/*.txt, more/*.jsonl.gz"

    A plain text file is a document (read in parts of 128 kB, cut at line ends, when it is longer,
    which are held out and shuffled like documents; only the last one ends it); so is a JSONL line,
    a row or a web page. The text is tokenised once, into the run directory.

    Args:
        run_dir: where the vocabulary and the tokens are kept.
        files: paths or glob patterns, a list or separated by commas, in a bucket with "://".
        vocabulary: a factory of `tasks.vocabularies`.
        heldout_files: the same for held-out text; without it `heldout_every` says what is held out.
        text_field: the field of a JSONL line, or the column of a table, that holds the text.
        on_malformed: what a line that cannot be read does: "error", or "skip", which counts it.
        heldout_every: one document in so many is held out; where there are fewer documents, the
            last part of the tokens: 10 holds out the last tenth of one file.
        seed: of the order of the documents.

    Raises:
        ValueError (`data.reading.MalformedLine` for a line), FileNotFoundError, OSError: what was
        got, what is expected, what to change.
    """
    split = split_files(run_dir, files, heldout_files, heldout_every, text_field, on_malformed)
    made = vocabulary(run_dir, VocabularySource(texts=lambda: sampled_texts(split)))
    tokens, held_out = with_heldout(tokenised_files(run_dir, split, made), split)
    what = f"SplitText of {counted(split.paths['train'])}"
    return corpus_of(what, tokens, made, held_out=held_out, seed=seed)


class FileSplit(NamedTuple):
    """Files, and how their documents are read and held out."""

    paths: dict[str, list[str]]  # "train", and "heldout" where there are files for it
    heldout_every: int  # where there are none: one document in so many is held out
    document_of: str | DocumentOf  # of `read_documents`
    on_malformed: str  # "error" or "skip"


def split_files(
    run_dir: str,
    files: str | Sequence[str],
    heldout_files: str | Sequence[str] | None,
    heldout_every: int,
    document_of: str | DocumentOf,
    on_malformed: str,
) -> FileSplit:
    """The files that match, checked; arguments as for `text_files`, and `read_documents`.

    There are none where they are gone and the run has a checkpoint, for it keeps their tokens.

    Raises:
        ValueError, FileNotFoundError: settings that clash, or a pattern that matches nothing.
    """
    if heldout_every < 2:
        raise ValueError(f"heldout_every must be at least 2, got {heldout_every}.")
    if on_malformed not in ("error", "skip"):
        raise ValueError(f"on_malformed must be 'error' or 'skip', got {on_malformed!r}.")
    paths = found_files(run_dir, files, heldout_files)
    return FileSplit(paths, heldout_every, document_of, on_malformed)


def found_files(
    run_dir: str, files: str | Sequence[str], heldout_files: str | Sequence[str] | None
) -> dict[str, list[str]]:
    """The files to train on, "train", and "heldout" where there are some for it; as
    `split_files`."""
    patterns = {"train": files} | ({} if heldout_files is None else {"heldout": heldout_files})
    try:
        paths = {name: sorted(find_files(given)) for name, given in patterns.items()}
    except FileNotFoundError:
        if not has_checkpoint(run_dir) or kept_store(run_dir) is None:
            raise
        paths = {name: [] for name in patterns}
    if heldout_files is not None:
        training = set(map(os.path.realpath, paths["train"]))
        both = [path for path in paths["heldout"] if os.path.realpath(path) in training]
        if both:
            raise ValueError(
                f"{both[0]} is both in `files` and in `heldout_files`: take it out of one."
            )
    return paths


def sampled_texts(split: FileSplit, text_of: Callable[[Any], str] = str) -> Iterator[str]:
    """Training text to make a vocabulary of: of each file its share of a bounded amount.

    `text_of` makes a text of a document that is none, such as the turns of a dialogue.
    """
    paths = split.paths["train"]
    share = max(_VOCABULARY_CHARACTERS // len(paths), 1)
    for path in paths:
        left = share
        for document, _ in read_documents(path, split.document_of, on_malformed=split.on_malformed):
            text = text_of(document)[:left]
            yield text
            left -= len(text)
            if left <= 0:
                break


def tokenised_files(
    run_dir: str,
    split: FileSplit,
    vocabulary: Vocabulary,
    *,
    encode: Callable[..., Iterator[Piece]] = encode_documents,
    settings: Sequence[Any] = (),
    make_left_out: Callable[[], ReadingReport] = ReadingReport,
) -> Tokenised:
    """The tokenised text of the files.

    Args:
        run_dir: where it is kept.
        split: the files.
        vocabulary: the run's.
        encode: as in `SplitText`.
        settings: plain values that `encode` depends on.
        make_left_out: a fresh count of what is left out.
    """
    texts = {
        name: _text(split, paths, encode, settings, make_left_out())
        for name, paths in split.paths.items()
    }
    return tokenised(run_dir, texts, vocabulary)


def _text(
    split: FileSplit, paths: Sequence[str], encode, settings, left_out: ReadingReport
) -> SplitText:
    def read(advance) -> Iterator[TextPart]:
        for path in paths:
            yield from read_documents(
                path,
                split.document_of,
                on_malformed=split.on_malformed,
                report=left_out,
                advance=advance,
            )

    known = {path: size_and_version(path) for path in paths}
    of = split.document_of
    version = [
        of if isinstance(of, str) else of.__name__,
        split.on_malformed,
        *settings,
        *((path, *version) for path, version in known.items()),
    ]
    return SplitText(read, sum(size for size, _ in known.values()), version, left_out, encode)


def counted(paths: Sequence[str]) -> str:
    """The number of files, in words, which is not known of files that are gone.

    >>> counted(["a.txt", "b.txt"]), counted(["a.txt"]), counted([])
    ('2 files', '1 file', 'files')
    """
    return f"{len(paths) or ''} file{'' if len(paths) == 1 else 's'}".strip()


def with_heldout(tokens: Tokenised, split: FileSplit) -> tuple[Tokenised, str]:
    """The tokens with held-out documents, and how these were chosen, in words."""
    if HELDOUT in tokens.documents:
        return tokens, f"from {counted(split.paths.get(HELDOUT, []))}"
    documents, every = tokens.documents[TRAIN], split.heldout_every
    both = dict(zip((TRAIN, HELDOUT), split_heldout(documents, every=every)))
    by_document = len(documents) >= every
    share = f"the last {100 / every:.3g}% of the tokens"
    held_out = f"one document in {every}" if by_document else share
    return tokens._replace(documents=both), held_out
