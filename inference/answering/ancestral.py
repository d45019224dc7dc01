"""Ancestral sampling of discrete diffusion: draws less noisy tokens, given noisier tokens.

Sources: Sahoo et al. 2024 (MDLM, arXiv:2406.07524) for masks, Sahoo et al. 2025 (Duo,
arXiv:2506.10892) for replaced tokens, and von Rütte et al. 2025 (GIDD, arXiv:2503.04482) for both.
"""

from collections.abc import Callable

import jax.numpy as jnp

from ...objectives.contract import Array
from ...objectives.prompt_forms import Noised


def mask_noise(time) -> Noised:
    """Returns the noise of prompt forms without one: a token is masked with probability `time`."""
    return Noised(1 - time, 0 * time, time)


def posterior_weights(
    p_V: Array,
    token: Array,
    mask: int,
    text: tuple[int, int],
    noise: Callable,
    time: Array,
    earlier: Array,
):
    """Returns f32[V]: unnormalized probabilities of a token's id at a less noisy time.

    Args:
      p_V: f32[V], the model's prediction of the clean token, given all other tokens.
      token: i32[], the id of the token at `time`.
      text: the first id of text, and the id after the last.
      noise: function from a time to `Noised`, as `PromptForm.noise`.
      time, earlier: f32[], the noisier and the less noisy time.

    >>> p = jnp.array([0.25, 0.75, 0.0])    # two ids of text, and the mask
    >>> posterior_weights(p, 2, 2, (0, 2), mask_noise, 1.0, 0.5)
    Array([0.125, 0.375, 0.5  ], dtype=float32)
    """
    ids = jnp.arange(p_V.size)
    before = noise(earlier)
    is_text = (ids >= text[0]) & (ids < text[1])
    was = before.keeps * p_V + before.each * is_text + before.masked * (ids == mask)
    return was * transition_probs(token, ids, mask, noise, time, earlier)


def transition_probs(token, ids, mask, noise, time, earlier):
    """Returns f32[N]: the probability that each id at the earlier time becomes this token.

    `ids` are i32[N]; the token is the id at the noisier time.
    """
    now = noise(time)
    before = noise(earlier)
    stays = now.keeps / before.keeps
    replaced = jnp.where(
        token == mask, now.masked - stays * before.masked, now.each - stays * before.each
    )
    # Rounding may leave negative numbers.
    return stays * (ids == token) + jnp.maximum(replaced, 0)
