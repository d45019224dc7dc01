"""Corpora made of Python's standard library, which need no download."""

import functools
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence

from ..constraints import Count, checked
from ..data.corpus import Corpus, Document, in_parts
from ..data.documents import UNCUT
from ..data.reading import RawDocument
from .python_library.python_sources import (
    HELDOUT_EVERY,
    LibraryText,
    Pair,
    documented_definitions,
    library_documents,
    split_documents,
)
from .text_readers import LeftOut
from .tokenizing import SplitText, corpus_of, tokenized
from .vocabularies import Factory, VocabularySource
from .vocabularies.tokenization import Tokenizer, batches


@checked
def python_library(
    run_dir: str,
    *,
    vocabulary: Factory,
    documents: Count | None = None,
    heldout_every: int = HELDOUT_EVERY,
    seed: int = 0,
) -> Corpus:
    """The text of Python's standard library: source files and the topics of pydoc.

    The text has about 9 MB, or 2.6 million tokens with a vocabulary of 4,096. The first start
    tokenizes it, which takes about 3 s on two cores.

    Args:
        documents: number of documents to train on, or None for all. They are chosen by a hash of
            their names. The held-out text, and the text that a vocabulary is trained on, do not
            depend on this number.
        heldout_every: one file in `heldout_every` is held out, chosen by a hash of its name.

    Raises ValueError if there are fewer documents than `documents`, or if a split would be empty,
    and FileNotFoundError if Python was installed without the sources of its library.
    """
    split = split_documents(library_documents(), heldout_every)
    vocab = vocabulary(run_dir, _source(split))
    if documents is not None:
        split["train"] = _first_by_hash(split["train"], documents)
    texts = {name: split_text(files, [sys.version]) for name, files in split.items()}
    tokens = tokenized(run_dir, texts, vocab)
    held_out = f"one file in {heldout_every}"
    return corpus_of("Python's standard library", tokens, vocab, held_out=held_out, seed=seed)


@checked
def docstring_pairs(
    run_dir: str,
    *,
    vocabulary: Factory,
    docstring_tokens: Count = 48,
    code_tokens: Count = 96,
    heldout_every: int = HELDOUT_EVERY,
    seed: int = 0,
) -> Corpus:
    """Docstrings of Python's standard library and their code, for contrastive learning.

        return the mean | def mean(values): total = 0 …      for `objectives.contrastive_pairs`

    A document has two parts. The first is the docstring of a function, method or class, and the
    second is its code without any docstring (`python_sources.Pair`).

    Args:
        docstring_tokens: number of tokens to which docstrings are cut.
        code_tokens: number of tokens to which code is cut.
        heldout_every: one file in `heldout_every` is held out, chosen by a hash of its name.

    Raises ValueError and FileNotFoundError as `python_library`, and ValueError for limits that are
    too large together.
    """
    limits = docstring_tokens, code_tokens
    if sum(limits) >= UNCUT:
        raise ValueError(
            f"Got docstring_tokens={docstring_tokens} and code_tokens={code_tokens}, expected at "
            f"most {UNCUT - 1} together: lower one of them."
        )
    split = split_documents(library_documents(), heldout_every)
    vocab = vocabulary(run_dir, _source(split))
    texts = {name: _pairs_text(documents, limits) for name, documents in split.items()}
    return corpus_of(
        "Docstrings and their code from Python's standard library",
        tokenized(run_dir, texts, vocab),
        vocab,
        held_out=f"one file in {heldout_every}",
        seed=seed,
        longest=sum(limits),
    )


def _source(split: dict[str, list[LibraryText]]) -> VocabularySource:
    return VocabularySource(
        texts=lambda: (document.read() for document in split["train"]),
        version=_versions(split["train"]),
    )


def _first_by_hash(documents: Sequence[LibraryText], number: int) -> list[LibraryText]:
    """Returns `number` documents. A larger number adds documents to those of a smaller number."""
    if number > len(documents):
        raise ValueError(
            f"Got python_library.documents = {number}, but there are only {len(documents)} "
            "training documents: lower it, or leave it out."
        )
    return sorted(documents, key=lambda document: zlib.crc32(document.name.encode()))[:number]


def split_text(documents: Sequence[LibraryText], version: list) -> SplitText:
    """Returns the text of a split; `version` has values that change when the text changes."""

    def read(advance: Callable[[int], None], left_out: LeftOut) -> Iterator[RawDocument]:
        for document in documents:
            yield RawDocument(document.read())
            advance(1)

    return SplitText(read, len(documents), version + _versions(documents))


def _versions(documents: Sequence[LibraryText]) -> list:
    return [document[:2] for document in documents]


def _pairs_text(documents: Sequence[LibraryText], limits: tuple[int, int]) -> SplitText:
    def read(advance: Callable[[int], None], left_out: LeftOut) -> list[Pair]:
        pairs: list[Pair] = []
        for document in documents:
            pairs += documented_definitions(document, left_out)
            advance(1)
        # Sort by a hash. Otherwise the negatives of a held-out pair would come from its own file,
        # whereas the negatives of a training pair come from all files.
        return sorted(pairs, key=lambda pair: zlib.crc32(repr(pair).encode()))

    version = [*limits, sys.version, *_versions(documents)]
    return SplitText(read, len(documents), version, functools.partial(_encode_pairs, limits))


def _encode_pairs(
    limits: tuple[int, int], tokenizer: Tokenizer, pairs: Iterable[Pair], left_out: LeftOut
) -> Iterator[Document]:
    """Yields a document for each pair, with the docstring and the code cut to the limits."""
    for batch in batches(pairs, lambda pair: len(pair.docstring) + len(pair.code)):
        docstrings, codes = map(tokenizer.encode_batch, zip(*batch))
        for docstring, code in zip(docstrings, codes):
            left_out["ends of docstrings"] += docstring.size > limits[0]
            left_out["ends of code"] += code.size > limits[1]
            yield in_parts(docstring[: limits[0]], code[: limits[1]])
