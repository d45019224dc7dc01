"""Next-latent prediction: each hidden state and the next token predict the next hidden state.

Source: Teoh et al. 2025 (NextLat, arXiv:2511.05963), section 3.
"""

import jax
import jax.numpy as jnp

from ..constraints import Positive, checked
from .contract import VOCABULARY, BatchLoss, ModelOutputs, Objective, Term
from .language_modeling import causal_lm
from .losses import at_slots, predictions, token_loss
from .multi_token_prediction import ahead_tokens
from .token_ids import TokenIds


@checked
def next_latent(ids: TokenIds, scale: Positive = 1.0) -> Objective:
    """Causal language modeling whose hidden states are to follow from the ones before (NextLat).

        text                          a b c d
        from the state after b, c     the state after c

    The model gives `outputs.hidden["next_latent"]`, the state that it expects in the next slot,
    from its state in this one and the token that is read next. That token is known: a state that
    sums up all that was read is enough to predict the next one.

    Terms of the loss: "tokens", the next token's, as in `causal_lm`, and "next_latent": the smooth
    L1 distance of the expected state and the one that is there, a mean over its numbers. No
    gradient reaches the latter, so that states do not become alike to be easily predicted.

    Args:
      scale: what the mean of the second term is multiplied by.

    The states expected several slots later, and the paper's further term, the divergence of their
    predictions of the next token, are left out.

    >>> next_latent(ids).facts.heads
    {'vocabulary': None, 'next_latent': None}
    """

    def loss(batch) -> BatchLoss:
        _, slots, _ = predictions(batch)
        _, weights = ahead_tokens(batch, 1)

        def sums(outputs: ModelOutputs):
            top = at_slots(outputs.hidden["top"], slots)
            expected = at_slots(outputs.hidden["next_latent"], slots)
            there = jax.lax.stop_gradient(jnp.roll(top, -1, axis=1))
            losses = smooth_l1(expected.astype(jnp.float32) - there.astype(jnp.float32))
            return {"next_latent": jnp.sum(losses * weights, -1)}

        term = Term(jnp.sum(weights, -1), scale)
        return token_loss(batch) | BatchLoss({"next_latent": term}, sums)

    return causal_lm(ids)._replace(loss=loss).with_facts(heads={**VOCABULARY, "next_latent": None})


def smooth_l1(difference):
    """Returns f32[...]: the mean over the last axis of x**2 / 2, and of |x| - 1 / 2 beyond 1.

    >>> smooth_l1(jnp.array([0.5, -3.0]))
    Array(1.3125, dtype=float32)
    """
    size = jnp.abs(difference)
    return jnp.mean(jnp.where(size < 1, 0.5 * size**2, size - 0.5), axis=-1)
