"""Attention patterns as matrices, compared with the key intervals of models."""

import jax
import numpy as np
import pytest

from pretrax.objectives import (
    attention_mask,
    causal_lm,
    causal_mask,
    corruptor,
    layouts,
    prefix_lm,
    prefix_mask,
)
from tests.objectives.registry import IDS, text_row
from tests.refusals import refuses


def test_causal_mask_is_lower_triangular():
    assert (np.asarray(causal_mask(7)) == np.tril(np.ones((7, 7), bool))).all()
    # The first token attends only to itself in both.
    assert (causal_mask(7) == prefix_mask(1, 6)).all()


def test_negative_lengths_raise():
    for make, arguments in ((causal_mask, [-2]), (prefix_mask, [-1, 3]), (prefix_mask, [3, -4])):
        with refuses(ValueError, 0, min(arguments)):
            make(*arguments)


@pytest.mark.parametrize("prefix, targets", [(0, 4), (1, 3), (4, 0), (3, 5)])
def test_prefix_attention_is_bidirectional(prefix, targets):
    mask = np.asarray(prefix_mask(prefix, targets))
    expected = np.tril(np.ones_like(mask))
    expected[:prefix, :prefix] = True
    assert (mask == expected).all()


@pytest.mark.slow
@pytest.mark.parametrize("builder", [causal_lm, prefix_lm])
def test_masks_match_key_intervals_of_decoder_batch(builder):
    length = 10
    row, _ = text_row((length,), length, 0)
    features = corruptor(builder, IDS, length)(jax.random.key(0), np.stack([row.tokens] * 2))
    features = {name: column[0] for name, column in features.items()}
    slots = length if builder is causal_lm else length + 2
    batch = layouts.decoder.arrange(features, {"decoder": slots}, IDS.bos, 1)
    mask = np.asarray(attention_mask(batch["decoder_key_intervals"], slots))
    written = int(np.sum(np.asarray(features["targets_segments"]) > 0))
    # A prefix of p tokens and t targets, each followed by end-of-sequence.
    assert (mask == prefix_mask(slots - written, written)).all()
    assert (written < slots) == (builder is prefix_lm)
