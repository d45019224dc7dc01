"""Hidden states of texts: their layers, their tokens and what they depend on."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from pretrax import models
from pretrax.inference.answering.states import TOP, all_layers, rows_batch, states, text_row
from pretrax.inference.decoding.batching import padded_rows
from pretrax.models.attention_mechanisms import MECHANISMS
from pretrax.models.builders import model_of
from pretrax.models.hidden_states import layer_states
from pretrax.models.unrolled import unrolled
from tests.inference.runs import ROWS, settings_of, trained
from tests.refusals import refuses

OBJECTIVES = {"encoder": "masked_lm", "decoder": "causal_lm", "encoder_decoder": "span_corruption"}
every_layout = pytest.mark.parametrize("builder", OBJECTIVES)


def of(one, texts, **settings):
    return [found for _, found in sorted(states(one, texts, **settings), key=lambda pair: pair[0])]


@pytest.mark.sampled
@every_layout
def test_states_of_a_text_do_not_depend_on_other_texts(builder):
    trained_model = trained(builder, OBJECTIVES[builder])
    alone, together = (
        of(trained_model, ["some text"]),
        of(trained_model, ["some text", "and a much longer text" * 3]),
    )
    np.testing.assert_allclose(alone[0].layers, together[0].layers, atol=2e-5)
    assert trained_model.decode(alone[0].tokens[alone[0].text]) == "some text"
    assert alone[0].layers.shape == (1, len(alone[0].tokens), 16)
    row = text_row(trained_model, trained_model.encode("some text"))
    by_hand = trained_model.model.apply(
        trained_model.params, rows_batch(trained_model, [row])
    ).hidden["top"]
    np.testing.assert_allclose(by_hand[0, : len(row.tokens)], alone[0].layers[0], atol=2e-5)


@pytest.mark.parametrize(
    ("builder", "objective", "sees_ahead"),
    [
        ("encoder", "masked_lm", True),
        ("encoder_decoder", "span_corruption", True),
        ("decoder", "causal_lm", False),
        ("decoder", "prefix_lm", True),
        ("decoder", "masked_next_token", True),
    ],
)
def test_attention_of_states_matches_training(builder, objective, sees_ahead):
    trained_model = trained(builder, objective)
    original, changed = of(trained_model, ["abcd", "abcz"])
    first = original.text.start
    assert (abs(original.layers[0, first] - changed.layers[0, first]).max() > 1e-6) == sees_ahead


def test_classifying_decoder_attends_in_both_directions():
    trained_model = trained("decoder", "sequence_classification", num_classes=3)
    (found,) = of(trained_model, ["abcd"])
    batch, _ = padded_rows("decoder", [found.tokens])
    whole = trained_model.model.apply(trained_model.params, batch).hidden["top"]
    np.testing.assert_allclose(found.layers[0], whole[0], atol=2e-5)


@pytest.mark.slow
def test_block_encoder_sees_ahead_within_a_block():
    settings = dict(merged_attention=True, rotate_encoded=True, positions="rotary")
    trained_model = trained("encoder_decoder", "block_diffusion", **settings)  # blocks of 16 tokens
    texts = "a" * 20, "a" * 15 + "b" + "a" * 4, "a" * 16 + "b" + "a" * 3
    first, within, beyond = (found.layers[0, 0] for found in of(trained_model, texts))
    assert abs(first - within).max() > 1e-6 and abs(first - beyond).max() < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("builder", ["encoder", "decoder", "encoder_decoder"])
def test_layer_states_match_a_shallower_model(builder):
    layers = dict(num_encoder_layers=2, num_decoder_layers=1)
    two = trained(
        builder,
        OBJECTIVES[builder],
        **(layers if builder == "encoder_decoder" else dict(num_layers=2)),
    )
    (found,) = of(two, ["some text"], layers=[0, 1, 2])
    (top,) = of(two, ["some text"])
    np.testing.assert_allclose(found.layers[2:], top.layers, atol=2e-5)
    assert all_layers(two) == [0, 1, 2]

    model, params = unrolled(two.model, two.params)
    count = "num_decoder_layers" if builder == "decoder" else "num_encoder_layers"
    one = two._replace(
        model=model_of(dataclasses.replace(model.config, **{count: 1})), params=params
    )
    (shorter,) = of(one, ["some text"])
    stack = "decoder" if builder == "decoder" else "encoder"
    scale = params[stack]["final_norm"]["scale"]
    x = found.layers[1]
    normed = x / np.sqrt(np.mean(x**2, -1, keepdims=True) + model.config.norm_epsilon) * scale[None]
    np.testing.assert_allclose(normed, shorter.layers[0], atol=2e-5)
    embedded = params["token_embedding"][jnp.array(found.tokens)]
    if model.config.positions == "rotary" and not model.config.num_types:
        np.testing.assert_allclose(found.layers[0], embedded, atol=1e-6)


@pytest.mark.slow
def test_states_exclude_padding_of_the_attention_mechanism(monkeypatch):
    """Fused attention on TPUs pads rows in the same way."""
    (expected,) = of(trained("encoder", "masked_lm"), ["some text"], layers=[0, 1])
    padding_three = MECHANISMS["fused"]._replace(padding=lambda slots: 3)
    monkeypatch.setitem(MECHANISMS, "fused", padding_three)
    padded = trained("encoder", "masked_lm", attention="fused")
    (found,) = of(padded, ["some text"], layers=[0, 1])
    np.testing.assert_allclose(found.layers, expected.layers, atol=2e-5)


def test_unavailable_layers_are_rejected():
    trained_model = trained("encoder", "masked_lm")
    with refuses(ValueError, "7", "0", "1", "-1"):
        of(trained_model, ["a"], layers=[7])
    with refuses(ValueError, "scan_layers=True", "models.unrolled.unrolled"):
        layer_states(trained_model.model.config, trained_model.params, {})
    pair = trained_model._replace(model=models.two_towers(ROWS, **settings_of("encoder")))
    assert all_layers(pair) == [TOP]
    with refuses(ValueError, "0", "-1"):
        of(pair, ["a"], layers=[0])


@pytest.mark.slow
def test_layers_of_electra_match_its_discriminator():
    trained_model = trained("electra", "replaced_token_detection")
    assert all_layers(trained_model) == [0, 1]
    (found,) = of(trained_model, ["some text"], layers=[0, 1])
    (top,) = of(trained_model, ["some text"])
    np.testing.assert_allclose(found.layers[1:], top.layers, atol=2e-5)
