"""The corpus of a Grain pipeline, which reads, mixes and shuffles the documents."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from ..data.corpus import (
    Corpus,
    Document,
    DocumentStream,
    check_shard,
    column_dtype,
    first_documents,
)
from ..data.token_ids_json import text_checker
from .vocabularies import Factory, Vocabulary, VocabularySource


def grain_dataset(
    run_dir: str,
    *,
    train: Callable[[int, int], Any],
    heldout: Callable[[], Iterable],
    vocabulary: Factory,
) -> Corpus:
    """A corpus of Grain datasets. Grain determines the order and keeps the state.

        training.Run.corpus = @corpora.grain_dataset
        corpora.grain_dataset.train = @my_grain.train
        corpora.grain_dataset.heldout = @my_grain.heldout
        corpora.grain_dataset.vocabulary = @vocabularies.from_file

    An element is a text, an array of token ids, or a mapping with the fields of
    `data.corpus.Document`. For example, `data.grain_sources.StoreSource` returns
    {"tokens": …, "ends_document": True}. Empty elements are skipped.

    Args:
        train: (shard, number of shards) -> an endless `grain.MapDataset` or `grain.IterDataset` of
            the shard's documents, for example a repeated slice [shard::shards].
        heldout: () -> a finite dataset of held-out documents.
        vocabulary: a factory of `corpora.vocabularies` for the tokenizer of the texts or the ids.
            `vocabularies.trained` cannot be used, since it trains on the text of a corpus.

    Checkpoints contain the state of each iterator, so that a run resumes exactly. `data_shards`
    cannot change during a run.

    Raises ValueError for an element of another type, for special ids in an element, and for a
    training dataset that ends.
    """
    vocab = vocabulary(run_dir, VocabularySource())
    piece_of = _reader(vocab)

    def first(n: int) -> list[Document]:
        pieces = (piece_of(element) for element in heldout() if element is not None)
        return first_documents(filter(None, pieces), n)

    def stream(shard: int, num_shards: int) -> DocumentStream:
        check_shard(shard, num_shards)
        return _DatasetStream(train(shard, num_shards), piece_of)

    return Corpus(ids=vocab.ids, open_shard=stream, heldout=first, codec=vocab.codec)


class _DatasetStream(DocumentStream):
    """The documents of one iterator, whose state is saved as JSON."""

    def __init__(self, dataset: Any, piece_of: Callable[[Any], Document | None]):
        if hasattr(dataset, "to_iter_dataset"):  # a MapDataset
            dataset = dataset.to_iter_dataset()
        self._iterator = iter(dataset)
        self._piece_of = piece_of
        self._read = 0

    def next_document(self) -> Document:
        for element in self._iterator:
            self._read += 1
            if (piece := self._piece_of(element)) is not None:
                return piece
        raise ValueError(
            f"The Grain dataset of the corpus ended after {self._read} elements, expected an "
            "endless dataset: call its repeat()."
        )

    def state(self) -> dict[str, np.ndarray]:
        text = json.dumps(self._iterator.get_state())
        return {"iterator": np.frombuffer(text.encode(), np.uint8)}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        self._iterator.set_state(json.loads(np.asarray(state["iterator"], np.uint8).tobytes()))


def _reader(vocabulary: Vocabulary) -> Callable[[Any], Document | None]:
    """Returns a function that makes a document of an element, or None if it is empty."""
    check = text_checker(vocabulary.ids)

    def read(element: Any) -> Document | None:
        if isinstance(element, str):
            element = vocabulary.tokenizer.encode_batch([element])[0]
        if not isinstance(element, Mapping):
            element = {"tokens": element}
        columns = {name: element[name] for name in Document._fields if name in element}
        if "tokens" not in columns or isinstance(columns["tokens"], bytes | str):
            raise ValueError(
                f"Got {str(element)[:60]!r} from a Grain dataset, expected a text, token ids, or "
                f"a mapping with the fields {list(Document._fields)}: convert it in the dataset."
            )
        arrays: dict[str, Any] = {
            name: np.asarray(value) for name, value in columns.items() if name != "ends_document"
        }
        if not arrays["tokens"].size:
            return None
        check(arrays["tokens"], "An element of a Grain dataset")
        arrays = {name: x.astype(column_dtype(name)) for name, x in arrays.items()}
        return Document(ends_document=bool(columns.get("ends_document", True)), **arrays)

    return read
