"""A teacher's predictions follow documents through packing, cutting, resuming and token stores."""

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
from pretrax.objectives import causal_lm, distilled_lm, layouts, row_groups
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


class TaughtStream(tiny.TextStream):
    """Documents with a teacher's predictions."""

    def next_document(self):
        piece = super().next_document()
        return piece._replace(teacher=predicted(piece.tokens))


def packing_of(policy, count=2, length=16, end_of_document=None):
    objective = causal_lm(tiny.IDS)
    max_documents = max_documents_per_row(policy, 16)
    groups = row_groups(objective, layouts.decoder, tiny.IDS, [{"decoder": length}], max_documents)
    return plan_packing(
        policy, objective, layouts.decoder, groups, teacher=count, end_of_document=end_of_document
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_teacher_predictions_follow_tokens_and_resume(policy):
    reader = ShardReader(TaughtStream(0, 1), packing_of(policy, end_of_document=EOS))
    for _ in range(7):
        reader.row()
    resumed = ShardReader(TaughtStream(0, 1), packing_of(policy, end_of_document=EOS))
    resumed.restore(reader.state())
    for _ in range(20):
        row = reader.row()
        text = row.tokens != EOS
        np.testing.assert_array_equal(row.teacher[text], predicted(row.tokens, 2)[text])
        assert not row.teacher[~text].any()
        np.testing.assert_array_equal(resumed.row().teacher, row.teacher)


def test_missing_predictions_have_probability_0():
    documents = [Document(np.array([5])), Document(np.array([6]), teacher=predicted(np.array([6])))]
    rows = rows_of_documents(documents, packing_of("isolate", 1, 4))
    assert stacked(rows, 4).teacher.tolist() == [[[[0], [0]], [[12], [60]], [[0], [0]], [[0], [0]]]]
    with refuses(ValueError, "3", "4", "likeliest"):
        document_for_rows(documents[1], packing_of("isolate", 4, 4))


def test_store_keeps_teacher_predictions_of_cut_documents(tmp_path):
    draw = np.random.default_rng(0)
    tokens = [draw.integers(*tiny.IDS.text, n) for n in (5, 300, 40_000, 1)]
    documents = [Document(x, teacher=predicted(x)) for x in tokens]
    write_store(tmp_path / "store", documents, tiny.IDS, heldout=documents[:2])
    store = open_store(tmp_path / "store")
    assert store.columns == ("teacher",) and store.may_cut
    arrays = store.documents("train")
    pieces = [arrays.document(i) for i in range(len(arrays))]
    assert len(pieces) > len(documents)
    np.testing.assert_array_equal(
        np.concatenate([x.tokens for x in pieces]), np.concatenate(tokens)
    )
    for piece in pieces:
        np.testing.assert_array_equal(piece.teacher, predicted(piece.tokens))


def test_inconsistent_numbers_of_predictions_raise(tmp_path):
    x = np.array([5, 6])
    with (
        refuses(ValueError, [2, 3], [2, 4]),
        StoreWriter(tmp_path / "store", "train", 0, tiny.IDS, columns=["teacher"]) as writer,
    ):
        writer.add(Document(x, teacher=predicted(x)))
        writer.add(Document(x, teacher=predicted(x, 4)))
    for wrong in (x, predicted(x)[:, 0]):
        with (
            refuses(ValueError, "teacher", "[2, N]"),
            StoreWriter(tmp_path / "store", "train", 0, tiny.IDS, columns=["teacher"]) as writer,
        ):
            writer.add(Document(x, teacher=wrong))
    for part, count in enumerate((3, 4)):
        with StoreWriter(
            tmp_path / "parts", "train", part, tiny.IDS, columns=["teacher"]
        ) as writer:
            writer.add(Document(x, teacher=predicted(x, count)))
    with refuses(ValueError, "train/00000", "train/00001"):
        seal(tmp_path / "parts", {"train": 2})


def planned(objective, columns):
    lengths = {"decoder": 32}
    run = tiny.run_of(tiny.decoder(), objective, lengths, mark_document_ends=False)
    corpus = run.corpus("")._replace(open_shard=TaughtStream, columns=columns)
    run = dataclasses.replace(run, corpus=lambda run_dir: corpus)
    return planning.plan_run(run, corpus)


def batch_of(plan, rows=4):
    reader = ShardReader(plan.corpus.open_shard(0, 1), plan.packing)
    raw = stacked([reader.row() for _ in range(rows)], 32)
    keys = jax.random.split(jax.random.key(0), rows)
    return jax.device_get(corrupt_and_arrange(plan.recipe, plan.recipe.groups[0], keys, raw))


@pytest.mark.slow
def test_teacher_predictions_reach_the_batch():
    plan = planned(distilled_lm(tiny.IDS, likeliest=2), ("teacher",))
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


def test_corpus_without_teacher_predictions_raises():
    corpus = tiny.run_of(None, causal_lm(tiny.IDS), None).corpus("")
    with refuses(ValueError, "teacher", "`pretrax teach`"):
        check_columns(corpus, distilled_lm(tiny.IDS))
