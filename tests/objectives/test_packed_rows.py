"""Functions of a single document, applied to packed rows."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

from pretrax.objectives import Objective, batched, each_document, mixture
from tests.objectives.inverse import corrupted_documents
from tests.objectives.registry import CASES, IDS, compiled, example_batch, features_of, quick_jit
from tests.refusals import refuses


def lifted(name):
    """Returns a case's objective, made only from its function of a single document."""

    def corrupt_single(kernel, key, row, partner, lengths):
        return kernel(key, row, partner, lengths, 1)

    objective = CASES[name].objective
    return objective._replace(corrupt=each_document(Partial(corrupt_single, objective.corrupt)))


@functools.cache
def features(name):
    batch = example_batch(name)
    corrupt = quick_jit(batched(lifted(name), batch.lengths, batch.max_documents))
    return jax.tree.map(np.asarray, corrupt(batch.keys, batch.rows))


@pytest.mark.parametrize("name", ["causal", "contrastive_dropout"])
def test_lifted_deterministic_objective_equals_packed_implementation(name):
    batch = example_batch(name)
    expected = compiled(name)(batch.keys, batch.rows)
    for column, x in expected.items():
        np.testing.assert_array_equal(features(name)[column], x, column)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["blanks", "order_masked", "diffusion"])
def test_lifted_objective_corrupts_each_document_independently(name):
    batch, (undo,) = example_batch(name), CASES[name].inverses
    for row, documents in enumerate(batch.documents):
        row_features = features_of(features(name), row)
        got = corrupted_documents(row_features)
        assert [undo(got[d]) for d in sorted(got)] == documents
        if "rates" in row_features:
            assert np.sum(row_features["rates"] > 0) == len(documents)
            assert np.unique(row_features["rates"][: len(documents)]).size == len(documents)


def test_single_document_function_without_each_document_raises():
    objective = Objective(lambda n: {"targets": n}, lambda key, row, partner, lengths: {}, None)
    with refuses(ValueError, "each_document"):
        batched(objective, {"targets": 3})


@pytest.mark.slow
def test_mixture_accepts_any_kind_of_callable():
    def second_half(key, row, partner, lengths):
        return {
            column: jnp.zeros(lengths["targets"], jnp.int32).at[0].set(value)
            for column, value in (
                ("targets", row.tokens[jnp.sum(row.segments) // 2]),
                ("targets_segments", 1),
                ("targets_weights", 1),
            )
        }

    corrupts = {
        "plain": lambda *row: each_document(second_half)(*row),
        "partial": functools.partial(each_document(second_half).func, Partial(second_half)),
        "jax": each_document(second_half),
        "word": Partial(lambda word, *row: each_document(second_half)(*row), "word"),
    }
    members = {
        name: (lambda ids, corrupt=corrupt: Objective(lambda n: {"targets": n}, corrupt, None), 1)
        for name, corrupt in corrupts.items()
    }
    members["causal"] = (lambda ids: CASES["causal"].objective, 1)
    objective = mixture(IDS, members)
    batch = example_batch("causal")
    rows = batch.rows._replace(member=np.arange(len(batch.documents), dtype=np.int32) % 5)
    found = jax.jit(batched(objective, batch.lengths, batch.max_documents))(batch.keys, rows)
    for row, documents in enumerate(batch.documents):
        whole = [d if row % 5 == 4 else [d[len(d) // 2]] for d in documents]
        got = corrupted_documents(features_of(jax.tree.map(np.asarray, found), row))
        assert [got[d].targets for d in sorted(got)] == whole
