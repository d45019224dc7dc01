"""Steps that compare documents with each other, or with evaluation texts."""

import os
from collections.abc import Iterator, Sequence

import numpy as np
from datatrove.data import Document
from datatrove.pipeline.decont.n_grams import NGramsDecontConfig, NGramsDecontFilter
from datatrove.pipeline.dedup import (
    ExactDedupFilter,
    ExactDedupSignature,
    ExactFindDedups,
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
    MinhashDedupSignature,
)
from datatrove.pipeline.dedup.exact_dedup import ExactDedupConfig
from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.utils.hashing import HashConfig, create_hash_func
from datatrove.utils.text import ngrams, simplify_text

from ..constraints import Count, checked
from ..data.finding import find_files, versions_of
from ..data.reading import raw_documents, valid_documents
from .blocks import DroppedExamples, Pass, Step
from .words import WORDS


def exact_duplicates() -> Step:
    """Keeps one document of each text, by a 64-bit hash, and drops the others as `duplicate`."""
    config = ExactDedupConfig(content_getter=_text)

    def passes(folder: str) -> list[Pass]:
        hashes = os.path.join(folder, "hashes")
        found = os.path.join(folder, "found")
        return [
            Pass("hash", [ExactDedupSignature(hashes, config)]),
            Pass("find", [ExactFindDedups(hashes, found, config, lines_to_buffer=1000)], tasks=1),
        ]

    def block(folder: str, dropped: DroppedExamples):
        found = os.path.join(folder, "found")
        os.makedirs(found, exist_ok=True)  # datatrove only makes it if there is a duplicate
        return ExactDedupFilter(found, config, dropped)

    return Step("exact_duplicates", block, passes, rule="duplicate")


@checked
def near_duplicates(
    *, n_gram: Count = 5, buckets: Count = 14, hashes_per_bucket: Count = 8, seed: int = 1
) -> Step:
    """Keeps one of several documents that share most of their n-grams, by MinHash (Broder 1997).

    The other documents are dropped as `near_duplicate`. A pair of documents with a Jaccard
    similarity s of their n-grams is found with probability 1 - (1 - s^hashes)^buckets. With the
    defaults, which are FineWeb's settings, this is 0.92 at s = 0.8 and 0.56 at s = 0.7. Of all
    documents linked by such pairs, one is kept. Texts are compared in lower case, without
    punctuation and accents, and with every number as 0. Texts with fewer than `n_gram` words are
    kept.

    Args:
      n_gram: number of words of an n-gram.
      buckets: number of groups of hashes. A pair is found if all hashes of a group are equal.
      hashes_per_bucket: number of hashes of a group.
    """
    config = MinhashConfig(
        n_grams=n_gram, num_buckets=buckets, hashes_per_bucket=hashes_per_bucket, seed=seed
    )

    def passes(folder: str) -> list[Pass]:
        names = ("signatures", "pairs", "found")
        hashes, pairs, found = (os.path.join(folder, name) for name in names)
        match = MinhashDedupBuckets(hashes, pairs, config=config, lines_to_buffer=1000)
        cluster = MinhashDedupCluster(pairs, found, config, lines_to_buffer=1000)
        return [
            Pass("sign", [MinhashDedupSignature(hashes, config, language=WORDS)]),
            Pass("match", [match], tasks=buckets),
            Pass("cluster", [cluster], tasks=1),
        ]

    return Step(
        "near_duplicates",
        lambda folder, dropped: MinhashDedupFilter(os.path.join(folder, "found"), dropped),
        passes,
        rule="near_duplicate",
    )


@checked
def decontaminate(
    *, files: str | Sequence[str], text_field: str = "text", n_gram: Count = 12
) -> Step:
    """Drops documents that share an n-gram of words with evaluation texts, as `contaminated`.

    Args:
      files: paths or patterns of the evaluation texts, as in `sources.files`.
      text_field: field or column that holds the text.
      n_gram: number of consecutive shared words. Shorter evaluation texts are ignored.

    Raises:
      ValueError: if no evaluation text has an n-gram, or a text is malformed.
      FileNotFoundError: if no file matches a pattern.
    """
    config = NGramsDecontConfig(n_grams=n_gram)
    paths = find_files(files)

    def passes(folder: str) -> list[Pass]:
        return [Pass("index", [_Index(folder, paths, text_field, config)], tasks=1)]

    return Step(
        "decontaminate",
        lambda folder, dropped: NGramsDecontFilter(folder, config, dropped, language=WORDS),
        passes,
        version=versions_of(paths),
    )


def _text(document: Document) -> str:
    return document.text


class _Index(NGramsDecontFilter):
    """Writes the hashes of all n-grams of texts for `NGramsDecontFilter`.

    datatrove's indexer needs the package lighteval.
    """

    type = "Index"
    name = "n-grams"

    def __init__(self, folder: str, paths: Sequence[str], text_field: str, config):
        super().__init__(folder, config, language=WORDS)
        self.paths = paths
        self.text_field = text_field

    def run(self, data=None, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        hashed = create_hash_func(HashConfig())
        hashes = set()
        for path in self.paths:
            for document in valid_documents(raw_documents(path, self.text_field)):
                words = WORDS.word_tokenize(simplify_text(document.text, self.config.norm_config))
                hashes |= {
                    hashed(" ".join(n_gram)) for n_gram in ngrams(words, self.config.n_grams)
                }
        if not hashes:
            raise ValueError(
                "The evaluation texts of duplicates.decontaminate are shorter than n_gram="
                f"{self.config.n_grams} words: give longer texts, or lower n_gram."
            )
        with self.index_folder.open("texts.index.hashes", "wb") as file:
            file.write(np.array(sorted(hashes), np.uint64).tobytes())
        yield from ()
