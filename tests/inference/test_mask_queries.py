"""Masks that are predicted from given tokens in any order, as in the batches of training."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrax.inference.answering.mask_queries import mask_states
from pretrax.inference.answering.masks import Masked, batch_of, fill_masks
from pretrax.inference.answering.options import Decoding, Options
from pretrax.inference.answering.scoring import hidden_log_probs
from pretrax.inference.answering.unmasking import unmask, write_masks
from pretrax.inference.trained import prompt_form
from pretrax.objectives import layouts
from tests.inference.runs import IDS, trained

OBJECTIVES = ("any_subset_lm", "shuffled_lm")
TEXTS = (np.arange(40, 46), np.arange(60, 64))
ORDER = np.array([1, 3, 4, 0, 2, 5])  # the given tokens of the first text, and then its masks
GIVEN = 3


def model(name):
    return trained("decoder", name, num_layers=2)  # so that given tokens read each other


def states_of_masks(one, texts, masked):
    """Returns the states [T, E] of each text, whose tokens at these positions are masked."""
    rows = [np.where(np.isin(np.arange(x.size), at), IDS.mask, x) for x, at in zip(texts, masked)]
    form = prompt_form(one, "unmask")
    batch = batch_of(one, [row.tolist() for row in rows])
    return np.asarray(
        jax.jit(lambda batch: mask_states(one.model, form, IDS, one.params, batch)[0])(batch)
    )


def one_row_batch(features, lengths):
    features = {name: jnp.asarray(x, jnp.int32) for name, x in features.items()}
    row = layouts.decoder.arrange(features | {"member": jnp.int32(0)}, lengths, IDS.bos, 1)
    return jax.tree.map(lambda x: x[None], row)


@pytest.mark.slow
def test_shuffled_model_predicts_masks_as_in_training():
    """The first mask of the order is the next token after the given tokens."""
    trained_model = model("shuffled_lm")
    features = {
        "targets": TEXTS[0][ORDER],
        "targets_segments": np.ones(6),
        "targets_weights": np.ones(6),
        "targets_positions": [0, *ORDER[:-1]],
        "targets_block_positions": ORDER + 1,
    }
    batch = one_row_batch(features, {"decoder": 6, "predict": 6})
    expected = trained_model.model.apply(trained_model.params, batch).hidden["top"][0, GIVEN]
    found = states_of_masks(trained_model, TEXTS, [ORDER[GIVEN:], [1]])[0, ORDER[GIVEN]]
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.slow
def test_any_subset_model_predicts_masks_as_in_training():
    """The given tokens are the first group, and the masks are the second group."""
    trained_model = model("any_subset_lm")
    begins = np.where(np.arange(6) < GIVEN, 0, GIVEN)
    ends = np.where(np.arange(6) < GIVEN, GIVEN, 6)
    features = {
        "inputs": TEXTS[0][ORDER],
        "inputs_segments": np.ones(6),
        "inputs_positions": ORDER,
        "inputs_starts": np.zeros(6),
        "inputs_ends": ends,
        "noised": np.full(6, IDS.mask),
        "noised_begins": begins,
        "noised_ends": ends,
        "noised_rates": np.zeros(6),
        "labels": TEXTS[0][ORDER],
        "labels_slots": np.arange(6),
        "labels_weights": np.ones(6),
    }
    batch = one_row_batch(features, {"decoder": 6, "copies": 6, "predict": 6})
    expected = trained_model.model.apply(trained_model.params, batch).hidden["noised"][0, GIVEN:]
    found = states_of_masks(trained_model, TEXTS, [ORDER[GIVEN:], [1]])[0, ORDER[GIVEN:]]
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.sampled
@pytest.mark.parametrize("name", OBJECTIVES)
def test_mask_states_depend_only_on_given_tokens_not_the_batch(name):
    trained_model = model(name)
    masked = [[0, 2, 5], [1]]
    whole = states_of_masks(trained_model, TEXTS, masked)
    hidden = TEXTS[0].copy()
    hidden[[0, 2, 5]] = 99  # these are masked anyway
    np.testing.assert_array_equal(states_of_masks(trained_model, [hidden, TEXTS[1]], masked), whole)
    alone = states_of_masks(trained_model, TEXTS[1:], masked[1:])
    np.testing.assert_allclose(alone[0, 1], whole[1, 1], atol=1e-5)
    given = TEXTS[0].copy()
    given[3] = 99
    moved = np.abs(states_of_masks(trained_model, [given, TEXTS[1]], masked) - whole).max(-1) > 1e-6
    assert moved[0, [0, 2, 5]].all() and not moved[1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("name", OBJECTIVES)
def test_masks_are_filled_with_text_in_any_order(name):
    trained_model = model(name)
    form = prompt_form(trained_model, "unmask")
    rows = [Masked([40, IDS.mask, 41, IDS.mask], [1, 3]), Masked([IDS.mask] * 3, [0, 1, 2])]
    for order in ("confidence", "random", "left_to_right"):
        options = Options(Decoding(temperature=1.0), order=order)
        written = write_masks(trained_model, form, rows, options)
        assert [len(tokens) for tokens in written] == [2, 3]
        assert all(IDS.text[0] <= token < IDS.text[1] for row in written for token in row)
    (answer,) = unmask(trained_model, ["a[MASK]c"], Options(steps=1))
    assert answer[0] == "a" and answer[-1] == "c"
    (masks,) = fill_masks(trained_model, ["a[MASK][MASK]"], Options(top=10**6))
    for guesses in masks:
        assert sum(guess.probability for guess in guesses) == pytest.approx(1, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", OBJECTIVES)
def test_hidden_log_probs_match_the_mask_states(name):
    trained_model = model(name)
    tokens, hidden = TEXTS[0].copy(), [0, 2, 5]
    (found,) = hidden_log_probs(trained_model, [(tokens.tolist(), hidden)])
    form = prompt_form(trained_model, "unmask")
    masked = np.where(np.isin(np.arange(6), hidden), IDS.mask, tokens).tolist()
    states, project = mask_states(
        trained_model.model, form, IDS, trained_model.params, batch_of(trained_model, [masked])
    )
    log_probs = jax.nn.log_softmax(project(states[0, np.array(hidden)]))
    np.testing.assert_allclose(found, log_probs[np.arange(3), tokens[hidden]], rtol=1e-4)
