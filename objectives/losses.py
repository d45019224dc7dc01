"""Losses as sums for each row, which the training step divides for the whole batch."""

import jax.numpy as jnp

from .contract import Labels, ModelOutputs, Term
from .cross_entropy import Sums, projected_cross_entropy, weighted_sums


def predictions(batch) -> tuple:
    """Returns (tokens, slots or None, weights) of what is predicted, by either stack.

    i32[B, K] each; slot k of the stack predicts token k if slots is None. All three are None where
    nothing is predicted.
    """
    for stack in ("decoder", "encoder"):
        if f"{stack}_target_tokens" in batch:
            return (
                batch[f"{stack}_target_tokens"],
                batch.get(f"{stack}_target_slots"),
                batch[f"{stack}_loss_weights"],
            )
    return None, None, None


def at_slots(hidden, slots):
    """Returns hidden states [B, K, d] at slots i32[B, K] of [B, T, d]."""
    return jnp.take_along_axis(hidden, slots[..., None], axis=1)


def token_loss(
    outputs: ModelOutputs, batch, hidden: str = "top", head: str = "vocabulary"
) -> dict[str, Term]:
    """Returns the cross-entropy of `…_target_tokens`, weighted by `…_loss_weights`.

    Where fewer slots predict than the stack has (`…_target_slots`), only those reach the vocabulary
    projection.

    Terms: "tokens", with its z-losses in a run that has them.
    """
    tokens, slots, weights = predictions(batch)
    states, w = outputs.hidden[hidden], weights.astype(jnp.float32)
    states = states if slots is None else at_slots(states, slots)
    z_loss = getattr(outputs, "z_loss", 0.0)
    losses, z_losses = head_cross_entropy(outputs, head, states, tokens, w, z_loss)
    labels = Labels(tokens, w, head)
    return {"tokens": Term(losses, jnp.sum(w, -1), labels=labels, z_losses=z_losses)}


def head_cross_entropy(
    outputs: ModelOutputs, head: str, states, labels, weights, z_loss: float = 0.0
) -> Sums:
    """Returns the sums, f32[B], of the cross-entropy of labels i32[B, K] under a head of states [B,
    K, d].

    Without the logits of all slots in memory, where the model gives the head as a `Projection`.
    """
    projection_of = getattr(outputs, "projection", None)
    projection = projection_of and projection_of(head, states)
    if projection is None:
        return weighted_sums(outputs.head(head, states), labels, weights, z_loss)
    return projected_cross_entropy(projection, labels, weights, z_loss)


def accuracy(logits, classes, weights, head: str) -> Term:
    """Returns the metric: the share of classes i32[B, N] that are the likeliest by `head`'s logits
    [B, N, C].

    >>> logits, classes = jnp.array([[[0.2, 0.8], [0.7, 0.3]]]), jnp.array([[1, 1]])
    >>> term = accuracy(logits, classes, jnp.ones((1, 2)), "pair")
    >>> term.sums, term.weights, term.scale
    (Array([1.], dtype=float32), Array([2.], dtype=float32), None)
    """
    right = (jnp.argmax(logits, -1) == classes) * weights
    return class_term(right, classes, weights, head, scale=None)


def class_term(losses, classes, weights, head: str, **settings) -> Term:
    """Returns the term of losses, or hits, f32[B, N] of classes i32[B, N] that `head` predicts.

    `settings`: further fields of `Term`.

    >>> term = class_term(jnp.ones((1, 2)), jnp.array([[4, 0]]), jnp.array([[1.0, 0.0]]), "pair")
    >>> term.sums, term.weights
    (Array([1.], dtype=float32), Array([1.], dtype=float32))
    """
    labels = Labels(classes, weights, head)
    return Term(jnp.sum(losses * weights, -1), jnp.sum(weights, -1), labels=labels, **settings)
