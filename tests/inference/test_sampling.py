"""Tokens are drawn from the distribution that the settings define."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pretrax.inference.decoding.sampling import GREEDY, Sampling, adjusted, choose, most_likely
from tests.refusals import refuses

LOGITS = np.log(np.array([0.30, 0.05, 0.25, 0.02, 0.20, 0.08, 0.10], np.float32))


def by_hand(logits, sampling, occurred=None):
    """Computes the distribution of one row slowly: float64[V]."""
    logits = np.asarray(logits, np.float64).copy()
    for i in np.flatnonzero(occurred) if occurred is not None else ():
        penalty = sampling.repetition_penalty
        logits[i] = logits[i] / penalty if logits[i] > 0 else logits[i] * penalty
    if not sampling.temperature:
        return np.eye(len(logits))[np.argmax(logits)]
    weights = np.exp((logits - logits.max()) / sampling.temperature)
    if sampling.top_k is not None:
        kth = np.sort(weights)[::-1][min(sampling.top_k, len(weights)) - 1]
        weights[weights < kth] = 0
    weights /= weights.sum()
    if sampling.top_p is not None:
        total = 0.0
        for i in np.argsort(-weights, kind="stable"):
            if total >= sampling.top_p:
                weights[i] = 0
            total += weights[i]
        weights /= weights.sum()
    if sampling.min_p is not None:
        weights[weights < sampling.min_p * weights.max()] = 0
    return weights / weights.sum()


def distribution(logits, sampling, occurred=None):
    occurred = None if occurred is None else jnp.asarray(occurred)[None]
    return np.asarray(jax.nn.softmax(adjusted(jnp.asarray(logits)[None], sampling, occurred)))[0]


# --- the distribution -----------------------------------------------------------------------------

SAMPLINGS = {
    "temperature": Sampling(temperature=0.7),
    "top-k": Sampling(temperature=1.3, top_k=3),
    "top-p": Sampling(temperature=1.0, top_p=0.7),
    "min-p": Sampling(temperature=1.5, min_p=0.3),
    "all": Sampling(repetition_penalty=1.4, temperature=1.2, top_k=6, top_p=0.9, min_p=0.15),
}


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_drawn_tokens_follow_the_adjusted_distribution(sampling):
    draws, occurred = 20_000, np.array([True, False, True, False, False, True, False])
    keys = jax.random.split(jax.random.key(1), draws)
    rows = jnp.asarray(np.tile(LOGITS, (draws, 1)))
    tokens = jax.jit(choose, static_argnums=2)(
        keys, rows, sampling, jnp.asarray(np.tile(occurred, (draws, 1)))
    )
    counts = np.bincount(tokens, minlength=LOGITS.size)
    expected = by_hand(LOGITS, sampling, occurred) * draws
    assert not counts[expected == 0].any()
    live = expected > 0
    assert 2 <= live.sum()
    assert stats.chisquare(counts[live], expected[live]).pvalue > 1e-3


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    # Multiples of 1/8 give exact ties in every precision. Thresholds are between possible sums.
    st.lists(st.integers(-40, 40).map(lambda n: n / 8), min_size=8, max_size=8),
    st.sampled_from([1.0, 0.5, 1.7]),
    st.sampled_from([0.0, 0.31, 1.0, 2.3]),
    st.one_of(st.none(), st.integers(1, 10)),
    st.one_of(st.none(), st.floats(0.01, 1)),
    st.one_of(st.none(), st.floats(0, 1)),
    st.randoms(use_true_random=False),
)
def test_adjusted_logits_match_a_plain_implementation(
    logits, penalty, temperature, top_k, top_p, min_p, random
):
    filters = dict(top_k=top_k, top_p=top_p, min_p=min_p) if temperature else {}
    sampling = Sampling(penalty, temperature, **filters)
    occurred = np.array([random.random() < 0.4 for _ in logits])
    found = distribution(np.array(logits, np.float32), sampling, occurred)
    for change in (0, -1e-4, 1e-4):  # a sum that equals a threshold may be on either side of it
        moved = {
            name: np.clip(x + change, 1e-9, 1) if name in ("top_p", "min_p") and x else x
            for name, x in filters.items()
        }
        near = by_hand(logits, Sampling(penalty, temperature, **moved), occurred)
        if np.allclose(found, near, atol=1e-4):
            return
    np.testing.assert_allclose(found, by_hand(logits, sampling, occurred), atol=1e-4)


def test_top_k_keeps_all_ties_and_top_p_the_lowest_ids():
    even = np.zeros(4, np.float32)
    np.testing.assert_allclose(distribution(even, Sampling(temperature=1, top_k=2)), 0.25)
    for top_p in (0.45, 0.5):
        np.testing.assert_allclose(
            distribution(even, Sampling(temperature=1, top_p=top_p)), [0.5, 0.5, 0, 0]
        )


def test_filters_that_keep_every_id_change_no_bit():
    logits = jnp.asarray(np.random.default_rng(0).normal(0, 8, (2, 5000)).astype(np.float32))
    plain = adjusted(logits, Sampling(temperature=0.7))
    for filters in (dict(top_k=9999), dict(top_p=1.0), dict(min_p=0.0)):
        np.testing.assert_array_equal(adjusted(logits, Sampling(temperature=0.7, **filters)), plain)


# --- the most likely ------------------------------------------------------------------------------


def test_most_likely_is_argmax_with_the_lowest_id_of_ties():
    rng = np.random.default_rng(0)
    logits = rng.integers(-3, 4, (500, 9)).astype(np.float32)
    logits[::7] = -1e30
    logits[::11, :4] = -np.inf
    found = most_likely(jnp.asarray(logits))
    assert found.dtype == jnp.int32
    np.testing.assert_array_equal(found, logits.argmax(-1))
    np.testing.assert_array_equal(choose(None, jnp.asarray(logits), GREEDY), found)


def test_nan_logits_still_give_an_id():
    rows = jnp.asarray(np.array([[np.nan] * 5, [-np.inf] * 5, [-1e30] * 5, [np.inf, 1, 2, 3, 4]]))
    found = np.asarray(most_likely(rows))
    assert ((0 <= found) & (found < 5)).all()


def test_row_without_allowed_ids_gives_no_nan():
    nothing = jnp.full((1, 6), -1e30)
    for sampling in (Sampling(temperature=0.5, top_k=2, top_p=0.5, min_p=0.5), GREEDY):
        assert np.isfinite(jax.nn.softmax(adjusted(nothing, sampling))).all()


def test_only_the_repetition_penalty_affects_greedy_choices():
    logits, occurred = jnp.asarray(LOGITS)[None], jnp.asarray([[True] + [False] * 6])
    assert choose(None, logits, Sampling(repetition_penalty=2.0), occurred) == 2
    assert choose(None, logits, GREEDY, occurred) == 0
    np.testing.assert_array_equal(distribution(LOGITS, GREEDY), np.eye(7)[0])


def test_each_row_is_drawn_by_its_own_key():
    keys = jax.random.split(jax.random.key(0), 64)
    rows = jnp.asarray(np.tile(LOGITS, (64, 1)))
    sampling = Sampling(temperature=1.0)
    together = choose(keys, rows, sampling)
    alone = [choose(keys[i : i + 1], rows[:1], sampling)[0] for i in range(0, 64, 16)]
    np.testing.assert_array_equal(together[::16], alone)
    assert len(set(together.tolist())) > 3


@pytest.mark.parametrize(
    "settings, values",
    [
        (dict(repetition_penalty=0.0), ["repetition_penalty", 0, 0.0]),
        (dict(temperature=-0.1), ["temperature", 0, -0.1]),
        (dict(temperature=1.0, top_k=0), ["top_k", 1, None, 0]),
        (dict(temperature=1.0, top_p=0.0), ["top_p", 0, 1, None, 0.0]),
        (dict(temperature=1.0, top_p=1.1), ["top_p", 0, 1, None, 1.1]),
        (dict(temperature=1.0, min_p=-0.1), ["min_p", 0, 1, None, -0.1]),
        (dict(temperature=1.0, min_p=1.1), ["min_p", 0, 1, None, 1.1]),
        (dict(top_k=3), ["top_k", "temperature=0"]),
        (dict(top_p=0.3), ["top_p", "temperature=0"]),
        (dict(min_p=0.3), ["min_p", "temperature=0"]),
    ],
)
def test_sampling_values_out_of_range_are_rejected(settings, values):
    with refuses(ValueError, *values):
        Sampling(**settings)
