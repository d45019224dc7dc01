"""Losses as sums for each row, which the training step divides for the whole batch."""

import functools
from collections.abc import Callable

import jax.numpy as jnp

from .contract import Labels, ModelOutputs, Term
from .cross_entropy import (
    Sums,
    cross_entropy,
    projected_cross_entropy,
    projected_scores,
    projected_sums,
    weighted_sums,
)


def predictions(batch) -> tuple:
    """Returns (tokens, slots or None, weights) of what is predicted, by either stack.

    i32[B, K] each; slot k of the stack predicts token k if slots is None. All three are None where
    nothing is predicted. Where both stacks predict, it is what the encoder does.
    """
    stack = "encoder" if "encoder_target_tokens" in batch else "decoder"
    columns = "target_tokens", "target_slots", "loss_weights"
    return tuple(batch.get(f"{stack}_{column}") for column in columns)


def prediction_segments(batch):
    """Returns i32[B, K]: the segment id of each slot at which the decoder predicts."""
    tokens, slots, _ = predictions(batch)
    segments = batch["decoder_segment_ids"]
    if slots is None:
        return segments[:, : tokens.shape[1]]
    return jnp.take_along_axis(segments, slots, axis=1)


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
    states = outputs.hidden[hidden]
    w = weights.astype(jnp.float32)
    states = states if slots is None else at_slots(states, slots)
    z_loss = getattr(outputs, "z_loss", 0.0)
    losses, z_losses = head_cross_entropy(outputs, head, states, tokens, w, z_loss)
    labels = Labels(tokens, w, head)
    return {"tokens": Term(losses, jnp.sum(w, -1), labels=labels, z_losses=z_losses)}


def head_cross_entropy(
    outputs: ModelOutputs, head: str, states, labels, weights, z_loss: float = 0.0
) -> Sums:
    """Returns the sums of the cross-entropy of labels i32[B, K] under a head of states [B, K, d].

    Without the logits of all slots in memory, where the model gives the head as a `Projection`.
    """
    projection_of = getattr(outputs, "projection", None)
    projection = projection_of and projection_of(head, states)
    if projection is None:
        return weighted_sums(outputs.head(head, states), labels, weights, z_loss)
    return projected_cross_entropy(projection, labels, weights, z_loss)


def head_sums(outputs: ModelOutputs, head: str, states, slot_losses: Callable, columns):
    """Returns f32[B]: sums of losses of a head's logits, without all of them in memory.

    `states` are [B, K, d]; for the others see `cross_entropy.projected_sums`.
    """
    projection_of = getattr(outputs, "projection", None)
    projection = projection_of and projection_of(head, states)
    if projection is None:
        return jnp.sum(slot_losses(outputs.head(head, states), *columns), -1)
    return projected_sums(projection, slot_losses, columns)


def score_slots(outputs: ModelOutputs, head: str, states, score: Callable):
    """Returns [B, K]: the value of `score`, a function [..., V] -> [...], for each slot's logits.

    If the model returns the head as a `Projection`, only a few logits are in memory at a time.
    """
    projection_of = getattr(outputs, "projection", None)
    projection = projection_of and projection_of(head, states)
    if projection is None:
        return score(outputs.head(head, states))
    return projected_scores(projection, score)


def likeliest_tokens(outputs: ModelOutputs, batch):
    """Returns i32[B, K]: the token that the vocabulary projection finds likeliest, of each that is
    predicted."""
    _, slots, _ = predictions(batch)
    states = outputs.hidden["top"]
    states = states if slots is None else at_slots(states, slots)
    return score_slots(outputs, "vocabulary", states, functools.partial(jnp.argmax, axis=-1))


def class_terms(outputs: ModelOutputs, head: str, classes, slots, weights) -> dict[str, Term]:
    """Returns the cross-entropy of classes under a head, and the share that are the likeliest.

    Args:
      classes: i32[B, N].
      slots: i32[B, N], those whose hidden states the head takes.
      weights: f32[B, N]; 0 does not count.

    Terms: the head's name, and the metric "…_accuracy".
    """
    logits = outputs.head(head, at_slots(outputs.hidden["top"], slots))
    losses, _ = cross_entropy(logits, classes)
    hits = jnp.argmax(logits, -1) == classes
    weights = weights.astype(jnp.float32)
    counted = jnp.sum(weights, -1)
    labels = Labels(classes, weights, head)
    return {
        head: Term(jnp.sum(losses * weights, -1), counted, labels=labels),
        f"{head}_accuracy": Term(jnp.sum(hits * weights, -1), counted, None, labels),
    }


def pool_class_terms(outputs: ModelOutputs, batch, head: str) -> dict[str, Term]:
    """Returns `class_terms` of the classes of pools."""
    columns = (batch[name] for name in ("pools_labels", "pools_slots", "pools_weights"))
    return class_terms(outputs, head, *columns)
