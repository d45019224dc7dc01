"""The corpus of token stores, such as those that `pretrax prepare` writes."""

import json
import os
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from ..constraints import Positive, checked
from ..data.corpus import Corpus
from ..data.store_mixtures import corpus_of_stores, open_stores, rates_of, use_vocabulary
from ..data.token_store import TokenStore
from ..settings.atomic_writes import UNLIKE, damaged, parse_json, write_bytes
from ..settings.run_directory import VOCABULARY
from .vocabularies import kept_vocabulary, load_vocabulary

ORIGIN = ("about", "checksums")  # fields of a vocabulary that do not change the tokens of a text


@checked
def token_store(
    run_dir: str,
    *,
    stores: str | Sequence[str] | Mapping[str, Any],
    temperature: Positive = 1.0,
    seed: int = 0,
) -> Corpus:
    """A token store, or a mixture of several token stores that have the same vocabulary.

        training.Run.corpus = @corpora.token_store
        corpora.token_store.stores = {"stores/web": 0.7, "gs://bucket/books": 0.3}

    If the stores have a vocabulary, it is copied to the run directory. The tokens stay in the
    stores.

    Args:
        stores: folders on a disk or in a bucket. A mapping gives each store a rate, which is its
            relative share of the tokens read. A rate is a number or a function of the step. When a
            run is resumed, rates may change and stores may be added.
        temperature: without rates, the rate of each store is its number of tokens to the power of
            1 / temperature. 1 reads all stores equally often, and a large temperature reads about
            the same number of tokens from each store.

    Raises ValueError for invalid rates, for stores with different vocabularies, and for stores that
    cannot be opened.
    """
    first, *others = opened = open_stores(stores)
    corpus = corpus_of_stores(opened, rates_of(opened, stores, temperature), seed=seed)
    files = _vocabulary_files(first)
    tokenizer_files = _tokenizer_files(first, files)
    for other in others:
        if _tokenizer_files(other, _vocabulary_files(other)) != tokenizer_files:
            raise ValueError(
                f"{other.folder.path} and {first.folder.path} have different vocabularies: write "
                f"both stores with the same vocabulary.{use_vocabulary(first)}"
            )
    if VOCABULARY not in files:  # The stores have only ids.
        return corpus
    # All stores have the same checksum, so a resumed run may list a new store first.
    checksum = zlib.crc32(b"".join(tokenizer_files[name] for name in sorted(tokenizer_files)))
    about = {"factory": "token_store", "checksum": checksum}
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            write_bytes(os.path.join(folder, name), content)
        vocab = kept_vocabulary(run_dir, about, lambda: load_vocabulary(folder)[:2])
    if vocab.ids != corpus.ids:
        raise ValueError(
            f"The vocabulary in {first.folder.path} does not match the token ids of its text: "
            f"got {vocab.ids}, expected {corpus.ids}. Write the store again."
        )
    # Only the ids of the vocabulary have the texts of the tokens.
    return corpus._replace(codec=vocab.codec, ids=vocab.ids)


def _vocabulary_files(store: TokenStore) -> dict[str, bytes]:
    return {os.path.basename(name): store.folder.read(name) for name in store.vocabulary}


def _tokenizer_files(store: TokenStore, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Returns the vocabulary files of a store without the record of how the vocabulary was made."""
    if VOCABULARY not in files:
        return dict(files)
    try:
        values = parse_json(files[VOCABULARY])
        kept = {k: values[k] for k in values if k not in ORIGIN}
        return {**files, VOCABULARY: json.dumps(kept, sort_keys=True).encode()}
    except UNLIKE as error:
        raise damaged(os.path.join(store.folder.path, VOCABULARY), error) from error
