"""The laws that every objective keeps, whatever it does."""

import functools
import re
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import objectives
import objectives.features
from objectives import Objective, Row, batched, members_of
from tests.objectives.inverse import documents_of
from tests.objectives.registry import (
    CASES,
    DOCUMENTS,
    IDS,
    RAW_LENGTH,
    assert_same,
    compiled,
    corrupted,
    example_batch,
    features_of,
    quick_jit,
    row_and_partner,
    text_row,
)

every_objective = pytest.mark.parametrize("name", CASES)
COLLECTIVE = re.compile(
    r"all-gather|all-reduce|reduce-scatter|collective-permute|collective-broadcast|all-to-all"
)


def test_every_exported_builder_has_laws():
    exported = {
        name
        for name in objectives.__all__
        if callable(getattr(objectives, name))
        and typing.get_type_hints(getattr(objectives, name)).get("return") is Objective
    }
    assert exported == {case.builder for case in CASES.values()}, "list it in registry.CASES"


# --- nothing is lost -----------------------------------------------------------------------------


@every_objective
def test_inverse_gives_back_every_document(name):
    batch, features = example_batch(name), corrupted(name)
    for row, documents in enumerate(batch.documents):
        undo = CASES[name].inverses[int(batch.rows.member[row])]
        mine = features_of(features, row)
        inputs, targets = (documents_of(mine, stream) for stream in ("inputs", "targets"))
        restored = [undo(inputs.get(d, []), targets[d]) for d in sorted(targets)]
        assert restored == documents


@every_objective
def test_every_target_counts_and_padding_does_not(name):
    features = corrupted(name)
    np.testing.assert_array_equal(features["targets_weights"], features["targets_segments"] > 0)


@every_objective
def test_member_of_a_row_is_passed_on(name):
    np.testing.assert_array_equal(corrupted(name)["member"], example_batch(name).rows.member)


# --- same bits everywhere ------------------------------------------------------------------------


def _one_by_one(corrupt_row, batch, rows):
    """(i, features of row i), each corrupted alone."""
    for i in rows:
        row, partner = row_and_partner(batch.rows, i)
        yield i, corrupt_row(batch.keys[i], row, partner) | {"member": row.member}


@every_objective
def test_batch_equals_loop_over_rows(name):
    batch, objective = example_batch(name), CASES[name].objective
    alone = quick_jit(functools.partial(objective.corrupt, lengths=batch.lengths))
    for i, features in _one_by_one(alone, batch, range(len(batch.documents))):
        assert_same(features, features_of(corrupted(name), i))


@pytest.mark.parametrize("name", ["causal", "mixture"])
def test_without_jit_equals_jit(name):
    batch, objective = example_batch(name), CASES[name].objective
    alone = functools.partial(objective.corrupt, lengths=batch.lengths)
    each_member = range(5, len(batch.documents), 2 * len(DOCUMENTS))
    for i, features in _one_by_one(alone, batch, each_member):
        assert_same(features, features_of(corrupted(name), i))


def _sharded(objective, batch):
    """(compiled corruption of the first 16 or so rows over 8 devices, its arguments)."""
    size = len(batch.documents) // 16 * 16
    over_rows = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"))
    arguments = jax.device_put(
        jax.tree.map(lambda x: x[:size], (batch.keys, batch.rows)), over_rows
    )
    corrupt = jax.jit(
        batched(objective, batch.lengths), in_shardings=over_rows, out_shardings=over_rows
    )
    return corrupt.lower(*arguments).compile(), arguments


@every_objective
def test_sharded_equals_unsharded_and_communicates_nothing(name):
    assert len(jax.devices()) == 8
    program, arguments = _sharded(CASES[name].objective, example_batch(name))
    assert not COLLECTIVE.findall(program.as_text())
    got = program(*arguments)
    size = len(got["member"])
    assert size >= 16 and not got["member"].is_fully_replicated
    assert_same(got, {key: value[:size] for key, value in corrupted(name).items()})


def test_the_partner_is_the_other_row_of_a_pair_and_communicates_nothing():
    def corrupt(key, row, partner, lengths):
        return {"targets": jnp.append(row.tokens[:1], partner.tokens[:1])}

    objective = Objective(lambda n: {"targets": 2, "sentinels": 0}, corrupt, lambda *_: {})
    batch = example_batch("causal")
    program, arguments = _sharded(objective, batch)
    first = batch.rows.tokens[:16, 0]
    expected = np.stack([first, first.reshape(-1, 2)[:, ::-1].reshape(-1)], 1)
    np.testing.assert_array_equal(program(*arguments)["targets"], expected)
    assert not COLLECTIVE.findall(program.as_text())


def test_rows_without_a_partner_are_refused():
    row, _ = text_row((5,), 8)
    rows = jax.tree.map(lambda x: np.stack([x] * 3), row)
    with pytest.raises(ValueError, match="batch of 3"):
        batched(CASES["span"].objective, {"inputs": 8, "targets": 8, "sentinels": 2})(
            jax.random.split(jax.random.key(0), 3), rows
        )


@pytest.mark.parametrize("name", [name for name in CASES if name not in ("causal", "span_single")])
def test_other_keys_give_other_bits(name):
    batch = example_batch(name)
    other = jax.random.split(jax.random.key(8), len(batch.documents))
    assert (compiled(name)(other, batch.rows)["targets"] != corrupted(name)["targets"]).any()


# --- padding changes nothing ---------------------------------------------------------------------


@every_objective
def test_more_padding_and_longer_plans_add_zeros_at_the_end_and_nothing_else(name):
    batch, features = example_batch(name, RAW_LENGTH + 37), corrupted(name)
    longer = {"inputs": 9, "targets": 13, "sentinels": 6, "documents": 2}
    lengths = {key: value + longer[key] for key, value in batch.lengths.items()}
    got = quick_jit(batched(CASES[name].objective, lengths))(batch.keys, batch.rows)
    for key, value in features.items():
        if key == "member":
            continue
        same, rest = np.split(np.asarray(got[key]), [value.shape[1]], axis=1)
        assert rest.shape[1] == longer[key.split("_")[0]] and not rest.any()
        np.testing.assert_array_equal(same, value, key)


@every_objective
def test_rows_of_padding_give_padding(name):
    batch = example_batch(name)
    empty = Row(*(np.zeros_like(x) for x in batch.rows[:2]), batch.rows.member)
    for key, value in compiled(name)(batch.keys, empty).items():
        assert key == "member" or not np.asarray(value).any(), key


# --- integers of exactly the planned lengths -----------------------------------------------------


@every_objective
def test_features_are_int32_of_exactly_the_planned_lengths(name):
    batch = example_batch(name)
    planned = {"member": ()} | {
        column: (batch.lengths[stream],)
        for stream in ("inputs", "targets")
        if stream in batch.lengths
        for column in objectives.features.COLUMNS[stream]
    }
    shapes = jax.eval_shape(batched(CASES[name].objective, batch.lengths), batch.keys, batch.rows)
    rows = (len(batch.documents),)
    assert {key: x.shape for key, x in shapes.items()} == {k: rows + n for k, n in planned.items()}
    assert {x.dtype for x in shapes.values()} == {jnp.dtype("int32")}


@every_objective
def test_lengths_never_decrease_and_are_python_ints(name):
    lengths = CASES[name].objective.lengths
    before = lengths(1)
    assert all(type(x) is int for x in before.values())
    for n in range(2, 2048):
        now = lengths(n)
        assert all(now[key] >= before[key] for key in before), n
        before = now


def _slots_used(name, documents, raw_length, keys):
    """{stream: slots used, sentinels: most used} of one-document rows of these lengths."""
    objective = CASES[name].objective
    rows = jax.tree.map(lambda *x: np.stack(x), *(text_row((n,), raw_length)[0] for n in documents))
    features = quick_jit(batched(objective, objective.lengths(raw_length)))(keys, rows)
    used = {
        stream: np.asarray(features[f"{stream}_segments"]).sum(1)
        for stream in ("inputs", "targets")
        if stream in features
    }
    return used | {"sentinels": np.isin(features["targets"], IDS.sentinels).sum(1)}


def _planned(name, documents, key):
    return np.array([CASES[name].objective.lengths(n)[key] for n in documents])


EXACT = [name for name, case in CASES.items() if case.exact]
DRAWN = [name for name, case in CASES.items() if not case.exact and not case.objective.members]


@pytest.mark.parametrize(
    "name, documents",
    [(name, range(1, 601)) for name in EXACT] + [("span", (601, 999, 1137, 2048, 3001, 4096))],
)
def test_lengths_are_exactly_what_corruption_uses(name, documents):
    keys = jax.random.split(jax.random.key(1), len(documents))
    used = _slots_used(name, documents, max(documents), keys)
    for key, slots in used.items():
        np.testing.assert_array_equal(slots, _planned(name, documents, key), key)


@pytest.mark.parametrize("name", DRAWN)
def test_lengths_bound_what_corruption_uses(name):
    documents = range(1, 601)
    keys = jax.random.split(jax.random.key(2), len(documents))
    used = _slots_used(name, documents, 600, keys)
    for key, slots in used.items():
        assert (slots <= _planned(name, documents, key)).all(), key
    if "both" in CASES[name].objective.lengths(1):
        both = used["inputs"] + used["targets"]
        np.testing.assert_array_equal(both, _planned(name, documents, "both"))


@pytest.mark.parametrize("name", DRAWN)
def test_lengths_are_reached_by_some_draw(name):
    documents = np.repeat(np.arange(1, 17), 256)
    used = _slots_used(name, documents, 16, jax.random.split(jax.random.key(3), documents.size))
    for key, slots in used.items():
        most = slots.reshape(16, 256).max(1)
        np.testing.assert_array_equal(most, _planned(name, range(1, 17), key), key)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.objective.members])
def test_lengths_of_a_mixture_are_enough_for_each_member(name):
    objective = CASES[name].objective
    for n in (1, 2, 3, 100, 512):
        planned = objective.lengths(n)
        for member in members_of(objective):
            mine = member.objective.lengths(n)
            assert all(planned[key] >= mine[key] for key in mine)
            for layout in objectives.layouts.LAYOUTS.values():
                if layout is objectives.layouts.encoder_decoder and "inputs" not in mine:
                    continue
                whole, part = layout.lengths(planned), layout.lengths(mine)
                assert all(whole[stack] >= part[stack] for stack in part)
