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
from .contract import BatchLoss, Builder, Objective, Term, build
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
    """An objective that also learns how far digits are from each other (NTL).

        targets       i n _ 1 9 4 5
        of 9          to predict 8 costs less than to predict 1

    Terms of the loss: "tokens", the objective's own, and "numbers": over the targets that are
    digits, the distance of the predicted digit from the true one, under the softmax of the logits
    of digits alone.

    Args:
      ids: needs the ids of digits. A number in a token, such as 45, is none.
      builder: of an objective whose loss is the cross-entropy of its targets, such as `causal_lm`,
        `prefix_lm` and `span_corruption`.
      distance: "wasserstein", the expected distance (NTL-WAS), or "squared", that of the expected
        digit (NTL-MSE).
      scale: lambda, what the mean of the second term is multiplied by; the package recommends 0.3.

    A digit with a space before it counts as one without. As in the paper, what probability other
    tokens have does not matter to "numbers": the package's `reweigh`, on there by default, makes it
    as costly as the farthest digit. Left out: numbers of several digits by their value.

    >>> number_token_loss(ids).lengths(512)
    {'targets': 512}

    Raises ValueError for a vocabulary that lacks a digit, and an objective with another loss.
    """
    lacking = sorted(set(range(10)) - {value for _, value in ids.digits})
    if lacking:
        raise ValueError(
            f"The objective asks for tokens of one digit, the vocabulary has none for {lacking}: "
            "train one that splits numbers into digits, or that has seen every digit; of "
            "`TokenIds` by hand, give `digits`."
        )
    objective = build(builder, ids)
    if objective.facts.members or objective.loss is not token_loss:
        raise ValueError(
            "number_token_loss takes an objective whose loss is the cross-entropy of its targets, "
            "such as causal_lm or span_corruption, got another: of a mixture, give it to a member."
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


def digit_distances(logits, truth, digits, values, distance: Distance):
    """Returns f32[...]: the distance of a predicted digit from the true one.

    >>> logits = jnp.log(jnp.array([0.5, 0.25, 0.25, 7.0]))
    >>> digit_distances(logits, 2, (0, 1, 2), (1, 2, 4), "wasserstein")
    Array(1., dtype=float32)
    >>> digit_distances(logits, 2, (0, 1, 2), (1, 2, 4), "squared")
    Array(0., dtype=float32)

    Args:
      logits: f32[..., V].
      truth: i32[...], the true digit.
      digits, values: the ids of digits, and the digit that each is.
    """
    p = jax.nn.softmax(logits[..., np.array(digits)], axis=-1)
    if distance == "squared":
        return jnp.square(p @ np.array(values, np.float32) - truth)
    distances = np.abs(np.arange(10)[:, None] - np.array(values)[None]).astype(np.float32)
    return jnp.sum(p * jnp.asarray(distances)[truth], -1)
