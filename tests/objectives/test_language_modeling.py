"""The distribution of prefix lengths, and causal language modeling, which changes no token."""

import types

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from pretrax.objectives import (
    hide,
    layouts,
    masked_input_next_token,
    masked_input_regularization,
    prefix_lm,
)
from tests.objectives.distributions import assert_uniform, corrupt_copies
from tests.objectives.registry import IDS, quick_jit, text_row


def t5_prefix_lengths(n: int, density: float) -> range:
    """Returns the prefix lengths of the published `random_prefix_noise_mask`, in float64."""
    longest = n - 1
    return range(min(longest, max(1, round((1 - 2 * density) * longest))), longest + 1)


@pytest.mark.parametrize("share", [0.5, 0.25, 0.125, 0.4])
def test_prefix_lm_lengths_match_t5(share):
    objective = prefix_lm(IDS, share)
    for n in range(2, 4097):
        prefix = t5_prefix_lengths(n, share)
        lengths = objective.lengths(n)
        assert lengths["inputs"] == prefix[-1] + 1
        assert lengths["targets"] == n - prefix[0] + 1
        assert lengths["both"] == n + 2


@pytest.mark.sampled
@pytest.mark.parametrize("n, share", [(2, 0.5), (3, 0.5), (9, 0.5), (9, 0.25), (20, 0.125)])
def test_split_is_uniform_over_t5_range(n, share):
    features = corrupt_copies(prefix_lm(IDS, share), (n,), 10_000, seed=n)
    prefix = features["inputs_segments"].sum(1) - 1
    expected = t5_prefix_lengths(n, share)
    assert set(prefix) == set(expected)
    assert_uniform(prefix, len(expected))


@pytest.mark.parametrize("n, share", [(2, 0.9), (9, 0.75), (20, 0.875)])
def test_prefix_length_is_uniform_for_shares_above_half(n, share):
    # Mirrored: the tokens that 1 - share predicts are given.
    objective, mirrored = prefix_lm(IDS, share), prefix_lm(IDS, 1 - share)
    given, expected = objective.lengths(n), mirrored.lengths(n)
    assert (given["inputs"], given["targets"]) == (expected["targets"], expected["inputs"])
    features = corrupt_copies(objective, (n,), 10_000, seed=n)
    prefix = features["inputs_segments"].sum(1) - 1
    assert prefix.min() == 1 and (prefix + features["targets_weights"].sum(1) - 1 == n).all()
    assert_uniform(prefix, given["inputs"] - 1)


@pytest.mark.slow
def test_splits_of_packed_documents_are_independent():
    features = corrupt_copies(prefix_lm(IDS), (4, 4, 3), 18_000, seed=1)
    prefix = [(features["inputs_segments"] == d).sum(1) - 1 for d in (1, 2, 3)]
    assert_uniform(np.stack(prefix, 1), 3 * 3 * 2)


def test_masked_inputs_by_hand():
    """The model reads masks instead of b and e, and predicts all tokens."""
    features = hide(masked_input_next_token, IDS, [11, 12, 13, 14, 15, 16], [0, 1, 0, 0, 1, 0])
    stacks = layouts.decoder.lengths(masked_input_next_token(IDS).lengths(6))
    batch = quick_jit(lambda x: layouts.decoder.arrange(x, stacks, IDS.bos, 1))(features)
    read = [IDS.bos, 11, IDS.mask, 13, 14, IDS.mask]
    assert batch["decoder_input_tokens"].tolist() == read
    assert batch["decoder_target_tokens"].tolist() == [11, 12, 13, 14, 15, 16]
    assert batch["decoder_loss_weights"].tolist() == [1] * 6


def test_mask_id_may_be_0():
    ids = IDS._replace(mask=0, pad=IDS.mask, bos=IDS.mask)
    features = hide(masked_input_next_token, ids, [11, 12, 13], [0, 1, 0])
    stacks = layouts.decoder.lengths(masked_input_next_token(ids).lengths(3))
    batch = quick_jit(lambda x: layouts.decoder.arrange(x, stacks, ids.bos, 1))(features)
    assert batch["decoder_input_tokens"].tolist() == [ids.bos, 11, 0]


def test_masked_input_positions_are_uniform():
    features = corrupt_copies(masked_input_next_token(IDS), (7,), 7_000, seed=2)
    slots = np.flatnonzero(features["targets_stand_ins"]) % 7
    assert slots.size == 7_000  # round(0.15 * 7) = 1 of each
    assert_uniform(slots, 7)


# --- masked-input regularization ------------------------------------------------------------------


def copies_of(features, lengths) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns (tokens, which of them are masked) of both copies of each document, in order."""
    found = []
    for d in range(2 * len(lengths)):
        in_copy = features["targets_segments"] == d + 1
        assert (in_copy.sum(1) == lengths[d // 2]).all()
        shape = in_copy.shape[0], lengths[d // 2]
        masks = features["targets_stand_ins"][in_copy].reshape(shape)
        assert set(np.unique(masks)) <= {0, IDS.mask + 1}
        found.append((features["targets"][in_copy].reshape(shape), masks > 0))
    return found


@pytest.mark.slow
def test_each_document_has_plain_and_masked_copy():
    lengths = 100, 9, 300
    features = corrupt_copies(masked_input_regularization(IDS), lengths, 1_000, seed=3)
    _, documents = text_row(lengths, sum(lengths))
    copies = copies_of(features, lengths)
    for d, document in enumerate(documents):
        (plain, plain_masks), (copy, masked) = copies[2 * d : 2 * d + 2]
        assert (plain == document).all() and (copy == document).all() and not plain_masks.any()
        assert not masked[:, :8].any() and (masked[:, 8:].any() or lengths[d] == 9)
    assert (features["targets_weights"] == (features["targets_segments"] > 0)).all()


@pytest.mark.slow
def test_masked_input_rates_are_uniform_up_to_highest():
    """With 1,000 tokens, the share is the rate within 1/60. Two documents have two rates."""
    lengths = 1_008, 1_008
    features = corrupt_copies(masked_input_regularization(IDS, 0.4), lengths, 600, seed=4)
    shares = np.stack([x[1][:, 8:].mean(1) for x in copies_of(features, lengths)[1::2]])
    assert shares.max() < 0.45
    for document_shares in shares:
        assert abs(document_shares.mean() - 0.2) < 4 * 0.4 / np.sqrt(12 * 600)
        assert abs(document_shares.std() - 0.4 / np.sqrt(12)) < 0.01
    assert abs(np.corrcoef(shares)[0, 1]) < 4 / np.sqrt(600)


def test_copies_do_not_attend_to_each_other():
    """Like two documents: positions start again, and neither copy attends to the other."""
    text, hidden = np.arange(100, 104), np.array([False, True, False, True])
    features = hide(masked_input_regularization, IDS, text, hidden)
    lengths = {"decoder": 10, "predict": 10}
    arrange = quick_jit(lambda row: layouts.decoder.arrange(row, lengths, IDS.bos, 1))
    row = arrange(features | {"member": np.int32(0)})
    given = [IDS.bos, 100, 101, 102, IDS.bos, 100, IDS.mask, 102, 0, 0]
    np.testing.assert_array_equal(row["decoder_input_tokens"], given)
    np.testing.assert_array_equal(row["decoder_target_tokens"], [*text, *text, 0, 0])
    np.testing.assert_array_equal(row["decoder_segment_ids"], [1] * 4 + [2] * 4 + [0] * 2)
    np.testing.assert_array_equal(row["decoder_positions"], [*range(4), *range(4), 0, 0])
    starts, ends = row["decoder_key_intervals"][:, :8]
    np.testing.assert_array_equal(starts, [0] * 4 + [4] * 4)
    np.testing.assert_array_equal(ends, range(1, 9))


@pytest.mark.slow
def test_loss_terms_match_each_copy():
    objective, lengths, V = masked_input_regularization(IDS, scale=0.3), (12, 3, 20), 40_000
    features = corrupt_copies(objective, lengths, 4, seed=5)
    random, T = np.random.default_rng(6), 2 * sum(lengths) + 5
    pad = lambda x: np.pad(x, ((0, 0), (0, 5)))  # noqa: E731
    tokens, segments = pad(features["targets"]), pad(features["targets_segments"])
    states = random.normal(size=(4, T, 3)).astype(np.float32)
    matrix = random.normal(size=(3, V)).astype(np.float32)
    outputs = types.SimpleNamespace(
        hidden={"top": jnp.asarray(states)}, head=lambda name, states: states @ matrix
    )
    weights = pad(features["targets_weights"])
    weights[0] = 0  # The row belongs to another member.
    batch = {"target_tokens": tokens, "segment_ids": segments, "loss_weights": weights}
    batch = {f"decoder_{name}": jnp.asarray(x) for name, x in batch.items()}
    terms = quick_jit(lambda batch: objective.loss(batch).scored(outputs))(batch)
    logits = states @ matrix
    losses = scipy.special.logsumexp(logits, axis=-1)
    losses -= np.take_along_axis(logits, tokens[..., None], -1)[..., 0]
    for name, remainder, scale in (("tokens", 1, 1), ("masked_inputs", 0, 0.3)):
        counted = (segments > 0) & (segments % 2 == remainder) & (weights > 0)
        np.testing.assert_allclose(terms[name].sums, (losses * counted).sum(1), rtol=1e-4)
        np.testing.assert_array_equal(terms[name].weights, [0, 35, 35, 35])
        # `show` prints them by slot.
        np.testing.assert_array_equal(terms[name].labels.weights, counted)
        np.testing.assert_array_equal(terms[name].labels.values, tokens)
        assert terms[name].scale == scale
