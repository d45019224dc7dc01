"""Trivial baselines: the loss of a model that looks at nothing, from a term's labels alone.

Classes are guessed by their share of the training targets (of tokens: a unigram model), numbers by
the mean of the training targets.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pretrax.objectives import Labels


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Tally:
    """What there is to know of labels: tallies of several batches add up to that of all of them."""

    # Of classes f32[C], how much each counts. Of numbers f32[3]: how much they count together, and
    # their sum and sum of squares, weighted so.
    totals: Any
    numbers: bool = dataclasses.field(metadata={"static": True})


def tally(labels: Labels, classes: int) -> Tally:
    """The tally of a batch's labels, of `classes` classes if they are no numbers."""
    values, weights = labels.values, labels.weights
    if jnp.issubdtype(values.dtype, jnp.floating):
        return Tally(jnp.stack([jnp.sum(weights * values**k) for k in range(3)]), numbers=True)
    return Tally(jnp.zeros(classes).at[values].add(weights), numbers=False)


def trivial_loss(heldout: Tally, training: Tally | None = None) -> float:
    """The summed loss of the held-out labels under the guess that the training labels suggest.

    Cross-entropy in nats for classes, each counted once more than it was seen; squared error for
    numbers. Without training labels the guess is by the held-out ones themselves.

    >>> round(trivial_loss(Tally(np.array([1.0, 1.0]), False), Tally(np.array([2.0, 0.0]), False)), 4)
    1.674
    >>> trivial_loss(Tally(np.array([2.0, 6.0, 20.0]), True), Tally(np.array([1.0, 1.0, 1.0]), True))
    10.0
    """
    if heldout.numbers:
        count, total, _ = (training or heldout).totals
        guess = total / max(count, 1e-9)
        count, total, squares = heldout.totals
        return float(squares - 2 * guess * total + guess**2 * count)
    counts = heldout.totals if training is None else training.totals + 1
    seen = heldout.totals > 0
    shares = counts[seen] / counts.sum()
    return float(-np.sum(heldout.totals[seen] * np.log(shares)))
