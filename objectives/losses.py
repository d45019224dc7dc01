"""Losses as sums for each row, which the training step divides for the whole batch."""

import functools
from collections.abc import Callable

import jax.numpy as jnp

from .contract import BatchLoss, Labels, ModelOutputs, Sums, Term
from .cross_entropy import (
    cross_entropy,
    projected_cross_entropy,
    projected_scores,
    projected_sums,
    weighted_sums,
)


def predicting_stack(batch) -> str:
    """Returns "decoder" if the batch has one, else "encoder"."""
    return "decoder" if "decoder_segment_ids" in batch else "encoder"


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
    """Returns hidden states [B, K, d] at slots i32[B, K] of [B, T, d]; all of them for None."""
    return hidden if slots is None else jnp.take_along_axis(hidden, slots[..., None], axis=1)


def token_loss(batch, hidden: str = "top", head: str = "vocabulary") -> BatchLoss:
    """Returns the cross-entropy of `…_target_tokens`, weighted by `…_loss_weights`.

    If fewer slots predict than the stack has (`…_target_slots`), only those reach the vocabulary
    projection.

    Terms: "tokens", with its z-losses in a run that has them.
    """
    tokens, slots, weights = predictions(batch)
    w = weights.astype(jnp.float32)

    def sums(outputs: ModelOutputs):
        if hidden not in outputs.hidden:
            raise ValueError(
                f"The model has no hidden states {hidden!r}, which the objective's loss reads: use "
                "one of pretrax.models that has them, or another objective."
            )
        states = at_slots(outputs.hidden[hidden], slots)
        z_loss = getattr(outputs, "z_loss", 0.0)
        return {"tokens": head_cross_entropy(outputs, head, states, tokens, w, z_loss)}

    return BatchLoss({"tokens": Term(jnp.sum(w, -1), labels=Labels(tokens, w, head))}, sums)


def _projection(outputs: ModelOutputs, head: str, states):
    """Returns a head of states as a `Projection`, if the model offers it, else None."""
    projection_of = getattr(outputs, "projection", None)
    return projection_of and projection_of(head, states)


def head_cross_entropy(
    outputs: ModelOutputs, head: str, states, labels, weights, z_loss: float = 0.0
) -> Sums:
    """Returns the sums of the cross-entropy of labels i32[B, K] under a head of states [B, K, d].

    If the model returns the head as a `Projection`, only a few logits are in memory at a time.
    """
    projection = _projection(outputs, head, states)
    if projection is None:
        return weighted_sums(outputs.head(head, states), labels, weights, z_loss)
    return projected_cross_entropy(projection, labels, weights, z_loss)


def head_sums(outputs: ModelOutputs, head: str, states, slot_losses: Callable, columns):
    """Returns f32[B]: sums of losses of a head's logits, without all of them in memory.

    `states` are [B, K, d]; for the others see `cross_entropy.projected_sums`.
    """
    projection = _projection(outputs, head, states)
    if projection is None:
        return jnp.sum(slot_losses(outputs.head(head, states), *columns), -1)
    return projected_sums(projection, slot_losses, columns)


def score_slots(outputs: ModelOutputs, head: str, states, score: Callable):
    """Returns [B, K]: the value of `score`, a function [..., V] -> [...], for each slot's logits.

    If the model returns the head as a `Projection`, only a few logits are in memory at a time.
    """
    projection = _projection(outputs, head, states)
    if projection is None:
        return score(outputs.head(head, states))
    return projected_scores(projection, score)


def likeliest_tokens(outputs: ModelOutputs, batch):
    """Returns i32[B, K]: for each predicted token, the one that the vocabulary projection ranks
    first."""
    states = at_slots(outputs.hidden["top"], predictions(batch)[1])
    return score_slots(outputs, "vocabulary", states, functools.partial(jnp.argmax, axis=-1))


def class_loss(head: str, classes, slots, weights) -> BatchLoss:
    """Returns the cross-entropy of classes under a head, and the share that are the likeliest.

    Args:
      classes: i32[B, N].
      slots: i32[B, N], those whose hidden states the head takes.
      weights: f32[B, N]; 0 does not count.

    Terms: the head's name, and the metric "…_accuracy".
    """
    weights = weights.astype(jnp.float32)
    counted = jnp.sum(weights, -1)
    labels = Labels(classes, weights, head)
    accuracy = f"{head}_accuracy"

    def sums(outputs: ModelOutputs):
        logits = outputs.head(head, at_slots(outputs.hidden["top"], slots))
        losses, _ = cross_entropy(logits, classes)
        hits = jnp.argmax(logits, -1) == classes
        return {head: jnp.sum(losses * weights, -1), accuracy: jnp.sum(hits * weights, -1)}

    return BatchLoss(
        {head: Term(counted, labels=labels), accuracy: Term(counted, scale=None, labels=labels)},
        sums,
    )


def pool_class_loss(head: str, batch) -> BatchLoss:
    """Returns `class_loss` of the classes of pools."""
    columns = (batch[name] for name in ("pools_labels", "pools_slots", "pools_weights"))
    return class_loss(head, *columns)
