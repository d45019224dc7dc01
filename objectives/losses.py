"""Losses as one sum per row. The training step divides by the weights of the whole batch."""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp

from .contract import Array, BatchLoss, Labels, ModelOutputs, Sums, Term
from .cross_entropy import (
    cross_entropy,
    projected_cross_entropies,
    projected_scores,
    projected_sums,
    weighted_sums,
)


def predicting_stack(batch) -> str:
    """Returns "decoder" if the batch has one, else "encoder"."""
    return "decoder" if "decoder_segment_ids" in batch else "encoder"


def predictions(batch) -> tuple:
    """Returns the (tokens, slots, weights) that a stack predicts, i32[B, K] each.

    If slots is None, slot k of the stack predicts token k. If both stacks predict, the encoder's
    predictions are returned. All are None if nothing is predicted.
    """
    stack = "encoder" if "encoder_target_tokens" in batch else "decoder"
    columns = "target_tokens", "target_slots", "loss_weights"
    return tuple(batch.get(f"{stack}_{column}") for column in columns)


def prediction_segments(batch):
    """Returns i32[B, K]: the segment id of each slot from which the decoder predicts a token."""
    tokens, slots, _ = predictions(batch)
    segments = batch["decoder_segment_ids"]
    if slots is None:
        return segments[:, : tokens.shape[1]]
    return jnp.take_along_axis(segments, slots, axis=1)


def at_slots(hidden, slots):
    """Returns hidden states [B, K, d] at slots i32[B, K] of [B, T, d]; all states for None."""
    return hidden if slots is None else jnp.take_along_axis(hidden, slots[..., None], axis=1)


def token_loss(batch, hidden: str = "top", head: str = "vocabulary") -> BatchLoss:
    """Returns the cross-entropy of `…_target_tokens`, weighted by `…_loss_weights`.

    If only some slots predict a token (`…_target_slots`), only these slots reach the vocabulary
    projection.

    Terms: "tokens", with z-losses if the run has them.
    """
    tokens, slots, weights = predictions(batch)
    return label_loss(slots, {"tokens": [(tokens, weights)]}, hidden, head)


def label_loss(
    slots: Array | None,
    targets: Mapping[str, Sequence[tuple]],
    hidden: str = "top",
    head: str = "vocabulary",
) -> BatchLoss:
    """Returns the cross-entropies of one or several labels of each slot, under the same logits.

    Args:
      slots: i32[B, K], the slots that predict. None: slot k predicts the labels k.
      targets: {term: [(labels i32[B, K], weights [B, K]), …]}. The first term has the z-losses.
      hidden: name of the hidden states that the head reads.
      head: name of the head.
    """
    targets = {
        name: [(labels, weights.astype(jnp.float32)) for labels, weights in pairs]
        for name, pairs in targets.items()
    }

    def sums(outputs: ModelOutputs):
        if hidden not in outputs.hidden:
            raise ValueError(
                f"The objective's loss reads the hidden states {hidden!r}, which the model does "
                "not have: use a model of pretrax.models with these states, or another objective."
            )
        states = at_slots(outputs.hidden[hidden], slots)
        z_loss = getattr(outputs, "z_loss", 0.0)
        return head_cross_entropies(outputs, head, states, targets, z_loss)

    terms = {}
    for name, pairs in targets.items():
        labels, weights = (jnp.concatenate(x, axis=1) for x in zip(*pairs))
        terms[name] = Term(jnp.sum(weights, -1), labels=Labels(labels, weights, head))
    return BatchLoss(terms, sums)


def _projection(outputs: ModelOutputs, head: str, states):
    """Returns a head of states as a `ClassProjection` if the model supports it, else None."""
    projection_of = getattr(outputs, "projection", None)
    return projection_of and projection_of(head, states)


def head_cross_entropy(
    outputs: ModelOutputs, head: str, states, labels, weights, z_loss: float = 0.0
) -> Sums:
    """Returns the summed cross-entropy of labels i32[B, K] under a head of states [B, K, d]."""
    targets = {"tokens": [(labels, weights)]}
    return head_cross_entropies(outputs, head, states, targets, z_loss)["tokens"]


def head_cross_entropies(
    outputs: ModelOutputs,
    head: str,
    states,
    targets: Mapping[str, Sequence[tuple]],
    z_loss: float = 0.0,
) -> dict[str, Sums]:
    """Returns the summed cross-entropies of terms with one or several labels for each slot.

    The logits and their log-partition are computed once. With a `ClassProjection`, only a few
    logits are in memory at a time, and more labels need no more matrix products.

    Args:
      states: [B, K, d].
      targets: {term: [(labels i32[B, K], weights [B, K]), …]}.
      z_loss: weight of the squared log-partition, which is added to the first term once for each
        of its labels.
    """
    pairs = [pair for several in targets.values() for pair in several]
    labels, weights = zip(*pairs)
    in_first_term = len(next(iter(targets.values())))
    z_losses = [z_loss] * in_first_term + [0.0] * (len(pairs) - in_first_term)
    projection = _projection(outputs, head, states)
    if projection is None:
        sums = weighted_sums(outputs.head(head, states), labels, weights, z_losses)
    else:
        term_factors = getattr(outputs, "term_factors", None) if len(targets) > 1 else None
        factors = term_factors and [
            term_factors[name] for name, several in targets.items() for _ in several
        ]
        sums = projected_cross_entropies(projection, labels, weights, z_losses, factors)
    remaining_sums = iter(sums)
    add_sums = functools.partial(jax.tree.map, jnp.add)
    return {
        name: functools.reduce(add_sums, itertools.islice(remaining_sums, len(several)))
        for name, several in targets.items()
    }


def head_sums(
    outputs: ModelOutputs, head: str, states: Array, slot_losses: Callable, columns: Array
):
    """Returns f32[B]: summed losses of a head's logits, with only a few logits in memory at a time.

    Args:
      states: [B, K, d].
      slot_losses: (logits f32[B, C, V], *columns [B, C, …]) -> f32[B, C], for C of the slots.
      columns: [B, K, …] each.
    """
    projection = _projection(outputs, head, states)
    if projection is None:
        return jnp.sum(slot_losses(outputs.head(head, states), *columns), -1)
    return projected_sums(projection, slot_losses, columns)


def score_slots(outputs: ModelOutputs, head: str, states, score: Callable):
    """Returns [B, K]: the value of `score`, a function [..., V] -> [...], for each slot's logits.

    With a `ClassProjection`, only a few logits are in memory at a time.
    """
    projection = _projection(outputs, head, states)
    if projection is None:
        return score(outputs.head(head, states))
    return projected_scores(projection, score)


def predicted_tokens(outputs: ModelOutputs, batch):
    """Returns i32[B, K]: the most likely token for each predicted token, by the vocabulary head."""
    states = at_slots(outputs.hidden["top"], predictions(batch)[1])
    return score_slots(outputs, "vocabulary", states, functools.partial(jnp.argmax, axis=-1))


def class_loss(head: str, classes: Array, slots: Array, weights: Array) -> BatchLoss:
    """Returns the cross-entropy of classes under a head, and the accuracy.

    Args:
      classes: i32[B, N].
      slots: i32[B, N], the slots whose hidden states the head reads.
      weights: f32[B, N]; entries with weight 0 do not count.

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
    """Returns `class_loss` for the classes of pools."""
    columns = (batch[name] for name in ("pools_labels", "pools_slots", "pools_weights"))
    return class_loss(head, *columns)
