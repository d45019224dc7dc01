"""Objectives for a training loop of one's own."""

import jax
import numpy as np
import pytest

from pretrax.objectives import batched, corruptor, span_corruption, text_to_text, turns, ul2
from pretrax.objectives.mixtures import mixture
from tests.objectives.inverse import corrupted_documents
from tests.objectives.registry import CASES, IDS, features_of, text_row

L = 24


def rows(*lengths):
    """Token ids i32[rows, L], padded, and the documents as lists."""
    each = [text_row((n,), L, seed) for seed, n in enumerate(lengths)]
    return np.stack([row.tokens for row, _ in each]), [documents for _, documents in each]


def test_every_row_is_corrupted_by_the_member_that_was_drawn_for_it():
    tokens, documents = rows(*[24, 9, 1, 20] * 16)
    found = corruptor(ul2(IDS), IDS, L)(jax.random.key(0), tokens)
    found = jax.tree.map(np.asarray, found)
    assert set(found["member"]) == set(range(7))
    for row, expected in enumerate(documents):
        undo = CASES["ul2"].inverses[found["member"][row]]
        got = corrupted_documents(features_of(found, row))
        assert [undo(got[d]) for d in sorted(got)] == expected


def test_another_key_gives_another_noise():
    tokens, _ = rows(24, 24)
    corrupt = corruptor(span_corruption(IDS, noise_density=0.5), IDS, L)
    one, same, other = (corrupt(jax.random.key(k), tokens)["inputs"] for k in (0, 0, 1))
    assert (one == same).all() and (one != other).any()


def by_turns(ids):
    return mixture(ids, {"a": (span_corruption, turns(9, 0)), "b": (span_corruption, turns(9, 1))})


@pytest.mark.parametrize(
    "build, ids, words",
    [
        (span_corruption, IDS._replace(sentinels=IDS.sentinels[:1]), "need 2 sentinels, .* has 1"),
        (span_corruption, IDS._replace(eos=5), "inside the text range"),
        (text_to_text, IDS, "reads the parts of documents"),
        (by_turns, IDS, "rates of the mixture follow a schedule"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_traced(build, ids, words):
    with pytest.raises(ValueError, match=words):
        corruptor(build(ids), ids, 64 if "2 sentinels" not in words else 40)


@pytest.mark.parametrize(
    "tokens, words",
    [
        (np.full((3, L), 5), "batch of 3"),
        (np.full((2, L + 1), 5), rf"shape \(2, {L + 1}\), expected \[rows, {L}\]"),
        (np.full((2, L), IDS.size), f"expected 0 … {IDS.size - 1}"),
    ],
)
def test_batches_that_cannot_be_are_refused(tokens, words):
    with pytest.raises(ValueError, match=words):
        corruptor(span_corruption(IDS), IDS, L)(jax.random.key(0), tokens)


def test_slots_that_are_too_few_are_refused_when_the_rows_are_traced():
    objective = span_corruption(IDS)
    row, _ = text_row((L,), L)
    two = jax.tree.map(lambda x: np.stack([x, x]), row)
    keys = jax.random.split(jax.random.key(0), 2)
    corrupt = batched(objective, objective.lengths(L - 9))
    with pytest.raises(ValueError, match=rf"Rows of {L} tokens need the slots .*lengths\({L}\)"):
        jax.eval_shape(corrupt, keys, two)
    short = text_to_text(IDS)
    with pytest.raises(ValueError, match="reads parts, which these rows have not"):
        jax.eval_shape(batched(short, short.lengths(L)), keys, two)
