"""A mixture of objectives is an objective: each row is corrupted exactly as its member would."""

import dataclasses
import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

from pretrax.objectives import (
    BatchLoss,
    Facts,
    Objective,
    Row,
    Term,
    adaptive_masked_lm,
    batched,
    blank_infilling,
    causal_lm,
    contrastive,
    contrastive_pairs,
    corruptor,
    each_document,
    fill_in_the_middle,
    masked_lm,
    mixture,
    mutor,
    prefix_lm,
    sentence_order_prediction,
    sequence_regression,
    span_corruption,
    text_to_text,
    tidar,
    turns,
    ul2,
)
from pretrax.objectives.features import target_sequence
from pretrax.objectives.streams import STREAMS, Stream, with_missing_streams
from pretrax.settings.partial import Partial as GinPartial
from tests.objectives.registry import (
    CASES,
    IDS,
    MIXTURES,
    assert_same,
    corrupted,
    example_batch,
    features_of,
    quick_jit,
    row_and_partner,
)
from tests.refusals import refuses


@pytest.mark.sampled
@pytest.mark.parametrize("name", MIXTURES)
def test_shared_kernel_equals_member_kernels_bit_for_bit(name):
    batch = example_batch(name)
    for number, member in enumerate(CASES[name].objective.facts.members):
        corrupt = member.objective.corrupt
        member_kernel = quick_jit(
            lambda *rows, corrupt=corrupt: corrupt(*rows, batch.lengths, batch.max_documents)
        )
        for i in np.flatnonzero(batch.rows.member == number):
            row, partner = row_and_partner(batch.rows, i)
            expected = member_kernel(batch.keys[i], row, partner)
            expected = with_missing_streams(expected, batch.lengths)
            assert_same(expected | {"member": row.member}, features_of(corrupted(name), int(i)))


def test_members_with_different_numbers_share_kernels():
    stacks = ul2(IDS).corrupt.args[0]
    assert len(stacks) == 2  # six span denoisers, one prefix split
    assert len(CASES["mixture"].objective.corrupt.args[0]) == 3


def test_members_keep_their_names_order_and_rates():
    built = mixture(IDS, {"b": (span_corruption, 3), "a": (causal_lm, 1)})
    assert [(m.name, m.rate) for m in built.facts.members] == [("b", 3.0), ("a", 1.0)]
    assert ul2(IDS, rates=(1, 2, 3, 4, 5, 6, 7)).facts.members[6][::2] == ("s_25", 7.0)
    # A rate of 0 leaves a denoiser out.
    regular = ul2(IDS, rates=(1, 2, 0, 0, 0, 0, 0)).facts.members
    assert [(m.name, m.rate) for m in regular] == [("r_3_15", 1.0), ("r_8_15", 2.0)]


def test_members_describe_the_call_that_builds_them():
    suffix = functools.partial(prefix_lm, mode="S")
    built = functools.partial(suffix, suffix_share=0.5)
    members = {
        "plain": (causal_lm, 1),
        "partial": (built, 1),
        "gin": (GinPartial(prefix_lm, mode="S"), 1),
    }
    inner = mixture(IDS, members)
    outer = mixture(IDS, {"inner": (lambda ids: inner, 1)})
    assert [(m.name, m.call) for m in outer.facts.members] == [
        ("inner.plain", "causal_lm()"),
        ("inner.partial", "prefix_lm(mode='S', suffix_share=0.5)"),
        ("inner.gin", "prefix_lm(mode='S')"),
    ]


def test_nested_mixture_equals_flat_mixture():
    nested = mixture(IDS, {"denoise": (ul2, 14), "causal": (span_corruption, 2)})
    names = [f"denoise.{member.name}" for member in ul2(IDS).facts.members]
    assert [m.name for m in nested.facts.members] == [*names, "causal"]
    assert [m.rate for m in nested.facts.members] == [2.0] * 8
    listed = {m.name: (lambda ids, m=m: m.objective, m.rate) for m in nested.facts.members}
    flat = mixture(IDS, listed)
    assert nested.facts.prompt_forms == flat.facts.prompt_forms
    assert nested.lengths(100) == flat.lengths(100)
    for found, expected in zip(
        jax.tree.leaves(nested.corrupt), jax.tree.leaves(flat.corrupt), strict=True
    ):
        assert np.array_equal(found, expected)


def test_nested_rates_multiply():
    def alternating(ids):
        members = {"a": (causal_lm, turns(10, 0)), "b": (prefix_lm, turns(10, 1))}
        return mixture(ids, members)

    nested = mixture(IDS, {"both": (alternating, lambda step: 1.0 + step), "c": (causal_lm, 1)})
    rates = {m.name: m.rate for m in nested.facts.members}
    assert [rates["both.a"](step) for step in (0, 5, 10)] == [1.0, 6.0, 0.0]
    assert [rates["both.b"](step) for step in (0, 5, 10)] == [0.0, 0.0, 11.0]
    assert rates["c"] == 1.0


def test_nested_mixture_without_active_member_has_rate_0():
    def takes_turns(ids):
        members = {f"turn_{i}": (causal_lm, turns(every=1, turn=i, of=3)) for i in range(2)}
        return mixture(ids, members)

    joint = mixture(IDS, {"inner": (takes_turns, 4), "spans": (span_corruption, 1)})
    *inner, spans = (member.rate for member in joint.facts.members)
    assert [[rate(step) for rate in inner] for step in range(3)] == [[4, 0], [0, 4], [0, 0]]
    assert spans == 1


def test_negative_nested_rates_raise():
    def negative(ids):
        return mixture(ids, {"a": (causal_lm, lambda step: -1.0)})

    joint = mixture(IDS, {"inner": (negative, lambda step: 1.0)})
    with refuses(ValueError, "-1.0"):
        joint.facts.members[0].rate(0)


def test_duplicate_nested_member_names_raise():
    def inner(ids):
        return mixture(ids, {"b": (causal_lm, 1)})

    with refuses(ValueError, "a.b"):
        mixture(IDS, {"a.b": (span_corruption, 1), "a": (inner, 1)})


def test_ul2_denoisers_match_paper():
    expected = [(3, 0.15), (8, 0.15), (3, 0.5), (8, 0.5), (64, 0.15), (64, 0.5)]
    members = ul2(IDS).facts.members
    for member, (mean, density), mode in zip(members, expected, "RRXXXX"):
        alone = span_corruption(IDS, density, mean, mode)
        assert member.objective.lengths(1000) == alone.lengths(1000)
    assert members[6].objective.lengths(1000) == prefix_lm(IDS, 0.25, "S").lengths(1000)
    assert {m.rate for m in members} == {1.0}


def _objective_with_loss(name, loss):
    def build(ids):
        return Objective(
            lengths=lambda n: {"targets": n},
            corrupt=jax.tree_util.Partial(lambda key, row, partner, lengths: {}),
            loss=loss,
            facts=Facts(heads={name: None}),
        )

    return build


def _loss(name, factor):
    def loss(batch):
        weights = batch["weights"]
        return BatchLoss(
            {name: Term(weights * factor), "shared": Term(weights)},
            lambda outputs: {name: outputs * factor, "shared": outputs},
        )

    return loss


def test_mixture_loss_uses_each_members_rows():
    first, second = _loss("first", 2.0), _loss("second", 3.0)
    built = mixture(
        IDS,
        {
            "a": (_objective_with_loss("x", first), 1),
            "b": (_objective_with_loss("y", second), 1),
            "c": (_objective_with_loss("x", first), 1),
        },
    )
    outputs, weights = jnp.array([1.0, 10.0, 100.0, 1000.0]), jnp.array([1.0, 2.0, 3.0, 4.0])
    member = jnp.array([0, 1, 2, 1])
    terms = built.loss({"weights": weights, "member": member}).scored(outputs)
    assert built.facts.heads == {"x": None, "y": None}
    np.testing.assert_array_equal(terms["first"].sums, [2, 0, 200, 0])
    np.testing.assert_array_equal(terms["first"].weights, [2, 0, 6, 0])
    np.testing.assert_array_equal(terms["second"].sums, [0, 30, 0, 3000])
    np.testing.assert_array_equal(terms["second"].weights, [0, 6, 0, 12])
    np.testing.assert_array_equal(terms["shared"].sums, outputs)
    np.testing.assert_array_equal(terms["shared"].weights, weights)


@dataclasses.dataclass(frozen=True)
class _Scaled:
    """A loss that equals another loss with the same scale."""

    scale: float

    def __call__(self, batch):
        return _loss("scaled", self.scale)(batch)


def test_members_with_equal_losses_share_their_rows():
    """Frozen dataclasses and methods, for example, are created again for each member."""
    other = _loss("other", 3.0)
    losses = {"a": _Scaled(2.0), "b": other, "c": _Scaled(2.0)}
    built = mixture(
        IDS, {name: (_objective_with_loss("x", loss), 1) for name, loss in losses.items()}
    )
    batch = {"weights": jnp.ones(3), "member": jnp.arange(3)}
    terms = built.loss(batch).scored(jnp.array([1.0, 10.0, 100.0]))
    np.testing.assert_array_equal(terms["scaled"].sums, [2, 0, 200])
    np.testing.assert_array_equal(terms["scaled"].weights, [2, 0, 2])


def test_rows_of_other_members_are_not_contrastive_negatives():
    """Contrastive losses read the whole batch, and must ignore the rows of other members."""
    views, mixed = (
        mixture(IDS, {name: (build, 1) for name, build in members.items()})
        for members in (
            {"views": contrastive},
            {"views": contrastive, "order": sentence_order_prediction},
        )
    )
    member = np.array([0, 1, 0, 1])
    states = np.random.default_rng(0).normal(size=(4, 8, 3)).astype(np.float32)
    batch = {"pools_slots": np.tile([0, 4], (4, 1)), "pools_labels": np.zeros((4, 2), int)}
    batch |= {"pools_weights": np.ones((4, 2), int), "member": member}

    def term_of(objective, states, batch):
        def loss(states, batch):
            outputs = SimpleNamespace(hidden={"top": states}, head=lambda name, hidden: hidden)
            return objective.loss(batch).scored(outputs)["contrastive"]

        return jax.jit(loss)(states, batch)

    expected = term_of(views, states[::2], {name: x[::2] for name, x in batch.items()})
    got = term_of(mixed, states, batch)
    np.testing.assert_allclose(got.sums[::2], expected.sums, rtol=1e-5)
    np.testing.assert_array_equal(got.weights, [1, 0, 1, 0])


def test_members_with_different_numbers_of_texts_raise():
    three = functools.partial(contrastive_pairs, hard_negatives=True)
    with refuses(ValueError, "two", "2", "three", "3"):
        mixture(IDS, {"two": (contrastive, 1), "three": (three, 1)})


def test_nan_loss_of_other_members_rows_is_masked():
    def bad(batch):
        return BatchLoss({"bad": Term(batch["weights"])}, lambda outputs: {"bad": outputs / 0 * 0})

    built = mixture(
        IDS,
        {
            "a": (_objective_with_loss("x", _loss("good", 1.0)), 1),
            "b": (_objective_with_loss("x", bad), 1),
        },
    )
    batch = {"weights": jnp.ones(2), "member": jnp.zeros(2, jnp.int32)}
    terms = built.loss(batch).scored(jnp.ones(2))
    assert not jnp.isnan(terms["bad"].sums).any() and terms["bad"].weights.sum() == 0


def test_shared_loss_function_is_called_once():
    calls = []

    def loss(batch):
        calls.append(1)
        return BatchLoss({"tokens": Term(jnp.ones(2))}, lambda outputs: {"tokens": outputs})

    built = mixture(
        IDS, {"a": (_objective_with_loss("x", loss), 1), "b": (_objective_with_loss("x", loss), 1)}
    )
    built.loss({"member": jnp.array([0, 1])}).scored(jnp.ones(2))
    assert len(calls) == 1


def _adaptive_mixture(ids):
    return mixture(ids, {"adaptive": (adaptive_masked_lm, 1), "masked": (masked_lm, 1)})


def test_losses_of_different_objectives_are_unequal():
    """Rows of members with equal losses get the loss of the first of them."""
    assert tidar(IDS, causal_scale=0.3).loss == tidar(IDS, causal_scale=0.3).loss
    assert tidar(IDS, causal_scale=0.3).loss != mutor(IDS, scale=0.3).loss
    losses = [case.objective.loss for case in CASES.values()]
    for loss in losses:
        assert {type(other) for other in losses if other == loss} == {type(loss)}


@pytest.mark.parametrize(
    "members, values",
    [
        ({}, ["members", {}]),
        ({"a": (span_corruption, 0)}, ["'a'", 0]),
        ({"a": (span_corruption, -1)}, ["'a'", 0, -1]),
        ({"a": (span_corruption, float("nan"))}, ["'a'", 0, "nan"]),
        ({"inner": (_adaptive_mixture, 1)}, ["'inner'"]),
        ([("a", span_corruption, 1)], ["members", "[('a'"]),
        ({"a": span_corruption}, ["'a'", "(builder, rate)"]),
        ({"a": (span_corruption, "2")}, ["'a'", 0, "'2'"]),
        ({"a": (span_corruption(IDS), 1)}, ["'a'", "Objective"]),
    ],
)
def test_invalid_members_raise(members, values):
    with refuses(ValueError, *values):
        mixture(IDS, members)


def test_tutorial_preset_has_one_span_length_per_document():
    """S hides short spans rather than the end of a text. The ranges are those of the page."""
    members = ul2(IDS, preset="tutorial").facts.members
    assert {m.name: m.rate for m in members} == {"r": 2, "s": 1, "x": 1}
    spans = functools.partial(span_corruption, IDS, length_drawn_per="document")
    for member, density, lengths in zip(members, (0.15, 0.15, 0.5), ((3, 8), (1, 3), (12, 64))):
        alone = spans(density, lengths, member.name.upper())
        jax.tree.map(np.testing.assert_array_equal, member.objective.corrupt, alone.corrupt)


def test_half_of_t5gemma2_preset_is_prefix_lm():
    rates = {member.name: member.rate for member in ul2(IDS, preset="t5gemma2").facts.members}
    assert rates == {"r_3_15": 1, "x_12_50": 1, "x_32_15": 1, "x_32_50": 1, "s_75": 4}


def test_turns_alternate_and_reject_invalid_settings():
    rate = turns(10, turn=1, of=3)
    assert [rate(step) for step in (0, 9, 10, 19, 20, 40)] == [0, 0, 1, 1, 0, 1]
    for bad, values in (
        ({"every": 0, "turn": 0}, ["every", 1, 0]),
        ({"every": 5, "turn": -1}, ["turn", 0, -1]),
        ({"every": 5, "turn": 2}, ["turn=2", "of=2"]),
    ):
        with refuses(ValueError, *values):
            turns(**bad)


def test_positions_stream_has_one_slot_per_target():
    """Blank infilling gives each target a position, so targets of other members need positions."""
    joint = mixture(IDS, {"blanks": (blank_infilling, 1), "prefix": (prefix_lm, 1)})
    lengths = joint.lengths(40)
    assert lengths["positions"] == lengths["targets"] == prefix_lm(IDS).lengths(40)["targets"]


def test_mixture_requires_rows_of_most_demanding_member():
    def kind_of_rows(*builds):
        objective = mixture(IDS, {build.__name__: (build, 1) for build in builds})
        return objective.facts.rows.kind

    assert kind_of_rows(span_corruption, prefix_lm) == "stream"
    assert kind_of_rows(span_corruption, causal_lm) == "stream"
    assert kind_of_rows(span_corruption, fill_in_the_middle) == "documents"
    assert kind_of_rows(contrastive, fill_in_the_middle) == "document"
    assert kind_of_rows(span_corruption, text_to_text) == "parts"


def test_members_with_incompatible_rows_raise():
    members = {"answers": (text_to_text, 1), "numbers": (sequence_regression, 1)}
    with refuses(ValueError, "answers", "parts", "numbers", "labels"):
        mixture(IDS, members)


def test_python_numbers_in_settings_are_not_traced():
    def corrupt(count, key, row, partner, lengths, max_documents):
        # A traced value would raise.
        chosen = jnp.arange(lengths["targets"]) < jnp.arange(count).size
        return target_sequence((chosen * row.tokens, chosen * row.segments))

    with_count = _objective_with_loss("vocabulary", _loss("own", 1.0))(IDS)._replace(
        corrupt=Partial(corrupt, 3)
    )
    joint = mixture(IDS, {"own": (lambda ids: with_count, 1), "causal": (causal_lm, 1)})
    tokens = np.full((2, 8), 5, np.int32)
    rows = Row(tokens, np.ones_like(tokens), np.zeros(2, np.int32))
    features = quick_jit(batched(joint, joint.lengths(8)))(
        jax.random.split(jax.random.key(0), 2), rows
    )
    assert features["targets_weights"].sum(1).tolist() == [3, 3]


def test_user_stream_gets_slots_of_stream_it_describes(monkeypatch):
    worth = Stream("worth", "a number for each target", ("worth",), in_use="targets_segments")
    monkeypatch.setitem(STREAMS, "worth", worth)

    def with_worth(ids):
        plain = causal_lm(ids)

        def corrupt(*row):
            features = plain.corrupt(*row)
            return features | {"worth": 3 * features["targets_segments"]}

        return plain._replace(lengths=lambda n: {"targets": n, "worth": n}, corrupt=corrupt)

    members = {"mine": (with_worth, 1), "longer": (fill_in_the_middle, 1)}
    lengths = mixture(IDS, members).lengths(20)
    assert lengths["worth"] == lengths["targets"] > 20
    corrupt = corruptor(functools.partial(mixture, members=members), IDS, length=20)
    first = IDS.text[0]
    features = corrupt(jax.random.key(0), np.full((8, 20), first, np.int32))
    assert features["worth"].shape == features["targets"].shape


def test_packing_a_stream_without_in_use_raises(monkeypatch):
    monkeypatch.setitem(STREAMS, "worth", Stream("worth", "a number", ("worth",)))

    @each_document
    def corrupt(key, row, partner, lengths):
        sequence = target_sequence((row.tokens, row.segments))
        return sequence | {"worth": sequence["targets"]}

    with refuses(ValueError, "worth", "in_use", "targets_segments"):
        row = Row(np.full(4, IDS.text[0], np.int32), np.array([1, 1, 2, 2], np.int32), 0)
        corrupt(jax.random.key(0), row, row, {"targets": 4, "worth": 4}, 2)
