"""The corpus of token stores that `pretrax prepare` has written, with their vocabulary."""

import os
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from ..constraints import Positive, checked
from ..data.corpus import Corpus
from ..data.store_mixtures import corpus_of_stores, open_stores, rates_of
from ..data.token_store import TokenStore
from ..settings.atomic_writes import write_bytes
from ..settings.run_directory import VOCABULARY
from .vocabularies import kept_vocabulary, load_vocabulary


@checked
def token_store(
    run_dir: str,
    *,
    stores: str | Sequence[str] | Mapping[str, Any],
    temperature: Positive = 1.0,
    seed: int = 0,
) -> Corpus:
    """A token store, or several of one vocabulary at rates.

        training.Run.corpus = @corpora.token_store
        corpora.token_store.stores = {"stores/web": 0.7, "gs://bucket/books": 0.3}

    The vocabulary, if the stores have one, is kept in the run directory; the tokens stay in the
    stores.

    Args:
        stores: folders, on a disk or in a bucket. A mapping gives rates: shares of the tokens read,
            relative to each other, each a number or a function of the step. Between two starts of
            a run rates may change and stores be added.
        temperature: without rates, the rate of each store is its number of tokens to the power of
            1 / temperature: 1 reads all stores equally often, a large temperature reads the same
            number of tokens from each store.
        seed: of the order of the documents.

    Raises ValueError for rates that are not possible, for stores of different vocabularies, and as
    `open_stores`.
    """
    opened = open_stores(stores)
    corpus = corpus_of_stores(opened, rates_of(opened, stores, temperature), seed=seed)
    files, *others = [_vocabulary_files(store) for store in opened]
    for other, store in zip(others, opened[1:]):
        if other != files:
            raise ValueError(
                f"{store.folder.path} has another vocabulary than {opened[0].folder.path}: write "
                "both with one."
            )
    if VOCABULARY not in files:  # ids alone
        return corpus
    about = {"factory": "token_store", "checksum": zlib.crc32(files[VOCABULARY])}
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            write_bytes(os.path.join(folder, name), content)
        kept = kept_vocabulary(run_dir, about, lambda: load_vocabulary(folder)[:2])
    if kept.ids != corpus.ids:
        raise ValueError(
            f"The vocabulary in {opened[0].folder.path} has other token ids than its text: got "
            f"{kept.ids}, expected {corpus.ids}. Write the store again."
        )
    return corpus._replace(codec=kept.codec, ids=kept.ids)  # its ids know their texts


def _vocabulary_files(store: TokenStore) -> dict[str, bytes]:
    """Returns the contents of the files of a store's vocabulary, by name."""
    return {os.path.basename(name): store.folder.read(name) for name in store.vocabulary}
