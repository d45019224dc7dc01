"""Permutation language modeling: the order, and the tokens that each stream attends to."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrax import models
from pretrax.objectives import any_subset_lm, layouts, permutation_lm, shuffled_lm
from tests.objectives.blocks import corrupted as corrupted_for_decoder
from tests.objectives.distributions import assert_uniform, corrupt_copies
from tests.objectives.registry import IDS, quick_jit

LENGTH = 24
SMALL = dict(num_layers=2, emb_dim=16, num_heads=2, head_dim=8, mlp_dim=16)


def corrupted(rows, **settings):
    """Returns (features, decoder batch) of rows with one document."""
    return corrupted_for_decoder(permutation_lm(IDS, **settings), rows, LENGTH)


def dense(intervals_2xT, keys):
    start, end = intervals_2xT[:, :, None]
    slot = np.arange(keys)[None]
    return (slot >= start) & (slot < end)


@pytest.mark.slow
def test_attention_matches_the_published_permutation_mask():
    """In the published code, all tokens attend to the given tokens.

    Given tokens attend only to given tokens. A predicted token also attends to the tokens before it
    in the order, and its content stream attends to itself.
    """
    f, batch = corrupted(4, rate=0.4)
    for row in range(4):
        position = f["inputs_positions"][row]
        predicted = f["noised"][row] == IDS.mask
        # The index in the order is -1 for given tokens.
        index = np.where(predicted, np.arange(LENGTH), -1)
        of_position, is_predicted = np.empty(LENGTH, int), np.empty(LENGTH, bool)
        of_position[position], is_predicted[position] = index, predicted
        itself = np.where(is_predicted, of_position, of_position + 1)
        hidden = (itself[:, None] <= of_position[None]) & is_predicted[None]
        queries, content = ~hidden, ~hidden | np.eye(LENGTH, dtype=bool)

        in_order = np.ix_(position, position)
        got = dense(batch["decoder_key_intervals"][row], LENGTH)
        np.testing.assert_array_equal(got, content[in_order])
        got = dense(batch["noised_clean_intervals"][row], LENGTH)
        np.testing.assert_array_equal(got[predicted], queries[in_order][predicted])
        own = dense(batch["noised_key_intervals"][row], LENGTH)
        np.testing.assert_array_equal(own[predicted], np.eye(LENGTH, dtype=bool)[predicted])


@pytest.mark.slow
def test_every_order_of_the_predicted_tokens_is_equally_likely():
    f, _ = corrupted(1200, rate=0.125, span_lengths=None)
    places = np.argsort(np.argsort(f["inputs_positions"][:, -3:], -1), -1)
    _, counts = np.unique(places, axis=0, return_counts=True)
    # Chi-squared test, p = 0.001.
    assert counts.size == 6 and ((counts - 200) ** 2 / 200).sum() < 20.5


@pytest.mark.slow
def test_a_prediction_depends_on_what_comes_before_it_in_the_order_alone():
    model = models.decoder(IDS.size, **SMALL)
    _, batch = corrupted(2, rate=0.3)
    params = model.init(jax.random.key(0), batch)

    @quick_jit
    def predicted(tokens):
        changed = dict(batch) | {"decoder_input_tokens": tokens}
        return model.apply(params, changed).hidden["noised"]

    slots = np.flatnonzero(batch["noised_input_tokens"][0] == IDS.mask)
    tokens = jnp.asarray(batch["decoder_input_tokens"])
    before = predicted(tokens)
    for slot in (0, slots[0], slots[2], slots[-1]):
        other = predicted(tokens.at[:, slot].set(95))
        moved = np.abs(np.asarray(other - before)[0]).max(-1)[slots] > 1e-6
        np.testing.assert_array_equal(moved, slots > slot)


def test_a_trained_model_is_asked_for_states_alone():
    """A decoder has no mode `embed`, and this model cannot write blocks or continue a text."""
    (form,) = permutation_lm(IDS).facts.prompt_forms
    assert form.mode == "states" and not form.causal


# --- A3: groups ---------------------------------------------------------------------------------


@pytest.mark.parametrize("group_size", [1, 5])
def test_attention_matches_the_published_masks_of_groups(group_size):
    """In the published code, content attends to groups up to its own, and queries to groups before.

    Here the copies of a group also attend to each other.
    """
    _, batch = corrupted_for_decoder(any_subset_lm(IDS, group_size), 4, LENGTH)
    group = np.arange(LENGTH) // group_size
    for row in range(4):
        content = dense(batch["decoder_key_intervals"][row], LENGTH)
        np.testing.assert_array_equal(content, group[:, None] >= group[None])
        queries = dense(batch["noised_clean_intervals"][row], LENGTH)
        np.testing.assert_array_equal(queries, group[:, None] > group[None])
        copies = dense(batch["noised_key_intervals"][row], LENGTH)
        np.testing.assert_array_equal(copies, group[:, None] == group[None])
        np.testing.assert_array_equal(batch["noised_positions"], batch["decoder_positions"])


def test_every_division_into_groups_is_equally_likely():
    """Four tokens have six ordered divisions into groups of two."""
    features = corrupt_copies(any_subset_lm(IDS, 2), (4,), 3_000, seed=1)
    first = np.sort(features["inputs_positions"][:, :2], axis=1)
    assert_uniform(first, 6)


@pytest.mark.slow
def test_a_group_depends_on_earlier_groups_alone():
    model = models.decoder(IDS.size, **SMALL)
    _, batch = corrupted_for_decoder(any_subset_lm(IDS, 4), 2, LENGTH)
    params = model.init(jax.random.key(0), batch)

    @quick_jit
    def predicted(tokens):
        changed = dict(batch) | {"decoder_input_tokens": tokens}
        return model.apply(params, changed).hidden["noised"]

    tokens = jnp.asarray(batch["decoder_input_tokens"])
    before = predicted(tokens)
    for slot in (0, 6, 15, LENGTH - 1):
        other = predicted(tokens.at[:, slot].set(95))
        moved = np.abs(np.asarray(other - before)[0]).max(-1) > 1e-6
        np.testing.assert_array_equal(moved, np.arange(LENGTH) // 4 > slot // 4)


# --- σ-GPT: a single stream ---------------------------------------------------------------------


def test_every_order_of_a_document_is_equally_likely():
    features = corrupt_copies(shuffled_lm(IDS), (3, 2), 3_000, seed=2)
    orders = features["targets_block_positions"]
    assert_uniform(orders, 6 * 2)
    assert (orders[:, 3:].max(1) == 2).all()


@pytest.mark.slow
def test_slots_have_the_two_positions_of_the_published_code():
    """In the published code, input k has the positions order[k] and order[k + 1], after a prompt.

    The prompt here is bos, so its position is not in the order. Sinusoids of the second position
    are added to the embedding.
    """
    features = corrupt_copies(shuffled_lm(IDS), (6, 3), 5, seed=3)
    lengths = {"decoder": 11, "predict": 11}
    arrange = quick_jit(jax.vmap(lambda row: layouts.decoder.arrange(row, lengths, IDS.bos, 2)))
    batch = arrange(features)
    for row in range(5):
        for start, end in ((0, 6), (6, 9)):
            order = batch["decoder_block_positions"][row, start:end] - 1
            assert sorted(order.tolist()) == list(range(end - start))
            got = batch["decoder_positions"][row, start:end]
            np.testing.assert_array_equal(got, [0, *order[:-1]])
            tokens = batch["decoder_input_tokens"][row, start:end]
            targets = batch["decoder_target_tokens"][row, start:end]
            np.testing.assert_array_equal(tokens, [IDS.bos, *targets[:-1]])
            ends = batch["decoder_key_intervals"][row, 1, start:end]
            np.testing.assert_array_equal(ends, range(start + 1, end + 1))


@pytest.mark.slow
def test_a_prediction_depends_on_the_position_that_it_is_for():
    model = models.decoder(IDS.size, **SMALL)
    _, batch = corrupted_for_decoder(shuffled_lm(IDS), 2, LENGTH)
    params = model.init(jax.random.key(0), batch)

    @quick_jit
    def states(positions):
        return model.apply(params, dict(batch) | {"decoder_block_positions": positions}).hidden[
            "top"
        ]

    positions = jnp.asarray(batch["decoder_block_positions"])
    changed = states(positions.at[:, 5].add(3)) - states(positions)
    moved = np.abs(np.asarray(changed)[0]).max(-1) > 1e-6
    assert moved[5] and not moved[:5].any()


def test_relative_positions_cannot_tell_the_order():
    model = models.decoder(IDS.size, **SMALL, positions="relative")
    (requirement,) = shuffled_lm(IDS).facts.requires
    assert "relative" in requirement(model, ())
    assert requirement(models.decoder(IDS.size, **SMALL), ()) is None
