"""The network of embedding diffusion, compared with its formulas in NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from scipy.special import expit, log_softmax, softmax
from scipy.stats import gumbel_r

from pretrax import models
from pretrax.models.embedding_denoiser import LEVELS, flow, gaussians, noise_ratio
from pretrax.objectives import embedding_diffusion
from tests.models.small_models import TWO_DOCUMENTS, init
from tests.objectives.registry import IDS
from tests.refusals import refuses

SHAPE = dict(num_layers=1, emb_dim=16, num_heads=2, head_dim=8, mlp_dim=24)
V = 40
LOCATION = 1.5
SCALE = 0.7
BATCH = TWO_DOCUMENTS | {
    "encoder_noise_levels": np.array([[9, 9, 9, 9, 0, 5, 5, 0]], np.int32) * (LEVELS // 12),
    "encoder_noise_seeds": np.array([[7, -3, 2**31 - 1, 4, 0, 6, 7, 0]], np.int32),
}


@functools.cache
def denoiser(seed=None):
    """Returns the model and its parameters: the initial ones, or random ones for a seed."""
    model = models.embedding_denoiser(V, location=LOCATION, scale=SCALE, **SHAPE)
    params = nn.unbox(model.init(jax.random.key(0), BATCH))
    if seed is not None:
        leaves, tree = jax.tree.flatten(params)
        rng = np.random.default_rng(seed)
        params = tree.unflatten([x + 0.3 * rng.normal(size=x.shape).astype("f4") for x in leaves])
    return model, params


def predictions(batch, seed=None):
    model, params = denoiser(seed)
    outputs = model.apply(params, batch)
    return np.asarray(outputs.head("denoised", outputs.hidden["top"]))


def noised_embeddings():
    """Returns the embeddings e [V, E], z [T, E], a [T, 1] and s [T, 1], computed in NumPy."""
    table = np.asarray(denoiser()[1]["token_embedding"], np.float64)
    e = table / np.linalg.norm(table, axis=1, keepdims=True) * np.sqrt(table.shape[1])
    quantile = BATCH["encoder_noise_levels"][0] / LEVELS
    ratio = gumbel_r.ppf(np.clip(quantile, 1e-5, 1 - 1e-5), LOCATION, SCALE)[:, None]
    a, s = np.sqrt(expit(-ratio)), np.sqrt(expit(ratio))
    n = [jax.random.normal(jax.random.key(seed), (16,)) for seed in BATCH["encoder_noise_seeds"][0]]
    clean = e[BATCH["encoder_input_tokens"][0]]
    return e, np.where(quantile[:, None] > 0, a * clean + s * np.asarray(n), clean), a, s


def test_initial_predictions_are_the_posterior_of_independent_tokens():
    e, z, a, s = noised_embeddings()
    distances = np.sum((z[:, None] - a[:, None] * e) ** 2, -1)
    is_noised = BATCH["encoder_noise_levels"][0] > 0
    got = log_softmax(predictions(BATCH)[0], -1)
    expected = log_softmax(-distances / (2 * s**2), -1)
    np.testing.assert_allclose(got[is_noised], expected[is_noised], atol=2e-4)
    np.testing.assert_allclose(got[~is_noised], -np.log(V), atol=1e-5)


def test_given_noised_embeddings_replace_seeds():
    _, z, _, _ = noised_embeddings()
    given = {name: x for name, x in BATCH.items() if name != "encoder_noise_seeds"}
    got = predictions(given | {"encoder_noised": z[None].astype(np.float32)})
    np.testing.assert_allclose(got, predictions(BATCH), atol=1e-4)


def test_estimate_is_the_mean_embedding_of_a_first_pass_without_gradient():
    model, params = denoiser(3)
    conditioned = np.array([[0, 0, 0, 0, 1, 1, 1, 0]], np.int32)
    both = BATCH | {"encoder_self_conditioned": conditioned}
    table = params["token_embedding"]
    e = table / np.linalg.norm(table, axis=1, keepdims=True) * 4
    predicted = softmax(predictions(BATCH, 3), -1) @ np.asarray(e)
    is_noised = BATCH["encoder_noise_levels"][..., None] > 0
    estimates = np.where(is_noised, predicted, e[BATCH["encoder_input_tokens"]])
    estimates = (estimates * conditioned[..., None]).astype(np.float32)
    given = BATCH | {"encoder_estimates": estimates}
    np.testing.assert_allclose(predictions(both, 3), predictions(given, 3), atol=1e-4)
    assert np.abs(predictions(both, 3) - predictions(BATCH, 3))[0, 5:7].max() > 0.01

    def total(params, batch):
        return jnp.sum(jnp.square(model.apply(params, batch).hidden["top"]))

    got, expected = (jax.grad(total)(params, batch) for batch in (both, given))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=2e-3, rtol=2e-3), got, expected)


@pytest.mark.slow
def test_routers_count_both_passes():
    model = models.embedding_denoiser(V, num_experts=4, **SHAPE)
    params = init(model, BATCH)
    conditioned = BATCH | {"encoder_self_conditioned": np.ones((1, 8), np.int32)}
    layers = [len(model.apply(params, x).routing.tokens_B) for x in (BATCH, conditioned)]
    assert layers == [1, 2]


def test_flow_with_the_true_estimate_keeps_the_noise():
    rng = np.random.default_rng(0)
    e, n = rng.normal(size=(2, 3, 16))
    ratio, after = 4.0, 1.3
    a, s, next_a, next_s = (np.sqrt(expit(x)) for x in (-ratio, ratio, -after, after))
    got = flow(a * e + s * n, e, jnp.float32(ratio), jnp.float32(after))
    np.testing.assert_allclose(got, next_a * e + next_s * n, atol=1e-5)


def test_next_states_follow_the_flow_to_the_estimate():
    model, params = denoiser(3)
    next_levels = np.full((1, 8), LEVELS // 12, np.int32)
    hidden = model.apply(params, BATCH | {"encoder_next_levels": next_levels}).hidden
    table = params["token_embedding"]
    e = table / np.linalg.norm(table, axis=1, keepdims=True) * 4
    levels, tokens = BATCH["encoder_noise_levels"], BATCH["encoder_input_tokens"]
    predicted = softmax(predictions(BATCH, 3), -1) @ np.asarray(e)
    estimates = np.where(levels[..., None] > 0, predicted, e[tokens])
    np.testing.assert_allclose(hidden["estimates"], estimates, atol=1e-4)
    ratio, after = (noise_ratio(x, LOCATION, SCALE)[..., None] for x in (levels, next_levels))
    clean, noise = e[tokens], gaussians(BATCH["encoder_noise_seeds"], 16)
    noised = np.sqrt(expit(-ratio)) * clean + np.sqrt(expit(ratio)) * noise
    z = np.where(levels[..., None] > 0, noised, clean)
    expected = flow(z, estimates, ratio, after)
    np.testing.assert_allclose(hidden["next_noised"], expected, atol=1e-4)


def test_flow_of_a_bfloat16_model_does_not_round_the_noised_embeddings():
    """1,000 steps of the flow differ by less than the spacing of bfloat16."""
    _, params = denoiser(3)
    model = models.embedding_denoiser(V, location=LOCATION, scale=SCALE, dtype="bfloat16", **SHAPE)
    levels = BATCH["encoder_noise_levels"]
    z = np.random.default_rng(0).normal(size=(1, 8, 16)).astype(np.float32)
    given = {"encoder_noised": z, "encoder_next_levels": levels - LEVELS // 1000}
    hidden = model.apply(params, BATCH | given).hidden
    ratio, after = (
        noise_ratio(x, LOCATION, SCALE)[..., None] for x in (levels, given["encoder_next_levels"])
    )
    expected = flow(z, hidden["estimates"], ratio, after)
    is_noised = levels > 0
    np.testing.assert_allclose(
        hidden["next_noised"][is_noised], expected[is_noised], rtol=1e-5, atol=1e-6
    )


def test_default_schedule_shifts_with_the_width():
    """Wide and narrow models have the same ratio of noise to the whole length of an embedding."""
    narrow = models.embedding_denoiser(V, **SHAPE)
    wide = models.embedding_denoiser(V, **SHAPE | {"emb_dim": 768})
    explicit = models.embedding_denoiser(V, **SHAPE, location=4.723 + np.log(16 / 768))
    params = init(narrow, BATCH)
    top = [model.apply(params, BATCH).hidden["top"] for model in (narrow, explicit)]
    np.testing.assert_array_equal(*top)
    assert wide.flops({"encoder": 8, "predict": 8}) > narrow.flops({"encoder": 8, "predict": 8})


@pytest.mark.slow
def test_flops_do_not_count_a_backward_pass_of_the_first_pass():
    """XLA counts the products of the gradient, and elementwise operations too."""
    T = 128
    shape = dict(num_layers=2, emb_dim=64, num_heads=4, head_dim=16, mlp_dim=128)
    model = models.embedding_denoiser(256, scan_layers=False, remat_policy="none", **shape)
    slots = np.arange(T, dtype=np.int32)[None]
    ones = np.ones((1, T), np.int32)
    names = ("input_tokens", "segment_ids", "noise_seeds", "self_conditioned", "target_tokens")
    batch = {f"encoder_{name}": ones for name in (*names, "loss_weights")} | {
        "encoder_positions": slots,
        "encoder_target_slots": slots,
        "encoder_key_intervals": np.broadcast_to(np.array([[0], [T]], np.int32), (1, 2, T)),
        "encoder_noise_levels": ones * (LEVELS // 2),
    }
    params = init(model, batch)

    def total(params):
        outputs = model.apply(params, batch)
        return jnp.sum(embedding_diffusion(IDS).loss(batch).scored(outputs)["tokens"].sums)

    counted = jax.jit(jax.grad(total)).lower(params).compile().cost_analysis()["flops"]
    assert counted == pytest.approx(3 * model.flops({"encoder": T, "predict": T}), rel=0.2)


def test_logits_are_products_with_the_embeddings_and_a_bias():
    model, params = denoiser(3)
    top = np.asarray(model.apply(params, BATCH).hidden["top"])
    table = np.asarray(params["token_embedding"])
    e = table / np.linalg.norm(table, axis=1, keepdims=True) * 4
    expected = top @ e.T + np.asarray(params["bias"])
    np.testing.assert_allclose(predictions(BATCH, 3), expected, atol=1e-4)


def test_loss_reads_the_head_denoised():
    objective = embedding_diffusion(IDS)
    labels = {
        "encoder_target_slots": np.array([[0, 1, 2, 3, 5, 6]], np.int32),
        "encoder_target_tokens": np.array([[3, 4, 5, 6, 8, 9]], np.int32),
        "encoder_loss_weights": np.array([[1, 1, 1, 1, 1, 0]], np.int32),
    }
    model, params = denoiser(3)
    term = objective.loss(BATCH | labels).scored(model.apply(params, BATCH | labels))["tokens"]
    logs = log_softmax(predictions(BATCH, 3)[0], -1)
    expected = -sum(logs[slot, token] for slot, token in ((0, 3), (1, 4), (2, 5), (3, 6), (5, 8)))
    np.testing.assert_allclose(term.sums, [expected], rtol=1e-5)


def test_narrower_embedding_raises():
    with refuses(ValueError, "embedding_dim"):
        models.embedding_denoiser(V, **SHAPE, embedding_dim=8)


@pytest.mark.parametrize(
    "level, expected", [(1, 1e-5), (LEVELS // 4, 0.25), (LEVELS - 1, 1 - 1e-5)]
)
def test_noise_ratio_is_a_clipped_gumbel_quantile(level, expected):
    got = noise_ratio(jnp.int32(level), LOCATION, SCALE)
    np.testing.assert_allclose(got, gumbel_r.ppf(expected, LOCATION, SCALE), rtol=1e-3)
