"""Masked diffusion that reads each document twice, with a mask and with its complement."""

import numpy as np
import pytest

from pretrax.objectives import complementary_diffusion, hide, layouts
from tests.objectives.batches import arrange_rows, corrupt, text
from tests.objectives.distributions import assert_uniform
from tests.objectives.linear_outputs import LinearOutputs
from tests.objectives.registry import IDS
from tests.refusals import refuses

OBJECTIVE = complementary_diffusion(IDS)


def test_complementary_masks_by_hand():
    a, b, c, d = text(4)
    built = hide(complementary_diffusion, IDS, np.array([a, b, c, d]), np.array([1, 0, 1, 1], bool))
    assert built["inputs"].tolist() == [IDS.mask, b, IDS.mask, IDS.mask, a, IDS.mask, c, d]
    assert built["inputs_segments"].tolist() == [1] * 4 + [2] * 4
    assert built["labels"].tolist() == [a, c, d, b]
    assert built["labels_slots"].tolist() == [0, 2, 3, 5]
    assert built["labels_weights"].tolist() == [1] * 4
    assert built["rates"].tolist() == [3 * 2**22, 2**22]


def test_special_tokens_are_never_masked():
    row = np.concatenate([text(20), [IDS.eos]])
    got = corrupt(OBJECTIVE, [row], copies=64)
    ends = got["inputs"].reshape(64, 2, 21)[..., -1]
    assert (ends == IDS.eos).all() and (got["labels_weights"].sum(1) == 20).all()


def test_each_text_token_is_labeled_exactly_once():
    rows = [text(30), text(1), text(12)]
    got = corrupt(OBJECTIVE, rows, copies=200)
    for b in range(200):
        segments, inputs = got["inputs_segments"][b], got["inputs"][b]
        slots = got["labels_slots"][b][got["labels_weights"][b] > 0]
        assert (inputs[slots] == IDS.mask).all() and (inputs == IDS.mask).sum() == slots.size
        filled = inputs.copy()
        filled[slots] = got["labels"][b][: slots.size]
        for d, document in enumerate(rows):
            first, second = (np.flatnonzero(segments == 2 * d + k) for k in (1, 2))
            np.testing.assert_array_equal(filled[first], document)
            np.testing.assert_array_equal(filled[second], document)
            masked = inputs == IDS.mask
            np.testing.assert_array_equal(masked[first], ~masked[second])


def test_complementary_rates_sum_to_one():
    rates = corrupt(complementary_diffusion(IDS, lowest_rate=0.25), [text(3)], copies=4_000)
    first, second = rates["rates"].T
    assert (first + second == 2**24).all()
    assert first.min() >= 2**22 and first.max() < 3 * 2**22
    assert_uniform((first - 2**22) * 10 // 2**23, 10)


@pytest.mark.slow
def test_each_reading_is_masked_at_its_rate():
    """Both readings have the plain objective's loss. z-test, significance 0.001."""
    got = corrupt(OBJECTIVE, [text(100)], copies=2_000)
    for reading in (0, 1):
        rate = got["rates"][:, reading] / 2**24
        in_reading = got["inputs_segments"] == reading + 1
        masked = ((got["inputs"] == IDS.mask) & in_reading).sum(1)
        z = (masked - 100 * rate) / np.sqrt(100 * rate * (1 - rate))
        assert abs(z.mean()) < 3.3 / np.sqrt(2_000)
        assert abs(z.var() - 1) < 3.3 * np.sqrt(2 / 2_000) + 0.05


@pytest.mark.slow
@pytest.mark.parametrize("weighted", [True, False])
def test_loss_is_mean_over_both_readings(weighted):
    """Computed in NumPy: each label counts 1 / rate of its reading, or once."""
    objective = complementary_diffusion(IDS, weighted=weighted)
    features = corrupt(objective, [text(12), text(25)], copies=3)
    stacks = layouts.encoder.lengths({"inputs": 74, "labels": 37, "rates": 4, "pools": 4})
    batch = arrange_rows(layouts.encoder, features, stacks, 2)
    random = np.random.default_rng(1)
    top, matrix = random.normal(size=(3, 74, 3)), random.normal(size=(3, IDS.size))
    logits = top @ matrix
    outputs = LinearOutputs({"top": top}, {"vocabulary": matrix})
    got = objective.loss(batch).scored(outputs)["tokens" if weighted else "masked"]
    row = np.concatenate([text(12), text(12), text(25), text(25)])
    losses = np.log(np.exp(logits).sum(-1)) - logits[:, np.arange(74), row]
    masked = features["inputs"] == IDS.mask
    reading = features["inputs_segments"] - 1
    rates = np.take_along_axis(features["rates"], reading, axis=1) / 2**24
    counts = masked / rates if weighted else masked
    np.testing.assert_allclose(got.sums, (losses * counts).sum(1), rtol=1e-5)
    np.testing.assert_array_equal(got.weights, [74] * 3)
    assert masked.sum() == 3 * 37


def test_lowest_rate_must_be_below_half_and_small_for_a_bound():
    with refuses(ValueError, "lowest_rate", 0.5):
        complementary_diffusion(IDS, lowest_rate=0.5)
    assert complementary_diffusion(IDS).facts.bound == "tokens"
    assert complementary_diffusion(IDS, lowest_rate=0.4).facts.bound is None
