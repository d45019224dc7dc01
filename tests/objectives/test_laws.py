"""The laws that all objectives keep."""

import inspect
import re
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pretrax import objectives
from pretrax.objectives import Objective, batched, laws, members_of
from pretrax.objectives.losses import token_loss
from tests.objectives.inverse import corrupted_documents
from tests.objectives.registry import (
    CASES,
    DOCUMENTS,
    FIRST_OF_BUILDER,
    FIRST_OF_FILE,
    IDS,
    LAWS,
    assert_same,
    cases_under,
    corrupted,
    example_batch,
    features_of,
    row_and_partner,
    text_row,
)

COLLECTIVE = re.compile(
    r"all-gather|all-reduce|reduce-scatter|collective-permute|collective-broadcast|all-to-all"
)


# These tests compile separate programs. By default they run the first case of each objective file,
# or only typical cases.
ONE_CASE_PER_FILE = ("batch = loop", "more slots change nothing")
COMPILED_LAWS = (
    "sharded = unsharded",
    "lengths are kept",
    "lengths are reached",
    "planned slots are used",
)
TYPICAL = ("causal", "prefix", "span", "span_drawn", "masked_lm", "middle", "mixture")
# The logits of a whole vocabulary take seconds, so by default only these cases run.
LOSS_LAWS = ("loss has terms", "loss is a sum over rows")
LOSSES = ("masked_lm", "contrastive_dropout", "sequence_classification")
# By default these tests run the first case of each builder.
ONE_CASE_PER_BUILDER = ("nothing is lost",)
# Each case of these laws compiles a program, so only the first case of each builder is tested.
LAWS_OF_BUILDERS = ("sharded = unsharded", "batch = loop", *LOSS_LAWS)
# Lengths in tokens of documents: all small ones, and some around powers of two.
LENGTHS = (*range(1, 129), 255, 256, 257, 511, 512, 513, 600)


def marks_of(rule: str, name: str):
    slow = rule in ONE_CASE_PER_FILE and name not in FIRST_OF_FILE.values()
    slow |= rule in COMPILED_LAWS and name not in TYPICAL
    slow |= rule in ONE_CASE_PER_BUILDER and name not in FIRST_OF_BUILDER.values()
    slow |= rule in LOSS_LAWS and name not in LOSSES
    return pytest.mark.slow if slow else ()


def with_marks(rule: str, names):
    return [pytest.param(name, marks=marks_of(rule, name)) for name in names]


def is_tested(rule: str, name: str) -> bool:
    """Returns whether a law is tested on a case."""
    one_of_builder = rule in LAWS_OF_BUILDERS
    is_first = name in FIRST_OF_BUILDER.values()
    return rule not in CASES[name].exempt and (is_first or not one_of_builder)


def test_every_exported_builder_has_laws():
    exported = {
        name
        for name, function in vars(objectives).items()
        if inspect.isfunction(function)
        and typing.get_type_hints(function).get("return") is Objective
    }
    documented = {CASES["readme"].builder}
    cases = {case.builder for case in CASES.values()}
    assert exported | documented == cases, "list it in registry.CASES"


def test_table_of_laws_is_complete():
    """Prints the table, which -s shows."""
    width = max(map(len, CASES))
    print()
    for number, name in enumerate(LAWS):
        print(f"{number:2}  {name}")
    print(" " * width, *(f"{number:2}" for number in range(len(LAWS))))
    for name, case in CASES.items():
        kept = [" -" if law_name in case.exempt else " x" for law_name in LAWS]
        print(name.ljust(width), *kept)
        assert " x" in kept, f"{name} keeps no law at all"
    for name, case in CASES.items():
        for law_name, reason in case.exempt.items():
            assert law_name in LAWS and reason, name
            print(f"{name}: not ‘{law_name}’, since {reason}")


# --- nothing is lost ----------------------------------------------------------------------------


def inverse_recovers_every_document(name):
    batch, features = example_batch(name), corrupted(name)
    for row, documents in enumerate(batch.documents):
        undo = CASES[name].inverses[int(batch.rows.member[row])]
        got = corrupted_documents(features_of(features, row))
        assert [undo(got[d]) for d in sorted(got)] == documents


def member_of_a_row_is_passed_on(name):
    np.testing.assert_array_equal(corrupted(name)["member"], example_batch(name).rows.member)


def law_of_the_package(rule: str):
    def keeps(name):
        (laws.LAWS | laws.USUAL)[rule](example_batch(name))

    return keeps


RULES = {
    "nothing is lost": inverse_recovers_every_document,
    "the member is passed on": member_of_a_row_is_passed_on,
} | {
    rule: law_of_the_package(rule)
    for rule in {**laws.LAWS, **laws.USUAL}
    if rule != "lengths are enough"  # The tests below check more.
}


# All rules of a case run in a row. They share its compiled program, which tests/conftest.py may
# drop later to free memory.
@pytest.mark.parametrize(
    "name, rule",
    [
        pytest.param(name, rule, marks=marks_of(rule, name))
        for name in CASES
        for rule in RULES
        if is_tested(rule, name)
    ],
)
def test_laws(name, rule):
    RULES[rule](name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "objective",
    [
        objectives.adaptive_masked_lm(IDS),
        objectives.frequency_informed_diffusion(IDS, complementary=True, power=0.5),
    ],
    ids=["adaptive", "frequency_informed"],
)
def test_laws_hold_with_mask_probabilities(objective):
    case = laws.examples(objective, IDS)
    chances = np.random.default_rng(0).integers(1, 2**16, case.rows.tokens.shape, np.int32)
    case = case._replace(rows=case.rows._replace(chances=chances))
    laws.more_slots_change_nothing(case)
    laws.rows_do_not_depend_on_their_batch(case)
    laws.documents_stay_apart(case)
    laws.padding_gives_padding(case)


# --- the same bits with and without jit and sharding --------------------------------------------


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["causal", "mixture"])
def test_jit_equals_no_jit(name):
    batch, objective = example_batch(name), CASES[name].objective
    for i in range(5, len(batch.documents), 2 * len(DOCUMENTS)):  # for each member
        row, partner = row_and_partner(batch.rows, i)
        settings = batch.lengths, batch.max_documents
        features = objective.corrupt(batch.keys[i], row, partner, *settings)
        assert_same(features | {"member": row.member}, features_of(corrupted(name), i))


def _sharded(objective, batch):
    """Returns the compiled corruption of about 16 rows over 8 devices, and its arguments."""
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


SHARDED = [name for name in CASES if is_tested("sharded = unsharded", name)]


@pytest.mark.parametrize("name", with_marks("sharded = unsharded", SHARDED))
def test_sharded_equals_unsharded_without_communication(name):
    assert len(jax.devices()) == 8
    program, arguments = _sharded(CASES[name].objective, example_batch(name))
    assert not COLLECTIVE.findall(program.as_text())
    got = program(*arguments)
    size = len(got["member"])
    assert size >= 16 and not got["member"].is_fully_replicated
    assert_same(got, {key: value[:size] for key, value in corrupted(name).items()})


def test_partner_is_other_row_of_pair_without_communication():
    def corrupt(key, row, partner, lengths, max_documents):
        return {"targets": jnp.append(row.tokens[:1], partner.tokens[:1])}

    objective = Objective(lambda n: {"targets": 2}, corrupt, token_loss)
    batch = example_batch("causal")
    program, arguments = _sharded(objective, batch)
    first = batch.rows.tokens[:16, 0]
    expected = np.stack([first, first.reshape(-1, 2)[:, ::-1].reshape(-1)], 1)
    np.testing.assert_array_equal(program(*arguments)["targets"], expected)
    assert not COLLECTIVE.findall(program.as_text())


@pytest.mark.parametrize("size", [1, 3])
def test_last_row_of_odd_batch_has_empty_partner(size):
    def corrupt(key, row, partner, lengths, max_documents):
        return {"targets": partner.tokens * partner.segments}

    objective = Objective(lambda n: {"targets": n}, corrupt, token_loss)
    row, _ = text_row((5,), 8)
    rows = jax.tree.map(lambda x: np.stack([x + i for i in range(size)]), row)
    rows = rows._replace(segments=row.segments[None].repeat(size, 0), member=0 * rows.member)
    keys = jax.random.split(jax.random.key(0), size)
    found = batched(objective, {"targets": 8})(keys, rows)["targets"]
    expected = rows.tokens * rows.segments
    np.testing.assert_array_equal(
        found[:-1], expected[:-1].reshape(-1, 2, 8)[:, ::-1].reshape(-1, 8)
    )
    assert not found[-1].any()


# --- planned lengths ----------------------------------------------------------------------------


def _slots_used(name, documents, seed):
    return laws.slots_used(example_batch(name), documents, seed, CASES[name].parts)


def _planned(name, documents, key):
    return np.array([CASES[name].objective.lengths(n)[key] for n in documents])


KEPT = [name for name in cases_under("lengths are kept") if not CASES[name].objective.facts.members]
EXACT = [name for name in KEPT if CASES[name].exact]
DRAWN = [name for name in KEPT if not CASES[name].exact]
REACHED = [name for name in cases_under("lengths are reached") if name in DRAWN]


@pytest.mark.parametrize(
    "name, documents",
    [
        *(pytest.param(x, LENGTHS, marks=marks_of("lengths are kept", x)) for x in EXACT),
        ("span", (601, 999, 1137, 2048, 3001, 4096)),
    ],
)
def test_planned_lengths_are_exact(name, documents):
    used = _slots_used(name, documents, seed=1)
    for key, slots in used.items():
        np.testing.assert_array_equal(slots, _planned(name, documents, key), key)


@pytest.mark.parametrize("name", with_marks("lengths are kept", DRAWN))
def test_planned_lengths_are_upper_bounds(name):
    used = _slots_used(name, LENGTHS, seed=2)
    for key, slots in used.items():
        assert (slots <= _planned(name, LENGTHS, key)).all(), key
    if "both" in CASES[name].objective.lengths(1):
        total = used["inputs"] + used["targets"]
        np.testing.assert_array_equal(total, _planned(name, LENGTHS, "both"))


@pytest.mark.parametrize("name", with_marks("lengths are reached", REACHED))
def test_planned_lengths_are_reached(name):
    documents = np.repeat(np.arange(1, 17), 256)
    used = _slots_used(name, documents, seed=3)
    for key, slots in used.items():
        largest = slots.reshape(16, 256).max(1)
        np.testing.assert_array_equal(largest, _planned(name, range(1, 17), key), key)


@pytest.mark.parametrize(
    "name", [name for name, case in CASES.items() if case.objective.facts.members]
)
def test_mixture_lengths_suffice_for_each_member(name):
    objective = CASES[name].objective
    for n in (1, 2, 3, 100, 512):
        planned = objective.lengths(n)
        for member in members_of(objective):
            member_lengths = member.objective.lengths(n)
            assert all(planned[key] >= member_lengths[key] for key in member_lengths)
            for layout in (objectives.layouts.encoder_decoder, objectives.layouts.decoder):
                if layout is objectives.layouts.encoder_decoder and "inputs" not in member_lengths:
                    continue
                whole, part = layout.lengths(planned), layout.lengths(member_lengths)
                assert all(whole[stack] >= part[stack] for stack in part)
