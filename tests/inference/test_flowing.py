"""Filling masks by a flow, compared with a loop of single calls and the sampler's formula."""

import functools

import jax
import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import gumbel_r

from pretrax.inference import answer
from pretrax.inference.answering.flowing import follow_flow
from pretrax.inference.answering.masks import batch_of
from pretrax.inference.answering.options import Decoding, Options
from pretrax.inference.decoding.sampling import numbered_keys
from pretrax.models.embedding_denoiser import LEVELS
from tests.inference.runs import IDS, trained
from tests.refusals import refuses

TEXTS = ["a [MASK]", "[MASK]bc[MASK]d, and more", "so[MASK][MASK]"]


@functools.cache
def denoiser():
    """Returns a model with random parameters in all layers, also those that are 0 at first."""
    plain = trained("embedding_denoiser", "embedding_diffusion")
    leaves, tree = jax.tree.flatten(plain.params)
    rng = np.random.default_rng(0)
    noised = [x + 0.2 * rng.normal(size=x.shape).astype("f4") for x in leaves]
    return plain._replace(params=tree.unflatten(noised))


def followed(tokens, seed, steps):
    """Returns the tokens with masks filled: Euler steps in the variable z / a, in NumPy."""
    model, params = denoiser().model, denoiser().params
    batch = batch_of(denoiser(), [tokens])
    is_mask = batch["encoder_input_tokens"][0] == IDS.mask
    table = np.asarray(params["token_embedding"])
    width = table.shape[1]
    embeddings = table / np.linalg.norm(table, axis=1, keepdims=True) * np.sqrt(width)
    (key,) = numbered_keys(seed, [0])
    slots = range(is_mask.size)
    z = np.stack([jax.random.normal(jax.random.fold_in(key, slot), (width,)) for slot in slots])
    estimates = np.zeros_like(z)
    levels = np.maximum(np.linspace(LEVELS - 1, 0, steps + 1).round(), 1).astype(np.int32)
    quantiles = np.clip(levels / LEVELS, 1e-5, 1 - 1e-5)
    ratios = gumbel_r.ppf(quantiles, 4.723 + np.log(width / 768), 0.852)
    signals = 1 / np.sqrt(1 + np.exp(ratios))
    for i, level in enumerate(levels):
        outputs = model.apply(
            params,
            batch
            | {
                "encoder_noise_levels": np.where(is_mask, level, 0)[None],
                "encoder_noised": z[None].astype(np.float32),
                "encoder_estimates": estimates[None].astype(np.float32),
            },
        )
        logits = np.array(outputs.head("denoised", outputs.hidden["top"])[0])
        if i == steps:
            break
        given = embeddings[batch["encoder_input_tokens"][0]]
        estimates = np.where(is_mask[:, None], softmax(logits, -1) @ embeddings, given)
        shrink = np.exp((ratios[i + 1] - ratios[i]) / 2)
        z = signals[i + 1] * (shrink * z / signals[i] + (1 - shrink) * estimates)
    first, end = IDS.text
    return np.where(is_mask, first + logits[:, first:end].argmax(-1), batch["encoder_input_tokens"])


@pytest.mark.parametrize("steps", [1, 5])
def test_flow_equals_single_calls(steps):
    model = denoiser()
    options = Options(Decoding(seed=4), steps=steps)
    for text in TEXTS:
        tokens = model.encode(text.replace("[MASK]", model.decode([IDS.mask])))
        expected = followed(tokens, seed=4, steps=steps)[0, : len(tokens)]
        assert follow_flow(model, [text], options) == [model.decode(expected.tolist())]


def test_masks_are_filled_and_other_text_stays():
    model = denoiser()
    found = follow_flow(model, TEXTS, Options(steps=3))
    assert found == follow_flow(model, TEXTS, Options(Decoding(batch_size=2), steps=3))
    assert found[0].startswith("a ") and "d, and more" in found[1] and found[2][:2] == "so"
    assert follow_flow(model, TEXTS, Options(Decoding(seed=1), steps=3)) != found
    assert follow_flow(model, TEXTS[1:], Options(steps=3, numbers=[1, 2])) == found[1:]
    records = answer(model, "flow", [{"text": text} for text in TEXTS])
    assert [record["answer"] for record in records] == follow_flow(model, TEXTS, Options(steps=32))


def test_only_models_of_embedding_diffusion_have_a_flow():
    with refuses(ValueError, "flow"):
        answer(trained("encoder", "masked_lm"), "flow", [{"text": "a [MASK]"}])
    with refuses(ValueError, "flow"):
        answer(denoiser(), "mask", [{"text": "a [MASK]"}])
    with refuses(ValueError, "temperature"):
        warm = Options(decoding=Decoding(temperature=0.5))
        answer(denoiser(), "flow", [{"text": "a [MASK]"}], warm)
    with refuses(ValueError, "mask"):
        answer(denoiser(), "flow", [{"text": "a"}])
