"""The masks of span corruption: exactly T5's counts, with every mask equally likely."""

import itertools
from fractions import Fraction
from math import comb

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pretrax.objectives import raw_length, span_corruption
from pretrax.objectives.arithmetic import randint, ratio, round_ratio
from pretrax.objectives.layouts import LAYOUTS
from pretrax.objectives.span_lengths import noise_counts, span_starts
from tests.objectives.distributions import assert_uniform, corrupt_copies
from tests.objectives.registry import IDS, text_row

UL2_SETTINGS = [(3, 0.15), (8, 0.15), (3, 0.5), (8, 0.5), (64, 0.15), (64, 0.5)]


# --- counts -------------------------------------------------------------------------------------


def t5_counts(n: int, density: float, mean: float) -> tuple[int, int]:
    """Returns (noise tokens, spans) by the published formula, in float64."""
    noise = min(max(round(n * density), 1), n - 1)
    return noise, max(round(noise / mean), 1)


@pytest.mark.parametrize("mean, density", UL2_SETTINGS)
def test_noise_counts_match_t5(mean, density):
    objective = span_corruption(IDS, density, mean)
    for n in range(2, 4097):
        noise, spans = t5_counts(n, density, mean)
        if spans > n - noise:  # T5's code crashes.
            spans = n - noise
        expected = {"inputs": n - noise + spans + 1, "targets": noise + spans + 1}
        assert objective.lengths(n) == expected | {"sentinels": spans}, n


@pytest.mark.parametrize("mean, density", UL2_SETTINGS)
def test_device_noise_counts_match_host(mean, density):
    n = np.arange(1, 4097)
    pairs = [ratio(x, "x").as_integer_ratio() for x in (density, mean)]
    device = jax.jit(lambda n: noise_counts(n, *jnp.array(pairs, jnp.int32)))(n)
    for got, expected in zip(device, noise_counts(n, *pairs, xp=np)):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.slow
@settings(derandomize=True, deadline=None, max_examples=300)
@given(
    st.integers(1, 200_000),
    st.fractions(Fraction(1, 1000), Fraction(999, 1000), max_denominator=1000),
    st.fractions(1, 100, max_denominator=10),
)
def test_noise_counts_are_feasible_and_closest_to_density(n, density, mean):
    noise, spans = map(int, noise_counts(n, *(x.as_integer_ratio() for x in (density, mean)), np))
    if n == 1:
        assert (noise, spans) == (0, 0)
        return
    assert 1 <= spans <= min(noise, n - noise)
    assert noise == min(max(round(n * density), 1), n - 1)  # Fractions round half to even exactly.
    assert spans == min(max(round(noise / mean), 1), noise, n - noise)


@given(st.integers(0, 2**30), st.integers(1, 1000))
@example(1, 2)
@example(3, 2)
@example(25, 10)
def test_round_ratio_rounds_half_to_even(a, b):
    assert round_ratio(a, b) == round(Fraction(a, b))
    assert int(round_ratio(np.int32(a), np.int32(b))) == round(Fraction(a, b))


def test_ratio_is_the_written_decimal():
    assert ratio(0.15, "noise_density") == Fraction(3, 20)
    assert ratio(Fraction(1, 3), "noise_density") == Fraction(1, 3)


# --- distribution -------------------------------------------------------------------------------


@pytest.mark.sampled
@pytest.mark.parametrize("total, parts", [(1, 1), (2, 2), (5, 1), (5, 2), (6, 3), (7, 6), (8, 4)])
def test_span_starts_are_uniform_over_compositions(total, parts):
    size = parts + 2  # There is more room than parts. The rest must be `total`.
    bits = jax.random.bits(jax.random.key(total * 10 + parts), (20_000, size - 1), jnp.uint32)
    starts = np.asarray(jax.jit(jax.vmap(lambda b: span_starts(b, total, parts)))(bits))
    assert (starts[:, 0] == 0).all() and (starts[:, parts:] == total).all()
    assert (np.diff(starts[:, : parts + 1]) >= 1).all(), "an empty part"
    assert_uniform(starts, comb(total - 1, parts - 1))


def test_randint_is_uniform():
    drawn = randint(jax.random.bits(jax.random.key(0), (20_000,), jnp.uint32), jnp.int32(7))
    assert_uniform(drawn, 7)


def inputs_and_targets(features):
    """Returns what depends on the mask of each row, and on nothing else."""
    return np.concatenate([features["inputs"], features["targets"]], axis=1)


@pytest.mark.sampled
@pytest.mark.parametrize(
    "n, density, mean, masks",
    [
        (10, 0.3, 1.5, 12),  # C(3-1, 2-1) splits of the noise times C(7-1, 2-1) of the text
        (9, 0.5, 2, 12),  # 4 noise tokens in 2 spans among 5
        (8, 0.5, 1.3, 9),  # 4 noise tokens in 3 spans among 4
    ],
)
def test_span_masks_are_uniform(n, density, mean, masks):
    features = corrupt_copies(span_corruption(IDS, density, mean), (n,), 24_000, seed=n)
    assert_uniform(inputs_and_targets(features), masks)


@pytest.mark.sampled
@pytest.mark.parametrize(
    "n, density, mean, masks",
    [
        (7, 0.4, 1.5, 20),  # C(3-1, 2-1) splits of the noise, C(4+1, 2) sets of gaps in the text
        (8, 0.5, 1.3, 30),  # 4 noise tokens in 3 spans: C(3, 2) splits, C(5, 3) sets of gaps
        (6, 0.15, 3, 6),  # one token, anywhere
        (2, 0.15, 3, 2),
        (1, 0.15, 3, 1),
    ],
)
def test_span_masks_placed_anywhere_are_uniform(n, density, mean, masks):
    objective = span_corruption(IDS, density, mean, placement="anywhere")
    features = corrupt_copies(objective, (n,), 24_000, seed=n)
    assert_uniform(inputs_and_targets(features), masks)
    noise, spans = (int(x) for x in noise_counts(n, *_pairs(density, mean), np))
    candidates = [mask for mask in itertools.product((0, 1), repeat=n) if sum(mask) == noise]
    assert masks == sum(_runs(mask) == spans for mask in candidates)


def _pairs(density, mean):
    return [ratio(x, "x").as_integer_ratio() for x in (density, mean)]


def _runs(mask):
    return sum(b > a for a, b in zip((0, *mask), mask))


@pytest.mark.slow
def test_masks_of_packed_documents_are_independent():
    # Each document has 3 noise tokens in 2 spans: 2 x 2 masks, and 16 pairs of them.
    features = corrupt_copies(span_corruption(IDS, 0.5, 1.5), (6, 6), 16_000, seed=3)
    assert_uniform(inputs_and_targets(features), 16)


@pytest.mark.slow
def test_masks_of_batch_rows_are_independent():
    features = corrupt_copies(span_corruption(IDS, 0.5, 1.5), (6,), 32_000, seed=4)
    assert_uniform(inputs_and_targets(features).reshape(16_000, -1), 16)


def targets_of_two_documents(features):
    """Returns the targets of the first and of the second document, each with 0 in other slots."""
    segments, targets = features["targets_segments"], features["targets"]
    return [np.where(segments == document, targets, 0) for document in (1, 2)]


def spans_of(features) -> list[list[int]]:
    """Returns the lengths of the spans of each row with one document."""
    marks = np.isin(features["targets"], IDS.sentinels)
    closing = (features["targets"] == IDS.eos).argmax(1)
    return [np.diff([*np.flatnonzero(m), end]) - 1 for m, end in zip(marks, closing)]


@pytest.mark.slow
def test_span_lengths_are_uniform_over_range():
    features = corrupt_copies(span_corruption(IDS, 0.5, (2, 4)), (60,), 4_000, seed=5)
    spans_by_row = spans_of(features)
    assert all(spans.sum() == 30 for spans in spans_by_row)
    assert max(spans[-1] for spans in spans_by_row) == 4  # The last span has the remaining tokens.
    # The first five spans never include the last span.
    drawn = np.concatenate([spans[:5] for spans in spans_by_row])
    assert_uniform(drawn, 3)
    pairs = np.stack([spans[:2] for spans in spans_by_row])
    assert_uniform(pairs, 9)


@pytest.mark.slow
def test_packed_documents_draw_span_lengths_independently():
    features = corrupt_copies(span_corruption(IDS, 0.5, (1, 2)), (8, 8), 8_000, seed=6)
    first = [
        (x == IDS.sentinels[1]).argmax(1) - (x == IDS.sentinels[0]).argmax(1) - 1
        for x in targets_of_two_documents(features)
    ]
    assert_uniform(np.stack(first, 1), 4)


@pytest.mark.slow
def test_length_drawn_per_document_applies_to_all_its_spans():
    objective = span_corruption(IDS, 0.5, (2, 4), length_drawn_per="document")
    assert objective.lengths(58) == span_corruption(IDS, 0.5, (2, 4)).lengths(58)
    spans_by_row = spans_of(corrupt_copies(objective, (58,), 4_000, seed=5))
    for spans in spans_by_row:
        length = spans[0]
        assert spans.sum() == 29 and (spans[:-1] == length).all()
        assert spans[-1] == 29 - length * (len(spans) - 1) and 1 <= spans[-1] <= length
    assert_uniform(np.array([spans[0] for spans in spans_by_row]), 3)


@pytest.mark.slow
def test_packed_documents_draw_their_length_independently():
    objective = span_corruption(IDS, 0.5, (1, 2), length_drawn_per="document")
    features = corrupt_copies(objective, (8, 8), 8_000, seed=6)
    numbers = [np.isin(x, IDS.sentinels).sum(1) for x in targets_of_two_documents(features)]
    assert set(numbers[0].tolist()) == {2, 4}  # spans of two tokens, or of one
    assert_uniform(np.stack(numbers, 1), 4)


def test_raw_length_accounts_for_closing_sentinel():
    closed, bare = (
        span_corruption(IDS, placement="anywhere", closing_sentinel=x) for x in (True, False)
    )
    layout = LAYOUTS["encoder_decoder"]
    needs = closed.lengths(568)
    assert needs["targets"] == 115 and needs["sentinels"] == 29
    assert bare.lengths(568) == {"inputs": 512, "targets": 114, "sentinels": 28}
    assert raw_length(bare, layout, encoder=512, decoder=114) == 568
    assert raw_length(closed, layout, encoder=512, decoder=114) < 568


def test_inseparable_spans_are_merged_into_last_span():
    # 8 of 10 tokens are hidden, with two tokens between them.
    objective = span_corruption(IDS, 0.8, (1, 2))
    features = corrupt_copies(objective, (10,), 200, seed=7)
    assert objective.lengths(10) == {"inputs": 5, "targets": 11, "sentinels": 2}
    assert {len(spans) for spans in spans_of(features)} == {2}


@pytest.mark.parametrize("n, inputs, targets", [(1, "a", ""), (2, "aX", "Xb"), (3, "abX", "Xc")])
def test_short_documents_start_with_text_and_end_with_noise(n, inputs, targets):
    _, (tokens,) = text_row((n,), n)
    names = dict(zip("abcX", (*tokens, *[None] * (3 - n), IDS.sentinels[0])))
    features = corrupt_copies(span_corruption(IDS), (n,), 2, seed=0)
    for stream, letters in (("inputs", inputs), ("targets", targets)):
        assert features[stream][0].tolist() == [*(names[x] for x in letters), IDS.eos]


def test_infeasible_density_hides_spans_that_fit():
    objective = span_corruption(IDS, 0.9, 1)  # 9 spans with one token to separate them
    assert objective.lengths(10) == {"inputs": 3, "targets": 11, "sentinels": 1}
    _, ((first, *rest),) = text_row((10,), 10)
    features = corrupt_copies(objective, (10,), 2, seed=0)
    assert features["inputs"][0].tolist() == [first, IDS.sentinels[0], IDS.eos]
    assert features["targets"][0].tolist() == [IDS.sentinels[0], *rest, IDS.eos]
