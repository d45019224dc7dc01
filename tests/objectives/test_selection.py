"""Which tokens are chosen: exact counts, every choice equally likely, whole units."""

import functools
import math
from fractions import Fraction
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, chisquare

from pretrax.objectives import bitmap, geometric_lengths, inverse_lengths
from pretrax.objectives.arithmetic import isqrt
from pretrax.objectives.selection import choose, quota, selection_of
from tests.objectives.distributions import SIGNIFICANCE, assert_uniform
from tests.objectives.registry import IDS
from tests.refusals import refuses

FIRST = IDS.text[0]


def selected(selection, documents, copies, seed=0):
    """Returns (chosen bool[copies, L], unit i32[copies, L]) of one row for `copies` keys."""
    keys = jax.random.split(jax.random.key(seed), copies)
    drawn = _choose(len(documents), keys, *row_of(documents), selection)
    return [np.asarray(x) for x in drawn]


def row_of(documents):
    """Returns (tokens, segments) of a row, each i32[L]."""
    segments = np.repeat(np.arange(len(documents)) + 1, [len(d) for d in documents])
    return jnp.array(np.concatenate(documents), jnp.int32), jnp.array(segments, jnp.int32)


@functools.partial(
    jax.jit, static_argnums=0, compiler_options={"xla_backend_optimization_level": 0}
)
def _choose(count, keys, tokens, segments, selection):
    return jax.vmap(lambda key: choose(key, tokens, segments, count, selection))(keys)


def text(n):
    """Returns n tokens of text that each start a word."""
    return np.full(n, FIRST + 3)  # 5 % 5 < 3


def spans_of(chosen, unit):
    """Returns the sizes of the chosen units of many rows, except each row's first and last unit."""
    sizes = []
    for chosen_L, unit_L in zip(chosen, unit):
        starts, counts = np.unique(unit_L[chosen_L], return_counts=True)
        inner = (starts > 0) & (starts < unit_L.max())
        sizes += counts[inner].tolist()
    return np.array(sizes)


# --- counts -------------------------------------------------------------------------------------


@settings(derandomize=True, deadline=None, max_examples=200)
@given(
    st.integers(0, 1_000_000),
    st.fractions(Fraction(1, 1000), Fraction(999, 1000), max_denominator=1000),
    st.integers(1, 200),
)
def test_quota_is_exact_at_every_rate(n, rate, max_predictions):
    # Fractions round half to even exactly.
    expected = min(n, max_predictions, max(1, round(rate * n)))
    assert quota(n, selection_of(IDS, rate, max_predictions=max_predictions), np) == expected


@pytest.mark.parametrize("kind", ["exact", "bernoulli"])
def test_device_quota_matches_host(kind):
    n = np.arange(5000, dtype=np.int32)
    selection = selection_of(IDS, 0.15, kind, span_lengths=inverse_lengths())
    np.testing.assert_array_equal(jax.jit(quota)(n, selection), quota(n, selection, np))


def test_bernoulli_quota_is_six_standard_deviations_above_mean():
    for n in (100, 512, 8192):
        for rate in (0.15, 0.5):
            bound = quota(n, selection_of(IDS, rate, "bernoulli"), np)
            deviations = (bound - n * rate) / math.sqrt(n * rate)
            assert bound == n or 6 <= deviations < 6 + 8 / math.sqrt(n * rate)


def test_isqrt_is_exact():
    roots = np.arange(1, 2**15 + 1, dtype=np.int64)
    n = np.concatenate([np.arange(20_000), roots**2 - 1, roots**2]).astype(np.int32)
    expected = [math.isqrt(x) for x in n.tolist()]
    np.testing.assert_array_equal(isqrt(n, np), expected)
    np.testing.assert_array_equal(isqrt(jnp.asarray(n)), expected)


# --- tokens -------------------------------------------------------------------------------------


@pytest.mark.parametrize("n, rate, masks", [(6, 1 / 3, 15), (8, 0.5, 70), (3, 0.9, 1)])
def test_masks_are_uniform_over_subsets_of_fixed_size(n, rate, masks):
    rate = Fraction(rate).limit_denominator(20)
    chosen, _ = selected(selection_of(IDS, rate), [text(n)], 20_000, seed=n)
    assert (chosen.sum(1) == max(1, round(n * rate))).all()
    assert_uniform(chosen, masks)


def test_masks_of_packed_documents_are_independent():
    chosen, _ = selected(selection_of(IDS, 0.5), [text(4), text(3), text(1)], 20_000)
    assert (chosen[:, -1]).all()  # 0.5 rounds to 0, but a document has at least one.
    assert_uniform(chosen, 6 * 3)


@pytest.mark.parametrize("settings", [{}, {"whole_words": True}, {"span_lengths": (1.0,)}])
def test_counts_are_exact_if_all_random_bits_are_equal(settings):
    with mock.patch.object(jax.random, "bits", lambda key, shape, dtype: jnp.zeros(shape, dtype)):
        row = row_of([text(10), text(20)])
        selection = selection_of(IDS, 0.3, **settings)
        chosen, _ = jax.jit(lambda key: choose(key, *row, 2, selection))(jax.random.key(0))
    assert chosen[:10].sum() == 3 and chosen[10:].sum() == 6


@pytest.mark.slow
def test_rows_may_have_more_than_255_documents():
    chosen, _ = selected(selection_of(IDS, 0.5), [text(4)] * 300, 4)
    assert (chosen.reshape(4, 300, 4).sum(2) == 2).all()


@pytest.mark.slow
def test_special_tokens_are_neither_selected_nor_counted():
    row = np.array([IDS.cls, *text(6), IDS.sep, *text(3), IDS.eos, IDS.pad])
    for kind in ({"whole_words": True}, {"span_lengths": geometric_lengths()}):
        chosen, unit = selected(selection_of(IDS, 0.9, **kind), [row], 500)
        special = np.isin(row, (IDS.cls, IDS.sep, IDS.eos, IDS.pad))
        assert not chosen[:, special].any()
        assert (chosen.sum(1) <= 8).all() and (chosen.sum(1) >= 1).all()
        assert (unit[:, 8:11] >= 8).all(), "a unit goes on across a special token"
    chosen, _ = selected(selection_of(IDS, 0.9), [row], 500)
    assert (chosen.sum(1) == 8).all()  # 0.9 of the nine tokens of text


def test_bernoulli_selection_is_independent_per_token():
    # n = 5: tests the probabilities of all 32 subsets. Chi-squared test, significance 0.001.
    chosen, _ = selected(selection_of(IDS, 0.3, "bernoulli"), [text(5)], 40_000)
    outcome = chosen @ (1 << np.arange(5))
    sizes = np.array([bin(i).count("1") for i in range(32)])
    expected = 40_000 * 0.3**sizes * 0.7 ** (5 - sizes)
    assert chisquare(np.bincount(outcome, minlength=32), expected).pvalue > SIGNIFICANCE


# --- whole words --------------------------------------------------------------------------------


@pytest.mark.parametrize("starts", [{2, 5}, {2, 3, 5}], ids=["two starts", "three starts"])
def test_whole_words_follow_word_start_flags(starts):
    # Ids 2 … 9. The vocabulary only knows which of them start a word.
    flags = bitmap(np.isin(np.arange(IDS.size), list(starts)))
    ids = IDS._replace(text=(2, 10), word_starts=flags)
    row = np.array([4, 2, 3, 5, 6, 2, IDS.sep, 4])
    _, unit = selected(selection_of(ids, 0.5, whole_words=True), [row], 1)
    # 4 starts a word at the start of the document and after the separator, even without a flag.
    with_two_starts, with_three_starts = [0, 1, 1, 3, 3, 5, 5, 7], [0, 1, 2, 3, 3, 5, 5, 7]
    assert unit[0].tolist() == (with_two_starts if 3 not in starts else with_three_starts)


def bert_selection(sizes, order, budget):
    """Selects as BERT's loop: words in random order, skipping words that do not fit."""
    taken, used = set(), 0
    for word in order:
        if used + sizes[word] <= budget:
            taken.add(word)
            used += sizes[word]
    return taken


@pytest.mark.parametrize("longest", [1, 3, 17])
def test_whole_word_selection_matches_bert_loop(longest):
    random, L, rows = np.random.default_rng(longest), 120, 100
    ids = IDS._replace(text=(2, 10), word_starts=bitmap(np.arange(IDS.size) == 2))
    selection = selection_of(ids, 0.3, whole_words=True)
    bits = random.permuted(np.tile(np.arange(L, dtype=np.uint32) << 24, (rows, 1)), axis=1)
    tokens = np.zeros((rows, L), np.int32)
    words = []
    for row in tokens:
        sizes = random.integers(1, longest + 1, L)
        sizes = sizes[: np.searchsorted(np.cumsum(sizes), L) + 1]
        words.append(np.r_[0, np.cumsum(sizes)])
        row[:] = np.concatenate([[2] + [5] * (s - 1) for s in sizes])[:L]

    def choose_with_bits(tokens, bits):
        with mock.patch.object(jax.random, "bits", lambda *_: bits):
            return choose(jax.random.key(0), tokens, jnp.ones_like(tokens), 1, selection)[0]

    chosen = np.asarray(jax.jit(jax.vmap(choose_with_bits))(tokens, bits))
    for row in range(rows):
        edges = np.minimum(words[row], L)
        sizes, starts = np.diff(edges), edges[:-1]
        taken = bert_selection(sizes, np.argsort(bits[row, starts]), quota(L, selection, np))
        expected = np.zeros(L, bool)
        for word in taken:
            expected[edges[word] : edges[word + 1]] = True
        assert taken and (chosen[row] == expected).all(), row


def test_word_is_truncated_if_no_word_fits():
    ids = IDS._replace(text=(2, 10), word_starts=bitmap(np.arange(IDS.size) == 2))
    # Two words of five tokens; two tokens may be hidden.
    row = np.array([2, 5, 5, 5, 5, 2, 5, 5, 5, 5])
    chosen, _ = selected(selection_of(ids, 0.2, whole_words=True), [row], 4_000)
    assert_uniform(chosen, 2)
    assert {tuple(np.flatnonzero(c)) for c in chosen} == {(0, 1), (5, 6)}


# --- spans --------------------------------------------------------------------------------------


def test_span_length_distributions_match_papers():
    lengths = np.arange(1, 11)
    law = np.array(geometric_lengths())
    assert law @ lengths == pytest.approx(3.797, abs=1e-3)  # "a mean span length of 3.8"
    np.testing.assert_allclose(law[1:] / law[:-1], 0.8)
    np.testing.assert_allclose(inverse_lengths(), (6 / 11, 3 / 11, 2 / 11))


@pytest.mark.parametrize(
    "law, kind",
    [
        (geometric_lengths(), "exact"),
        (geometric_lengths(), "bernoulli"),
        (inverse_lengths(), "exact"),
    ],
    ids=["SpanBERT", "SpanBERT, drawn", "ALBERT"],
)
def test_selected_spans_follow_length_distribution(law, kind):
    # Chi-squared test, significance 0.001. The last span of a document is trimmed, which is rare in
    # documents of 2,000 tokens.
    selection = selection_of(IDS, 0.15, kind, span_lengths=law)
    sizes = spans_of(*selected(selection, [text(2000)], 40, seed=2))
    counts = np.bincount(sizes, minlength=len(law) + 1)[1:]
    assert counts.sum() > 2_500
    assert chisquare(counts, np.array(law) * counts.sum()).pvalue > SIGNIFICANCE, counts


def test_word_spans_hold_whole_words_except_trimmed_last_word():
    ids = IDS._replace(word_starts=bitmap(np.arange(IDS.size) % 2 == 0))
    row = np.arange(100, 300)  # words of two tokens
    selection = selection_of(ids, 0.155, whole_words=True, span_lengths=(0.5, 0, 0.5))
    chosen, _ = selected(selection, [row], 50)
    assert (chosen.sum(1) == 31).all()
    assert ((chosen[:, ::2] != chosen[:, 1::2]).sum(1) == 1).all()  # 31 is odd


@pytest.mark.slow
def test_span_starts_are_uniform():
    # Binomial tests of eleven places, joint significance 0.001. Place 0 always starts a span.
    law = geometric_lengths()
    selection = selection_of(IDS, 0.15, span_lengths=law)
    _, unit = selected(selection, [text(5), text(12)], 20_000)
    starts = (unit[:, 5:] == np.arange(5, 17)).sum(0)
    assert starts[0] == 20_000
    chance = 1 / (np.array(law) @ np.arange(1, 11))
    assert min(binomtest(int(k), 20_000, chance).pvalue for k in starts[1:]) > SIGNIFICANCE / 11


def test_invalid_span_length_parameters_raise():
    assert geometric_lengths(1, 3) == (1, 0, 0)
    for p in (0, 1.5):
        with refuses(ValueError, "p", 0, 1, p):
            geometric_lengths(p)
    for lengths in (geometric_lengths, inverse_lengths):
        with refuses(ValueError, "longest", "1", "0"):
            lengths(longest=0)
