"""A token store as a data source of Grain, and the corpus of Grain datasets."""

import pickle

import numpy as np
import pytest

grain = pytest.importorskip("grain", reason="the extra `grain` is not installed")

from pretrax import corpora  # noqa: E402
from pretrax.corpora import vocabularies  # noqa: E402
from pretrax.data.grain_sources import StoreSource  # noqa: E402
from pretrax.data.token_store import open_store  # noqa: E402
from pretrax.data.token_store_files import write_store  # noqa: E402
from pretrax.objectives import TokenIds  # noqa: E402
from tests.refusals import refuses  # noqa: E402

IDS = TokenIds(size=20_000, text=(3, 19_000))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store of documents with one token, which is their number, and of a document that is cut."""
    path = str(tmp_path_factory.mktemp("store") / "numbers")
    documents = [np.array([3 + i]) for i in range(600)] + [np.full(20_000, 5)]
    write_store(path, documents, IDS, heldout=documents[:2])
    return path


def test_store_source_gives_records_by_number(store):
    source = StoreSource(store)
    assert len(source) == 602 == open_store(store).counts("train").records
    assert [source[i]["tokens"].tolist() for i in (0, 255, 256, 599)] == [[3], [258], [259], [602]]
    assert source[600]["tokens"].size == 10_000
    assert [source[i]["ends_document"] for i in (599, 600, 601)] == [True, False, True]
    assert repr(pickle.loads(pickle.dumps(source))) == repr(source)
    assert repr(source) != repr(StoreSource(store, "heldout"))
    for index in (-1, 602):
        with refuses(IndexError, "0", "601"):
            source[index]
    with refuses(ValueError, "test"):
        StoreSource(store, "test")


def test_grain_shuffles_a_store(store):
    assert isinstance(StoreSource(store), grain.sources.RandomAccessDataSource)
    dataset = grain.MapDataset.source(StoreSource(store)).shuffle(seed=1)
    read = [dataset[i]["tokens"][0] for i in range(len(dataset))]
    assert sorted(read) == sorted([*range(3, 603), 5, 5]) and read != sorted(read)


def corpus(tmp_path, train, heldout=lambda: []):
    factory = vocabularies.utf8_bytes
    return corpora.grain_dataset(str(tmp_path), train=train, heldout=heldout, vocabulary=factory)


def texts_of_shard(shard, num_shards):
    texts = [f"text {i}" for i in range(10)]
    return grain.MapDataset.source(texts)[shard::num_shards].shuffle(seed=0).repeat()


@pytest.mark.slow
def test_grain_stream_resumes_at_its_position(tmp_path):
    def next_texts(stream, n):
        return [made.codec.decode(stream.next_document().tokens.tolist()) for _ in range(n)]

    made = corpus(tmp_path, texts_of_shard)
    stream = made.open_shard(0, 2)
    first = next_texts(stream, 3)
    state = {name: np.array(x) for name, x in stream.state().items()}
    rest = next_texts(stream, 7)
    assert sorted(first + rest[:2]) == [f"text {i}" for i in range(0, 10, 2)]
    again = made.open_shard(0, 2)
    again.restore(state)
    assert next_texts(again, 7) == rest != first
    assert set(next_texts(made.open_shard(1, 2), 5)).isdisjoint(first)


def test_elements_may_be_texts_ids_or_pieces(tmp_path):
    elements = ["ab", "", np.array([5, 6]), {"tokens": np.array([7]), "ends_document": False}, "c"]
    heldout = lambda: grain.MapDataset.source(elements)  # noqa: E731
    made = corpus(tmp_path, texts_of_shard, heldout)
    pieces = made.heldout(100)
    assert [piece.tokens.tolist() for piece in pieces] == [[100, 101], [5, 6], [7], [102]]
    assert [piece.ends_document for piece in pieces] == [True, True, False, True]
    assert len(made.heldout(3)) == 2


def test_elements_that_are_not_documents_are_rejected(tmp_path):
    def first(*elements):
        made = corpus(tmp_path, lambda shard, num_shards: grain.MapDataset.source(elements))
        return made.open_shard(0, 1).next_document()

    with refuses(ValueError, {"text": "a"}, "'tokens'"):
        first({"text": "a"})
    with refuses(ValueError, "1 of 2"):
        first(np.array([5, 1]))
    with refuses(ValueError, 1, "repeat()"):
        first("")
    with refuses(ValueError, "shard", "0", "1"):
        corpus(tmp_path, texts_of_shard).open_shard(2, 2)
