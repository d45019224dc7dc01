"""An encoder of noised token embeddings, for diffusion in the embedding space."""

import math
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from ..constraints import Positive, checked
from .builders import Model, config_of_encoders, forward_flops
from .config import Config
from .heads import dense, projection
from .linear import STREAM, broadcast
from .pairs_of_stacks import model_of_encoders
from .positions import sinusoids
from .sharding import constrain, partitioned
from .token_embeddings import embed_tokens
from .transformer import Stack

LEVELS = 2**24  # A noise level is a quantile of the schedule, as a 24-bit integer.
TIME_WIDTH = 256  # number of sinusoids of the time
PUBLISHED_WIDTH = 768  # width of the published model, whose schedule has location 4.723
LOWEST_QUANTILE = 1e-5


@checked
def embedding_denoiser(
    vocab_size: int,
    heads: Iterable[str] = ("denoised",),
    *,
    location: float | None = None,
    scale: Positive = 0.852,
    **encoder_settings: Any,
) -> Model:
    """An encoder that predicts tokens from their noised embeddings (LangFlow).

        models.embedding_denoiser(32000, emb_dim=256, num_heads=4, head_dim=64, mlp_dim=512,
                                  num_layers=6)

    With a token's embedding e, of length sqrt(E), and Gaussian noise n, a noised slot is

        z = a e + s n     with a**2 = 1 / (1 + exp(g)) and s**2 = 1 - a**2.

    Here g is the logarithm of the noise-to-signal ratio, a quantile of a Gumbel distribution:
    `location - scale * log(-log q)`. The batch has q and the seed of n for each slot. A slot
    without noise has q = 0, and z = e.

    The logits of a slot are products of all embeddings with `out(h) + a / s**2 * z`, and a bias,
    for the last state h of the encoder. Since `out` and the bias are 0 at first, the initial
    probabilities are exact for independent, equally frequent tokens.

    The encoder may also read its own estimate of the text, the mean embedding under its predictions
    in a first pass (self-conditioning; Chen et al. 2022, arXiv:2208.04202). The estimate of a slot
    without noise is its own embedding. No gradient of the tokens' loss passes through the estimate;
    the losses of routers count both passes.

    Differences from Chen et al. 2026 (arXiv:2604.11748) and their published code: the layers are
    those of `encoder`, the time is added to the inputs instead of scaling every layer (adaLN), and
    embeddings are tied.

    Args:
      heads: 'denoised', the vocabulary projection; `objectives.embedding_diffusion` requires it.
      location: location of the Gumbel distribution. None: 4.723 + log(emb_dim / 768), from the end
        of the authors' training at a width of 768.
      scale: scale of the Gumbel distribution.
      encoder_settings: settings of the encoder, as in `encoder`.

    A batch is a batch of `encoder`, and may have

        encoder_noise_levels       i32[B, T]      q as a 24-bit integer; 0 without noise
        encoder_noise_seeds        i32[B, T]      seed of the noise
        encoder_self_conditioned   i32[B, T]      1 if the slot's estimate is read
        encoder_noised             f32[B, T, E]   z of slots with noise, in place of seeds
        encoder_estimates          f32[B, T, E]   estimates, in place of a first pass
        encoder_next_levels        i32[B, T]      the next level of the flow from noise to text

    The hidden states are 'top' [B, T, E], which `denoised` projects, and with next levels
    'estimates' [B, T, E] and 'next_noised' [B, T, E]: z at these levels for a constant estimate.
    The estimate of a slot is the mean embedding under its predictions, or the embedding of its
    token if the slot has no noise.

    Raises ValueError if `embedding_dim` is set, since noise has the width of the encoder.
    """
    config = config_of_encoders("embedding_denoiser", vocab_size, encoder_settings)
    if config.embedding_dim is not None:
        raise ValueError(
            f"Got embedding_dim={config.embedding_dim}, expected None: the encoder reads noised "
            "embeddings, which have its own width."
        )
    if location is None:
        location = 4.723 + math.log(config.emb_dim / PUBLISHED_WIDTH)

    def flops(lengths):
        E = config.emb_dim
        slots = lengths["encoder"]
        layers = forward_flops(config, lengths | {"predict": 0})
        one_pass = layers + 2 * slots * 3 * E**2  # with the layers `estimate_in` and `out`
        # The first pass predicts every slot, and returns the mean embedding of its predictions.
        first = one_pass + 2 * 2 * slots * E * vocab_size
        time = 2 * slots * (TIME_WIDTH * E + E**2)
        second = one_pass + time + 2 * lengths["predict"] * E * vocab_size
        # A training step counts as three forward passes, but the first pass has no backward pass.
        return second + first // 3

    network = EmbeddingDenoiser(config, location, scale)
    return model_of_encoders(network, config, ("denoised",), heads, flops)


def noise_ratio(levels, location: float, scale: float):
    """Returns g f32[...], the logarithm of the noise-to-signal ratio, of levels i32[...].

    >>> noise_ratio(jnp.array([2**23]), location=4.723, scale=0.852)  # the median
    Array([5.0352693], dtype=float32)
    """
    quantile = jnp.clip(levels / LEVELS, LOWEST_QUANTILE, 1 - LOWEST_QUANTILE)
    return location - scale * jnp.log(-jnp.log(quantile))


def gaussians(seeds_BxT, width: int):
    """Returns a Gaussian vector for each seed: f32[B, T, width]."""
    draw = lambda seed: jax.random.normal(jax.random.key(seed), (width,))  # noqa: E731
    return jax.vmap(jax.vmap(draw))(seeds_BxT)


def flow(z, estimate, ratio, next_ratio):
    """Returns z at the next noise-to-signal ratio, of the flow to a constant estimate.

    With z = a e + s n, the flow moves z / a in a straight line to the estimate, at a distance
    proportional to s / a.

    Args:
      z, estimate: f[..., E].
      ratio, next_ratio: f32[..., 1] logarithms of s**2 / a**2.
    """
    shrink = jnp.exp((next_ratio - ratio) / 2)
    scale = jnp.sqrt(jax.nn.sigmoid(-ratio))
    next_scale = jnp.sqrt(jax.nn.sigmoid(-next_ratio))
    return next_scale * (estimate + (z / scale - estimate) * shrink)


class EmbeddingDenoiser(nn.Module):
    """The network of `embedding_denoiser`."""

    config: Config
    location: float
    scale: float

    def setup(self):
        c = self.config
        init = partitioned(nn.initializers.normal(1.0), "vocab", "embed")
        self.token_embedding = self.param("token_embedding", init, (c.vocab_size, c.emb_dim))
        self.time_layer = dense(c.emb_dim, c.dtype)
        self.time_out = dense(c.emb_dim, c.dtype)
        self.estimate_in = _zero_layer(c)
        self.encoder = Stack(c, c.num_encoder_layers, cross=False, bidirectional=True)
        self.out = _zero_layer(c)
        zeros = partitioned(nn.initializers.zeros, "vocab")
        self.bias = self.param("bias", zeros, (c.vocab_size,))

    def __call__(self, batch):
        tokens_BxT = batch["encoder_input_tokens"]
        levels_BxT = batch.get("encoder_noise_levels", jnp.zeros_like(tokens_BxT))
        is_noised_BxTx1 = (levels_BxT > 0)[..., None]
        ratio_BxTx1 = noise_ratio(levels_BxT, self.location, self.scale)[..., None]
        z_BxTxE = embed_tokens(self, self._embeddings(), tokens_BxT)
        if "encoder_noised" in batch:
            noised_BxTxE = batch["encoder_noised"]
            z_BxTxE = jnp.where(is_noised_BxTx1, noised_BxTxE, z_BxTxE)
        elif "encoder_noise_seeds" in batch:
            noise_BxTxE = gaussians(batch["encoder_noise_seeds"], self.config.emb_dim)
            signal_BxTx1 = jnp.sqrt(jax.nn.sigmoid(-ratio_BxTx1))
            noised_BxTxE = signal_BxTx1 * z_BxTxE + jnp.sqrt(1 - signal_BxTx1**2) * noise_BxTxE
            z_BxTxE = jnp.where(is_noised_BxTx1, noised_BxTxE, z_BxTxE)
        # z is float32 in any model: steps of the flow may be smaller than the spacing of bfloat16.
        z_BxTxE = constrain(z_BxTxE.astype(jnp.float32), *STREAM)
        read_BxTxE = z_BxTxE.astype(self.config.dtype)
        skip_BxTxE = jnp.where(is_noised_BxTx1, _posterior_scale(ratio_BxTx1), 0.0) * z_BxTxE
        time_BxTxE = self._time(ratio_BxTx1[..., 0])

        def states(estimates_BxTxE):
            """Returns the states that `denoised` projects: f[B, T, E]."""
            both = jnp.concatenate([read_BxTxE, estimates_BxTxE.astype(read_BxTxE.dtype)], axis=-1)
            x_BxTxE = read_BxTxE + time_BxTxE + self.estimate_in(both)
            return self.out(self.encoder(x_BxTxE, batch, "encoder")["top"]) + skip_BxTxE

        def estimates_of(states_BxTxE):
            """Returns f[B, T, E]: for a slot without noise, its own embedding."""
            return jnp.where(is_noised_BxTx1, self._estimates(states_BxTxE), z_BxTxE)

        estimates_BxTxE = jnp.zeros_like(z_BxTxE)
        if "encoder_estimates" in batch:
            estimates_BxTxE = batch["encoder_estimates"]
        elif "encoder_self_conditioned" in batch:
            is_read_BxTx1 = (batch["encoder_self_conditioned"] > 0)[..., None]
            first_BxTxE = estimates_of(states(estimates_BxTxE))
            estimates_BxTxE = jnp.where(is_read_BxTx1, jax.lax.stop_gradient(first_BxTxE), 0.0)
        top_BxTxE = states(estimates_BxTxE)
        if "encoder_next_levels" not in batch:
            return {"top": top_BxTxE}
        estimates_BxTxE = estimates_of(top_BxTxE)
        next_ratio_BxT = noise_ratio(batch["encoder_next_levels"], self.location, self.scale)
        next_BxTxE = flow(z_BxTxE, estimates_BxTxE, ratio_BxTx1, next_ratio_BxT[..., None])
        return {"top": top_BxTxE, "estimates": estimates_BxTxE, "next_noised": next_BxTxE}

    def initialize(self, batch):
        self(batch)

    def head(self, name, hidden):
        return self.projection(name, hidden).logits()

    def projection(self, name, hidden):
        dtype = self.config.dtype
        add_bias = lambda logits: logits + broadcast(self.bias, logits)  # noqa: E731
        return projection(hidden.astype(dtype), self._embeddings().astype(dtype), add_bias)

    def _estimates(self, states_BxTxE):
        """Returns the mean embedding under the predictions of states: f32[B, T, E]."""
        probabilities_BxTxV = jax.nn.softmax(self.head("denoised", states_BxTxE))
        return probabilities_BxTxV @ self._embeddings()

    def _embeddings(self):
        """Returns f32[V, E], rows of length sqrt(E)."""
        table_VxE = jnp.asarray(self.token_embedding)
        squares_Vx1 = jnp.mean(jnp.square(table_VxE), axis=-1, keepdims=True)
        return table_VxE * jax.lax.rsqrt(squares_Vx1 + 1e-12)

    def _time(self, ratio_BxT):
        waves = sinusoids(ratio_BxT, TIME_WIDTH)
        return self.time_out(nn.silu(self.time_layer(waves.astype(self.config.dtype))))


def _posterior_scale(ratio):
    """Returns a / s**2, by which e z is multiplied in the log probability of a token given z."""
    return jnp.exp((jax.nn.softplus(-ratio) - ratio) / 2)


def _zero_layer(c: Config) -> nn.Dense:
    """Returns a linear layer without bias whose output is 0 at first."""
    kernel = partitioned(nn.initializers.zeros, None, "embed")
    return nn.Dense(c.emb_dim, use_bias=False, dtype=c.dtype, kernel_init=kernel)
