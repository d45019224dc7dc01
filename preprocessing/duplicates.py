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
from ..data.reading import good, raw_documents
from .blocks import Dropped, Pass, Step
from .words import WORDS


def exact_duplicates() -> Step:
    """Keeps one of documents with the same text, by a 64-bit hash; drops others as `duplicate`."""
    config = ExactDedupConfig(content_getter=_text)

    def passes(folder: str) -> list[Pass]:
        hashes = os.path.join(folder, "hashes")
        found = os.path.join(folder, "found")
        return [
            Pass("hash", [ExactDedupSignature(hashes, config)]),
            Pass("find", [ExactFindDedups(hashes, found, config, lines_to_buffer=1000)], tasks=1),
        ]

    def block(folder: str, dropped: Dropped):
        found = os.path.join(folder, "found")
        os.makedirs(found, exist_ok=True)  # datatrove makes it for a duplicate
        return ExactDedupFilter(found, config, dropped)

    return Step("exact_duplicates", block, passes, rule="duplicate")


@checked
def near_duplicates(
    *, n_gram: Count = 5, buckets: Count = 14, hashes_per_bucket: Count = 8, seed: int = 1
) -> Step:
    """Keeps one of documents that share most of their n-grams, by MinHash (Broder 1997).

    Drops the others as `near_duplicate`. Two documents that share a share s of their n-grams
    (Jaccard) are found with probability 1 - (1 - s^hashes)^buckets: .92 at s = .8 and .56 at .7 for
    the settings of FineWeb, which are the defaults. Of documents linked by such pairs, one is kept.
    Texts are compared in lower case, without punctuation and accents, with every number as 0; those
    of fewer than `n_gram` words are kept.

    Args:
      n_gram: words of an n-gram.
      buckets, hashes_per_bucket: groups of hashes, of which all are equal where a pair is found.
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
      files, text_field: those texts, as for `sources.files`.
      n_gram: words that both have in a row; texts of fewer are looked for nowhere.

    Raises ValueError where no text has an n-gram, for a malformed one, and as `sources.files`.
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
    """Writes the hashes of all n-grams of texts where `NGramsDecontFilter` reads them.

    datatrove's own indexer needs the package lighteval, whatever the texts.
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
            for one in good(raw_documents(path, self.text_field)):
                words = WORDS.word_tokenize(simplify_text(one.text, self.config.norm_config))
                hashes |= {hashed(" ".join(one)) for one in ngrams(words, self.config.n_grams)}
        if not hashes:
            raise ValueError(
                f"The evaluation texts of duplicates.decontaminate have no {self.config.n_grams} "
                "words in a row: give longer ones, or lower n_gram."
            )
        with self.index_folder.open("texts.index.hashes", "wb") as file:
            file.write(np.array(sorted(hashes), np.uint64).tobytes())
        yield from ()
