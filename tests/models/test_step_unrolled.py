"""SUNDAE's model: what the second pass reads, and that no gradient passes through samples."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrax import models
from pretrax.objectives import unrolled_denoising
from pretrax.objectives.losses import token_loss
from tests.models.small_models import TWO_DOCUMENTS, init
from tests.objectives.linear_outputs import LinearOutputs
from tests.objectives.registry import IDS
from tests.objectives.waves import waves

SHAPE = dict(num_layers=1, emb_dim=16, num_heads=2, head_dim=8, mlp_dim=24)
V = 40
BATCH = TWO_DOCUMENTS | {
    "encoder_target_slots": np.array([[0, 1, 3, 5, 6, 0]], np.int32),
    "encoder_target_tokens": np.array([[20, 21, 22, 23, 24, 0]], np.int32),
    "encoder_loss_weights": np.array([[1, 1, 1, 1, 1, 0]], np.int32),
}


@functools.cache
def trained():
    """Returns the model, the plain encoder, parameters, and the batch of the second pass."""
    model = models.step_unrolled(V, **SHAPE)
    encoder = models.encoder(V, **SHAPE)
    params = init(model, BATCH)
    outputs = encoder.apply(params["encoder"], BATCH)
    slots = BATCH["encoder_target_slots"][0]
    logits = outputs.head("vocabulary", outputs.hidden["top"])[:, slots]
    samples = jax.random.categorical(jax.random.key(0), logits)[0]
    read = BATCH["encoder_input_tokens"].copy()
    read[0, slots[:5]] = samples[:5]  # the last slot has no label
    assert (read != BATCH["encoder_input_tokens"]).sum() > 2
    return model, encoder, params, BATCH | {"encoder_input_tokens": read}


def test_second_pass_reads_samples_at_label_slots():
    model, encoder, params, second = trained()
    hidden = model.apply(params, BATCH).hidden
    for name, batch in (("top", BATCH), ("unrolled", second)):
        expected = encoder.apply(params["encoder"], batch).hidden["top"]
        np.testing.assert_allclose(hidden[name], expected, atol=1e-5)
    alone = {name: x for name, x in BATCH.items() if "target" not in name and "loss" not in name}
    assert set(model.apply(params, alone).hidden) == {"top"}


def test_loss_matches_public_reimplementation():
    """`loss_fn` of vvvm23/sundae at ebc8ba95 (`main.py`); no code of the authors was found."""
    labels = np.int32([[5, 3, 8, 2], [7, 6, 4, 3]])
    batch = {
        "encoder_target_tokens": labels,
        "encoder_target_slots": np.tile(np.arange(4, dtype=np.int32), (2, 1)),
        "encoder_loss_weights": np.ones_like(labels),
    }
    outputs = LinearOutputs({"top": waves(2, 4, 9), "unrolled": waves(2, 4, 9, step=0.9)})
    terms = unrolled_denoising(IDS).loss(batch).scored(outputs)
    total = sum(term.scale * term.sums.sum() / term.weights.sum() for term in terms.values())
    np.testing.assert_allclose(total, 2.901012201160567, rtol=1e-5)


@pytest.mark.slow
def test_loss_is_mean_of_both_passes_without_gradient_through_samples():
    model, encoder, params, second = trained()
    objective = unrolled_denoising(IDS)

    def loss(params):
        terms = objective.loss(BATCH).scored(model.apply(params, BATCH))
        assert set(terms) == {"tokens", "unrolled"}
        return sum(term.scale * jnp.sum(term.sums) for term in terms.values())

    def plain(params):
        sums = [
            token_loss(BATCH).scored(encoder.apply(params["encoder"], batch))["tokens"].sums
            for batch in (BATCH, second)
        ]
        return sum(jnp.sum(x) for x in sums) / 2

    got, expected = (jax.value_and_grad(f)(params) for f in (loss, plain))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-4), got, expected)
