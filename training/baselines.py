"""Trivial baselines: the loss of a model that ignores its input.

The baseline depends only on a term's labels:
- Classes are predicted by their share of the training targets: for tokens, a unigram model.
- Numbers are predicted by the mean of the training targets.
- If a slot may have several classes, each class is predicted by its share of the training slots.
- The baseline of an accuracy is the majority class.

The baseline of a term without labels is its loss for `constant_outputs`.
"""

import dataclasses
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..models import Model
from ..objectives import Labels


def constant_outputs(model: Model, params, batch) -> types.SimpleNamespace:
    """Returns outputs that have the model's shapes and are equal everywhere.

    Hidden states are zeros, and a head returns ones. The model is not run.
    """
    shapes = jax.eval_shape(lambda p, b: model.apply(p, b).hidden, params, batch)

    def head(name, hidden):
        outputs = lambda p, b, h: model.apply(p, b).head(name, h)  # noqa: E731
        like = jax.eval_shape(outputs, params, batch, hidden)
        # Without the barrier, XLA would compute the loss of these constants at compile time,
        # slowly.
        return lax.optimization_barrier(jnp.ones(like.shape, like.dtype))

    hidden = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return types.SimpleNamespace(head=head, hidden=hidden)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Tally:
    """Label counts, which can be summed over batches."""

    # For classes f32[C]: the summed weights of each class. For numbers f32[3]: the sums of the
    # weights, of the weighted numbers and of the weighted squares.
    totals: Any
    numbers: bool = dataclasses.field(metadata={"static": True})
    slots: Any = None  # f32[]: number of slots if a slot may have several classes, else None


def tally(labels: Labels, classes: int) -> Tally:
    """Returns the tally of a batch's labels."""
    values = labels.values
    weights = labels.weights
    if jnp.issubdtype(values.dtype, jnp.floating):
        return Tally(jnp.stack([jnp.sum(weights * values**k) for k in range(3)]), numbers=True)
    slots = None if labels.slots is None else jnp.sum(labels.slots)
    return Tally(jnp.zeros(classes).at[values].add(weights), numbers=False, slots=slots)


def trivial_loss(heldout: Tally, training: Tally | None = None) -> float:
    """Returns the summed loss of the held-out labels, predicted from the training labels.

    The loss of classes is their cross-entropy in nats, with add-one smoothing. If a slot may have
    several classes, it is the binary cross-entropies of all classes. The loss of numbers is their
    squared error. Without training labels, the held-out labels are predicted from themselves.

    >>> even, first = np.array([1.0, 1.0]), np.array([2.0, 0.0])
    >>> round(trivial_loss(Tally(even, False), Tally(first, False)), 4)
    1.674
    >>> squares, ones = np.array([2.0, 6.0, 20.0]), np.array([1.0, 1.0, 1.0])
    >>> trivial_loss(Tally(squares, True), Tally(ones, True))
    10.0
    """
    if heldout.numbers:
        count, total, _ = (training or heldout).totals
        guess = total / max(count, 1e-9)
        count, total, squares = heldout.totals
        return float(squares - 2 * guess * total + guess**2 * count)
    if heldout.slots is not None:
        return _binary_losses(heldout, training)
    counts = heldout.totals if training is None else training.totals + 1
    occurring = heldout.totals > 0
    shares = counts[occurring] / counts.sum()
    return float(-np.sum(heldout.totals[occurring] * np.log(shares)))


def _binary_losses(heldout: Tally, training: Tally | None) -> float:
    counts = heldout.totals, heldout.slots - heldout.totals  # present, absent
    guessed = counts
    if training is not None:
        guessed = training.totals + 1, training.slots - training.totals + 1
    total = np.maximum(guessed[0] + guessed[1], 1)
    logs = (np.log(np.maximum(guess / total, 1e-30)) for guess in guessed)
    return float(-sum(count @ log for count, log in zip(counts, logs)))


def trivial_hits(heldout: Tally, training: Tally | None = None) -> float:
    """Returns the summed weight of the held-out labels of the majority class in training.

    Without training labels, the majority class of the held-out labels is used.

    >>> trivial_hits(Tally(np.array([1.0, 4.0]), False), Tally(np.array([3.0, 2.0]), False))
    1.0
    """
    return float(heldout.totals[np.argmax((training or heldout).totals)])
