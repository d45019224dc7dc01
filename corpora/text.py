"""The corpus of plain text and JSONL files, and what every corpus of files shares."""

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from ..constraints import AtLeastTwo, checked
from ..data.corpus import Corpus, Document
from ..data.documents import document_count, split_heldout
from ..data.finding import find_files, versions_of
from ..data.reading import DocumentOf
from ..data.token_store import HELDOUT, TRAIN
from ..settings.saved_states import has_checkpoint
from .text_readers import LeftOut, read_documents
from .tokenizing import (
    SplitText,
    Tokenized,
    corpus_of,
    encode_documents,
    kept_store,
    tokenized,
)
from .vocabularies import Factory, Vocabulary, VocabularySource
from .vocabularies.training_sample import MOST_READ, first_texts

OnMalformed = Literal["error", "skip"]


@checked
def text_files(
    run_dir: str,
    *,
    files: str | Sequence[str],
    vocabulary: Factory,
    heldout_files: str | Sequence[str] | None = None,
    text_field: str = "text",
    on_malformed: OnMalformed = "error",
    heldout_every: AtLeastTwo = 20,
    seed: int = 0,
) -> Corpus:
    """Files of text of any size: plain, JSONL, Parquet, Arrow, WARC, WET, each also as .gz or .zst.

        training.Run.corpus = @corpora.text_files
        corpora.text_files.files = "data/*.txt, more/*.jsonl.gz"

    A plain text file is a document; so is a JSONL line, a row or a web page. A plain text file of
    more than 128 kB is read in parts, cut at line ends, which are shuffled like documents, but are
    all trained on or all held out. The text is tokenized once, into the run directory.

    Args:
        run_dir: the run directory, which keeps the vocabulary and the tokens.
        files: paths or glob patterns, as a list or separated by commas, in a bucket with "://".
        vocabulary: a factory of `corpora.vocabularies`.
        heldout_files: paths or patterns of the held-out text, in place of `heldout_every`.
        text_field: the field of a JSONL line, or the column of a table, that holds the text.
        on_malformed: "error" to stop at a line that cannot be read, or "skip" to count such lines.
        heldout_every: one document in `heldout_every` is held out. With fewer documents, whole
            documents are held out from the last one on, as long as each brings the held-out tokens
            closer to that share. A single document is cut: 10 holds out its last tenth.
        seed: seed of the order of the documents.

    Raises ValueError (`data.reading.MalformedLine` for a line), FileNotFoundError, OSError.
    """
    paths = found_files(run_dir, files, heldout_files)
    split = FileSplit(paths, heldout_every, text_field, on_malformed)
    made = vocabulary(run_dir, VocabularySource(texts=lambda: sampled_texts(split)))
    tokens, held_out = with_heldout(tokenized_files(run_dir, split, made), split)
    what = f"Text of {counted(paths[TRAIN])}"
    corpus = corpus_of(what, tokens, made, held_out=held_out, seed=seed)
    warning = "" if heldout_files else _skew_warning(tokens, heldout_every)
    return corpus._replace(summary=corpus.summary + warning)


class FileSplit(NamedTuple):
    """Files, and how their documents are read and held out."""

    paths: dict[str, list[str]]  # "train", and "heldout" where there are files for it
    heldout_every: int  # where there are none: one document in so many is held out
    document_of: str | DocumentOf  # of `read_documents`
    on_malformed: OnMalformed


def found_files(
    run_dir: str, files: str | Sequence[str], heldout_files: str | Sequence[str] | None
) -> dict[str, list[str]]:
    """The files to train on, "train", and "heldout" where there are some for it.

    There are none where they are gone and the run has a checkpoint, for it keeps their tokens.

    Raises ValueError for a file in both, and FileNotFoundError for a pattern that matches nothing.
    """
    patterns = {TRAIN: files} | ({} if heldout_files is None else {HELDOUT: heldout_files})
    try:
        paths = {name: sorted(find_files(some)) for name, some in patterns.items()}
    except FileNotFoundError:
        if not has_checkpoint(run_dir) or kept_store(run_dir) is None:
            raise
        paths = {name: [] for name in patterns}
    training = set(map(os.path.realpath, paths[TRAIN]))
    for path in paths.get(HELDOUT, ()):
        if os.path.realpath(path) in training:
            raise ValueError(
                f"{path} is both in `files` and in `heldout_files`: take it out of one."
            )
    return paths


def sampled_texts(split: FileSplit, text_of: Callable[[Any], str] = str) -> Iterator[str]:
    """Training text to make a vocabulary of: of each file its share of a bounded amount.

    `text_of` makes a text of what is none yet, such as the turns of a dialogue.
    """
    for path in split.paths[TRAIN]:
        found = read_documents([path], split.document_of, on_malformed=split.on_malformed)
        texts = (text_of(part.text) for part in found)
        yield from first_texts(texts, max(MOST_READ // len(split.paths[TRAIN]), 1))


def tokenized_files(
    run_dir: str,
    split: FileSplit,
    vocabulary: Vocabulary,
    *,
    encode: Callable[..., Iterator[Document]] = encode_documents,
    settings: Sequence[Any] = (),
) -> Tokenized:
    """The tokenized text of the files: `encode` is as in `SplitText`, and depends on `settings`."""
    of = split.document_of
    reading = of if isinstance(of, str) else of.__name__, split.on_malformed, *settings
    texts = {}
    for name, paths in split.paths.items():
        left_out = LeftOut()
        known = versions_of(paths)
        size = sum(size for _, size, _ in known)
        read = functools.partial(
            read_documents,
            paths,
            split.document_of,
            on_malformed=split.on_malformed,
            left_out=left_out,
        )
        texts[name] = SplitText(read, size, [*reading, *known], left_out, encode)
    return tokenized(run_dir, texts, vocabulary)


def counted(paths: Sequence[str]) -> str:
    """Returns the number of files for a message, such as "2 files"; without files, "files"."""
    return f"{len(paths) or ''} file{'' if len(paths) == 1 else 's'}".strip()


def _skew_warning(tokens: Tokenized, every: int) -> str:
    """A warning if far more of the text is held out than one token in `every`, or ""."""
    train, heldout = (tokens.documents[split].tokens for split in (TRAIN, HELDOUT))
    share = heldout / (train + heldout)
    if share <= 4 / every:
        return ""
    return (
        f"\nwarning: {share:.1%} of the tokens are held out, which leaves {train:,} tokens for "
        "training: documents are held out whole, and one of them is large. Name other held-out "
        "files (heldout_files), or cut the large document."
    )


def with_heldout(tokens: Tokenized, split: FileSplit) -> tuple[Tokenized, str]:
    """Returns the tokens with held-out documents, and a description of how these were chosen."""
    if HELDOUT in tokens.documents:
        return tokens, f"from {counted(split.paths.get(HELDOUT, []))}"
    documents = tokens.documents[TRAIN]
    every = split.heldout_every
    train, heldout = split_heldout(documents, every=every)
    tokens = tokens._replace(documents={TRAIN: train, HELDOUT: heldout})
    count = document_count(documents)
    if count >= every:
        return tokens, f"one document in {every}"
    if count > 1:
        share = f"{100 * heldout.tokens / documents.tokens:.3g}% of the tokens"
        return tokens, f"{document_count(heldout)} of {count} documents, {share}"
    return tokens, f"the last {100 / every:.3g}% of the tokens of the only document"
