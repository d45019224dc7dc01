"""The loss of a predictor that ignores its input, computed from labels alone."""

import jax.numpy as jnp
import numpy as np
import pytest

from pretrax.objectives import Labels
from pretrax.training.baselines import Tally, tally, trivial_loss

CLASSES = 7


def labels(shape, numbers=False, seed=0):
    draw = np.random.default_rng(seed)
    values = draw.normal(2.0, 3.0, shape) if numbers else draw.integers(0, 3, shape)
    weights = draw.integers(0, 3, shape) / 2
    dtype = jnp.float32 if numbers else jnp.int32
    return Labels(jnp.asarray(values, dtype), jnp.asarray(weights, jnp.float32), "any")


def host(found: Tally) -> Tally:
    slots = None if found.slots is None else float(found.slots)
    return Tally(np.asarray(found.totals, np.float64), found.numbers, slots)


def test_class_baseline_predicts_the_training_shares():
    heldout, training = labels((4, 6), seed=1), labels((20, 6), seed=2)
    shares = np.ones(CLASSES)
    np.add.at(shares, np.asarray(training.values), np.asarray(training.weights))
    shares /= shares.sum()
    expected = -(np.log(shares[np.asarray(heldout.values)]) * heldout.weights).sum()
    got = trivial_loss(host(tally(heldout, CLASSES)), host(tally(training, CLASSES)))
    assert got == pytest.approx(float(expected), rel=1e-6)


def test_number_baseline_predicts_the_training_mean():
    heldout, training = labels((4, 6), True, seed=1), labels((20, 6), True, seed=2)
    guess = np.average(training.values, weights=training.weights)
    expected = ((np.asarray(heldout.values) - guess) ** 2 * heldout.weights).sum()
    got = trivial_loss(host(tally(heldout, 1)), host(tally(training, 1)))
    assert got == pytest.approx(float(expected), rel=1e-5)


def test_multi_label_baseline_predicts_the_share_of_each_class():
    """Sums binary cross-entropies over all classes, at slots that have two classes or none."""
    heldout, training = sets_of_classes(9, seed=1), sets_of_classes(40, seed=2)
    shares = (training.sum(0) + 1) / (len(training) + 2)
    expected = -np.where(heldout, np.log(shares), np.log1p(-shares)).sum()
    tallies = (host(tally(labels_of_sets(x), CLASSES)) for x in (heldout, training))
    assert trivial_loss(*tallies) == pytest.approx(expected, rel=1e-6)
    alone = trivial_loss(host(tally(labels_of_sets(heldout), CLASSES)))
    share = heldout.mean(0).clip(1e-9, 1 - 1e-9)
    entropy = -(share * np.log(share) + (1 - share) * np.log1p(-share)).sum()
    assert alone == pytest.approx(len(heldout) * entropy, rel=1e-5)


def sets_of_classes(slots, seed):
    """Returns bool[slots, CLASSES]: the classes of each slot. The last class never occurs."""
    return np.random.default_rng(seed).random((slots, CLASSES)) < np.linspace(0.7, 0, CLASSES)


def labels_of_sets(occurs) -> Labels:
    values = np.broadcast_to(np.arange(CLASSES), occurs.shape).reshape(1, -1)
    slots = jnp.full(1, len(occurs), jnp.float32)
    weights = jnp.asarray(occurs.reshape(1, -1), jnp.float32)
    return Labels(jnp.asarray(values), weights, "any", slots=slots)


def test_baseline_without_training_labels_uses_heldout_labels():
    """ELECTRA's generator makes the discriminator's labels, so the baseline is their entropy."""
    heldout = Tally(np.array([90.0, 10.0, 0.0]), numbers=False)
    entropy = -(0.9 * np.log(0.9) + 0.1 * np.log(0.1))
    assert trivial_loss(heldout) == pytest.approx(100 * entropy)
    numbers = host(tally(labels((5, 5), True), 1))
    count, total, squares = numbers.totals
    assert trivial_loss(numbers) == pytest.approx(squares - total**2 / count)


@pytest.mark.slow
def test_tallies_of_batches_add_up():
    for numbers in (False, True):
        one, two = labels((4, 6), numbers, 1), labels((3, 6), numbers, 2)
        both = Labels(
            jnp.concatenate([one.values, two.values]),
            jnp.concatenate([one.weights, two.weights]),
            "any",
        )
        added = tally(one, CLASSES).totals + tally(two, CLASSES).totals
        np.testing.assert_allclose(added, tally(both, CLASSES).totals, rtol=1e-5)


def test_baseline_of_no_targets_is_0():
    nothing = Tally(np.zeros(CLASSES), numbers=False)
    assert trivial_loss(nothing, nothing) == 0.0
