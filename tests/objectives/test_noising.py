"""Noise on documents: what is hidden, moved or dropped, its distribution, and known pitfalls."""

import functools
import itertools
from fractions import Fraction
from math import comb, factorial, sqrt

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, binomtest, chisquare, poisson

from pretrax.objectives import (
    Row,
    bart,
    batched,
    deshuffling,
    document_rotation,
    iid_denoising,
    sentence_permutation,
    text_infilling,
    token_deletion,
    token_masking,
)
from pretrax.objectives.noising import (
    REPLACEMENTS,
    Noise,
    chain,
    from_noise,
    iid_hidden,
    max_hidden,
    permuted_tokens,
    rotation,
    untouched,
)
from pretrax.objectives.span_lengths import infilling_counts, poisson_lengths, poisson_table
from tests.objectives.batches import corrupt
from tests.objectives.distributions import SIGNIFICANCE, assert_uniform
from tests.objectives.inverse import corrupted_documents
from tests.objectives.registry import IDS, features_of, quick_jit
from tests.objectives.undo_noising import (
    infilled,
    left_out,
    replaced,
    undo_masks_in_order,
    undo_pieces,
    undo_whole,
)
from tests.refusals import refuses

EOS, MASK = IDS.eos, IDS.mask


def streams(features, row: int) -> tuple[list[int], list[int]]:
    """Returns (inputs, targets) of a row with one document, without end-of-sequence."""
    (document,) = corrupted_documents(features_of(features, row)).values()
    assert document.inputs[-1] == document.targets[-1] == EOS
    return document.inputs[:-1], document.targets[:-1]


# --- examples by hand ---------------------------------------------------------------------------

A, B, C = 100, 101, 102
X, Y = IDS.sentinels[:2]


BY_HAND = {  # inputs and targets for all eight masks of A B C
    "spans": [
        ([A, B, C], [X]),
        ([X, B, C], [X, A, Y]),
        ([A, X, C], [X, B, Y]),
        ([A, B, X], [X, C]),
        ([X, C], [X, A, B, Y]),
        ([A, X], [X, B, C]),
        ([X, B, Y], [X, A, Y, C]),
        ([X], [X, A, B, C]),
    ],
    "drop": [
        ([A, B, C], []),
        ([B, C], [A]),
        ([A, C], [B]),
        ([A, B], [C]),
        ([C], [A, B]),
        ([A], [B, C]),
        ([B], [A, C]),
        ([], [A, B, C]),
    ],
}


@pytest.mark.sampled
@pytest.mark.parametrize("replace", BY_HAND)
def test_iid_masks_of_three_tokens_by_hand(replace):
    features = corrupt(iid_denoising(IDS, 0.5, replace), [[A, B, C]], copies=200, seed=0)
    got = {str(streams(features, row)) for row in range(200)}
    assert got == set(map(str, BY_HAND[replace]))


@pytest.mark.sampled
@pytest.mark.parametrize("replace", REPLACEMENTS)
def test_every_replacement_supports_predicting_everything(replace):
    document = list(range(200, 240))
    objective = iid_denoising(IDS, 0.3, replace, "everything", mode="S")
    features = corrupt(objective, [document, [A], [A, B]], copies=20, seed=1)
    possible = {
        "mask": functools.partial(replaced, allowed=lambda token: token == MASK),
        "random": functools.partial(replaced, allowed=lambda token: 2 <= token < 32_000),
        "mask_or_random": functools.partial(
            replaced, allowed=lambda token: token == MASK or 2 <= token < 32_000
        ),
        "drop": left_out,
    }.get(replace, lambda inputs, document: None)
    undo = functools.partial(undo_whole, possible=possible, mode=IDS.mode("S"))
    for row in range(20):
        got = corrupted_documents(features_of(features, row))
        assert [undo(x) for x in got.values()] == [document, [A], [A, B]]


@pytest.mark.parametrize(
    "replace, undo",
    [
        ("spans", undo_pieces),
        ("tokens", functools.partial(undo_pieces, whole_runs=False)),
        ("mask", undo_masks_in_order),
    ],
)
def test_predicting_noise_is_invertible(replace, undo):
    documents = [[A], list(range(200, 240)), [A, B], [B, A, C]]
    features = corrupt(iid_denoising(IDS, 0.4, replace), documents, copies=20, seed=2)
    for row in range(20):
        got = corrupted_documents(features_of(features, row))
        assert [undo(x) for x in got.values()] == documents


@pytest.mark.slow
def test_bart_permutes_sentences_before_infilling():
    stop = int(np.flatnonzero(IDS.flags("sentence_ends"))[20])
    plain = [x for x in range(1000, 1100) if not IDS.flags("sentence_ends")[x]]
    first, second = [*plain[:4], stop], [*plain[4:8], stop]
    features = corrupt(bart(IDS), [first + second], copies=400, seed=4)
    orders = set()
    for row in range(400):
        inputs, targets = streams(features, row)
        assert targets == first + second
        order = [s for s in (first + second, second + first) if _infilled_from(inputs, s)]
        assert order
        orders |= {tuple(s) for s in order}
    assert len(orders) == 2


def _infilled_from(inputs, document) -> bool:
    try:
        infilled(inputs, document)
    except AssertionError:
        return False
    return True


# --- counts -------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(derandomize=True, deadline=None, max_examples=200)
@given(
    st.integers(1, 200_000), st.fractions(Fraction(1, 100), Fraction(99, 100), max_denominator=1000)
)
def test_max_hidden_is_mean_plus_six_standard_deviations(n, density):
    bound = int(max_hidden(n, density.as_integer_ratio(), np))
    mean, deviation = n * density, sqrt(n * density * (1 - density))
    assert min(n, mean + 6 * deviation - 1) <= bound <= min(n, mean + 6 * deviation + 8)


def test_planned_noise_overflows_in_under_one_per_million_documents():
    n = np.arange(1, 5000)
    assert (binom.sf(max_hidden(n, (3, 20), np), n, 0.15) < 1e-6).all()


@pytest.mark.parametrize("density, mean", [((3, 20), (3, 1)), ((1, 2), (7, 2)), ((3, 10), (20, 1))])
def test_device_counts_match_host(density, mean):
    n = np.arange(1, 4097)
    pairs = jnp.array([density, mean], jnp.int32)
    device = jax.jit(lambda n, p: (max_hidden(n, p[0]), *infilling_counts(n, *p)))(n, pairs)
    host = max_hidden(n, density, np), *infilling_counts(n, density, mean, np)
    for got, expected in zip(device, host):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("mean", [1, 3, 3.5, 20])
def test_planned_infilling_spans_cover_almost_all_documents(mean):
    n = np.arange(1, 4097)
    fraction = Fraction(str(mean))
    hidden, spans = infilling_counts(n, (3, 10), fraction.as_integer_ratio(), np)
    not_covered = poisson.cdf(hidden - 1, spans * mean)
    assert (not_covered < np.exp(-18))[(spans < n - hidden + 1) & (hidden > 0)].all()


@pytest.mark.slow
def test_iid_noise_never_hides_special_tokens():
    document = [EOS, A, IDS.sep, B, EOS] * 8
    for replace in ("mask", "random"):
        features = corrupt(
            iid_denoising(IDS, 0.9, replace, "everything"), [document], copies=20, seed=5
        )
        special = np.isin(document, (EOS, IDS.sep))
        assert (features["inputs"][:, :-1][:, special] == np.array(document)[special]).all()
        assert (features["inputs"][:, :-1][:, ~special] != np.array(document)[~special]).any()


# --- distribution -------------------------------------------------------------------------------


def test_iid_masks_are_bernoulli():
    features = corrupt(token_masking(IDS, 0.3), [[A, B, C, 103]], copies=20_000, seed=6)
    hidden = features["inputs"][:, :4] == MASK
    counts = np.bincount(hidden @ [1, 2, 4, 8], minlength=16)
    ones = np.array([bin(i).count("1") for i in range(16)])
    assert chisquare(counts, 20_000 * 0.3**ones * 0.7 ** (4 - ones)).pvalue > SIGNIFICANCE


def test_iid_masks_of_packed_documents_are_independent():
    features = corrupt(token_masking(IDS, 0.5), [[A, B], [A, B]], copies=8_000, seed=8)
    assert_uniform(features["inputs"], 16)


def test_mask_or_random_replaces_one_in_ten_by_random_text():
    document = list(range(100, 150))
    objective = iid_denoising(IDS, 0.5, "mask_or_random", "everything")
    features = corrupt(objective, [document], copies=1000, seed=9)
    inputs = features["inputs"][:, :-1]
    hidden = inputs != np.array(document)
    random = inputs[hidden & (inputs != MASK)]
    assert binomtest(random.size, int(hidden.sum()), 0.1).pvalue > SIGNIFICANCE
    assert ((random >= IDS.text[0]) & (random < IDS.text[1])).all()
    quarters = np.bincount((random - 2) * 4 // (32_000 - 2), minlength=4)
    assert chisquare(quarters).pvalue > SIGNIFICANCE, quarters


@pytest.mark.parametrize("mean", [Fraction(1), Fraction(3), Fraction(7, 2), Fraction(20)])
def test_poisson_table_is_cdf_in_24_bits(mean):
    table = np.array(poisson_table(mean))
    expected = poisson.cdf(np.arange(len(table)), float(mean)) * 2**24
    assert table.dtype.kind == "i" and np.abs(table - expected).max() < 0.51
    at_edges = np.concatenate([table, table - 1])
    bits = at_edges[(at_edges >= 0) & (at_edges < 2**24)].astype(np.uint32) << 8
    got = poisson_lengths(jnp.array(bits), jnp.array(table, jnp.int32))
    np.testing.assert_array_equal(got, (bits[:, None] >> 8 >= table).sum(1))


def span_length_probabilities(
    hidden: int, max_spans: int, mean: float
) -> dict[tuple[int, ...], float]:
    """Returns {sorted span lengths of a document: probability}, by enumerating all draws."""
    probabilities: dict[tuple[int, ...], float] = {}

    def draw(spans, left, probability):
        if len(spans) + 1 == max_spans:
            ways = [(left, 1.0)]
        else:
            ways = [(k, poisson.pmf(k, mean)) for k in range(left)]
            ways.append((left, poisson.sf(left - 1, mean)))
        for length, chance in ways:
            if length < left:
                draw([*spans, length], left - length, probability * chance)
            else:
                key = tuple(sorted([*spans, length]))
                probabilities[key] = probabilities.get(key, 0) + probability * chance

    draw([], hidden, 1.0)
    return probabilities


@pytest.mark.slow
def test_infilled_span_lengths_are_poisson_with_empty_and_trimmed_spans():
    # Four of eight tokens are hidden, in at most five spans. The visible tokens show each length.
    copies = 20_000
    features = corrupt(
        text_infilling(IDS, 0.5, 1.5), [list(range(100, 108))], copies=copies, seed=10
    )
    probabilities = span_length_probabilities(hidden=4, max_spans=5, mean=1.5)
    assert abs(sum(probabilities.values()) - 1) < 1e-9
    counts = dict.fromkeys(probabilities, 0)
    for row in range(copies):
        counts[tuple(sorted(lengths_of_spans(features["inputs"][row], 100, 108)))] += 1
    expected = np.array([*probabilities.values()]) * copies
    assert len(probabilities) == 18 and expected.min() > 10
    assert chisquare([*counts.values()], expected).pvalue > SIGNIFICANCE, counts


def lengths_of_spans(inputs, first: int, end: int) -> list[int]:
    """Returns the lengths of the spans hidden in the document `first, first + 1, … end - 1`."""
    lengths, expected = [], first
    for token in inputs:
        if token == MASK:
            lengths.append(0)
        else:
            position = end if token == EOS else token
            if position != expected:
                lengths[-1] = int(position - expected)
            expected = position + 1
            if token == EOS:
                return lengths
    raise AssertionError("no end-of-sequence")


def test_infilled_span_positions_are_uniform():
    # Three of six tokens are hidden. The three visible tokens leave four places for spans.
    features = corrupt(
        text_infilling(IDS, 0.5, 3), [[100, 101, 102, 103, 104, 105]], copies=20_000, seed=11
    )
    masks = features["inputs"] == MASK
    gap = np.where(masks, np.cumsum(~masks, 1), 99)
    for spans in (1, 2, 3):
        gaps_of_spans = np.sort(gap[masks.sum(1) == spans], 1)[:, :spans]
        assert_uniform(gaps_of_spans, comb(4, spans))


def test_infilling_of_packed_documents_is_independent():
    # One of two tokens is hidden. Nine of ten documents have one span, before or after the other
    # token.
    features = corrupt(text_infilling(IDS, 0.5, 3), [[A, B]] * 2, copies=9_000, seed=12)
    one_span_each = (features["inputs_segments"] > 0).sum(1) == 6
    assert one_span_each.mean() > 0.85
    assert_uniform(features["inputs"][one_span_each], 4)


def test_rotations_are_uniform_and_independent():
    features = corrupt(
        document_rotation(IDS), [[100, 101, 102], [200, 201, 202]], copies=9_000, seed=13
    )
    assert_uniform(features["inputs"], 9)


@pytest.mark.parametrize("lengths, orders", [((4,), 24), ((3, 2), 12)])
def test_shuffles_are_uniform(lengths, orders):
    documents = [list(range(100, 100 + n)) for n in lengths]
    features = corrupt(deshuffling(IDS), documents, copies=12_000, seed=14)
    assert orders == np.prod([factorial(n) for n in lengths])
    assert_uniform(features["inputs"], orders)


def _sentences(*lengths):
    """Returns sentences of different tokens, of which only the last token ends a sentence."""
    ends = IDS.flags("sentence_ends")
    plain = iter([x for x in range(500, 700) if not ends[x]])
    stops = iter([x for x in range(700, 900) if ends[x]])
    return [[*(next(plain) for _ in range(n - 1)), next(stops)] for n in lengths]


def test_sentence_orders_are_uniform_including_truncated_sentence():
    *whole, cut = _sentences(3, 2, 4)
    document = sum([*whole, cut[:2]], [])  # The last sentence has lost its end.
    other = sum(_sentences(2, 2), [])
    features = corrupt(sentence_permutation(IDS), [document, other], copies=12_000, seed=15)
    assert_uniform(features["inputs"], 6 * 2)


def test_consecutive_stops_end_one_sentence():
    # Otherwise the last dots of "wait ..." would move to other places.
    plain = [x for x in range(500, 700) if not IDS.flags("sentence_ends")[x]]
    stop = next(x for x in range(700, 900) if IDS.flags("sentence_ends")[x])
    document = [*plain[:3], stop, stop, stop, *plain[3:6], stop, *plain[6:9], stop, stop]
    features = corrupt(sentence_permutation(IDS), [document], copies=200, seed=22)
    sentences = [document[:6], document[6:10], document[10:]]
    orders = {tuple(sum(order, [])) for order in itertools.permutations(sentences)}
    got = {tuple(int(x) for x in row[: len(document)]) for row in features["inputs"]}
    assert got == orders


def test_chained_noises_draw_independently():
    # If both used the same draw, two turns of two tokens would always restore the order.
    twice = from_noise(IDS, chain(rotation(), rotation()))
    features = corrupt(twice, [[A, B]], copies=6_000, seed=16)
    assert_uniform(features["inputs"], 2)


# --- known pitfalls -----------------------------------------------------------------------------


@pytest.mark.parametrize("build", [deshuffling, sentence_permutation, bart])
def test_documents_beyond_max_documents_do_not_change_others(build):
    """`jit` cannot reject them, and their numbers leave no room for random bits."""
    tokens = np.random.default_rng(0).integers(2, 32_000, (2, 600)).astype(np.int32)
    alone = np.tile(np.arange(600) < 20, (2, 1)).astype(np.int32)
    among_many = np.tile(np.maximum(np.arange(600) - 18, 1), (2, 1)).astype(np.int32)
    objective = build(IDS)
    corrupt = quick_jit(batched(objective, objective.lengths(600), 1))
    expected, got = (
        corrupt(jax.random.split(jax.random.key(0), 2), Row(tokens, x, np.zeros(2, np.int32)))
        for x in (alone, among_many)
    )
    jax.tree.map(np.testing.assert_array_equal, got, expected)


def test_document_without_remaining_tokens_keeps_its_segment():
    features = corrupt(token_deletion(IDS, 0.9), [[A], [B], [C]], copies=50, seed=23)
    empty = 0
    for row in range(50):
        got = corrupted_documents(features_of(features, row))
        assert [x.targets for x in got.values()] == [[A, EOS], [B, EOS], [C, EOS]]
        empty += got[2].inputs == [EOS]
    assert empty > 25


def test_untouched_noise_copies_documents():
    features = corrupt(from_noise(IDS, untouched()), [[A, B], [C]], copies=2, seed=24)
    for stream in ("inputs", "targets"):
        assert features[stream][0].tolist() == [A, B, EOS, C, EOS]


def test_chain_combines_sentinel_counts_and_longest_lengths():
    sentinels = iid_hidden(IDS, 0.5, "tokens")
    chained = chain(permuted_tokens(), sentinels)
    assert chained.sentinels(16) == sentinels.sentinels(16) and chain(rotation()).sentinels is None
    longer = Noise(lambda n: n + 1, untouched().apply)
    shorter = Noise(lambda n: n - 1, untouched().apply)
    assert chain(longer, longer).longest(4) == 6
    with refuses(ValueError, "1", "2"):
        chain(longer, shorter)
