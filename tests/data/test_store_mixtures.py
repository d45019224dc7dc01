"""Mixtures of stores at rates: shares of tokens, schedules, and changed rates."""

import numpy as np
import pytest

from pretrax.corpora import token_store
from pretrax.data.corpus import Document
from pretrax.data.documents import split_heldout, training_documents
from pretrax.data.records import RecordStream, Shuffled
from pretrax.data.store_mixtures import (
    MixedStream,
    corpus_of_stores,
    open_stores,
    rates_of,
)
from pretrax.data.token_store import open_store
from pretrax.data.token_store_files import write_store
from tests.data.stores import IDS, Numbers, store_of
from tests.refusals import refuses


def text(first, n, tokens):
    """Returns documents whose tokens are all `first`."""
    return [np.full(tokens, first) for _ in range(n)]


@pytest.fixture
def stores(tmp_path):
    """A store with many short documents, and a store with a few long documents."""
    store_of(tmp_path / "short", text(5, 900, 10), heldout=text(6, 50, 10))
    store_of(tmp_path / "long", text(7, 30, 100), heldout=text(8, 5, 100))
    return [str(tmp_path / name) for name in ("short", "long")]


def shares(stream, n=3000):
    """Returns the share of each first token in the tokens that were read."""
    pieces = [stream.next_document() for _ in range(n)]
    total = sum(len(piece.tokens) for piece in pieces)
    return {k: sum(len(p.tokens) for p in pieces if p.tokens[0] == k) / total for k in (5, 7)}


def open_corpus(stores, seed=0, temperature=1.0):
    return token_store("unused", stores=stores, seed=seed, temperature=temperature)


def test_rates_are_shares_of_tokens(stores):
    mixed = open_corpus(dict(zip(stores, (3, 1))))
    assert shares(mixed.open_shard(0, 1))[7] == pytest.approx(0.25, abs=0.02)
    stream = mixed.open_shard(0, 1)
    shares(stream)
    progress = stream.progress()
    assert list(progress) == ["short", "long"]
    tokens = sum(store_progress.tokens for store_progress in progress.values())
    assert progress["long"].tokens / tokens == pytest.approx(0.25, abs=0.02)
    assert progress["short"].epochs == pytest.approx(progress["short"].tokens / 9000, abs=1e-3)
    assert progress["long"].epochs == pytest.approx(progress["long"].tokens / 3000, abs=0.04)


def test_rates_are_shares_of_tokens_for_small_stores(stores, tmp_path):
    """Documents of a small store are cut into pieces that are shorter than its records."""
    store_of(tmp_path / "books", text(7, 4, 16_000), heldout=text(8, 5, 100))
    mixed = open_corpus({stores[0]: 1, str(tmp_path / "books"): 1})
    assert shares(mixed.open_shard(0, 1))[7] == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize(
    "temperature, share", [(1.0, 0.25), (2.0, 0.366), (100.0, 0.497), (0.01, 0.0)]
)
def test_temperature_flattens_store_sizes(stores, temperature, share):
    rates = rates_of(open_stores(stores), stores, temperature)
    assert rates[1] / sum(rates) == pytest.approx(share, abs=1e-3)
    stream = open_corpus(stores, temperature=temperature).open_shard(0, 1)
    assert shares(stream)[7] == pytest.approx(share, abs=0.03)


def test_rates_follow_the_step(stores):
    def rising(step):
        return step / 10

    stream = open_corpus(dict(zip(stores, (1.0, rising)))).open_shard(0, 1)
    for step, share in ((0, 0.0), (10, 0.5), (30, 0.75)):
        stream.begin_step(step)
        assert shares(stream)[7] == pytest.approx(share, abs=0.03)


def test_mixture_resumes_exactly_and_rates_may_change(stores):
    def tokens(stream, n):
        return [stream.next_document().tokens.tolist() for _ in range(n)]

    for shard, num_shards in ((0, 1), (2, 3)):
        stream = open_corpus(stores).open_shard(shard, num_shards)
        tokens(stream, 100)
        state = {k: np.array(v) for k, v in stream.state().items()}
        expected = tokens(stream, 300)
        resumed = open_corpus(stores).open_shard(shard, num_shards)
        tokens(resumed, 7)
        resumed.restore(state)
        assert resumed.progress()["short"].tokens > 0
        assert tokens(resumed, 300) == expected
        changed = open_corpus(dict(zip(stores, (1, 0)))).open_shard(shard, num_shards)
        changed.restore(state)
        assert shares(changed) == {5: 1.0, 7: 0.0}


def test_stores_may_be_added_but_not_removed_on_resume(stores):
    alone, joined = open_corpus(stores[0]).open_shard(0, 1), open_corpus(stores).open_shard(0, 1)
    shares(alone, 100)
    joined.restore(alone.state())
    assert joined.progress()["short"].tokens == 1000 and joined.progress()["long"].tokens == 0
    for resume in (alone.restore, lambda state: alone.reshard([state, state])):
        with refuses(ValueError, "position", "short", "rate", 0):
            resume(joined.state())


def test_resharding_reads_each_store_once():
    """No record of a store is lost or read twice, and the progress continues."""
    orders = [Shuffled(Numbers(*[5] * 200), 0), Shuffled(Numbers(*[5] * 300, tokens=3), 1)]

    def streams(num_shards):
        for shard in range(num_shards):
            streams_by_store = {
                name: RecordStream(o, shard, num_shards) for name, o in zip("ab", orders)
            }
            yield MixedStream(streams_by_store, (1, 1), (1, 3), seed=0)

    states, found = None, {1: [], 3: []}
    for num_shards, n in ((4, 20), (3, 30), (1, 200)):
        shards = list(streams(num_shards))
        for i, shard in enumerate(shards):
            if states is not None:
                shard.reshard(states)
            for _ in range(n + 3 * i):
                piece = shard.next_document()
                found[len(piece.tokens)].append(int(piece.tokens[0]))
        states = [shard.state() for shard in shards]
    (last,) = shards
    assert last.progress()["a"].tokens == len(found[1])
    assert last.progress()["b"].tokens == 3 * len(found[3])
    for size, order in zip((1, 3), orders):
        alone = RecordStream(order, 0, 1)
        n = len(found[size])
        assert sorted(found[size]) == sorted(int(alone.next_document().tokens[0]) for _ in range(n))


def test_heldout_text_covers_all_stores(stores):
    mixed = open_corpus(dict(zip(stores, (1, 0))))
    held = [int(piece.tokens[0]) for piece in mixed.heldout(400)]
    assert held == [6] * 20 + [8] * 2
    assert len(mixed.heldout(10**6)) == 55
    assert "short: 900 documents, 9,000 tokens to train on; 50 documents" in mixed.summary


# Number of records of a document. A block has 256 records.
@pytest.mark.parametrize("longest", [3, 250, 5000])
def test_heldout_blocks_share_no_document_with_training(tmp_path, longest):
    sizes = np.random.default_rng(0).integers(1, longest + 1, 256 * 80 // longest).tolist()
    pieces = [
        Document(np.array([5 + i % 200, 5 + i // 200]), at == size - 1)
        for i, size in enumerate(sizes)
        for at in range(size)
    ]
    store = store_of(tmp_path / "a", pieces)
    corpus = token_store("unused", stores=str(tmp_path / "a"))
    held = [tuple(piece.tokens) for piece in corpus.heldout(10**6)]
    train = set()
    for shard in range(2):
        stream = corpus.open_shard(shard, 2)
        train |= {tuple(stream.next_document().tokens) for _ in range(len(pieces) // 2)}
    if longest < 5000:
        assert held and not set(held) & train
        whole = {(5 + i % 200, 5 + i // 200): size for i, size in enumerate(sizes)}
        assert all(held.count(document) == whole[document] for document in set(held))
    else:  # No document is wholly within a block.
        assert len(held) == 256 * (len(store.records("train").blocks) // 20)


@pytest.mark.parametrize("documents", [300, 600, 256 * 19, 256 * 20])
def test_5_percent_of_documents_are_held_out(tmp_path, documents):
    corpus = token_store(
        "unused", stores=str(store_of(tmp_path / "a", text(5, documents, 2)).folder.path)
    )
    assert len(corpus.heldout(10**6)) == documents // 20


def test_replaced_store_invalidates_positions(tmp_path):
    """The store is replaced between two runs, and differs only in the middle."""
    states = []
    for middle in (5, 6):
        given = text(5, 1, 5000) + text(middle, 1, 10) + text(5, 1, 5000)
        store_of(tmp_path / f"{middle}", given, heldout=text(5, 1, 9))
        states.append(open_corpus(str(tmp_path / f"{middle}")).open_shard(0, 1).state())
    with refuses(ValueError, "position", "seed"):
        open_corpus(str(tmp_path / "5")).open_shard(0, 1).restore(states[1])


@pytest.mark.parametrize("heldout", [None, [np.array([5, 6])]])
def test_few_documents_are_read_in_short_pieces(tmp_path, heldout):
    """Documents are cut into shorter pieces, so that the rows of a step have different text."""
    given = [np.arange(30_000) % 200 + 5, np.arange(9) + 5]
    store_of(tmp_path / "store", given, heldout=heldout)
    write_store(tmp_path / "uncut", given, IDS, longest=None)
    uncut = open_store(tmp_path / "uncut").documents("train")
    train, held = (uncut, None) if heldout else split_heldout(uncut)
    corpus = token_store("unused", stores=str(tmp_path / "store"))
    expected = RecordStream(Shuffled(training_documents(train), 0), 0, 1)
    stream = corpus.open_shard(0, 1)
    for _ in range(40):
        a, b = stream.next_document(), expected.next_document()
        assert len(a.tokens) <= 2048 and a.ends_document == b.ends_document
        np.testing.assert_array_equal(a.tokens, b.tokens)
    found = sum(len(piece.tokens) for piece in corpus.heldout(10**6))
    assert found == (2 if heldout else held.tokens)


def test_incompatible_stores_and_rates_raise(stores, tmp_path):
    labeled = [Document(np.array([5, 6]), labels=[1, 1])]
    store_of(tmp_path / "labels", labeled, heldout=labeled, columns=["labels"])
    corpus = token_store("unused", stores=str(tmp_path / "labels"))
    assert corpus.columns == ("labels",) and corpus.longest == 2
    for given, values in [
        ([stores[0], str(tmp_path / "labels")], [stores[0], tmp_path / "labels", "columns"]),
        ([stores[0], stores[0]], [f"{stores[0]}, {stores[0]}"]),
        ([], ["stores"]),
        (dict(zip(stores, (0, 0))), ["rates", "[0.0, 0.0]"]),
        (dict(zip(stores, (1, -1))), ["rates", "[1.0, -1.0]"]),
        (dict(zip(stores, (1, "much"))), ["rates", "[1, 'much']"]),
        (dict(zip(stores, (1, lambda: 0))), ["rates", "<lambda>"]),
        (dict(zip(stores, (1, lambda step: len))), ["rates", "<lambda>"]),
    ]:
        with refuses(ValueError, *values) as caught:
            open_corpus(given)
        assert "from_run" not in str(caught.value)  # The stores of this test have no vocabulary.
    with refuses(ValueError, "rates", "temperature", 2.0):
        open_corpus(dict(zip(stores, (1, 1))), temperature=2.0)
    with refuses(ValueError, "temperature", "0"):
        open_corpus(stores, temperature=0.0)
    with refuses(ValueError, "corpus", "0", "-1"):
        open_corpus(stores, seed=-1).open_shard(0, 1)


def test_stores_with_same_name_are_identified_by_path(tmp_path):
    for folder in ("a", "b"):
        store_of(tmp_path / folder / "store", text(5, ord(folder), 2), heldout=text(5, 2, 2))
    paths = [str(tmp_path / folder / "store") for folder in ("a", "b")]
    corpus = corpus_of_stores(open_stores(paths), (1, 1), seed=0)
    assert list(corpus.open_shard(0, 1).progress()) == paths
