"""Weights and a teacher's predictions of tokens follow documents into rows, stores and batches."""

import dataclasses

import jax
import numpy as np
import pytest

from pretrax.data.corpus import Document
from pretrax.data.packing import (
    ShardReader,
    document_for_rows,
    max_documents_per_row,
    plan_packing,
    rows_of_documents,
    stacked,
)
from pretrax.data.token_store import open_store
from pretrax.data.token_store_files import StoreWriter, seal, write_store
from pretrax.objectives import (
    causal_lm,
    distilled_lm,
    layouts,
    multi_token_prediction,
    row_groups,
)
from pretrax.training import planning
from pretrax.training.run_checks import check_columns
from pretrax.training.step import corrupt_and_arrange
from tests.refusals import refuses
from tests.training import tiny

POLICIES = ("concatenate", "isolate", "whole", "single")
EOS = 1


def predicted(tokens, count=3):
    """Returns predictions from which a token t is known: 2 t + k, with the probability 10 t + k."""
    k = np.arange(count)
    return np.stack([2 * tokens[:, None] + k, 10 * tokens[:, None] + k], 1).astype(np.int32)


def annotated(tokens) -> Document:
    """Returns a document with a teacher's predictions, whose token t has the weight t / 100."""
    return Document(tokens, weights=np.float32(tokens / 100), teacher=predicted(tokens))


class AnnotatedStream(tiny.TextStream):
    def next_document(self):
        piece = super().next_document()
        return annotated(piece.tokens)._replace(ends_document=piece.ends_document)


def packing_of(policy, length=16, **columns):
    objective = causal_lm(tiny.IDS)
    max_documents = max_documents_per_row(policy, 16)
    groups = row_groups(objective, layouts.decoder, tiny.IDS, [{"decoder": length}], max_documents)
    return plan_packing(policy, objective, layouts.decoder, groups, **columns)


@pytest.mark.parametrize("policy", POLICIES)
def test_columns_follow_tokens_into_rows_and_are_resumed(policy):
    packing = packing_of(policy, weighted=True, teacher=2, end_of_document=EOS)
    reader = ShardReader(AnnotatedStream(0, 1), packing)
    for _ in range(7):
        reader.row()
    resumed = ShardReader(AnnotatedStream(0, 1), packing)
    resumed.restore(reader.state())
    for _ in range(20):
        row = reader.row()
        text = row.tokens != EOS
        np.testing.assert_array_equal(row.weights[text], 10 * row.tokens[text])
        np.testing.assert_array_equal(row.teacher[text], predicted(row.tokens, 2)[text])
        assert not row.teacher[~text].any()
        jax.tree.map(np.testing.assert_array_equal, resumed.row(), row)


def test_eos_has_weight_of_last_token_and_padding_has_0():
    documents = [Document(np.array([5, 6]), weights=np.array([0.5, 0.25])), Document(np.array([7]))]
    rows = rows_of_documents(documents, packing_of("isolate", weighted=True, end_of_document=EOS))
    assert stacked(rows, 8).weights.tolist() == [[500, 250, 250, 1000, 1000, 0, 0, 0]]
    plain = rows_of_documents(documents, packing_of("isolate", end_of_document=EOS))
    assert stacked(plain, 8).weights is None


def test_missing_predictions_have_probability_0():
    documents = [Document(np.array([5])), annotated(np.array([6]))]
    rows = rows_of_documents(documents, packing_of("isolate", 4, teacher=1))
    assert stacked(rows, 4).teacher.tolist() == [[[[0], [0]], [[12], [60]], [[0], [0]], [[0], [0]]]]
    with refuses(ValueError, "3", "4", "top_k"):
        document_for_rows(documents[1], packing_of("isolate", 4, teacher=4))


@pytest.mark.parametrize("weight", [-0.5, 1001, np.nan])
def test_weights_out_of_range_raise(weight):
    document = Document(np.array([5, 6]), weights=np.array([1, weight]))
    with refuses(ValueError, weight, "1,000"):
        document_for_rows(document, packing_of("single", weighted=True))


def test_store_keeps_columns_of_cut_documents(tmp_path):
    draw = np.random.default_rng(0)
    documents = [annotated(draw.integers(*tiny.IDS.text, n)) for n in (5, 300, 40_000, 1)]
    write_store(tmp_path / "store", documents, tiny.IDS, heldout=documents[:2])
    store = open_store(tmp_path / "store")
    assert store.columns == ("weights", "teacher") and store.may_cut
    arrays = store.documents("train")
    pieces = [arrays.document(i) for i in range(len(arrays))]
    assert len(pieces) > len(documents) and pieces[0].weights.dtype == np.float32
    for name in ("tokens", "weights", "teacher"):
        whole = np.concatenate([getattr(document, name) for document in documents])
        read = np.concatenate([getattr(piece, name) for piece in pieces])
        np.testing.assert_array_equal(read, whole)


def write(path, *documents, part=0, columns=("teacher",)):
    with StoreWriter(path, "train", part, tiny.IDS, columns=columns) as writer:
        for document in documents:
            writer.add(document)


def test_storing_inconsistent_or_invalid_columns_raises(tmp_path):
    x = np.array([5, 6])
    three, four = (Document(x, teacher=predicted(x, count)) for count in (3, 4))
    with refuses(ValueError, [2, 3], [2, 4]):
        write(tmp_path / "store", three, four)
    for wrong in (x, predicted(x)[:, 0]):
        with refuses(ValueError, "teacher", "[2, N]"):
            write(tmp_path / "store", Document(x, teacher=wrong))
    with refuses(ValueError, -1, "1,000"):
        write(tmp_path / "store", Document(x, weights=np.array([0, -1])), columns=["weights"])
    write(tmp_path / "parts", three)
    write(tmp_path / "parts", four, part=1)
    with refuses(ValueError, "train/00000", "train/00001"):
        seal(tmp_path / "parts", {"train": 2})


def planned(objective, columns):
    lengths = {"decoder": 32}
    run = tiny.run_of(tiny.decoder(), objective, lengths, mark_document_ends=False)
    corpus = run.corpus("")._replace(open_shard=AnnotatedStream, columns=columns)
    run = dataclasses.replace(run, corpus=lambda run_dir: corpus)
    return planning.plan_run(run, corpus)


def batch_of(plan, rows=4):
    reader = ShardReader(plan.corpus.open_shard(0, 1), plan.packing)
    raw = stacked([reader.row() for _ in range(rows)], 32)
    keys = jax.random.split(jax.random.key(0), rows)
    return jax.device_get(corrupt_and_arrange(plan.recipe, plan.recipe.groups[0], keys, raw))


@pytest.mark.slow
def test_teacher_predictions_reach_the_batch():
    plan = planned(distilled_lm(tiny.IDS, top_k=2), ("teacher",))
    batch = batch_of(plan)
    shapes = planning.abstract_batch(plan)
    assert {n: (x.shape[1:], x.dtype) for n, x in batch.items()} == {
        n: (x.shape[1:], x.dtype) for n, x in shapes.items()
    }
    tokens = batch["decoder_target_tokens"]
    live = (batch["decoder_segment_ids"] > 0)[:, None]
    expected = predicted(tokens.reshape(-1), 2).reshape(*tokens.shape, 2, 2)
    for index, name in enumerate(("decoder_teacher_tokens", "decoder_teacher_shares")):
        np.testing.assert_array_equal(
            batch[name], np.moveaxis(expected[:, :, index], 2, 1) * live, name
        )


@pytest.mark.slow
def test_objective_without_teacher_ignores_predictions():
    with_teacher, plain = (planned(causal_lm(tiny.IDS), columns) for columns in (("teacher",), ()))
    for name, x in batch_of(with_teacher).items():
        np.testing.assert_array_equal(x, batch_of(plain)[name], name)


def test_objective_and_corpus_must_have_the_same_columns():
    corpus = tiny.run_of(None, causal_lm(tiny.IDS), None).corpus("")
    with refuses(ValueError, "teacher", "`pretrax teach`"):
        check_columns(corpus, distilled_lm(tiny.IDS))
    weighted = corpus._replace(columns=("weights",))
    check_columns(weighted, causal_lm(tiny.IDS))
    with refuses(ValueError, "token_weights", "causal_lm"):
        check_columns(weighted, multi_token_prediction(tiny.IDS))
