"""Lengths are solved once, when a run is configured. Only this step rejects lengths."""

import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrax.objectives import (
    causal_lm,
    layouts,
    masked_lm,
    mixture,
    prefix_lm,
    raw_length,
    row_groups,
    span_corruption,
    ul2,
)
from pretrax.objectives.streams import STREAMS
from tests.objectives.registry import CASES, IDS
from tests.refusals import refuses

ENCODER_DECODER, DECODER = layouts.encoder_decoder, layouts.decoder
RATES = (0.2, 0.2, 0.1, 0.1, 0.1, 0.1, 0.2)


@pytest.mark.parametrize(
    "mean, density, raw, raw_with_mode, targets, spans",
    [  # For 512 inputs. 766 and 1006 are one less than the inputs allow, as in T5's special case.
        (3, 0.15, 568, 567, 114, 28),
        (8, 0.15, 588, 587, 100, 11),
        (3, 0.5, 766, 765, 512, 128),
        (8, 0.5, 908, 907, 512, 57),
        (64, 0.15, 600, 599, 92, 1),
        (64, 0.5, 1006, 1004, 512, 8),
    ],
)
def test_ul2_raw_lengths(mean, density, raw, raw_with_mode, targets, spans):
    stack_lengths = {"encoder": 512, "decoder": 512}
    objective = span_corruption(IDS, density, mean)
    assert raw_length(objective, ENCODER_DECODER, **stack_lengths) == raw
    lengths = objective.lengths(raw)
    assert (lengths["targets"], lengths["sentinels"]) == (targets, spans)
    with_mode = span_corruption(IDS, density, mean, mode="X")
    assert raw_length(with_mode, ENCODER_DECODER, **stack_lengths) == raw_with_mode


@pytest.mark.parametrize("density, mean, plain", [(0.5, 3, 767), (0.5, 64, 1007)])
def test_raw_length_without_decoder_length_inverts_inputs(density, mean, plain):
    objective = span_corruption(IDS, density, mean)
    assert raw_length(objective, ENCODER_DECODER, encoder=512) == plain
    assert objective.lengths(plain)["targets"] == 513


def trains_decoders(name: str) -> bool:
    try:
        DECODER.lengths(CASES[name].objective.lengths(2))
    except ValueError:
        return False
    return True


@pytest.mark.slow
@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    st.sampled_from(list(filter(trains_decoders, CASES))),
    st.integers(8, 3000),
    st.integers(8, 3000),
)
def test_raw_length_is_longest_that_fits(name, encoder, decoder):
    lengths = CASES[name].objective.lengths
    n = raw_length(CASES[name].objective, DECODER, decoder=decoder)
    assert DECODER.lengths(lengths(n))["decoder"] <= decoder
    assert DECODER.lengths(lengths(n + 1))["decoder"] > decoder
    if lengths(2).keys() & STREAMS.keys() == {"inputs", "targets"}:
        n = raw_length(CASES[name].objective, ENCODER_DECODER, encoder=encoder, decoder=decoder)
        fits = lambda n: (  # noqa: E731
            lengths(n)["inputs"] <= encoder and lengths(n)["targets"] <= decoder
        )
        assert fits(n) and not fits(n + 1)


# --- plans --------------------------------------------------------------------------------------


def non_padding_fraction(objective, groups) -> float:
    """Returns the share of filled slots of a step, with rows divided by the members' rates."""
    filled = slots = 0.0
    for group in groups:
        size = sum(group.stacks[s] for s in ("encoder", "decoder") if s in group.stacks)
        for number, share in zip(group.members, group.non_padding_fractions):
            filled += objective.facts.members[number].rate * share * size
            slots += objective.facts.members[number].rate * size
    return filled / slots


def shapes(*decoders):
    return [{"encoder": 512, "decoder": decoder} for decoder in decoders]


def test_ul2_in_three_row_groups_pads_at_most_10_percent():
    objective = ul2(IDS, rates=RATES)
    groups = row_groups(objective, ENCODER_DECODER, IDS, shapes(128, 256, 512))
    assert [g.members for g in groups] == [(0, 1, 4), (6,), (2, 3, 5)]
    assert [g.raw_lengths for g in groups] == [(567, 587, 599), (509,), (765, 907, 1004)]
    assert [g.stacks for g in groups] == shapes(128, 256, 512)
    assert non_padding_fraction(objective, groups) >= 0.90
    assert (
        non_padding_fraction(objective, row_groups(objective, ENCODER_DECODER, IDS, shapes(512)))
        < 0.72
    )


def test_ul2_on_a_decoder_pads_at_most_1_percent():
    objective = ul2(IDS, rates=RATES)
    groups = row_groups(objective, DECODER, IDS, [{"decoder": 512}])
    assert non_padding_fraction(objective, groups) >= 0.99
    assert max(groups[0].raw_lengths) == groups[0].row_length == 509


@pytest.mark.parametrize("layout, stacks", [
    (ENCODER_DECODER, {"encoder": 512, "decoder": 512}),
    (DECODER, {"decoder": 512}),
])  # fmt: skip
def test_group_features_suffice_for_members_and_fit_stacks(layout, stacks):
    objective = ul2(IDS)
    for group in row_groups(objective, layout, IDS, [stacks]):
        for number, raw in zip(group.members, group.raw_lengths):
            member_lengths = objective.facts.members[number].objective.lengths(raw)
            assert all(group.features[key] >= member_lengths[key] for key in member_lengths)
            needs = layout.lengths(member_lengths)
            assert all(group.stacks[stack] >= needs[stack] for stack in needs)


def test_plain_objective_has_one_row_group():
    (group,) = row_groups(span_corruption(IDS), ENCODER_DECODER, IDS, shapes(114))
    assert (group.members, group.raw_lengths, group.non_padding_fractions) == ((0,), (568,), (1.0,))
    (group,) = row_groups(causal_lm(IDS), DECODER, IDS, [{"decoder": 64}])
    assert (group.raw_lengths, group.stacks) == ((64,), {"decoder": 64, "predict": 64})


def test_max_documents_scales_only_per_document_streams():
    """Only slots that each document has separately are multiplied."""
    lengths = {"inputs": lambda n: n + 2, "labels": lambda n: n // 2, "pools": lambda n: 3}
    lengths |= {"rates": lambda n: 1}
    objective = causal_lm(IDS)._replace(lengths=lambda n: {k: f(n) for k, f in lengths.items()})
    (single,), (several,) = (
        row_groups(objective, layouts.encoder, IDS, [{"encoder": 64}], documents)
        for documents in (1, 5)
    )
    assert single.features == {"inputs": 64, "labels": 31, "pools": 3, "rates": 1}
    assert several.features == single.features | {"pools": 15, "rates": 5}
    assert single.stacks == {"encoder": 64, "predict": 31}
    assert several.stacks == single.stacks and several.max_documents == 5
    assert several.raw_lengths == single.raw_lengths == (62,)


def test_non_padding_fractions_of_packed_rows_are_upper_bounds():
    """Documents of one member may use the targets that are planned for another member."""
    long = functools.partial(span_corruption, mean_span_length=8)
    built = mixture(IDS, {"short": (span_corruption, 1), "long": (long, 1)})
    (group,) = row_groups(built, ENCODER_DECODER, IDS, shapes(128), 4)
    assert group.features["targets"] == 114
    assert group.non_padding_fractions == (626 / 640, 626 / 640)


# --- errors -------------------------------------------------------------------------------------


def test_too_few_sentinels_raise_with_counts():
    three_sentinels = IDS._replace(sentinels=IDS.sentinels[:3])
    with refuses(ValueError, "568", "28", "3"):
        row_groups(span_corruption(three_sentinels), ENCODER_DECODER, three_sentinels, shapes(128))
    hundred = IDS._replace(sentinels=IDS.sentinels[:100])
    with refuses(ValueError, "x_3_50", "765", "127", "100"):
        row_groups(ul2(hundred), ENCODER_DECODER, hundred, shapes(512))


@pytest.mark.parametrize(
    "objective, layout, shape",
    [
        (span_corruption(IDS), ENCODER_DECODER, {"encoder": 1, "decoder": 512}),
        (span_corruption(IDS), ENCODER_DECODER, {"encoder": 512, "decoder": 1}),
        (causal_lm(IDS), DECODER, {"decoder": 1}),
        (prefix_lm(IDS), DECODER, {"decoder": 1}),
    ],
)
def test_stack_length_of_1_raises(objective, layout, shape):
    with refuses(ValueError, shape):
        row_groups(objective, layout, IDS, [shape])


def test_error_names_member_that_does_not_fit():
    built = mixture(IDS, {"c": (causal_lm, 1), "p": (prefix_lm, 1)})
    with refuses(ValueError, "'p'", {"decoder": 3}):
        row_groups(built, DECODER, IDS, [{"decoder": 3}])


def test_t5x_feature_lengths_raise_with_stack_lengths():
    for objective, layout, expected in (
        (masked_lm, layouts.encoder, {"encoder": 64}),
        (span_corruption, ENCODER_DECODER, {"encoder": 64, "decoder": 16}),
        (causal_lm, DECODER, {"decoder": 16}),
    ):
        with refuses(ValueError, "'targets': 16", expected):
            row_groups(objective(IDS), layout, IDS, [{"inputs": 64, "targets": 16}])


def test_non_positive_or_fractional_stack_length_raises():
    for wrong in (0, -4, 10.5):
        with refuses(ValueError, 1, f"'decoder': {wrong}"):
            row_groups(causal_lm(IDS), DECODER, IDS, [{"decoder": wrong}])


@pytest.mark.parametrize("wrong", [0, -1, 2.0, "2", 65_536])
def test_invalid_max_documents_raises(wrong):
    with refuses(ValueError, "max_documents", 1, "65,535", repr(wrong)):
        row_groups(causal_lm(IDS), DECODER, IDS, [{"decoder": 64}], wrong)


def test_unknown_or_missing_stacks_raise():
    with refuses(ValueError, "decoder", "encoder", "encodr", "512"):
        raw_length(span_corruption(IDS), ENCODER_DECODER, encodr=512)
    with refuses(ValueError, "encoder", "decoder", "none"):
        raw_length(span_corruption(IDS), ENCODER_DECODER)
    with refuses(ValueError, "encoder"):
        row_groups(causal_lm(IDS), DECODER, IDS, [{"encoder": 512}])


def test_unused_row_groups_are_omitted():
    groups = row_groups(span_corruption(IDS), ENCODER_DECODER, IDS, shapes(64, 128, 512))
    assert [g.stacks for g in groups] == shapes(128)


def test_row_groups_must_be_nonempty_and_ascending():
    with refuses(ValueError, 512, 128):
        row_groups(ul2(IDS), ENCODER_DECODER, IDS, shapes(512, 128))
    with refuses(ValueError, "shapes"):
        row_groups(ul2(IDS), ENCODER_DECODER, IDS, [])


def test_objective_without_inputs_rejects_encoder_decoder():
    with refuses(ValueError, "inputs", "targets"):
        row_groups(causal_lm(IDS), ENCODER_DECODER, IDS, shapes(128))
    built = mixture(IDS, {"span": (span_corruption, 1), "causal": (causal_lm, 1)})
    with refuses(ValueError, "causal"):
        row_groups(built, ENCODER_DECODER, IDS, shapes(128))


def test_constant_lengths_function_raises():
    constant = causal_lm(IDS)._replace(lengths=lambda n: {"targets": 128})
    with refuses(ValueError, "`lengths`", 128):
        raw_length(constant, layouts.decoder, decoder=128)
