"""Infilling: all outcomes on short texts by hand, their probabilities, and known pitfalls."""

import functools
from collections import Counter
from fractions import Fraction
from math import exp, factorial

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2_contingency

from pretrax.objectives import (
    blank_infilling,
    causal_masking,
    fill_in_the_middle,
)
from pretrax.objectives.blanks import blank_counts
from tests.objectives.cuts import CHANCES, CUTS, assert_law
from tests.objectives.distributions import SIGNIFICANCE, corrupt_copies
from tests.objectives.inverse import corrupted_documents
from tests.objectives.registry import IDS, text_row
from tests.objectives.undo_infilling import undo_blanks, undo_causal_masking, undo_middle

PREFIX, SUFFIX, MIDDLE = IDS.fim


def as_letters(features, n: int, stream: str = "targets") -> list[str]:
    """Returns each row's document in letters: `<prefix> a <suffix> b <middle> c /` is PaSbMc/."""
    _, (document,) = text_row((n,), n)
    letters = dict(zip(document, "abcdefgh"))
    letters |= {PREFIX: "P", SUFFIX: "S", MIDDLE: "M", IDS.eos: "/", IDS.mask: "_"}
    letters |= dict(zip(IDS.sentinels, "XYZW"))
    rows = zip(features[stream], features[f"{stream}_segments"])
    return ["".join(letters[x] for x in tokens[live > 0]) for tokens, live in rows]


def written(objective, n: int, copies: int, seed: int) -> list[str]:
    """Returns the targets of a document of n tokens, for `copies` keys."""
    return as_letters(corrupt_copies(objective, (n,), copies, seed), n)


# --- fill in the middle -------------------------------------------------------------------------


@pytest.mark.parametrize("form", CUTS)
def test_cuts_are_uniform_and_forms_match_paper(form):
    probabilities = Counter()
    for outcome, chance in zip(CUTS[form], CHANCES):
        probabilities[outcome] += float(chance)
    spm_settings = {"spm_rate": 0} if form == "psm" else {"spm_rate": 1, "spm": form}
    assert_law(
        written(fill_in_the_middle(IDS, 1, **spm_settings), 2, 18_000, seed=1), dict(probabilities)
    )


@pytest.mark.slow
def test_cut_pairs_are_uniform_in_longer_text():
    texts = written(fill_in_the_middle(IDS, 1, 0), 6, 20_000, seed=2)
    cuts = [(x.index("S") - 1, x.index("S") - 1 + len(x) - x.index("M") - 2) for x in texts]
    pairs = {(a, b): (1 + (a < b)) / 49 for b in range(7) for a in range(b + 1)}
    assert_law(cuts, pairs)


def test_shares_of_plain_psm_and_spm_follow_rates():
    objective = fill_in_the_middle(IDS, rate=0.6, spm_rate=0.25, spm="spm")
    first = [x[0] for x in written(objective, 8, 10_000, seed=3)]
    assert_law(first, {"a": 0.4, "P": 0.6 * 0.75, "S": 0.6 * 0.25})


@pytest.mark.slow
def test_packed_documents_are_cut_independently():
    targets = corrupt_copies(fill_in_the_middle(IDS, 1, 0), (1, 1), 16_000, seed=5)["targets"]
    # P _ S _ M _ /: the token is the prefix, the suffix or the middle.
    places = [np.flatnonzero(row < IDS.text[1]) for row in np.where(targets > 1, targets, IDS.size)]
    kinds = [(int(first), int(second) - 5) for first, second in places]
    chance = {1: 0.25, 2: 0.25, 3: 0.5}
    assert_law(kinds, {(a, b): p * q for a, p in chance.items() for b, q in chance.items()})


# --- causal masking -----------------------------------------------------------------------------

SINGLE = 2 / exp(1)  # Poisson(1) is 0 or 1


@pytest.mark.slow
def test_spans_are_uniform_and_follow_their_sentinels():
    law = dict.fromkeys(
        # The six spans of three tokens.
        ("XbcXa/", "aXcXb/", "abXXc/", "XcXab/", "aXXbc/", "XXabc/"),
        SINGLE / 6,
    )
    law["XbYXa/Yc/"] = 1 - SINGLE  # More than two spans do not fit.
    assert_law(written(causal_masking(IDS), 3, 20_000, seed=7), law)


@pytest.mark.slow
@pytest.mark.parametrize("max_spans", [16, 3])
def test_span_count_is_clipped_poisson(max_spans):
    spans = [x.count("/") for x in written(causal_masking(IDS, max_spans), 8, 20_000, seed=8)]
    mass = [exp(-1) / factorial(k) for k in range(12)]
    max_spans = min(max_spans, 4)  # Eight tokens have room for at most four spans.
    law = {1: SINGLE} | {k: mass[k] for k in range(2, max_spans)}
    assert_law(spans, law | {max_spans: 1 - sum(law.values())})


@pytest.mark.slow
def test_only_sentinels_have_no_loss():
    features = corrupt_copies(causal_masking(IDS), (30, 1, 17), 200, seed=9)
    sentinel = np.isin(features["targets"], IDS.sentinels)
    live = features["targets_segments"] > 0
    np.testing.assert_array_equal(features["targets_weights"], live & ~sentinel)


# --- blank infilling ----------------------------------------------------------------------------


@pytest.mark.slow
def test_blanks_are_uniform_and_shuffled():
    # Two of four tokens are hidden: one span of two if the first draw is not 1, else two separate
    # spans.
    single_span = exp(-1) / (1 - exp(-1))
    law = {
        "_cd ab/ 000 123": (1 - single_span) / 3,
        "a_d bc/ 111 123": (1 - single_span) / 3,
        "ab_ cd/ 222 123": (1 - single_span) / 3,
        "_b_d a/c/ 0022 1212": single_span / 6,
        "_b_d c/a/ 2200 1212": single_span / 6,
        "_bc_ a/d/ 0033 1212": single_span / 6,
        "_bc_ d/a/ 3300 1212": single_span / 6,
        "a_c_ b/d/ 1133 1212": single_span / 6,
        "a_c_ d/b/ 3311 1212": single_span / 6,
    }
    features = corrupt_copies(blank_infilling(IDS, 0.5, 1), (4,), 12_000, seed=10)
    live = features["targets_segments"] > 0
    columns = [
        ["".join(map(str, row[n])) for row, n in zip(features[f"targets_{name}"], live)]
        for name in ("positions", "block_positions")
    ]
    texts = [as_letters(features, 4, stream) for stream in ("inputs", "targets")]
    assert_law(map(" ".join, zip(*texts, *columns)), law)


def published_spans(random, hidden: int, mean: float) -> list[int]:
    """Draws span lengths as published: positive Poisson numbers, with the last one cut."""
    spans = []
    while sum(spans) < hidden:
        drawn = random.poisson(mean)
        if drawn:
            spans.append(min(drawn, hidden - sum(spans)))
    return spans


def assert_same_distribution(got, expected):
    kinds = sorted({*got, *expected})
    table = np.array([[Counter(x)[kind] for kind in kinds] for x in (got, expected)])
    table = table[:, table.min(0) > 5]
    assert table.sum() > 0.97 * (len(got) + len(expected))
    assert chi2_contingency(table).pvalue > SIGNIFICANCE, table


@pytest.mark.slow
def test_span_count_matches_published_procedure():
    # 30 tokens are hidden.
    features = corrupt_copies(blank_infilling(IDS), (200,), 10_000, seed=11)
    random = np.random.default_rng(12)
    published = [len(published_spans(random, 30, 3)) for _ in range(10_000)]
    assert_same_distribution((features["targets"] == IDS.eos).sum(1).tolist(), published)


@pytest.mark.slow
def test_span_lengths_and_order_match_published_procedure():
    # Five tokens are hidden.
    features = corrupt_copies(blank_infilling(IDS, 0.2), (25,), 12_000, seed=13)
    outcomes = []
    for row, places in zip(features["targets"], features["targets_positions"]):
        closes = np.flatnonzero(row == IDS.eos)
        in_text = np.argsort(places[closes])
        outcomes.append((*np.diff(closes, prepend=-1)[in_text] - 1, *in_text))
    random = np.random.default_rng(14)
    published = []
    for _ in outcomes:
        spans = published_spans(random, 5, 3)
        published.append((*random.permutation(spans), *random.permutation(len(spans))))
    assert_same_distribution(outcomes, published)


def test_planned_spans_overflow_in_under_two_per_million_documents():
    mass = np.array([0] + [exp(-3) * 3**k / factorial(k) for k in range(1, 40)])
    mass /= mass.sum()
    for hidden in range(1, 100):
        _, num_spans = blank_counts(20 * hidden, (1, 20), (3, 1), np)
        total = np.eye(1, hidden)[0]  # distribution of the sum of `num_spans` draws, below `hidden`
        for _ in range(num_spans):
            total = np.convolve(total, mass)[:hidden]
        assert total.sum() < 2e-6, hidden


# --- corruption is invertible for any documents and settings ------------------------------------

ROW, DOCUMENTS = 48, 4
max_documents_per_row = st.lists(st.integers(1, ROW // DOCUMENTS), min_size=1, max_size=DOCUMENTS)
shares = st.fractions(0, 1, max_denominator=20).map(float)
densities = st.fractions(Fraction(1, 20), Fraction(19, 20), max_denominator=20)


@functools.cache
def corrupt_any():
    """Corrupts with traced settings, so that one program serves all settings of a builder."""
    lengths = {"inputs": 2 * ROW, "targets": 4 * ROW, "positions": 4 * ROW}
    return jax.jit(lambda corrupt, key, row: corrupt(key, row, row, lengths, DOCUMENTS))


def assert_recovered(objective, document_lengths, seed, undo):
    row, documents = text_row(document_lengths, ROW, seed)
    features = corrupt_any()(objective.corrupt, jax.random.key(seed), row)
    corrupted = corrupted_documents(features)
    assert [undo(corrupted[d + 1]) for d in range(len(documents))] == documents
    return corrupted


@pytest.mark.slow
@settings(derandomize=True, deadline=None, max_examples=60)
@given(max_documents_per_row, shares, shares, st.sampled_from(["spm", "spmv2"]), st.integers(0, 99))
def test_fill_in_the_middle_is_invertible(document_lengths, rate, spm_rate, spm, seed):
    objective = fill_in_the_middle(IDS, rate, spm_rate, spm)
    assert_recovered(objective, document_lengths, seed, functools.partial(undo_middle, spm=spm))


@pytest.mark.slow
@settings(derandomize=True, deadline=None, max_examples=60)
@given(max_documents_per_row, st.sampled_from([1, 2, 16]), st.integers(0, 99))
def test_causal_masking_is_invertible(document_lengths, max_spans, seed):
    objective = causal_masking(IDS, max_spans)
    assert_recovered(
        objective,
        document_lengths,
        seed,
        functools.partial(undo_causal_masking, max_spans=max_spans),
    )


@pytest.mark.slow
@settings(derandomize=True, deadline=None, max_examples=60)
@given(max_documents_per_row, densities, st.fractions(1, 16, max_denominator=4), st.integers(0, 99))
def test_blank_infilling_is_invertible_and_hides_requested_count(
    document_lengths, density, mean, seed
):
    objective = blank_infilling(IDS, density, mean)
    corrupted = assert_recovered(objective, document_lengths, seed, undo_blanks)
    for number, n in enumerate(document_lengths, start=1):
        hidden = sum(token != IDS.eos for token in corrupted[number].targets)
        assert hidden == max(round(density * n), 1)


def test_builds_with_different_numbers_share_one_kernel():
    builds = (fill_in_the_middle, blank_infilling)
    for build, changes in zip(builds, ({"rate": 0.9, "spm": "spm"}, {"density": 0.3})):
        default_kernel, changed_kernel = build(IDS).corrupt, build(IDS, **changes).corrupt
        assert jax.tree.structure(default_kernel) == jax.tree.structure(changed_kernel)
        shapes = [
            [x.shape for x in jax.tree.leaves(kernel)]
            for kernel in (default_kernel, changed_kernel)
        ]
        assert shapes[0] == shapes[1]
