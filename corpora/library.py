"""Corpora of Python's own standard library: nothing to download."""

import functools
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence

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
    """Python's own standard library: sources, docstrings and pydoc's topics.

    About 9 MB and 2.6 million tokens of a vocabulary of 4096. One file in `heldout_every` is held
    out, chosen by a hash of its name. A first start tokenizes, about 3 s on two cores.

    Args:
        documents: to train on, so many in the order of that hash, which are then read in many
            epochs. None: all. Held-out text, and the text that a vocabulary is trained on, are the
            same for any number.
        The others: as for `text_files`.

    Raises ValueError, also for more documents than there are, and FileNotFoundError.
    """
    split = split_documents(library_documents(), heldout_every)
    made = vocabulary(run_dir, _source(split))
    if documents is not None:
        split["train"] = _some(split["train"], documents)
    texts = {name: text_of(some, [sys.version]) for name, some in split.items()}
    tokens = tokenized(run_dir, texts, made)
    held_out = f"one file in {heldout_every}"
    return corpus_of("Python's standard library", tokens, made, held_out=held_out, seed=seed)


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
    """Docstrings of Python's standard library and the code they stand in, for contrastive learning.

        return the mean | def mean(values): total = 0 …      for `objectives.contrastive_pairs`

    The two parts of a document are the docstring of a function, method or class, and the code from
    its signature on, in which no docstring is left (`python_sources.Pair`). Both are cut to a
    number of tokens. Held-out files, and all else, are as for `python_library`.
    """
    limits = docstring_tokens, code_tokens
    if sum(limits) >= UNCUT:
        raise ValueError(
            f"Pairs must have at most {UNCUT - 1} tokens together, got {docstring_tokens} of "
            f"docstrings and {code_tokens} of code."
        )
    split = split_documents(library_documents(), heldout_every)
    made = vocabulary(run_dir, _source(split))
    texts = {name: _pairs_text(documents, limits) for name, documents in split.items()}
    return corpus_of(
        "Docstrings and their code, of Python's standard library",
        tokenized(run_dir, texts, made),
        made,
        held_out=f"one file in {heldout_every}",
        seed=seed,
        longest=sum(limits),
    )


def _source(split: dict[str, list[LibraryText]]) -> VocabularySource:
    return VocabularySource(texts=lambda: (document.read() for document in split["train"]))


def _some(documents: Sequence[LibraryText], number: int) -> list[LibraryText]:
    """So many documents, of which a smaller number is a part of a larger."""
    if number > len(documents):
        raise ValueError(
            f"Got python_library.documents = {number}, expected at most {len(documents)}, which "
            "there are to train on: lower it, or leave it out."
        )
    return sorted(documents, key=lambda document: zlib.crc32(document.name.encode()))[:number]


def text_of(documents: Sequence[LibraryText], version: list) -> SplitText:
    """Returns the documents as a corpus takes them; `version` changes when their text does."""

    def read(advance) -> Iterator[RawDocument]:
        for document in documents:
            yield RawDocument(document.read())
            advance(1)

    return SplitText(read, len(documents), version + _versions(documents), LeftOut())


def _versions(documents: Sequence[LibraryText]) -> list:
    return [document[:2] for document in documents]


def _pairs_text(documents: Sequence[LibraryText], limits: tuple[int, int]) -> SplitText:
    left_out = LeftOut()

    def read(advance) -> list[Pair]:
        pairs: list[Pair] = []
        for document in documents:
            pairs += documented_definitions(document, left_out)
            advance(1)
        # In the order of a hash: else held-out pairs would have those of their own file as
        # negatives, and training pairs those of any.
        return sorted(pairs, key=lambda pair: zlib.crc32(repr(pair).encode()))

    encode = functools.partial(_encode_pairs, limits)
    return SplitText(
        read, len(documents), [*limits, sys.version, *_versions(documents)], left_out, encode
    )


def _encode_pairs(
    limits: tuple[int, int], tokenizer: Tokenizer, pairs: Iterable[Pair], left_out: LeftOut
) -> Iterator[Document]:
    """The documents of pairs, whose sides are cut to the limits."""
    for batch in batches(pairs, lambda pair: len(pair.docstring) + len(pair.code)):
        docstrings, codes = map(tokenizer.encode_batch, zip(*batch))
        for docstring, code in zip(docstrings, codes):
            left_out["ends of docstrings"] += docstring.size > limits[0]
            left_out["ends of code"] += code.size > limits[1]
            yield in_parts(docstring[: limits[0]], code[: limits[1]])
