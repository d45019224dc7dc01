"""The laws that every objective keeps, whatever it does."""

import re
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pretrax import objectives
from pretrax.objectives import Objective, Row, batched, members_of
from pretrax.objectives.features import COLUMNS as STREAM_COLUMNS
from tests.objectives.inverse import corrupted_documents
from tests.objectives.registry import (
    CASES,
    DOCUMENTS,
    IDS,
    LAWS,
    RAW_LENGTH,
    assert_same,
    cases_under,
    compiled,
    corrupted,
    example_batch,
    features_of,
    quick_jit,
    row_and_partner,
    text_row,
)

STREAM_OF = {column: stream for stream, columns in STREAM_COLUMNS.items() for column in columns}
COLLECTIVE = re.compile(
    r"all-gather|all-reduce|reduce-scatter|collective-permute|collective-broadcast|all-to-all"
)


# Each compiles programs of its own: by default for the first case of each builder.
COMPILED = ("batch = loop", "sharded = unsharded", "more padding changes nothing")
FIRST = {case.builder: name for name, case in reversed(CASES.items())}


def law(name: str):
    """Runs a test for every case that has to keep this law."""
    slow = [] if name not in COMPILED else set(CASES) - set(FIRST.values())
    return pytest.mark.parametrize(
        "name",
        [
            pytest.param(case, marks=pytest.mark.slow) if case in slow else case
            for case in cases_under(name)
        ],
    )


def test_every_exported_builder_has_laws():
    exported = {
        name
        for name in objectives.__all__
        if callable(getattr(objectives, name))
        and typing.get_type_hints(getattr(objectives, name)).get("return") is Objective
    }
    documented = {CASES["readme"].builder}
    cases = {case.builder for case in CASES.values()}
    assert exported | documented == cases, "list it in registry.CASES"


def test_table_of_laws():
    """Run with -s to read it."""
    width = max(map(len, CASES))
    print()
    for number, name in enumerate(LAWS):
        print(f"{number:2}  {name}")
    print(" " * width, *(f"{number:2}" for number in range(len(LAWS))))
    for name, case in CASES.items():
        kept = [" -" if one in case.exempt else " x" for one in LAWS]
        print(name.ljust(width), *kept)
        assert " x" in kept, f"{name} keeps no law at all"
    for name, case in CASES.items():
        for one, reason in case.exempt.items():
            assert one in LAWS and reason, name
            print(f"{name}: not ‘{one}’, since {reason}")


# --- nothing is lost -----------------------------------------------------------------------------


@law("nothing is lost")
def test_inverse_gives_back_every_document(name):
    batch, features = example_batch(name), corrupted(name)
    for row, documents in enumerate(batch.documents):
        undo = CASES[name].inverses[int(batch.rows.member[row])]
        got = corrupted_documents(features_of(features, row))
        assert [undo(got[d]) for d in sorted(got)] == documents


@law("every target counts")
def test_every_target_counts_and_padding_does_not(name):
    features = corrupted(name)
    if "targets" not in features:
        counting = [x for column, x in features.items() if column.endswith("_weights")]
        assert counting and all(np.isin(x, (0, 1)).all() for x in counting)
        return
    np.testing.assert_array_equal(features["targets_weights"], features["targets_segments"] > 0)


@pytest.mark.parametrize("name", CASES)
def test_member_of_a_row_is_passed_on(name):
    np.testing.assert_array_equal(corrupted(name)["member"], example_batch(name).rows.member)


# --- same bits everywhere ------------------------------------------------------------------------


def _one_by_one(corrupt_row, batch, rows):
    """(i, features of row i), each corrupted alone."""
    for i in rows:
        row, partner = row_and_partner(batch.rows, i)
        yield i, corrupt_row(batch.keys[i], row, partner) | {"member": row.member}


@law("batch = loop")
def test_batch_equals_loop_over_rows(name):
    batch, objective = example_batch(name), CASES[name].objective
    alone = quick_jit(lambda *row: objective.corrupt(*row, batch.lengths, batch.max_documents))
    for i, features in _one_by_one(alone, batch, range(len(batch.documents))):
        assert_same(features, features_of(corrupted(name), i))


@pytest.mark.parametrize("name", ["causal", "mixture"])
def test_without_jit_equals_jit(name):
    batch, objective = example_batch(name), CASES[name].objective
    alone = lambda *row: objective.corrupt(*row, batch.lengths, batch.max_documents)  # noqa: E731
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
        batched(objective, batch.lengths, batch.max_documents),
        in_shardings=over_rows,
        out_shardings=over_rows,
    )
    return corrupt.lower(*arguments).compile(), arguments


@law("sharded = unsharded")
def test_sharded_equals_unsharded_and_communicates_nothing(name):
    assert len(jax.devices()) == 8
    program, arguments = _sharded(CASES[name].objective, example_batch(name))
    assert not COLLECTIVE.findall(program.as_text())
    got = program(*arguments)
    size = len(got["member"])
    assert size >= 16 and not got["member"].is_fully_replicated
    assert_same(got, {key: value[:size] for key, value in corrupted(name).items()})


def test_the_partner_is_the_other_row_of_a_pair_and_communicates_nothing():
    def corrupt(key, row, partner, lengths, max_documents):
        return {"targets": jnp.append(row.tokens[:1], partner.tokens[:1])}

    objective = Objective(lambda n: {"targets": 2}, corrupt, lambda *_: {})
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


@law("other key, other bits")
def test_other_keys_give_other_bits(name):
    batch = example_batch(name)
    other = jax.random.split(jax.random.key(8), len(batch.documents))
    got = compiled(name)(other, batch.rows)
    assert any((got[key] != value).any() for key, value in corrupted(name).items())


# --- padding changes nothing ---------------------------------------------------------------------


@law("more padding changes nothing")
def test_more_padding_and_longer_plans_add_zeros_at_the_end_and_nothing_else(name):
    batch, features = example_batch(name, RAW_LENGTH + 37), corrupted(name)
    longer = {"inputs": 9, "types": 9, "targets": 13, "positions": 13, "sentinels": 6}
    longer |= {"labels": 4, "pools": 3, "rates": 2}
    lengths = {key: value + longer[key] for key, value in batch.lengths.items()}
    corrupt = batched(CASES[name].objective, lengths, batch.max_documents + 2)
    got = quick_jit(corrupt)(batch.keys, batch.rows)
    for key, value in features.items():
        if key == "member":
            continue
        same, rest = np.split(np.asarray(got[key]), [value.shape[1]], axis=1)
        assert rest.shape[1] == longer[STREAM_OF[key]] and not rest.any()
        np.testing.assert_array_equal(same, value, key)


@law("padding gives padding")
def test_rows_of_padding_give_padding(name):
    batch = example_batch(name)
    empty = Row(*(np.zeros_like(x) for x in batch.rows[:2]), batch.rows.member)
    for key, value in compiled(name)(batch.keys, empty).items():
        assert key == "member" or not np.asarray(value).any(), key


# --- integers of exactly the planned lengths -----------------------------------------------------


@law("int32 of the planned lengths")
def test_features_are_int32_of_exactly_the_planned_lengths(name):
    batch = example_batch(name)
    planned = {"member": ()} | {
        column: (batch.lengths[stream],)
        for column, stream in STREAM_OF.items()
        if stream in batch.lengths
    }
    shapes = jax.eval_shape(compiled(name), batch.keys, batch.rows)
    rows = (len(batch.documents),)
    assert {key: x.shape for key, x in shapes.items()} == {k: rows + n for k, n in planned.items()}
    assert {x.dtype for x in shapes.values()} == {jnp.dtype("int32")}


@law("lengths never decrease")
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
    columns = {
        "inputs": "inputs_segments",
        "targets": "targets_segments",
        "labels": "labels_weights",
        "pools": "pools_weights",
    }
    used = {
        stream: (np.asarray(features[column]) > 0).sum(1)
        for stream, column in columns.items()
        if column in features
    }
    if "sentinels" in objective.lengths(1):
        used["sentinels"] = np.isin(features["inputs"], IDS.sentinels).sum(1)
    return used


def _planned(name, documents, key):
    return np.array([CASES[name].objective.lengths(n)[key] for n in documents])


KEPT = [name for name in cases_under("lengths are kept") if not CASES[name].objective.members]
EXACT = [name for name in KEPT if CASES[name].exact]
DRAWN = [name for name in KEPT if not CASES[name].exact]
REACHED = [name for name in cases_under("lengths are reached") if name in DRAWN]


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


@pytest.mark.parametrize("name", REACHED)
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
            for layout in (objectives.layouts.encoder_decoder, objectives.layouts.decoder):
                if layout is objectives.layouts.encoder_decoder and "inputs" not in mine:
                    continue
                whole, part = layout.lengths(planned), layout.lengths(mine)
                assert all(whole[stack] >= part[stack] for stack in part)
