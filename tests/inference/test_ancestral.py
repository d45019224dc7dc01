"""Ancestral sampling: from a model that knows the distribution of text, and from real models."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrax import objectives
from pretrax.inference import Decoding, Options, answer, unmask
from pretrax.inference.answering.ancestral import mask_noise, posterior_weights, transition_probs
from pretrax.inference.answering.unmasking import MaskSlots, MaskWriting, written_tokens
from pretrax.objectives import PromptForm
from tests.inference.runs import IDS, trained
from tests.refusals import refuses

TEXT, MASK, SIZE = (1, 5), 6, 7  # four ids of text among seven ids
TINY = objectives.TokenIds(size=SIZE, text=TEXT, pad=0, eos=5, mask=MASK)
NOISES = {
    "masks": None,
    "hybrid": objectives.hybrid_diffusion(TINY, random_share=0.3).facts.prompt_forms[0].noise,
    "mixed": objectives.mixed_diffusion(TINY, 0.3, lowest_rate=0.01).facts.prompt_forms[0].noise,
    "uniform": objectives.uniform_diffusion(TINY, lowest_rate=0.01).facts.prompt_forms[0].noise,
}
P = np.array([0, 0.5, 0.3, 0.15, 0.05, 0, 0], np.float32)  # the distribution of the text


def marginal(noise, time):
    """Returns f32[V]: the distribution of a token at this time."""
    keeps, each, masked = noise(time)
    ids = jnp.arange(SIZE)
    return keeps * P + each * ((ids >= TEXT[0]) & (ids < TEXT[1])) + masked * (ids == MASK)


@pytest.mark.parametrize("name", NOISES)
def test_noise_marginals_are_consistent_with_the_reverse_chain(name):
    """If a model knows the distribution of text, sampling gives the one at earlier times."""
    noise, ids = NOISES[name] or mask_noise, jnp.arange(SIZE)

    @jax.jit
    def tables(time, earlier):
        # Row z: the origin of a token z at `time`, and what the first id of text becomes.
        weights = [posterior_weights(P, z, MASK, TEXT, noise, time, earlier) for z in range(SIZE)]
        onwards = [
            transition_probs(z, ids, MASK, noise, time, earlier)[TEXT[0]]
            for z in (1, 2, 3, 4, MASK)
        ]
        both = marginal(noise, time), marginal(noise, earlier)
        return *both, jnp.stack(weights), jnp.stack(onwards)

    for times in ((0.9, 0.3), (0.5, 0.45), (0.2, 0.0)):
        now, before, weights, onwards = map(np.asarray, tables(*times))
        back = weights / np.maximum(weights.sum(1, keepdims=True), 1e-30)
        assert now.sum() == pytest.approx(1, abs=1e-6)
        assert onwards.sum() == pytest.approx(1, abs=1e-6)
        np.testing.assert_allclose(now @ back, before, atol=1e-6)


@pytest.mark.sampled
@pytest.mark.parametrize("name", NOISES)
def test_exact_model_samples_its_own_distribution(name):
    rows, slots = 256, np.arange(32)[None].repeat(256, 0)

    def logits_of(tokens):
        return jnp.broadcast_to(jnp.log(jnp.asarray(P)), (*tokens.shape, SIZE))

    @functools.partial(jax.jit, static_argnums=1)
    def draw(steps, temperature):
        keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(3), jnp.arange(rows))
        masks = MaskSlots(slots, slots >= 0, jnp.full(rows, steps), keys)
        form = PromptForm("denoise" if name == "uniform" else "unmask", noise=NOISES[name])
        how = MaskWriting(form, TINY, "ancestral", temperature > 0)
        return written_tokens(logits_of, masks, how, temperature, jnp.asarray(P > 0))

    for steps in (1, 5):
        found = np.asarray(draw(steps, 1.0))
        share = np.bincount(found.ravel(), minlength=SIZE) / found.size
        assert np.abs(share - P).max() < 4 * np.sqrt(0.25 / found.size)
    assert (np.asarray(draw(5, 0.0)) == P.argmax()).all()


@pytest.mark.slow
def test_written_tokens_are_final_only_for_mask_noise():
    def logits_of(tokens):  # every written token makes another token the likeliest
        written = (tokens != MASK).sum(1, keepdims=True) % 4 + 1
        return jax.nn.one_hot(jnp.broadcast_to(written, tokens.shape), SIZE) * 9.0

    tokens_by_step = []
    how = MaskWriting(PromptForm("unmask"), TINY, "ancestral", sampled=False)
    for steps in (1, 2, 3, 4):
        rows = jnp.arange(24)[None], jnp.ones((1, 24), bool), jnp.array([steps])
        masks = MaskSlots(*rows, jax.random.key(5)[None])
        found = written_tokens(logits_of, masks, how, 0.0, jnp.asarray(P > 0))
        tokens_by_step.append(set(np.asarray(found).ravel().tolist()))
    assert tokens_by_step[0] == {1} and all(
        1 <= min(tokens_of_step) and max(tokens_of_step) < 5 for tokens_of_step in tokens_by_step
    )
    assert len(tokens_by_step[3]) > 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout, objective, mode",
    [
        ("encoder", "uniform_diffusion", "denoise"),
        ("decoder", "hybrid_diffusion", "unmask"),
        ("step_unrolled", "unrolled_denoising", "denoise"),
    ],
)
def test_masks_are_filled_and_other_text_stays(layout, objective, mode):
    trained_model = trained(layout, objective)
    write = functools.partial(unmask, trained_model, mode=mode)
    texts = ["a [MASK]", "[MASK]bc[MASK]d, and more", "so[MASK][MASK]"]
    for temperature in (0.0, 1.0):
        decoding = Decoding(temperature=temperature, batch_size=2)
        found = write(texts, Options(Decoding(temperature=temperature), order="ancestral", steps=3))
        assert found == write(texts, Options(decoding, order="ancestral", steps=3))
        assert all(len(text) >= 3 for text in found)
        assert found[0].startswith("a ") and "d, and more" in found[1] and found[2][:2] == "so"
    other = Options(Decoding(temperature=1.0, seed=1), order="ancestral", steps=3)
    assert write(texts, other) != found
    records = answer(trained_model, mode, [{"text": text} for text in texts])
    assert [record["answer"] for record in records] == unmask(trained_model, texts, mode=mode)


def test_modes_of_mask_and_uniform_noise_are_not_interchangeable():
    uniform, masked = trained("encoder", "uniform_diffusion"), trained("encoder", "masked_lm")
    for mode in ("mask", "unmask"):
        with refuses(ValueError, "denoise"):
            answer(uniform, mode, [{"text": "a [MASK]"}])
    with refuses(ValueError, "mask"):
        answer(masked, "denoise", [{"text": "a [MASK]"}])
    assert IDS.mask is not None
