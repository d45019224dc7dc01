"""FlexMDM: which tokens are masked or missing, and the loss compared with the published code."""

import inspect
import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from pretrax.objectives import flexible_masked_diffusion
from tests.objectives.batches import corrupt, text
from tests.objectives.registry import IDS, quick_jit

V = 7
OBJECTIVE = flexible_masked_diffusion(IDS._replace(size=V, text=(2, V), mask=1, cls=None, sep=None))


class Outputs:
    """Outputs whose hidden states are the logits, and the logarithm of the expected gap."""

    def __init__(self, logits, expected_gaps):
        log_expected = jnp.log(jnp.asarray(expected_gaps))[..., None]
        self.hidden = {"top": jnp.concatenate([jnp.asarray(logits), log_expected], axis=-1)}

    def head(self, name, states):
        return states[..., :V] if name == "vocabulary" else states[..., V:]


def batch_of(rows, slots):
    """Returns the batch of rows (inputs after bos, gaps, {slot: label}, rate) of one document."""
    names = "input_tokens", "segment_ids", "gaps"
    batch = {f"encoder_{name}": np.zeros((len(rows), slots), np.int32) for name in names}
    names = "target_tokens", "target_slots", "loss_weights"
    batch |= {f"encoder_{name}": np.zeros((len(rows), slots), np.int32) for name in names}
    batch["rates"] = np.array([[round(rate * 2**24)] for *_, rate in rows], np.int32)
    for row, (inputs, gaps, labels, _) in enumerate(rows):
        batch["encoder_input_tokens"][row, 1 : len(inputs) + 1] = inputs
        batch["encoder_segment_ids"][row, : len(inputs) + 1] = 1
        batch["encoder_gaps"][row, : len(gaps)] = gaps
        for k, (slot, label) in enumerate(labels.items()):
            batch["encoder_target_slots"][row, k] = slot
            batch["encoder_target_tokens"][row, k] = label
            batch["encoder_loss_weights"][row, k] = 1
    return batch


@pytest.mark.slow
def test_loss_matches_published_code():
    """Compares with `interpolant.py` and `bregman.py` of brianlck/FlexMDM, run on fixed times.

    The texts are 2 3 4 5 6 2 at time 0.6, and 6 5 4 at time 0.3. Their insertion times in percent
    are 10 80 30 90 95 20 and 70 5 10, their unmasking times 40 90 99 95 99 65 and 80 50 20, with
    linear schedules.

    The published code replaces gaps of 0 by 10^-6, which changes these sums by 10^-5 of their size.
    """
    rows = [
        ([2, 1, 1], [0, 1, 2, 0], {2: 4, 3: 2}, 0.4),
        ([1, 4], [1, 0, 0], {1: 5}, 0.7),
    ]
    batch = batch_of(rows, 6)
    logits = np.zeros((2, 6, V), np.float32)
    logits[:, 1:] = 2 * np.sin(0.7 * np.arange(84)).reshape(2, 6, V)[:, :5]
    expected_gaps = np.exp(np.cos(1.3 * np.arange(14))).reshape(2, 7)[:, :6]
    terms = OBJECTIVE.loss(batch).scored(Outputs(logits, expected_gaps))
    tokens, gaps = np.array([13.875305, 1.312393]), np.array([11.914679, 4.024149])
    np.testing.assert_allclose(terms["tokens"].sums, tokens, rtol=1e-6)
    np.testing.assert_allclose(terms["gaps"].sums, gaps, rtol=2e-5)
    np.testing.assert_allclose(terms["bound"].sums, tokens + gaps, rtol=2e-5)
    for term in terms.values():
        np.testing.assert_array_equal(term.weights, [6, 3])
    assert {name for name, term in terms.items() if term.scale} == {"tokens", "gaps"}


MISSING, MASKED, VISIBLE = range(3)


def states_of(texts):
    """Yields (text, fates of its tokens, inputs, gaps, labels) for all texts and fates."""
    for tokens in texts:
        for fates in itertools.product(range(3), repeat=len(tokens)):
            inputs, gaps, labels = [], [0], {}
            for token, fate in zip(tokens, fates):
                if fate == MISSING:
                    gaps[-1] += 1
                    continue
                inputs.append(1 if fate == MASKED else token)
                gaps.append(0)
                if fate == MASKED:
                    labels[len(inputs)] = token
            yield tokens, fates, tuple(inputs), gaps, labels


@pytest.mark.parametrize(
    "texts",
    [
        {(): 0.1, (2,): 0.3, (3,): 0.6},
        {(): 0.1, (2,): 0.25, (2, 3): 0.35, (3, 2): 0.1, (2, 2): 0.2},
    ],
)
def test_bound_of_optimal_model_is_at_least_entropy(texts):
    """A model that knows the time and the texts predicts the means of tokens and of gaps.

    With at most one token, the mean loss over texts and noise is exactly the entropy of the texts.
    With several tokens, the noise also knows which of them a mask stands for, so the loss is larger
    than the entropy. The integral over the rates is computed with Gauss's formula, of the square
    root of the rate. `texts` has the probability of each text.
    """
    states = list(states_of(texts))

    @quick_jit
    def bounds(batch, logits, expected_gaps):
        return OBJECTIVE.loss(batch).scored(Outputs(logits, expected_gaps))["bound"].sums

    nodes, weights = np.polynomial.legendre.leggauss(40)
    total = 0.0
    for root, weight in zip((nodes + 1) / 2, weights / 2):
        rate = root**2
        log_rate = np.log(rate)
        fate_probabilities = np.array([rate, -rate * log_rate, 1 - rate + rate * log_rate])
        chances = np.array(
            [texts[x] * np.prod(fate_probabilities[list(fates)]) for x, fates, *_ in states]
        )
        probabilities = np.full((len(states), 4, V), 1e-30)
        expected_gaps = np.full((len(states), 4), 1e-30)
        for i, (*_, inputs, _, _) in enumerate(states):
            same_inputs = [k for k, (*_, other, _, _) in enumerate(states) if other == inputs]
            for k in same_inputs:
                _, _, _, gaps, labels = states[k]
                share = chances[k] / chances[same_inputs].sum()
                expected_gaps[i, : len(gaps)] += share * np.array(gaps)
                for slot, token in labels.items():
                    probabilities[i, slot, token] += share
        rows = [(inputs, gaps, labels, rate) for *_, inputs, gaps, labels in states]
        batch = batch_of(rows, 4)
        losses = bounds(batch, np.log(probabilities), expected_gaps)
        total += 2 * root * weight * np.dot(chances, losses)
    entropy = -sum(p * np.log(p) for p in texts.values())
    if max(map(len, texts)) == 1:
        assert total == pytest.approx(entropy, rel=1e-3)
    else:
        assert entropy < total < entropy + 0.5


def test_mask_weights_average_to_one_per_token():
    """A mask occurs with probability -r ln r and has the weight 1 / r."""
    lowest = inspect.signature(flexible_masked_diffusion).parameters["lowest_rate"].default
    rates = np.geomspace(lowest, 1, 100_001)
    mean = np.trapezoid(-np.log(rates), rates) / (1 - lowest)
    assert mean == pytest.approx(1, abs=2e-5)


def test_gaps_count_missing_tokens():
    rows = [text(30), np.concatenate([text(12, seed=1), [IDS.cls]])]
    got = corrupt(flexible_masked_diffusion(IDS), rows, copies=200)
    for b in range(200):
        for d, document in enumerate(rows):
            (slots,) = np.nonzero(got["inputs_segments"][b] == d + 1)
            inputs, gaps = (got[name][b][slots].copy() for name in ("inputs", "inputs_gaps"))
            labeled = got["labels_weights"][b] > 0
            for slot, label in zip(got["labels_slots"][b][labeled], got["labels"][b][labeled]):
                if slot in slots:
                    assert inputs[slot - slots[0]] == IDS.mask
                    inputs[slot - slots[0]] = label
            assert inputs[0] == IDS.bos and IDS.mask not in inputs
            assert len(inputs) - 1 + gaps.sum() == len(document)
            places = np.arange(len(inputs) - 1) + np.cumsum(gaps)[:-1]
            np.testing.assert_array_equal(inputs[1:], document[places])
    assert (got["inputs_gaps"].sum(1) > 0).any() and (got["labels_weights"].sum(1) > 0).any()


def test_tokens_are_deleted_and_masked_at_their_rates():
    """z-tests, significance 0.001: r of the tokens are missing, and -r ln r are masked."""
    n, copies = 200, 1_000
    objective = flexible_masked_diffusion(IDS, lowest_rate=0.001)
    got = corrupt(objective, [text(n)], copies=copies)
    rate = got["rates"][:, 0] / 2**24
    for counts, law in (
        (got["inputs_gaps"].sum(1), rate),
        (got["labels_weights"].sum(1), -rate * np.log(rate)),
    ):
        z = (counts - n * law) / np.sqrt(n * law * (1 - law))
        assert abs(z.mean()) < 3.3 / np.sqrt(copies)
        assert abs(z.var() - 1) < 3.3 * np.sqrt(2 / copies) + 0.05
    assert rate.min() > 0.001 and abs(rate.mean() - 0.5) < 3.3 / np.sqrt(12 * copies)


def test_high_lowest_rate_gives_no_bound():
    assert flexible_masked_diffusion(IDS).facts.bound == "bound"
    assert flexible_masked_diffusion(IDS, lowest_rate=2e-6).facts.bound is None
