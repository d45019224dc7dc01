"""Masks that follow the frequencies of words: counts, ranks and rates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrax.objectives import (
    Row,
    batched,
    frequency_informed_diffusion,
    layouts,
    masked_diffusion,
    masked_lm,
    mixture,
)
from pretrax.objectives.frequency_masking import frequency_ranks
from pretrax.objectives.selection import rates_by_chances
from tests.objectives.batches import arrange_rows, corrupt, text
from tests.objectives.registry import IDS, quick_jit

SMALL = IDS._replace(size=19, text=(2, 18), mask=18, cls=None, sep=None)
COUNTS = [50, 40, 40, 30, 20, 12, 9, 7, 5, 3, 2, 1, 0, 0, 0, 0]
TEXTS = [[0, 5, 11, 0, 3, 7, 9, 0], [4, 4, 8, 10, 6, 3, 3, 0]]
# What `MaskingProcessor._compute_frequency_mask_probabilities` of DespoinaKK/babylm-diffusion
# returns for these texts and the method "rank", by power and rate.
PUBLISHED = {
    (0.02, 0.15): [
        [0, 0.238839, 0.242635, 0, 0.236411, 0.240452, 0.241663, 0],
        [0.170718, 0.170718, 0.173101, 0.173876, 0.172108, 0.169739, 0.169739, 0],
    ],
    (0.02, 0.9): [
        [0.738074, 0.995902, 1, 0.738074, 0.993281, 0.997643, 0.998951, 0.738074],
        [0.986776, 0.986776, 0.996757, 1, 0.992598, 0.982674, 0.982674, 0.271747],
    ],
    (1.0, 0.15): [
        [0, 0.171429, 0.377143, 0, 0.102857, 0.24, 0.308571, 0],
        [0.126316, 0.126316, 0.252632, 0.31579, 0.189474, 0.094737, 0.094737, 0],
    ],
    (1.0, 0.5): [
        [0.169811, 0.54717, 1, 0.169811, 0.396226, 0.698113, 0.849057, 0.169811],
        [0.428571, 0.428571, 0.809524, 1, 0.619048, 0.333333, 0.333333, 0.047619],
    ],
    (0.0, 0.9): [[0.9] * 8, [0.9] * 8],
}


def state_of(counts, ids):
    init = frequency_informed_diffusion(ids).adaptation.init()
    return init._replace(counts=jnp.asarray(counts, init.counts.dtype))


@pytest.mark.parametrize("power, rate", PUBLISHED)
def test_mask_rates_match_published_code(power, rate):
    """Both texts are documents of one row, whose special token and padding do not count."""
    words = np.array([*TEXTS[0], *TEXTS[1]]) + 2
    tokens = np.concatenate([words, [SMALL.eos, 0]]).astype(np.int32)
    segments = np.repeat([1, 2, 0], [8, 9, 1]).astype(np.int32)
    counts = (tokens >= 2) & (segments > 0)
    adaptation = frequency_informed_diffusion(SMALL).adaptation
    chances = adaptation.chances(state_of(COUNTS, SMALL), Row(tokens, segments, 0))
    assert chances.min() >= 1 and chances.max() < 2**16
    rates = np.full(3, round(rate * 2**24), np.int32)
    got = rates_by_chances(chances, counts, segments, rates, np.float32(power)) / 2**24
    np.testing.assert_allclose(got[:16].reshape(2, 8), PUBLISHED[power, rate], atol=2e-5)
    for document in (got[:8], got[8:16]):
        np.testing.assert_allclose(document.mean(), rate, atol=1e-5)


def test_words_of_equal_frequency_have_equal_rank():
    np.testing.assert_array_equal(frequency_ranks(jnp.array([5.0, 9, 5, 0, 0])), [1, 0, 1, 3, 3])


@pytest.mark.slow
@pytest.mark.parametrize("complementary", [False, True])
def test_word_counts_match_text_read(complementary):
    objective = frequency_informed_diffusion(IDS, complementary=complementary)
    rows = [np.array([50, 60, 50, IDS.eos]), text(9)]
    features = corrupt(objective, rows, copies=5)
    slots = features["inputs"].shape[1]
    stacks = {"encoder": slots + 2, "predict": slots}
    batch = arrange_rows(layouts.encoder, features, stacks, 2)
    adaptation = objective.adaptation
    got = np.asarray(adaptation.measure(None, batch))
    readings = 5 * (2 if complementary else 1)
    expected = np.zeros(IDS.text[1] - IDS.text[0], int)
    for token in [50, 60, 50, *text(9)]:
        expected[token - IDS.text[0]] += readings
    np.testing.assert_array_equal(got, expected)
    state = adaptation.update(adaptation.update(adaptation.init(), got, 1), got, 2)
    np.testing.assert_array_equal(state.counts, 2 * expected)
    assert adaptation.summary(state) == {"words": (expected > 0).sum()}


@pytest.mark.slow
def test_words_of_other_mixture_members_are_not_counted():
    members = {"informed": (frequency_informed_diffusion, 1), "masked": (masked_lm, 1)}
    objective = mixture(IDS, members)
    features = corrupt(objective, [text(9)], [text(9, seed=1)], copies=3, members=[0, 1])
    stacks = layouts.encoder.lengths(objective.lengths(9))
    batch = arrange_rows(layouts.encoder, features, stacks)
    counts = objective.adaptation.measure(None, batch)["informed"]
    expected = np.zeros(IDS.text[1] - IDS.text[0], int)
    np.add.at(expected, text(9) - IDS.text[0], 3)
    np.testing.assert_array_equal(counts, expected)


def corrupt_with_counts(objective, counts, row, copies):
    """Returns features of copies of a row of one document, given the counts of all words."""
    rows = Row(*(np.stack([x] * copies) for x in (row, np.ones_like(row), np.int32(0))))
    rows = rows._replace(chances=objective.adaptation.chances(state_of(counts, SMALL), rows))
    lengths = objective.lengths(row.size)
    keys = jax.random.split(jax.random.key(0), copies)
    return jax.device_get(quick_jit(batched(objective, lengths, 1))(keys, rows))


@pytest.mark.slow
def test_rare_words_are_masked_more_often():
    """z-tests, significance 0.001."""
    row = np.array([2, 7, 13, 2, 5, 9, 11, 2], np.int32)
    objective = frequency_informed_diffusion(SMALL, complementary=True, power=1.0)
    got = corrupt_with_counts(objective, COUNTS, row, copies=4_000)
    masked = got["inputs"].reshape(4_000, 2, 8) == SMALL.mask
    np.testing.assert_array_equal(masked[:, 0], ~masked[:, 1])
    chances = objective.adaptation.chances(
        state_of(COUNTS, SMALL), Row(row, np.ones_like(row), np.int32(0))
    )
    rates_of = jax.vmap(
        lambda rate: rates_by_chances(
            chances, np.ones(8, bool), np.ones(8, np.int32), rate[None], np.float32(1)
        )
    )
    rates = np.asarray(rates_of(got["rates"][:, 0])) / 2**24
    z = (masked[:, 0] - rates).sum(0) / np.sqrt((rates * (1 - rates)).sum(0))
    assert np.abs(z).max() < 3.9
    assert masked[:, 0, 2].mean() > 0.6 > 0.4 > masked[:, 0, 0].mean()


@pytest.mark.slow
def test_equal_frequencies_mask_like_masked_diffusion():
    """Before the first step, and without a state, all words have the same rate."""
    row = np.arange(2, 14, dtype=np.int32)
    plain = corrupt_with_counts(frequency_informed_diffusion(SMALL), [0] * 16, row, copies=50)
    keys = jax.random.split(jax.random.key(0), 50)
    rows = Row(*(np.stack([x] * 50) for x in (row, np.ones_like(row), np.int32(0))))
    objective = masked_diffusion(SMALL)
    expected = quick_jit(batched(objective, objective.lengths(12), 1))(keys, rows)
    jax.tree.map(np.testing.assert_array_equal, plain, jax.device_get(expected))
