"""Permutation language modeling: the order, and the tokens that each stream attends to."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrax import models
from pretrax.objectives import permutation_lm
from tests.objectives.blocks import corrupted as of_decoder
from tests.objectives.registry import IDS, quick_jit

LENGTH = 24
SMALL = dict(num_layers=2, emb_dim=16, num_heads=2, head_dim=8, mlp_dim=16)


def corrupted(rows, **settings):
    """Returns (features, decoder batch) of rows with one document."""
    return of_decoder(permutation_lm(IDS, **settings), rows, LENGTH)


def dense(intervals_2xT, keys):
    start, end = intervals_2xT[:, :, None]
    slot = np.arange(keys)[None]
    return (slot >= start) & (slot < end)


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
