"""NextLat: which states are compared, and that gradients do not reach the target states."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrax import models
from pretrax.objectives import next_latent
from tests.objectives.linear_outputs import LinearOutputs
from tests.objectives.registry import IDS, quick_jit

B, T, E = 1, 7, 3
RANDOM = np.random.default_rng(0)
TOP, EXPECTED = 2 * RANDOM.normal(size=(2, B, T, E)).astype(np.float32)
BATCH = {
    "decoder_target_tokens": np.arange(2, 2 + T, dtype=np.int32)[None],
    "decoder_loss_weights": np.array([[1, 1, 1, 1, 1, 1, 0]], np.int32),
    "decoder_segment_ids": np.array([[1, 1, 1, 2, 3, 3, 0]], np.int32),
}


def term(top, expected):
    outputs = LinearOutputs({"top": top, "next_latent": expected})
    return next_latent(IDS, scale=0.5).loss(BATCH).scored(outputs)["next_latent"]


def test_each_predicted_state_is_compared_with_next_state_of_document():
    pairs = [(0, 1), (1, 2), (4, 5)]
    size = np.abs([EXPECTED[0, slot] - TOP[0, after] for slot, after in pairs])
    losses = np.where(size < 1, size**2 / 2, size - 0.5).mean(-1)
    got = jax.jit(term)(TOP, EXPECTED)
    np.testing.assert_allclose(got.sums, [losses.sum()], rtol=1e-6)
    assert got.weights.tolist() == [3.0] and got.scale == 0.5


def test_target_states_get_no_gradient():
    top, expected = jax.jit(jax.grad(lambda *x: term(*x).sums.sum(), (0, 1)))(TOP, EXPECTED)
    assert not np.asarray(top).any()
    assert (np.abs(expected[0]).sum(-1) > 0).tolist() == [1, 1, 0, 0, 1, 0, 0]


@pytest.mark.slow
def test_predicted_state_reads_current_state_and_next_token():
    heads = ("vocabulary", "next_latent")
    shape = dict(num_layers=1, emb_dim=8, num_heads=2, head_dim=4, mlp_dim=8, scan_layers=False)
    model = models.decoder(16, heads, **shape)
    tokens = jnp.arange(2, 8, dtype=jnp.int32)[None]
    slots = jnp.arange(6, dtype=jnp.int32)[None]
    batch = {
        "decoder_segment_ids": jnp.ones_like(slots),
        "decoder_positions": slots,
        "decoder_key_intervals": jnp.stack([0 * slots, slots + 1], 1),
    }

    @quick_jit
    def changed(key):
        inputs = batch | {"decoder_input_tokens": tokens}
        params = model.init(key, inputs)
        before, after = (
            model.apply(params, inputs | {"decoder_input_tokens": x}).hidden["next_latent"]
            for x in (tokens, tokens.at[0, 3].set(9))
        )
        return jnp.abs(before - after).max(-1)[0] > 1e-6

    # The token in slot 3 is read there, and is the next token of slot 2.
    assert changed(jax.random.key(0)).tolist() == [0, 0, 1, 1, 1, 1]
