"""CARD: which tokens are masked, the weights and the loss by loops, and what decoding reads."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from pretrax import models
from pretrax.inference.decoding.speculation import masked_drafter
from pretrax.objectives import causal_diffusion, causal_lm
from pretrax.objectives.causal_diffusion import context_weights
from tests.models.small_models import init
from tests.objectives.batches import raw_rows
from tests.objectives.distributions import assert_uniform, corrupt_copies
from tests.objectives.linear_outputs import LinearOutputs
from tests.objectives.noised_copies import PACKED, SMALL, decoder_batch
from tests.objectives.registry import IDS, quick_jit
from tests.objectives.waves import waves

decay_and_smoothing = pytest.mark.parametrize("decay, smoothing", [(0.5, 1.0), (0.2, 0.3)])
SMALL_SIZE = 50  # number of classes of the logits; targets are taken modulo this number
# `compute_context_aware_weights` of marvosyntactical/card at 209a1675 (`card_trainer.py`, a public
# reimplementation, since the authors' code was not found), and the loss of its `training_step`.
# _ is a mask. By (decay, smoothing).
INPUTS = "^a__b___c_"
PUBLISHED = {
    (0.5, 1.0): (
        [1, 1, 0.5, 0.2857143, 0.4444444, 0.3809524, 0.2622951, 0.2269504, 0.3699422, 0.3506849],
        2.7018404827818685,
    ),
    (0.2, 0.3): (
        [3.3333333] * 2
        + [0.7692308, 0.3225806, 0.3937008, 0.3234153, 0.2205753, 0.1758433, 0.2169431, 0.2106326],
        2.3034018574308037,
    ),
}


def masks_of(features, document, length):
    in_document = features["targets_segments"] == document
    return (features["targets_stand_ins"][in_document] == IDS.mask + 1).reshape(-1, length)


def test_masks_and_mask_counts_are_uniform_within_window():
    """The number is floor(t n), at least 1, and the window has floor(3/2) of it."""
    features = corrupt_copies(causal_diffusion(IDS), (6, 1, 6), 3_000, seed=1)
    for document in (1, 3):
        masks = masks_of(features, document, 6)
        number = masks.sum(1)
        doubled = np.where(number == 1, 1 + np.arange(number.size) % 2, number + 1)
        assert_uniform(doubled, 6)  # both t < 1/6 and t < 2/6 give one mask
        for count, width in ((1, 1), (2, 3), (3, 4), (4, 6)):
            drawn = masks[number == count]
            assert not drawn[:, : 6 - width].any()
            ways = len(list(itertools.combinations(range(width), count)))
            assert_uniform(drawn, ways)
    assert masks_of(features, 2, 1).all()
    first, last = (masks_of(features, document, 6).sum(1) for document in (1, 3))
    assert abs(np.corrcoef(first, last)[0, 1]) < 4 / np.sqrt(3_000)


def test_window_of_1_masks_a_suffix():
    masks = masks_of(corrupt_copies(causal_diffusion(IDS, window=1), (9,), 50, seed=2), 1, 9)
    for row in masks:
        assert row[9 - row.sum() :].all()


def weight_by_formula(inputs, i, decay, smoothing):
    """Returns the weight of the prediction at slot i of a document, as the paper writes it."""
    masked = [token == IDS.mask for token in inputs]
    score = 0.0
    for j in range(i + 1):
        cost = masked[j] * (1 + (j > 0 and masked[j - 1]))
        score += cost * (1 - decay) ** (i - j)
    return 1 / (smoothing + score)


def logits_of(batch):
    """Returns random logits of a small vocabulary for the slots of a batch."""
    shape = batch["decoder_target_tokens"].shape
    return np.random.default_rng(0).normal(size=(*shape, SMALL_SIZE))


def scored(objective, batch, logits):
    """Returns the term of the tokens for logits of a small vocabulary."""

    @quick_jit
    def term(batch, logits):
        return objective.loss(batch).scored(LinearOutputs({"top": logits}))["tokens"]

    targets = batch["decoder_target_tokens"] % SMALL_SIZE
    return term(batch | {"decoder_target_tokens": targets}, logits.astype(np.float32))


@decay_and_smoothing
def test_weights_and_loss_match_public_reimplementation(decay, smoothing):
    masked = np.array([[x == "_" for x in INPUTS]])
    ones = np.ones_like(masked, np.int32)
    weights, loss = PUBLISHED[decay, smoothing]
    got = context_weights(masked, ones, decay, smoothing)
    np.testing.assert_allclose(got, [weights], rtol=1e-6)
    batch = {
        "decoder_input_tokens": np.where(masked, IDS.mask, 5),
        "decoder_target_tokens": np.int32([[3, 4, 8, 5, 1, 7, 6, 2, 8, 1]]),
        "decoder_segment_ids": ones,
        "decoder_loss_weights": ones,
    }
    objective = causal_diffusion(IDS, decay=decay, smoothing=smoothing)
    term = scored(objective, batch, waves(1, 10, 9))
    np.testing.assert_allclose(term.sums / term.weights, [loss], rtol=1e-5)


@pytest.mark.slow
@decay_and_smoothing
def test_loss_is_weighted_mean_by_formula(decay, smoothing):
    objective = causal_diffusion(IDS, decay=decay, smoothing=smoothing)
    raw, documents = raw_rows(*[PACKED] * 3)
    batch = decoder_batch(objective, raw)
    counts = batch["decoder_loss_weights"] * (np.arange(3) < 2)[:, None]
    batch |= {"decoder_loss_weights": counts}  # the last row belongs to another member of a mixture
    logits = logits_of(batch)
    term = scored(objective, batch, logits)
    losses = scipy.special.logsumexp(logits, axis=-1)
    kinds = set()
    for row in range(3):
        total = 0.0
        count = 0.0
        first = 0
        for document in documents[row]:
            inputs = batch["decoder_input_tokens"][row][first : first + len(document)]
            for i, token in enumerate(document):
                weight = weight_by_formula(inputs, i, decay, smoothing)
                count += weight
                slot = first + i
                total += weight * (losses[row, slot] - logits[row, slot, token % SMALL_SIZE])
                kinds.add(round(weight, 3))
            first += len(document)
        np.testing.assert_allclose(term.weights[row], count * (row < 2), rtol=1e-5)
        np.testing.assert_allclose(term.sums[row], total * (row < 2), rtol=1e-5)
    assert len(kinds) > 4


def test_loss_without_masks_equals_causal_lm():
    raw, _ = raw_rows(PACKED, PACKED)
    plain = decoder_batch(causal_lm(IDS), raw)
    logits = logits_of(plain)
    ours, theirs = (scored(build(IDS), plain, logits) for build in (causal_diffusion, causal_lm))
    np.testing.assert_array_equal(ours.sums, theirs.sums)
    np.testing.assert_array_equal(ours.weights, theirs.weights)


@pytest.mark.slow
def test_drafts_are_encoded_like_masks_at_end_of_text():
    """A row whose last tokens are masked gives the states of a verifying call with drafts."""
    objective = causal_diffusion(IDS)
    (form,) = objective.facts.prompt_forms
    size = form.masked_blocks.size
    raw, _ = raw_rows(PACKED)
    batch = decoder_batch(objective, raw)
    plain = decoder_batch(causal_lm(IDS), raw)
    n = PACKED[0]
    slot = n - size - 1  # the last slot that reads text; masks follow it
    tokens = plain["decoder_input_tokens"].copy()
    tokens[0, slot + 1 : n] = IDS.mask
    model = models.decoder(IDS.size, **SMALL)
    params = init(model, batch)
    trained = model.apply(params, plain | {"decoder_input_tokens": tokens}).hidden["top"]
    columns = masked_drafter(form.masked_blocks, IDS.mask).columns(jnp.array([[slot]]))
    decoded = model.apply(params, plain | columns).hidden["noised"]
    np.testing.assert_allclose(decoded[0], trained[0, slot + 1 : n], rtol=1e-4, atol=1e-5)
