"""Hidden states of lower layers, which a decoder returns as "depth_…"."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrax import models
from pretrax.models.hidden_states import layer_states
from pretrax.models.unrolled import unrolled
from tests.refusals import refuses

HEADS = ("vocabulary", "depth_20", "depth_50", "depth_75")
SIZES = dict(emb_dim=8, num_heads=2, head_dim=4, mlp_dim=8)
SLOTS = jnp.arange(6, dtype=jnp.int32)[None]
BATCH = {
    "decoder_input_tokens": SLOTS + 2,
    "decoder_segment_ids": jnp.ones_like(SLOTS),
    "decoder_positions": SLOTS,
    "decoder_key_intervals": jnp.stack([0 * SLOTS, SLOTS + 1], 1),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "layers"),
    [
        ({}, (1, 2, 3)),
        ({"remat_policy": "full", "unroll_scan": True}, (1, 2, 3)),
        ({"first_norm": False}, (1, 2, 3)),
        ({"num_experts": 2, "sparse_every": 2}, (2, 2, 4)),  # whole periods of two layers
    ],
    ids=["scanned", "rematerialized", "first_layer", "sparse"],
)
def test_depth_states_match_layer_states(settings, layers):
    model = models.decoder(16, HEADS, num_layers=4, **SIZES, **settings)
    params = nn.unbox(jax.jit(model.init)(jax.random.key(0), BATCH))
    scanned = jax.jit(lambda p: model.apply(p, BATCH).hidden)(params)
    plain, separate = unrolled(model, params)
    unscanned = jax.jit(lambda p: plain.apply(p, BATCH).hidden)(separate)
    states_by_layer = jax.jit(lambda p: layer_states(plain.config, p, BATCH))(separate)
    for name, number in zip(HEADS[1:], layers):
        np.testing.assert_allclose(scanned[name], unscanned[name], atol=1e-5)
        if number < 4:  # after the last layer, `layer_states` returns the normed states
            np.testing.assert_allclose(unscanned[name], states_by_layer[number], atol=1e-5)
    assert np.abs(states_by_layer[1] - states_by_layer[2]).max() > 1e-3


def test_depth_rounds_to_at_least_one_layer():
    config = models.decoder(16, HEADS, num_layers=24, **SIZES).config
    assert [config.depths(n)["depth_20"] for n in (2, 4, 16, 24, 28)] == [1, 1, 3, 5, 6]
    assert list(config.depths(24).values()) == [5, 12, 18]


def test_depth_above_100_percent_raises():
    with refuses(ValueError, "heads", "depth_120"):
        models.decoder(16, ("vocabulary", "depth_120"), num_layers=2, **SIZES)
