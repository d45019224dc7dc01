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
    """Causal language modeling that also predicts the next hidden state (NextLat).

        text                          a b c d
        from the state after b, c     the state after c

    The model predicts the next slot's state, `outputs.hidden["next_latent"]`, from the state of
    the current slot and the next token. Since the next token is given, a state that summarizes the
    whole text so far is enough for this prediction.

    Terms of the loss: "tokens", of the next token, as in `causal_lm`, and "next_latent": the smooth
    L1 distance between the predicted and the actual state, as a mean over its numbers. No gradient
    reaches the actual state, since states could otherwise become equal to be easy to predict.

    Args:
      scale: factor of the mean of the second term.

    Not implemented: predictions of states several slots ahead, and the paper's third term, the
    divergence between next-token predictions from predicted and actual states.

    >>> next_latent(ids).facts.heads
    {'vocabulary': None, 'next_latent': None}
    """

    def loss(batch) -> BatchLoss:
        _, slots, _ = predictions(batch)
        _, weights = ahead_tokens(batch, 1)

        def sums(outputs: ModelOutputs):
            top = at_slots(outputs.hidden["top"], slots)
            expected = at_slots(outputs.hidden["next_latent"], slots)
            actual = jax.lax.stop_gradient(jnp.roll(top, -1, axis=1))
            losses = smooth_l1(expected.astype(jnp.float32) - actual.astype(jnp.float32))
            return {"next_latent": jnp.sum(losses * weights, -1)}

        term = Term(jnp.sum(weights, -1), scale)
        return token_loss(batch) | BatchLoss({"next_latent": term}, sums)

    heads = {**VOCABULARY, "next_latent": None}
    return causal_lm(ids)._replace(loss=loss).with_facts(heads=heads, token_weights=False)


def smooth_l1(difference):
    """Returns f32[...]: the mean over the last axis of x**2 / 2, or |x| - 1 / 2 if |x| > 1.

    >>> smooth_l1(jnp.array([0.5, -3.0]))
    Array(1.3125, dtype=float32)
    """
    size = jnp.abs(difference)
    return jnp.mean(jnp.where(size < 1, 0.5 * size**2, size - 0.5), axis=-1)
