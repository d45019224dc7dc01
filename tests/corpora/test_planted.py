"""Planted passages: how often they are repeated, what is held out, and exact resume."""

import collections

import numpy as np
import pytest

from pretrax import corpora
from pretrax.corpora.planted import passages_of
from pretrax.data.corpus import Corpus, Document
from tests.refusals import refuses
from tests.training import tiny

LENGTHS = (30, 9, 40, 30, 25, 60, 8, 30)  # lengths of held-out documents


def heldout(n, lengths=LENGTHS) -> list[Document]:
    """Returns documents [900, 901, …], [1000, 1001, …], … until they have n tokens."""
    documents = []
    for number, length in enumerate(lengths):
        if sum(document.tokens.size for document in documents) >= n:
            break
        documents.append(Document(np.arange(length, dtype=np.int32) + 100 * (9 + number)))
    return documents


def plain(run_dir, **fields) -> Corpus:
    return Corpus(tiny.IDS, tiny.Stream, heldout)._replace(**fields)


def planted(corpus=plain, passages=3, passage_tokens=10, **settings) -> Corpus:
    return corpora.planted_passages(
        "", corpus=corpus, passages=passages, passage_tokens=passage_tokens, **settings
    )


def read(stream, documents: int) -> list[list[int]]:
    return [stream.next_document().tokens.tolist() for _ in range(documents)]


PASSAGES = [list(range(910, 920)), list(range(1115, 1125)), list(range(1210, 1220))]


def test_passages_are_middles_of_the_first_long_documents():
    assert [x.tolist() for x in passages_of(plain(""), 3, 10).passages] == PASSAGES


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_passages_alternate_and_have_their_share_of_the_tokens(share):
    streams = [planted(share=share).open_shard(shard, 2) for shard in range(2)]
    documents = [document for stream in streams for document in read(stream, 600)]
    sizes = [len(x) for x in documents]
    found = collections.Counter(PASSAGES.index(x) for x in documents if x in PASSAGES)
    assert found.total() * 10 / sum(sizes) == pytest.approx(share, rel=0.02)
    assert len(found) == 3 and max(found.values()) - min(found.values()) <= 2
    others = [x for x in documents if x not in PASSAGES]
    inner = [tiny.Stream(shard, 2) for shard in range(2)]
    expected = [x for stream in inner for x in read(stream, len(others))]
    assert all(x in expected for x in others)


def test_shards_plant_the_passages_in_turn():
    first = [read(planted(share=0.5).open_shard(shard, 3), 4) for shard in range(3)]
    order = [next(x for x in documents if x in PASSAGES) for documents in first]
    assert order == PASSAGES


def test_stream_resumes_at_its_position():
    one = planted(share=0.3)
    stream = one.open_shard(1, 2)
    read(stream, 37)
    again = one.open_shard(1, 2)
    again.restore(stream.state())
    assert read(stream, 50) == read(again, 50)


def test_resharding_keeps_the_share_of_passages():
    class Resharded(tiny.Stream):
        def reshard(self, states):
            self.number = max(int(state["number"]) for state in states)

    one = planted(lambda run_dir: plain(run_dir, open_shard=Resharded), share=0.25)
    streams = [one.open_shard(shard, 2) for shard in range(2)]
    for stream in streams:
        read(stream, 101)
    (alone,) = [one.open_shard(0, 1)]
    alone.reshard([stream.state() for stream in streams])
    state = alone.state()
    passage_tokens = int(state["planted"]) * 10
    assert passage_tokens / (passage_tokens + int(state["read"])) == pytest.approx(0.25, rel=0.1)
    assert any(x in PASSAGES for x in read(alone, 10))


def test_passage_documents_are_not_evaluated():
    for n in (1, 60, 10**6):
        documents = planted().heldout(n)
        assert not {900, 1100, 1200} & {int(document.tokens[0]) for document in documents}
        tokens = sum(document.tokens.size for document in documents)
        assert tokens >= min(n, sum(LENGTHS) - 100)


@pytest.mark.parametrize("passages", [6, 7])
def test_too_few_heldout_documents_are_rejected(passages):
    with refuses(ValueError, f"passages={passages}", "6"):
        planted(passages=passages)


@pytest.mark.parametrize(
    "fields", [{"columns": ("parts",)}, {"sources": (plain(""),), "member_sources": (0,)}]
)
def test_documents_that_are_not_plain_text_are_rejected(fields):
    with refuses(ValueError, "corpora.python_library"):
        planted(lambda run_dir: plain(run_dir, **fields))
