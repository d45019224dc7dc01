"""Permutation language modeling: the order, and the tokens that each stream attends to."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrax import models
from pretrax.objectives import (
    Row,
    any_subset_lm,
    batched,
    layouts,
    permutation_lm,
    shuffled_lm,
)
from tests.objectives.batches import arrange_rows
from tests.objectives.blocks import corrupted as corrupted_for_decoder
from tests.objectives.distributions import assert_uniform, corrupt_copies
from tests.objectives.linear_outputs import LinearOutputs
from tests.objectives.registry import IDS, quick_jit
from tests.objectives.waves import waves

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
        index_by_position, is_predicted = np.empty(LENGTH, int), np.empty(LENGTH, bool)
        index_by_position[position], is_predicted[position] = index, predicted
        last_visible = np.where(is_predicted, index_by_position, index_by_position + 1)
        hidden = (last_visible[:, None] <= index_by_position[None]) & is_predicted[None]
        queries, content = ~hidden, ~hidden | np.eye(LENGTH, dtype=bool)

        in_order = np.ix_(position, position)
        got = dense(batch["decoder_key_intervals"][row], LENGTH)
        np.testing.assert_array_equal(got, content[in_order])
        got = dense(batch["noised_clean_intervals"][row], LENGTH)
        np.testing.assert_array_equal(got[predicted], queries[in_order][predicted])
        copies = dense(batch["noised_key_intervals"][row], LENGTH)
        np.testing.assert_array_equal(copies[predicted], np.eye(LENGTH, dtype=bool)[predicted])


@pytest.mark.slow
def test_orders_of_predicted_tokens_are_uniform():
    f, _ = corrupted(1200, rate=0.125, span_lengths=None)
    places = np.argsort(np.argsort(f["inputs_positions"][:, -3:], -1), -1)
    _, counts = np.unique(places, axis=0, return_counts=True)
    # Chi-squared test, p = 0.001.
    assert counts.size == 6 and ((counts - 200) ** 2 / 200).sum() < 20.5


def test_prompt_form_is_states_only():
    """A decoder has no mode `embed`, and this model cannot write blocks or continue a text."""
    (form,) = permutation_lm(IDS).facts.prompt_forms
    assert form.mode == "states" and not form.causal


# --- A3: groups ---------------------------------------------------------------------------------


# What `generate_grouping_masks` of PKU-ML/Any-order-Any-subset-AR at a79d9263 (`llama_xlnet.py`)
# returns for content and for queries, by the groups of four tokens. The tokens that the token in a
# row attends to are 1.
PUBLISHED_GROUPS = {
    (0, 0, 1, 1): ("1100 1100 1111 1111", "0000 0000 1100 1100"),
    (0, 1, 0, 1): ("1010 1111 1010 1111", "0000 1010 0000 1010"),
    (0, 1, 1, 0): ("1001 1111 1111 1001", "0000 1001 1001 0000"),
    (1, 0, 0, 1): ("1111 0110 0110 1111", "0110 0000 0000 0110"),
    (1, 0, 1, 0): ("1111 0101 1111 0101", "0101 0000 0101 0000"),
    (1, 1, 0, 0): ("1111 1111 0011 0011", "0011 0011 0000 0000"),
}


def test_group_attention_and_loss_match_published_code():
    """The loss is that of `LlamaTwoStreamForCausalLM.forward` in the same file."""
    rows = 40
    _, batch = corrupted_for_decoder(any_subset_lm(IDS, 2), rows, 4)
    found = set()
    for row in range(rows):
        in_text = np.argsort(batch["decoder_positions"][row])
        groups = tuple((in_text // 2).tolist())
        found.add(groups)
        names = "decoder_key_intervals", "noised_clean_intervals"
        for name, expected in zip(names, PUBLISHED_GROUPS[groups]):
            got = dense(batch[name][row], 4)[np.ix_(in_text, in_text)]
            assert " ".join("".join(map(str, line)) for line in got.astype(int)) == expected
    assert found == PUBLISHED_GROUPS.keys()

    positions = batch["decoder_positions"]
    batch = batch | {"decoder_target_tokens": np.int32([5, 3, 8, 2])[positions]}
    logits = waves(4, 9)[positions]
    term = any_subset_lm(IDS, 2).loss(batch).scored(LinearOutputs({"noised": logits}))["tokens"]
    np.testing.assert_allclose(term.sums / term.weights, [2.5732502937316895] * rows, rtol=1e-5)


def test_unshuffled_groups_match_published_code():
    """`generate_grouping` of its `example_usage.py`, for stages 0, 1 and 2."""
    published = {1: [0, 1, 2, 3], 2: [0, 0, 1, 1, 2, 2, 3], 4: [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]}
    for size, groups in published.items():
        features, _ = corrupted_for_decoder(
            any_subset_lm(IDS, size, shuffled=False), 1, len(groups)
        )
        np.testing.assert_array_equal(features["inputs_positions"][0], range(len(groups)))
        np.testing.assert_array_equal(features["noised_begins"][0], size * np.array(groups))


@pytest.mark.parametrize("group_size", [1, 5])
def test_tokens_attend_to_earlier_groups(group_size):
    """In the published code, the copies of a group do not attend to each other."""
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


def test_divisions_into_groups_are_uniform():
    """Four tokens have six ordered divisions into groups of two."""
    features = corrupt_copies(any_subset_lm(IDS, 2), (4,), 3_000, seed=1)
    first = np.sort(features["inputs_positions"][:, :2], axis=1)
    assert_uniform(first, 6)


# --- σ-GPT: a single stream ---------------------------------------------------------------------


def test_document_orders_are_uniform():
    features = corrupt_copies(shuffled_lm(IDS), (3, 2), 3_000, seed=2)
    orders = features["targets_block_positions"]
    assert_uniform(orders, 6 * 2)
    assert (orders[:, 3:].max(1) == 2).all()


# What `apply_order` and `sigmaGPT._pos_emb` of idiap/sigma-gpt at 46c4a865 (`text/`) return for the
# text 11 12 13: inputs, targets, and the two positions of each slot, by order.
PUBLISHED_ORDERS = {
    (0, 1, 2): ([11, 12], [12, 13], [[0, 1], [1, 2]]),
    (0, 2, 1): ([11, 13], [13, 12], [[0, 2], [2, 1]]),
    (1, 0, 2): ([12, 11], [11, 13], [[1, 0], [0, 2]]),
    (1, 2, 0): ([12, 13], [13, 11], [[1, 2], [2, 0]]),
    (2, 0, 1): ([13, 11], [11, 12], [[2, 0], [0, 1]]),
    (2, 1, 0): ([13, 12], [12, 11], [[2, 1], [1, 0]]),
}


def test_slots_and_loss_match_published_sigma_gpt():
    """That code does not predict the first token of the order, which is predicted from bos here.

    The loss is that of `sigmaGPT.forward` for the order 2 0 1.
    """
    rows = 60
    objective = shuffled_lm(IDS)
    tokens = np.broadcast_to(np.int32([11, 12, 13]), (rows, 3))
    raw = Row(tokens, np.ones_like(tokens), np.zeros(rows, np.int32))
    keys = jax.random.split(jax.random.key(0), rows)
    features = quick_jit(batched(objective, objective.lengths(3)))(keys, raw)
    lengths = {"decoder": 3, "predict": 3}
    batch = arrange_rows(layouts.decoder, features, lengths)
    found = set()
    for row in range(rows):
        names = "input_tokens", "target_tokens", "positions", "block_positions"
        inputs, targets, read, predicted = (batch[f"decoder_{name}"][row] for name in names)
        predicted = predicted - 1
        order = tuple(predicted.tolist())
        found.add(order)
        pairs = np.stack([read, predicted], 1)
        for got, expected in zip((inputs, targets, pairs), PUBLISHED_ORDERS[order]):
            np.testing.assert_array_equal(got[1:], expected)
    assert found == PUBLISHED_ORDERS.keys()

    batch = {
        "decoder_target_tokens": np.int32([[0, 5, 3]]),
        "decoder_segment_ids": np.ones((1, 3), np.int32),
        "decoder_loss_weights": np.int32([[0, 1, 1]]),
    }
    logits = np.concatenate([np.zeros((1, 1, 9), np.float32), waves(1, 2, 9)], axis=1)
    term = objective.loss(batch).scored(LinearOutputs({"top": logits}))["tokens"]
    np.testing.assert_allclose(term.sums / term.weights, [2.5152904223879706], rtol=1e-5)


@pytest.mark.slow
def test_slots_have_read_and_predicted_positions_per_document():
    """Each document begins with bos, whose position is not in the order."""
    features = corrupt_copies(shuffled_lm(IDS), (6, 3), 5, seed=3)
    lengths = {"decoder": 11, "predict": 11}
    batch = arrange_rows(layouts.decoder, features, lengths, 2)
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
def test_predictions_depend_on_predicted_position():
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


def test_shuffled_lm_rejects_relative_positions():
    model = models.decoder(IDS.size, **SMALL, positions="relative")
    (requirement,) = shuffled_lm(IDS).facts.requires
    assert "relative" in requirement(model, ())
    assert requirement(models.decoder(IDS.size, **SMALL), ()) is None
