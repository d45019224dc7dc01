"""Number tokens: a loss for the distance between the predicted digit and the true digit.

Source: Zausinger et al. 2025, "Regress, Don't Guess" (arXiv:2411.02083), and the authors' package
`ntloss`.
"""

import functools
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from ..constraints import Positive, checked
from .contract import Array, BatchLoss, Builder, Objective, Term, build
from .language_modeling import causal_lm
from .losses import at_slots, head_sums, predictions, token_loss
from .token_ids import TokenIds

Distance = Literal["wasserstein", "squared"]


@checked
def number_token_loss(
    ids: TokenIds,
    builder: Builder = causal_lm,
    distance: Distance = "wasserstein",
    scale: Positive = 0.3,
) -> Objective:
    """An objective with an additional loss for the distance between digits (NTL).

        targets       i n _ 1 9 4 5
        at 9          predicting 8 costs less than predicting 1

    Terms of the loss: "tokens", the objective's own loss, and "numbers": the distance between the
    predicted digit and the true digit, for targets that are digits, under a softmax over the logits
    of digits.

    Args:
      ids: needs the ids of digits. A token with several digits, such as 45, is not a digit.
      builder: builder of an objective whose loss is the cross-entropy of its targets, such as
        `causal_lm`, `prefix_lm` or `span_corruption`.
      distance: "wasserstein" for the expected distance (NTL-WAS), or "squared" for the squared
        distance of the expected digit (NTL-MSE).
      scale: lambda, weight of the second term; the package recommends 0.3.

    Digits with and without a space before them are equal. As in the paper, the probability of other
    tokens does not affect "numbers"; with the package's default `reweigh`, other tokens cost as
    much as the farthest digit. Not implemented: values of numbers with several digits.

    >>> number_token_loss(ids).lengths(512)
    {'targets': 512}

    Raises ValueError for a vocabulary that lacks a digit, or an objective with another loss.
    """
    missing = sorted(set(range(10)) - {value for _, value in ids.digits})
    if missing:
        raise ValueError(
            f"The objective needs a token for each digit, but the vocabulary lacks {missing}: "
            "train a vocabulary that splits numbers into digits, on text with every digit. If you "
            "made the `TokenIds` yourself, set `digits`."
        )
    objective = build(builder, ids)
    if objective.facts.members or objective.loss is not token_loss:
        raise ValueError(
            "number_token_loss takes an objective whose loss is the cross-entropy of its targets, "
            "such as causal_lm or span_corruption, got a different loss: for a mixture, apply "
            "number_token_loss to its members."
        )
    digits, values = np.array(ids.digits, np.int32).T
    numbers = functools.partial(_number_loss, tuple(digits), tuple(values), distance, scale)
    return objective._replace(loss=numbers)


def _number_loss(
    digits: tuple, values: tuple, distance: Distance, scale: float, batch
) -> BatchLoss:
    tokens, slots, weights = predictions(batch)
    is_digit = jnp.asarray(tokens)[..., None] == np.array(digits)[None, None]
    truth = is_digit.astype(jnp.int32) @ np.array(values)
    counts = weights * jnp.any(is_digit, -1).astype(jnp.float32)

    def slot_losses(logits, truth, counts):
        return counts * digit_distances(logits, truth, digits, values, distance)

    def sums(outputs):
        states = at_slots(outputs.hidden["top"], slots)
        return {"numbers": head_sums(outputs, "vocabulary", states, slot_losses, (truth, counts))}

    return token_loss(batch) | BatchLoss({"numbers": Term(jnp.sum(counts, -1), scale)}, sums)


def digit_distances(logits: Array, truth: Array, digits: Array, values: Array, distance: Distance):
    """Returns f32[...]: the distance between predicted digits and true digits.

    >>> logits = jnp.log(jnp.array([0.5, 0.25, 0.25, 7.0]))
    >>> digit_distances(logits, 2, (0, 1, 2), (1, 2, 4), "wasserstein")
    Array(1., dtype=float32)
    >>> digit_distances(logits, 2, (0, 1, 2), (1, 2, 4), "squared")
    Array(0., dtype=float32)

    Args:
      logits: f32[..., V].
      truth: i32[...], the true digit.
      digits, values: the ids of digits, and their values 0 … 9.
      distance: "wasserstein" or "squared", as in `number_token_loss`.
    """
    p = jax.nn.softmax(logits[..., np.array(digits)], axis=-1)
    if distance == "squared":
        return jnp.square(p @ np.array(values, np.float32) - truth)
    distances = np.abs(np.arange(10)[:, None] - np.array(values)[None]).astype(np.float32)
    return jnp.sum(p * jnp.asarray(distances)[truth], -1)
