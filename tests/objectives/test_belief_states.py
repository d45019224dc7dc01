"""Belief states: both copies of a text, which suffixes are drawn, and the loss of pairs."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrax import models
from pretrax.models.builders import fresh_params
from pretrax.models.hugging_face import write_model
from pretrax.objectives import belief_state
from tests.objectives.batches import arranged, raw_rows
from tests.objectives.linear_outputs import LinearOutputs
from tests.objectives.registry import IDS
from tests.objectives.waves import waves
from tests.refusals import refuses

DOCUMENTS = (5, 1, 7)
LENGTH = 16
PAIRS = 2
MAX_DOCUMENTS = 3  # maximum number of documents in a row


def features_and_batch(pairs=PAIRS, rows=1):
    """Returns raw rows, their features and the batch of a decoder."""
    raw, _ = raw_rows(*[DOCUMENTS] * rows, length=LENGTH)
    return raw, *arranged(belief_state(IDS, pairs=pairs), raw, MAX_DOCUMENTS)


def documents_of(raw, row):
    return [
        raw.tokens[row][raw.segments[row] == number + 1].tolist() for number in range(MAX_DOCUMENTS)
    ]


def test_row_contains_each_document_forward_and_backward():
    raw, features, _ = features_and_batch()
    expected = []
    weights = []
    for text in documents_of(raw, 0):
        expected += [*text, IDS.mask, *reversed(text)]
        weights += [1] * len(text) + [0] * (len(text) + 1)
    used = features["targets_segments"][0] > 0
    assert features["targets"][0][used].tolist() == expected
    assert features["targets_weights"][0][used].tolist() == weights
    sizes = np.bincount(features["targets_segments"][0])[1:]
    assert sizes.tolist() == [n + extra for n in DOCUMENTS for extra in (0, 1)]


def test_suffixes_are_uniform_over_valid_lengths():
    raw, features, _ = features_and_batch(pairs=1, rows=300)
    suffixes_by_prefix = {}
    for row in range(300):
        start = 0
        for n in DOCUMENTS:
            for prefix in range(n):
                slot = start + prefix
                end = slot + features["targets_suffix_1"][row, slot]
                # The second copy begins n slots after the first, and its second slot has read none.
                suffix = end - (start + n + 1)
                assert 0 <= suffix < n - prefix
                suffixes_by_prefix.setdefault((n, prefix), []).append(suffix)
            start += 2 * n + 1
    for (n, prefix), suffixes in suffixes_by_prefix.items():
        counts = np.bincount(suffixes, minlength=n - prefix)
        assert counts.min() > 0.5 * len(suffixes) / (n - prefix)


@pytest.mark.slow
def test_pairs_predict_token_after_prefix_and_token_before_suffix():
    raw, features, batch = features_and_batch()
    random = np.random.default_rng(0)
    E, V = 3, IDS.size
    states = random.normal(size=(*batch["decoder_input_tokens"].shape, E)).astype(np.float32)
    kernels = {
        "belief": random.normal(size=(2 * E, E)).astype(np.float32),
        "vocabulary": random.normal(size=(E, V)).astype(np.float32),
        "previous": random.normal(size=(E, V)).astype(np.float32),
    }

    def loss(state, head, token):
        logits = np.float64(state @ kernels[head])
        return np.log(np.exp(logits).sum()) - logits[token]

    expected = dict.fromkeys(("tokens", "next", "previous"), 0.0)
    start = 0
    for text in documents_of(raw, 0):
        for prefix, token in enumerate(text):
            slot = start + prefix
            expected["tokens"] += loss(states[0, slot], "vocabulary", token)
            for k in range(PAIRS):
                end = slot + features[f"targets_suffix_{k + 1}"][0, slot]
                suffix = end - (start + len(text) + 1)
                belief = np.concatenate([states[0, slot], states[0, end]]) @ kernels["belief"]
                expected["next"] += loss(belief, "vocabulary", token)
                before = text[len(text) - 1 - suffix]
                expected["previous"] += loss(belief, "previous", before)
        start += 2 * len(text) + 1
    outputs = LinearOutputs({"belief": states, "top": states}, kernels)
    terms = belief_state(IDS, pairs=PAIRS).loss(batch).scored(outputs)
    for name, value in expected.items():
        np.testing.assert_allclose(terms[name].sums, [value], rtol=1e-5)
        count = sum(DOCUMENTS) * (1 if name == "tokens" else PAIRS)
        assert terms[name].weights.tolist() == [count] and terms[name].scale == 1.0
    for term in terms.values():
        np.testing.assert_allclose(term.labels.weights.sum(-1), term.weights)


class PublishedHeads:
    """The layers of `TextHead` with fixed weights, and states that all slots share."""

    def __init__(self, states):
        self.hidden = {"belief": states, "top": np.zeros((*states.shape[:2], 5), np.float32)}

    def head(self, name, states):
        if name == "belief":
            return nn.leaky_relu(states @ waves(5, 8, step=1.1, size=1.0).T)
        following, previous = waves(2, 9, 5, step=1.3, size=1.0)
        return states @ (following if name == "vocabulary" else previous).T


def test_loss_of_all_pairs_matches_published_code():
    """`BeliefStateTransformer.forward` of JaydenTeoh/belief-state-transformer at d6cdac4f.

    Its owner is one of the paper's authors. The text is 5 3 7 between bos and the mask. Row k has
    the pairs whose suffix has k tokens.
    """
    n = 3
    slots = np.arange(2 * n + 1, dtype=np.int32)
    suffixes = np.arange(n)[:, None]
    batch = {
        "decoder_target_tokens": np.tile(np.int32([5, 3, 7, 8, 7, 3, 5]), (n, 1)),
        "decoder_loss_weights": (slots < n - suffixes).astype(np.int32),
        "decoder_suffixes": (n + 1 + suffixes - slots).astype(np.int32)[:, None],
    }
    prefix_states = waves(5, 4)[:n]
    suffix_states = waves(5, 4, step=0.9)[:n]
    states = np.concatenate([prefix_states, np.zeros((1, 4), np.float32), suffix_states])
    outputs = PublishedHeads(np.tile(states, (n, 1, 1)))
    terms = belief_state(IDS).loss(batch).scored(outputs)
    for name, loss in (("next", 2.507433791780365), ("previous", 2.332593985615619)):
        assert terms[name].weights.sum() == 6
        np.testing.assert_allclose(terms[name].sums.sum() / 6, loss, rtol=1e-5)


@pytest.mark.slow
def test_prefix_state_equals_belief_head_with_zero_suffix():
    heads = ("vocabulary", "belief", "previous")
    model = models.decoder(16, heads, num_layers=1, emb_dim=8, num_heads=2, head_dim=4, mlp_dim=8)
    slots = jnp.arange(6, dtype=jnp.int32)[None]
    batch = {
        "decoder_input_tokens": slots + 2,
        "decoder_segment_ids": jnp.ones_like(slots),
        "decoder_positions": slots,
        "decoder_key_intervals": jnp.stack([0 * slots, slots + 1], 1),
    }
    params = nn.unbox(jax.jit(model.init)(jax.random.key(0), batch))
    outputs = model.apply(params, batch)
    states = outputs.hidden["belief"]
    pair = jnp.concatenate([states, jnp.zeros_like(states)], -1)
    np.testing.assert_allclose(outputs.hidden["top"], outputs.head("belief", pair), atol=1e-6)
    other = outputs.head("belief", jnp.concatenate([states, states], -1))
    assert jnp.abs(other - outputs.hidden["top"]).max() > 1e-3
    assert outputs.head("previous", other).shape == (1, 6, 16)


def test_export_of_belief_head_raises(tmp_path):
    shape = dict(num_layers=1, emb_dim=8, num_heads=2, head_dim=4, mlp_dim=8, scan_layers=False)
    model = models.decoder(16, ("vocabulary", "belief"), **shape)
    params = jax.eval_shape(lambda key: fresh_params(model, key), jax.random.key(0))
    zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), nn.unbox(params))
    with refuses(ValueError, "'belief'"):
        write_model(str(tmp_path), model.config, zeros)
