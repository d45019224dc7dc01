"""Objectives in a user's own training loop."""

import functools

import jax
import numpy as np
import pytest

from pretrax.objectives import (
    Row,
    batched,
    causal_lm,
    corruptor,
    next_sentence_prediction,
    packed_lengths,
    prefix_lm,
    sequence_classification,
    span_corruption,
    text_to_text,
    turns,
    ul2,
)
from pretrax.objectives.arithmetic import MAX_LENGTH
from pretrax.objectives.mixtures import mixture
from tests.objectives.inverse import corrupted_documents
from tests.objectives.registry import CASES, IDS, features_of, text_row
from tests.refusals import refuses

L = 24


def rows(*lengths):
    """Returns padded token ids i32[rows, L], and the documents as lists."""
    drawn = [text_row((n,), L, seed) for seed, n in enumerate(lengths)]
    return np.stack([row.tokens for row, _ in drawn]), [documents for _, documents in drawn]


@pytest.mark.slow
def test_corruptor_applies_drawn_member_to_each_row():
    tokens, documents = rows(*[24, 9, 1, 20] * 16)
    found = corruptor(ul2, IDS, L)(jax.random.key(0), tokens)
    found = jax.tree.map(np.asarray, found)
    assert set(found["member"]) == set(range(7))
    for row, expected in enumerate(documents):
        undo = CASES["ul2"].inverses[found["member"][row]]
        got = corrupted_documents(features_of(found, row))
        assert [undo(got[d]) for d in sorted(got)] == expected


@pytest.mark.slow
def test_odd_batch_leaves_last_row_without_partner():
    tokens, (document,) = rows(24)
    found = corruptor(span_corruption, IDS, L)(jax.random.key(0), tokens)
    got = corrupted_documents(features_of(found, 0))
    assert [CASES["span"].inverses[0](got[1])] == [*document]
    pairs, (three, _) = (
        functools.partial(next_sentence_prediction, at_sentence_ends=False),
        rows(9, 9, 9),
    )
    found = corruptor(pairs, IDS, L)(jax.random.key(0), three)
    assert found["pools_weights"].ravel().tolist() == [1, 1, 0]


@pytest.mark.slow
def test_corruptor_works_under_jit_and_exports_to_torch():
    tokens, _ = rows(24, 24)
    corrupt = corruptor(span_corruption, IDS, L)
    expected = corrupt(jax.random.key(0), tokens)
    traced = jax.jit(corrupt)(jax.random.key(0), tokens)
    torch = pytest.importorskip("torch")
    for name, x in expected.items():
        np.testing.assert_array_equal(traced[name], x)
        assert torch.from_dlpack(x).tolist() == x.tolist()


def alternating(ids):
    return mixture(ids, {"a": (span_corruption, turns(9, 0)), "b": (span_corruption, turns(9, 1))})


@pytest.mark.parametrize(
    "build, ids, values",
    [
        (span_corruption, IDS._replace(sentinels=IDS.sentinels[:1]), [2, 1]),
        (span_corruption, IDS._replace(eos=5), ["eos", 5]),
        (text_to_text, IDS, ["parts"]),
        (alternating, IDS, ["rates", "mixture"]),
        (span_corruption(IDS), IDS, ["Objective"]),
        (lambda ids: None, IDS, ["NoneType"]),
        (span_corruption, IDS._replace(modes={"R": 7}), ["modes", (("R", 7),)]),
    ],
)
def test_corruptor_rejects_invalid_settings_before_tracing(build, ids, values):
    with refuses(ValueError, *values):
        corruptor(build, ids, 40)


@pytest.mark.parametrize(
    "tokens, values",
    [
        (np.full((2, L + 1), 5), [(2, L + 1), f"[rows, {L}]"]),
        (np.full((0, L), 5), [(0, L)]),
        (np.full((2, L), 5.5), ["float64", "integers"]),
        (np.full((2, L), IDS.size), [IDS.size, "slot 0", "row 0"]),
        (np.array([[5] * L, [IDS.pad] + [5] * (L - 1)]), [0, "slot 0", "row 1"]),
        (np.array([[5] * L, [5, IDS.sentinels[0]] * (L // 2)]), ["slot 1", "row 1"]),
    ],
)
def test_corruptor_rejects_invalid_batches(tokens, values):
    with refuses(ValueError, *values):
        corruptor(span_corruption, IDS, L)(jax.random.key(0), tokens)


@pytest.mark.slow
def test_batched_rejects_rows_that_would_lose_text():
    objective = mixture(IDS, {"a": (span_corruption, 1), "b": (prefix_lm, 1)})
    lengths = objective.lengths(L)
    segments = np.tile(np.repeat([1, 2, 3, 0], L // 4).astype(np.int32), (2, 1))
    tokens = np.where(segments > 0, 5, 0).astype(np.int32)
    twelve = np.tile(np.repeat(np.arange(1, 13), 2).astype(np.int32), (2, 1))
    good = Row(tokens, segments, np.array([0, 1], np.int32))
    keys = jax.random.split(jax.random.key(0), 2)
    for rows, settings, values in (
        (good, (lengths,), [3, 1, "max_documents"]),
        (good._replace(segments=twelve), (lengths, 12), [36, "'inputs'"]),
        (good._replace(member=np.array([0, 7])), (lengths, 3), ["0 … 7", "0 … 1"]),
        (good._replace(segments=segments[:, ::-1]), (lengths, 3), ["1, 2, …"]),
        (good._replace(segments=segments * 2), (lengths, 6), ["1, 2, …"]),
    ):
        with refuses(ValueError, *values):
            batched(objective, *settings)(keys, rows)
    planned = packed_lengths(objective, [6, 6, 6]) | {"sentinels": lengths["sentinels"]}
    corrupt = batched(objective, {k: max(planned[k], n) for k, n in lengths.items()}, 3)
    found = jax.jit(lambda keys: corrupt(keys, good))(keys)  # The rows are not traced.
    assert np.asarray(found["inputs_segments"]).max() == 3
    classes = sequence_classification(IDS, 3)
    labeled = Row(tokens, np.minimum(segments, 1), np.zeros(2, int), labels=segments)
    with refuses(ValueError, "3", "0", "2"):
        batched(classes, classes.lengths(L))(keys, labeled)


def test_too_few_slots_raise_during_tracing():
    objective = span_corruption(IDS)
    row, _ = text_row((L,), L)
    two_rows = jax.tree.map(lambda x: np.stack([x, x]), row)
    keys = jax.random.split(jax.random.key(0), 2)
    corrupt = batched(objective, objective.lengths(L - 9))
    with refuses(ValueError, L, f"objective.lengths({L})"):
        jax.eval_shape(corrupt, keys, two_rows)
    short = text_to_text(IDS)
    with refuses(ValueError, "parts"):
        jax.eval_shape(batched(short, short.lengths(L)), keys, two_rows)


def test_too_long_rows_and_too_many_documents_raise():
    objective = causal_lm(IDS)
    with refuses(ValueError, "max_documents", "65536", "1", "65", "535"):
        batched(objective, objective.lengths(L), 2**16)
    tokens = jax.ShapeDtypeStruct((2, MAX_LENGTH), np.int32)
    rows = Row(tokens, tokens, jax.ShapeDtypeStruct((2,), np.int32))
    corrupt = batched(objective, objective.lengths(MAX_LENGTH))
    with refuses(ValueError, "1", "073", "741"):
        jax.eval_shape(corrupt, jax.eval_shape(lambda: jax.random.split(jax.random.key(0))), rows)
