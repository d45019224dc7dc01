"""Ancestral sampling of discrete diffusion: tokens of a time, drawn given those of a later one.

Sources: Sahoo et al. 2024 (MDLM, arXiv:2406.07524) for masks, Sahoo et al. 2025 (Duo,
arXiv:2506.10892) for replaced tokens, and von Rütte et al. 2025 (GIDD, arXiv:2503.04482) for both.
"""

import jax.numpy as jnp

from ...objectives.prompt_forms import Noised


def masks_alone(time) -> Noised:
    """Returns the noise of a prompt form that has none: a token is masked with the time as its
    probability."""
    return Noised(1 - time, 0 * time, time)


def earlier_weights(p_V, token, mask, text: tuple[int, int], noise, time, earlier):
    """Returns f32[V]: in what proportion a token was which id at an earlier, less noisy time.

    Args:
      p_V: f32[V], the probability of each id of text to be the token without noise, as the model
        predicts it from all other tokens.
      token: i32[] the one at the time.
      mask, text: the mask, and the first and the last of the ids of text.
      noise: of `PromptForm.noise`.
      time, earlier: f32[], the noisier time first.

    >>> p = jnp.array([0.25, 0.75, 0.0])    # of two ids of text and the mask
    >>> earlier_weights(p, 2, 2, (0, 2), masks_alone, 1.0, 0.5)
    Array([0.125, 0.375, 0.5  ], dtype=float32)
    """
    ids = jnp.arange(p_V.size)
    before = noise(earlier)
    is_text = (ids >= text[0]) & (ids < text[1])
    was = before.keeps * p_V + before.each * is_text + before.masked * (ids == mask)
    return was * became(token, ids, mask, noise, time, earlier)


def became(token, ids, mask, noise, time, earlier):
    """Returns f32[N]: of each of the ids i32[N] at the earlier time, the probability to be this
    token at the noisier one."""
    now = noise(time)
    before = noise(earlier)
    stays = now.keeps / before.keeps
    anew = jnp.where(
        token == mask, now.masked - stays * before.masked, now.each - stays * before.each
    )
    return stays * (ids == token) + jnp.maximum(anew, 0)  # rounding may leave less than nothing
