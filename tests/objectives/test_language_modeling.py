"""The split law of prefix language modelling, and what causal language modelling leaves alone."""

import jax
import numpy as np
import pytest

from pretrax.objectives import causal_lm, hide, layouts, masked_input_next_token, prefix_lm
from tests.objectives.registry import IDS, quick_jit, text_row
from tests.objectives.test_span_lengths import assert_uniform, corrupt_copies


def t5_prefix_lengths(n: int, density: float) -> range:
    """Prefix lengths of `random_prefix_noise_mask` as published, in float64."""
    most = n - 1
    return range(min(most, max(1, round((1 - 2 * density) * most))), most + 1)


@pytest.mark.parametrize("share", [0.5, 0.25, 0.125, 0.4])
def test_longest_suffix_is_t5s_at_every_length(share):
    objective = prefix_lm(IDS, share)
    for n in range(2, 4097):
        prefix = t5_prefix_lengths(n, share)
        lengths = objective.lengths(n)
        assert lengths["inputs"] == prefix[-1] + 1
        assert lengths["targets"] == n - prefix[0] + 1
        assert lengths["both"] == n + 2


@pytest.mark.parametrize("n, share", [(2, 0.5), (3, 0.5), (9, 0.5), (9, 0.25), (20, 0.125)])
def test_split_is_uniform_over_t5s_range(n, share):
    features = corrupt_copies(prefix_lm(IDS, share), (n,), 10_000, seed=n)
    prefix = features["inputs_segments"].sum(1) - 1
    expected = t5_prefix_lengths(n, share)
    assert set(prefix) == set(expected)
    assert_uniform(prefix, len(expected))


@pytest.mark.parametrize("n, share", [(2, 0.9), (9, 0.75), (20, 0.875)])
def test_above_a_half_the_prefix_has_the_law_of_the_suffix(n, share):
    # Mirrored: what 1 - share predicts is given.
    objective, mirrored = prefix_lm(IDS, share), prefix_lm(IDS, 1 - share)
    given, expected = objective.lengths(n), mirrored.lengths(n)
    assert (given["inputs"], given["targets"]) == (expected["targets"], expected["inputs"])
    features = corrupt_copies(objective, (n,), 10_000, seed=n)
    prefix = features["inputs_segments"].sum(1) - 1
    assert prefix.min() == 1 and (prefix + features["targets_weights"].sum(1) - 1 == n).all()
    assert_uniform(prefix, given["inputs"] - 1)


def test_splits_of_packed_documents_are_independent_of_each_other():
    features = corrupt_copies(prefix_lm(IDS), (4, 4, 3), 18_000, seed=1)
    prefix = [(features["inputs_segments"] == d).sum(1) - 1 for d in (1, 2, 3)]
    assert_uniform(np.stack(prefix, 1), 3 * 3 * 2)


def test_a_document_of_one_token_is_all_target():
    features = corrupt_copies(prefix_lm(IDS, mode="S"), (1,), 2, seed=0)
    _, (document,) = text_row((1,), 1)
    assert features["inputs"][0].tolist() == [IDS.mode("S"), IDS.eos]
    assert features["targets"][0].tolist() == [*document, IDS.eos]


@pytest.mark.parametrize("share", [0, -0.25, 1, 1.5, "half", 0.12345])
def test_bad_suffix_shares_are_refused(share):
    with pytest.raises(ValueError, match="suffix_share"):
        prefix_lm(IDS, share)


def test_causal_lm_copies_the_row():
    row, _ = text_row((3, 1, 4), 8)
    features = causal_lm(IDS).corrupt(jax.random.key(0), row, row, {"targets": 8}, 3)
    np.testing.assert_array_equal(features["targets"], row.tokens)
    np.testing.assert_array_equal(features["targets_segments"], row.segments)


def test_masked_inputs_by_hand():
    """The mask is read in place of b and e, and all is predicted."""
    features = hide(masked_input_next_token, IDS, [11, 12, 13, 14, 15, 16], [0, 1, 0, 0, 1, 0])
    stacks = layouts.decoder.lengths(masked_input_next_token(IDS).lengths(6))
    batch = quick_jit(lambda x: layouts.decoder.arrange(x, stacks, IDS.bos, 1))(features)
    read = [IDS.bos, 11, IDS.mask, 13, 14, IDS.mask]
    assert batch["decoder_input_tokens"].tolist() == read
    assert batch["decoder_target_tokens"].tolist() == [11, 12, 13, 14, 15, 16]
    assert batch["decoder_loss_weights"].tolist() == [1] * 6


def test_tokens_read_as_masks_are_uniform():
    features = corrupt_copies(masked_input_next_token(IDS), (7,), 7_000, seed=2)
    slots = np.flatnonzero(features["targets_stand_ins"]) % 7
    assert slots.size == 7_000  # round(.15 * 7) = 1 of each
    assert_uniform(slots, 7)
