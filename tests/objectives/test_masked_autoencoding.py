"""RetroMAE: the tokens that each token is restored from, and the loss."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare

from pretrax.objectives import layouts, masked_lm, retromae
from tests.objectives.batches import arrange, corrupt, text
from tests.objectives.distributions import SIGNIFICANCE
from tests.objectives.linear_outputs import LinearOutputs
from tests.objectives.registry import IDS, features_of, packed_lengths

N = 6


def drawn(rate, copies=4000):
    """Returns (positions, starts, ends), each i32[copies, slots], of a document of N tokens."""
    got = corrupt(retromae(IDS, decoder_rate=rate), [text(N)], copies=copies)
    return [got[f"contexts_{name}"] for name in ("positions", "starts", "ends")]


@pytest.mark.slow
@pytest.mark.parametrize("rate, visible", [(0.5, 2), (0.6, 2), (0.7, 1)])
def test_visible_token_sets_are_uniform(rate, visible):
    positions, starts, ends = drawn(rate)
    for position in (1, N // 2, N):
        row, slot = np.nonzero(positions == position)
        assert len(row) == len(positions)
        sets = [
            tuple(sorted(p[s:e][p[s:e] > 0]))
            for p, s, e in zip(positions[row], starts[row, slot], ends[row, slot])
        ]
        others = [p for p in range(1, N + 1) if p != position]
        possible = list(itertools.combinations(others, visible))
        counts = [sets.count(subset) for subset in possible]
        assert sum(counts) == len(sets)
        assert chisquare(counts).pvalue > SIGNIFICANCE


@pytest.mark.slow
def test_mean_visible_count_matches_published_code():
    """The published code hides round(rate * n) of n tokens, and the restored token."""
    n, rate = 100, 0.7
    draw, hidden = np.random.default_rng(0), round(rate * n)
    published = np.mean([n - len({0, *draw.permutation(n)[:hidden]}) for _ in range(4000)])
    got = corrupt(retromae(IDS, decoder_rate=rate), [text(n)])
    (width,) = set((got["contexts_ends"] - got["contexts_starts"])[0][: n + 3].tolist())
    assert abs(width - 1 - published) < 1


@pytest.mark.slow
def test_decoder_cross_attends_to_first_state_of_document():
    documents = [[50, 60, 70], [80]]
    objective = retromae(IDS)
    planned = packed_lengths(objective, [3, 1])
    assert planned == {"inputs": 8, "labels": 2, "targets": 8, "contexts": 8}
    got = features_of(corrupt(objective, documents), 0)
    stacks = layouts.encoder.lengths(planned)
    assert stacks == {"encoder": 8, "predict": 2, "decoder": 8}
    batch = jax.device_get(arrange(layouts.encoder, got | {"member": np.int32(0)}, stacks))
    masked = arrange(
        layouts.encoder,
        {k: v for k, v in got.items() if not k.startswith(("targets", "contexts"))}
        | {"member": np.int32(0)},
        layouts.encoder.lengths(masked_lm(IDS, rate=0.3).lengths(3) | {"inputs": 8, "labels": 2}),
    )
    assert all((batch[name] == x).all() for name, x in masked.items())
    assert batch["decoder_segment_ids"].tolist() == [1] * 5 + [2] * 3
    assert batch["cross_key_intervals"].tolist() == [[0] * 5 + [5] * 3, [1] * 5 + [6] * 3]
    # The token of a one-token document is restored from only one of the two states.
    assert batch["decoder_target_tokens"].tolist()[5:] == [IDS.cls, IDS.cls, 80]
    assert batch["decoder_positions"].tolist()[5:] == [0, 0, 1]
    assert batch["decoder_loss_weights"].tolist()[5:] == [0, 0, 1]
    start, end = batch["decoder_key_intervals"][:, 7]
    assert start in (5, 6) and end == start + 1
    assert (batch["decoder_input_tokens"] == batch["decoder_target_tokens"]).all()


def test_loss_covers_masked_and_restored_tokens():
    """The expected value has its own formula, which agreed with the published code to 1e-6."""
    draw = np.random.default_rng(0)
    V, top, restored = 7, draw.normal(size=(2, 5, 7)), draw.normal(size=(2, 6, 7))
    batch = {
        "encoder_target_tokens": draw.integers(0, V, (2, 3)),
        "encoder_target_slots": np.array([[1, 3, 0], [2, 0, 0]]),
        "encoder_loss_weights": np.array([[1, 1, 0], [1, 0, 0]]),
        "decoder_target_tokens": draw.integers(0, V, (2, 6)),
        "decoder_loss_weights": np.array([[0, 1, 0, 1, 1, 0], [0, 1, 0, 1, 0, 0]]),
    }
    outputs = LinearOutputs({"top": jnp.asarray(top), "restored": jnp.asarray(restored)})
    terms = jax.jit(lambda batch: retromae(IDS).loss(batch).scored(outputs))(batch)

    def losses(states, tokens):
        logs = states - np.log(np.exp(states).sum(-1, keepdims=True))
        return -np.take_along_axis(logs, tokens[..., None], -1)[..., 0]

    slots = batch["encoder_target_slots"][..., None]
    masked_losses = losses(np.take_along_axis(top, slots, 1), batch["encoder_target_tokens"])
    restored_losses = losses(restored, batch["decoder_target_tokens"])
    for name, slot_losses, stack in (
        ("tokens", masked_losses, "encoder"),
        ("restored", restored_losses, "decoder"),
    ):
        weights = batch[f"{stack}_loss_weights"]
        np.testing.assert_allclose(terms[name].sums, (slot_losses * weights).sum(1), rtol=1e-5)
        np.testing.assert_array_equal(terms[name].weights, weights.sum(1))
        assert terms[name].scale == 1
        np.testing.assert_array_equal(terms[name].labels.values, batch[f"{stack}_target_tokens"])
        np.testing.assert_array_equal(terms[name].labels.weights, weights)
