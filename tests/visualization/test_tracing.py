"""Marks follow each token through an objective, which corrupts the same ids as in training."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from pretrax.objectives import Objective, Row, batched, each_document
from pretrax.objectives.features import input_sequence, labels_in_place
from pretrax.objectives.laws import examples, quick_jit
from pretrax.objectives.losses import token_loss
from pretrax.objectives.streams import with_missing_streams
from pretrax.visualization.hidden import hidden_tokens
from pretrax.visualization.picture import NOWHERE
from pretrax.visualization.rows import ShownObjective, view_of
from pretrax.visualization.tracing import follow, join, read
from tests.objectives.registry import CASES, FIRST_OF_FILE, IDS
from tests.visualization import letters


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2**31 - 2), st.integers(NOWHERE, 9999)), min_size=1))
def test_joined_marks_are_read_back(pairs):
    tokens, slots = np.array(pairs).T
    found = read(join(tokens, slots + 1))
    np.testing.assert_array_equal(found[0], tokens)
    np.testing.assert_array_equal(found[1], slots)


OPERATIONS = {
    "reversed": lambda x: x[::-1],
    "gathered": lambda x: x[jnp.array([3, 3, 0])],
    "replaced": lambda x: jnp.where(jnp.arange(4) == 1, 9, x),
    "scattered": lambda x: jnp.zeros(6, jnp.int32).at[jnp.array([5, 0, 2, 3])].set(x),
    "added": lambda x: jnp.zeros(6, jnp.int32).at[jnp.array([5, 0, 2, 3])].add(x),
    "sorted": lambda x: lax.sort((jnp.array([2, 0, 3, 1]), x), num_keys=1)[1],
    "kept by a product": lambda x: x * jnp.array([1, 0, 1, 0]),
    "summed": lambda x: jnp.sum(x[:, None] * jnp.eye(4, dtype=jnp.int32), axis=0),
    "compiled": jax.jit(lambda x: jnp.roll(x, 1)),
    "in a branch": lambda x: lax.cond(x[0] > 100, jnp.zeros_like, lambda y: y[::-1], x),
    "scanned": lambda x: lax.scan(lambda last, y: (y, last), jnp.int32(0), x)[1],
    "in a loop": lambda x: lax.while_loop(
        lambda c: c[0] < 2, lambda c: (c[0] + 1, jnp.roll(c[1], 1)), (0, x)
    )[1],
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", OPERATIONS)
def test_marks_move_with_their_tokens(name):
    """Two of the tokens are equal, so only their marks distinguish them."""
    tokens, operation = jnp.array([7, 5, 7, 6]), OPERATIONS[name]
    distinct = operation(jnp.array([11, 12, 13, 14]))
    found, marks = jax.jit(lambda x, m: follow(operation, x, marks=[m]))(tokens, jnp.arange(4) + 1)
    np.testing.assert_array_equal(found, operation(tokens))
    np.testing.assert_array_equal(marks, np.where(distinct > 10, distinct - 10, 0))


def test_values_computed_from_tokens_have_no_marks():
    table_V = jnp.arange(10)[::-1]
    tokens, marks = jnp.array([7, 5, 7, 6]), jnp.arange(4) + 1
    for operation in (lambda x: table_V[x], lambda x: x // 2, lambda x: (x > 5).astype(jnp.int32)):
        assert not follow(operation, tokens, marks=[marks])[1].any()


# Objectives of one file move their tokens by the same operations. These further cases have
# operations that no first case of a file has: minima and conjunctions.
TRACED = {*FIRST_OF_FILE.values(), "order", "contrastive_pairs"}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if name in TRACED])
def test_marks_follow_tokens_through_objectives(name):
    """Features have the same bits as without marks, and each mark names a slot with the token."""
    case = examples(CASES[name].objective, IDS, parts=CASES[name].parts)
    plain = batched(case.objective, case.lengths, case.max_documents)
    rows, L = case.rows.tokens.shape
    is_text = (case.rows.segments > 0) & (case.rows.tokens < IDS.text[1])
    slots = np.arange(L) + L * (np.arange(rows)[:, None] % 2)
    marks = jax.tree.map(np.zeros_like, case.rows)._replace(tokens=np.where(is_text, slots + 1, 0))
    followed = quick_jit(lambda keys, row, m: follow(plain, keys, row, marks=[None, m]))
    features, found = jax.device_get(followed(case.keys, case.rows, marks))
    expected = jax.device_get(quick_jit(plain)(case.keys, case.rows))
    assert features.keys() == expected.keys()
    for column, x in expected.items():
        np.testing.assert_array_equal(features[column], x)
    row = np.arange(rows)[:, None]
    for column in {"inputs", "targets", "labels"} & features.keys():
        slot = (found[column] - 1 - row % 2 * L) % (2 * L)
        held = case.rows.tokens[row ^ (slot // L), slot % L]
        marked = found[column] > 0
        np.testing.assert_array_equal(features[column][marked], held[marked])
        if column != "inputs":  # some tokens of the inputs are random
            text = (features[column] >= IDS.text[0]) & (features[column] < IDS.text[1])
            weights = features[f"{column}_weights"] > 0
            assert (marked | ~(text & weights)).all()


FLAGGED = letters.encode("aeiou")


def masks_vowels(ids):
    """A user's objective that masks ids by a table, which has a row for each id."""
    flags_V = np.zeros(ids.size, bool)
    flags_V[FLAGGED] = True
    return Objective(
        lambda n: {"inputs": n, "labels": n},
        each_document(lambda key, row, partner, lengths: _masked(flags_V, ids.mask, row, lengths)),
        token_loss,
    )


def _masked(flags_V, mask, row, lengths):
    chosen = jnp.asarray(flags_V)[row.tokens] & (row.segments > 0)
    inputs = jnp.where(chosen, mask, row.tokens)
    labels = labels_in_place(row.tokens, chosen, 0, lengths["labels"])
    return with_missing_streams(input_sequence((inputs, row.segments)) | labels, lengths)


@pytest.mark.slow
def test_id_tables_are_read_as_in_training():
    texts = [letters.encode("a queue of eerie ideas"), letters.encode("the sea is a mere idea")]
    subject = ShownObjective("", 1.0, masks_vowels(letters.IDS), "encoder", letters.IDS)
    view = view_of(subject, [[text] for text in texts], seed=0)
    vowels = np.isin(np.stack(texts), FLAGGED)
    np.testing.assert_array_equal(hidden_tokens(view), vowels)
    objective = masks_vowels(letters.IDS)
    rows = Row(np.stack(texts), np.ones((2, 22), np.int32), np.zeros(2, np.int32))
    trained = quick_jit(batched(objective, objective.lengths(22)))(
        jax.random.split(jax.random.key(0), 2), rows
    )
    for name, x in trained.items():
        np.testing.assert_array_equal(read(view.features[name])[0], x)
