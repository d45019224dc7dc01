"""Weights of tokens follow documents through packing, cutting, resuming and token stores."""

import numpy as np
import pytest

from pretrax.data.corpus import Document
from pretrax.data.packing import (
    Packing,
    ShardReader,
    document_for_rows,
    max_documents_per_row,
    plan_packing,
    rows_of_documents,
    stacked,
)
from pretrax.data.token_store import open_store
from pretrax.data.token_store_files import StoreWriter, write_store
from pretrax.objectives import layouts, multi_token_prediction, row_groups
from pretrax.training.run_checks import check_columns
from tests.objectives.registry import CASES, IDS
from tests.refusals import refuses
from tests.training import tiny

POLICIES = ("concatenate", "isolate", "whole", "single")
EOS = 1


def weighted_packing(policy, length=16, weighted=True) -> Packing:
    objective = CASES["causal"].objective
    max_documents = max_documents_per_row(policy, 16)
    groups = row_groups(objective, layouts.decoder, IDS, [{"decoder": length}], max_documents)
    packing = plan_packing(policy, objective, layouts.decoder, groups)
    return packing._replace(weighted=weighted, end_of_document=EOS)


class WeightedStream:
    """Documents of some lengths. Token t has the weight t / 100; every third document has none."""

    def __init__(self):
        self.number = 0

    def next_document(self):
        start = 100 * (self.number % 30)
        tokens = np.arange(start, start + 3 + 5 * self.number % 37, dtype=np.int32)
        self.number += 1
        weights = None if self.number % 3 == 0 else tokens / np.float32(100)
        return Document(tokens, weights=weights)

    def state(self):
        return {"number": np.int64(self.number)}

    def restore(self, state):
        self.number = int(state["number"])


def weighted_tokens(row) -> int:
    """Checks the weights of a row's tokens, and returns how many tokens brought their weight."""
    assert row.weights.dtype == np.int32 and row.weights.shape == row.tokens.shape
    text = row.tokens != EOS
    has_own_weight = row.weights[text] == 10 * row.tokens[text]
    has_default_weight = (row.weights[text] == 1000) & (row.tokens[text] // 100 % 3 == 2)
    assert np.all(has_own_weight | has_default_weight)
    return np.sum(has_own_weight)


@pytest.mark.parametrize("policy", POLICIES)
def test_weights_follow_tokens_into_rows(policy):
    reader = ShardReader(WeightedStream(), weighted_packing(policy))
    assert sum(weighted_tokens(reader.row()) for _ in range(40)) > 100


@pytest.mark.parametrize("policy", POLICIES)
def test_resumed_reader_gives_same_weights(policy):
    reader = ShardReader(WeightedStream(), weighted_packing(policy))
    for _ in range(11):
        reader.row()
    resumed = ShardReader(WeightedStream(), weighted_packing(policy))
    resumed.restore(reader.state())
    for _ in range(20):
        row, resumed_row = reader.row(), resumed.row()
        np.testing.assert_array_equal(row.tokens, resumed_row.tokens)
        np.testing.assert_array_equal(row.weights, resumed_row.weights)


def test_eos_has_weight_of_last_token_and_padding_has_0():
    documents = [Document(np.array([5, 6]), weights=np.array([0.5, 0.25])), Document(np.array([7]))]
    rows = rows_of_documents(documents, weighted_packing("isolate", 8))
    batch = stacked(rows, 8)
    assert batch.weights.tolist() == [[500, 250, 250, 1000, 1000, 0, 0, 0]]
    plain = rows_of_documents(documents, weighted_packing("isolate", 8, weighted=False))
    assert stacked(plain, 8).weights is None


@pytest.mark.parametrize("weight", [-0.5, 1001, np.nan])
def test_weights_out_of_range_raise(weight):
    document = Document(np.array([5, 6]), weights=np.array([1, weight]))
    with refuses(ValueError, weight, "1,000"):
        document_for_rows(document, weighted_packing("single"))


def test_store_keeps_weights_of_cut_documents(tmp_path):
    draw = np.random.default_rng(0)
    sizes = (5, 300, 40_000, 1)
    documents = [
        Document(draw.integers(*tiny.IDS.text, n), weights=draw.random(n).astype(np.float32))
        for n in sizes
    ]
    write_store(tmp_path / "store", documents, tiny.IDS, heldout=documents[:2])
    store = open_store(tmp_path / "store")
    assert store.columns == ("weights",) and store.may_cut
    arrays = store.documents("train")
    pieces = [arrays.document(i) for i in range(len(arrays))]
    assert len(pieces) > len(sizes) and pieces[0].weights.dtype == np.float32
    for name in ("tokens", "weights"):
        whole = np.concatenate([getattr(document, name) for document in documents])
        np.testing.assert_array_equal(
            np.concatenate([getattr(piece, name) for piece in pieces]), whole
        )


def test_storing_weights_out_of_range_raises(tmp_path):
    with (
        refuses(ValueError, -1, "1,000"),
        StoreWriter(tmp_path / "store", "train", 0, tiny.IDS, columns=["weights"]) as writer,
    ):
        writer.add(Document(np.array([5, 6]), weights=np.array([0, -1])))


def test_weighted_corpus_with_unweighted_objective_raises():
    corpus = tiny.run_of(None, CASES["causal"].objective, None).corpus("")
    corpus = corpus._replace(columns=("weights",))
    check_columns(corpus, CASES["causal"].objective)
    with refuses(ValueError, "token_weights", "causal_lm"):
        check_columns(corpus, multi_token_prediction(IDS))
