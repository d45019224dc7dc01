"""NITP: which states are compared, and that gradients do not reach the shallow states."""

import jax
import numpy as np
import pytest

from pretrax.objectives import next_implicit_token
from tests.objectives.linear_outputs import LinearOutputs
from tests.objectives.registry import IDS

B, T, E = 1, 7, 3
RANDOM = np.random.default_rng(0)
PREDICTED, SHALLOW = RANDOM.normal(size=(2, B, T, E)).astype(np.float32)
BATCH = {
    "decoder_target_tokens": np.arange(2, 2 + T, dtype=np.int32)[None],
    "decoder_loss_weights": np.array([[1, 1, 1, 1, 1, 1, 0]], np.int32),
    "decoder_segment_ids": np.array([[1, 1, 1, 2, 3, 3, 0]], np.int32),
}


def term(predicted, shallow):
    loss = next_implicit_token(IDS, depth=30, scale=0.5).loss(BATCH)
    hidden = {"top": predicted, "implicit_token": predicted, "depth_30": shallow}
    return loss.scored(LinearOutputs(hidden))["implicit_token"]


def test_each_state_predicts_next_shallow_state_of_document():
    pairs = [(0, 1), (1, 2), (4, 5)]
    expected = 0.0
    for slot, after in pairs:
        predicted = PREDICTED[0, slot]
        actual = SHALLOW[0, after]
        lengths = np.linalg.norm(predicted) * np.linalg.norm(actual)
        expected += 1 - predicted @ actual / lengths
    got = jax.jit(term)(PREDICTED, SHALLOW)
    np.testing.assert_allclose(got.sums, [expected], rtol=1e-5)
    assert got.weights.tolist() == [3.0] and got.scale == 0.5


def test_shallow_states_get_no_gradient():
    predicted, shallow = jax.jit(jax.grad(lambda *x: term(*x).sums.sum(), (0, 1)))(
        PREDICTED, SHALLOW
    )
    assert not np.asarray(shallow).any()
    assert (np.abs(predicted[0]).sum(-1) > 0).tolist() == [1, 1, 0, 0, 1, 0, 0]


@pytest.mark.slow
def test_constant_states_have_zero_loss():
    assert term(np.ones_like(PREDICTED), np.zeros_like(SHALLOW)).sums.tolist() == [0.0]
