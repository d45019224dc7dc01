"""Next-latent prediction: each hidden state and the next token predict the next hidden state.

Source: Teoh et al. 2025 (NextLat, arXiv:2511.05963), section 3.
"""

import functools
from collections.abc import Callable

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

    The model predicts the next slot's state, `outputs.hidden["next_latent"]`, from the state of the
    current slot and the next token. This teaches states to summarize the text so far.

    Terms of the loss: "tokens", of the next token, as in `causal_lm`, and "next_latent": the smooth
    L1 distance between the predicted and the actual state, as a mean over its numbers. No gradient
    reaches the actual state, since states could otherwise collapse.

    Args:
      scale: weight of the second term.

    Not implemented: predictions of states several slots ahead, and the paper's third term, the
    divergence between next-token predictions from predicted and actual states.

    >>> next_latent(ids).facts.heads
    {'vocabulary': None, 'next_latent': None}
    """

    def distances(predicted, actual):
        return smooth_l1(predicted.astype(jnp.float32) - actual.astype(jnp.float32))

    loss = functools.partial(next_state_loss, "next_latent", "top", distances, scale)
    heads = {**VOCABULARY, "next_latent": None}
    return causal_lm(ids)._replace(loss=loss).with_facts(heads=heads, token_weights=False)


def next_state_loss(name: str, target: str, distances: Callable, scale: float, batch) -> BatchLoss:
    """Returns the loss of the next token and of a prediction of the next slot's hidden state.

    No gradient reaches the state that is predicted.

    Args:
      name: name of the prediction in `outputs.hidden`, and of its term of the loss.
      target: name of the predicted states in `outputs.hidden`.
      distances: (predictions, states) -> f32[B, N], the losses.
      scale: factor of the mean of the term.
    """
    _, slots, _ = predictions(batch)
    _, weights = ahead_tokens(batch, 1)

    def sums(outputs: ModelOutputs):
        predicted, states = (at_slots(outputs.hidden[key], slots) for key in (name, target))
        actual = jnp.roll(jax.lax.stop_gradient(states), -1, axis=1)
        return {name: jnp.sum(distances(predicted, actual) * weights, -1)}

    return token_loss(batch) | BatchLoss({name: Term(jnp.sum(weights, -1), scale)}, sums)


def smooth_l1(difference):
    """Returns f32[...]: the mean over the last axis of x**2 / 2, or |x| - 1 / 2 if |x| > 1.

    >>> smooth_l1(jnp.array([0.5, -3.0]))
    Array(1.3125, dtype=float32)
    """
    size = jnp.abs(difference)
    return jnp.mean(jnp.where(size < 1, 0.5 * size**2, size - 0.5), axis=-1)
