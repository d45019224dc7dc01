"""Weights of tokens reach the loss weights of a step's batch."""

import dataclasses

import jax
import numpy as np

from pretrax.data.packing import ShardReader, stacked
from pretrax.objectives import causal_lm
from pretrax.training import planning
from pretrax.training.step import corrupt_and_arrange
from tests.training import tiny


class WeightedStream(tiny.TextStream):
    """Documents in which token t has the weight (t % 7) / 4."""

    def next_document(self):
        piece = super().next_document()
        return piece._replace(weights=(piece.tokens % 7 / 4).astype(np.float32))


def planned(columns):
    lengths = {"decoder": 32}
    run = tiny.run_of(tiny.decoder(), causal_lm(tiny.IDS), lengths, mark_document_ends=False)
    corpus = run.corpus("")._replace(open_shard=WeightedStream, columns=columns)
    run = dataclasses.replace(run, corpus=lambda run_dir: corpus)
    return planning.plan_run(run, corpus)


def batch_of(one, rows=4):
    reader = ShardReader(one.corpus.open_shard(0, 1), one.packing)
    raw = stacked([reader.row() for _ in range(rows)], 32)
    keys = jax.random.split(jax.random.key(0), rows)
    return jax.device_get(corrupt_and_arrange(one.recipe, one.recipe.groups[0], keys, raw))


def test_token_weights_become_loss_weights_of_the_batch():
    plan = planned(("weights",))
    batch = batch_of(plan)
    tokens = batch["decoder_target_tokens"]
    live = batch["decoder_segment_ids"] > 0
    np.testing.assert_allclose(batch["decoder_loss_weights"], live * (tokens % 7 / 4), rtol=1e-6)
    shapes = planning.abstract_batch(plan)
    assert {name: x.dtype for name, x in batch.items()} == {
        name: x.dtype for name, x in shapes.items()
    }
    plain = batch_of(planned(()))
    np.testing.assert_array_equal(plain["decoder_target_tokens"], tokens)
    np.testing.assert_array_equal(plain["decoder_loss_weights"], live)
