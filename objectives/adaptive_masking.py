"""Adaptive masking: words that the model predicts well are masked less often than other words.

Source: Edman and Fraser 2025 (AMLM, arXiv:2510.20475), the "hard" form, with the authors' published
code. Not implemented: the soft form, which uses losses instead of accuracies, and subword
embeddings.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..constraints import Count, OpenShare, Share, checked
from .contract import Adaptation, ModelOutputs, Objective, Row
from .frequency_masking import word_number
from .losses import predicted_tokens, predictions
from .masked_language_modeling import masked_lm
from .token_ids import TokenIds

_KEPT_SHARE = 0.2  # share of the old probabilities that an update keeps
_LEAST_CHANCE = 0.005  # lowest probability before scaling


@checked
def adaptive_masked_lm(
    ids: TokenIds,
    rate: OpenShare = 0.15,
    mask_share: Share = 0.8,
    random_share: Share = 0.1,
    every: Count = 200,
    framed: bool = True,
) -> Objective:
    """Masked language modeling that masks words more often if the model predicts them badly (AMLM).

        text                                    the cat sat on the mat
        chances in percent, at first             15  15  15 15  15  15
        after the model learned "the" and "on"    8  25  22  5   8  22

    Every word of the vocabulary has its own masking probability. Every `every` steps, it moves four
    fifths of the way to rate (1 - a). Here, a is the model's accuracy on this word in these steps,
    with half a correct and half a wrong prediction added. A word that was not masked has a = 1/2.
    Probabilities are then raised to at least 0.005 and scaled to a mean of `rate`. They stay the
    same if the steps have no labels, for example while a mixture trains other members.

    The probabilities of each document are scaled to a mean of `rate`. In evaluation, `pretrax show`
    and SeqIO tasks, every word is masked at `rate`, so held-out losses can be compared with
    `masked_lm` with selection="bernoulli".

    Args:
      ids: needs `mask`, and `cls` and `sep` for the frame; only text tokens are chosen.
      rate: mean probability that a token is chosen; tokens are chosen independently.
      mask_share, random_share: shares of the chosen tokens that are replaced by the mask and by
        random text. The other chosen tokens stay unchanged.
      every: number of steps between updates of the probabilities.
      framed: put `cls` before each document and `sep` after it.

    The run logs the lowest and the highest probability. For a falling rate, the paper's best
    setting, use `annealed`.

    Raises ValueError if mask_share and random_share add up to more than 1.

    >>> adaptive_masked_lm(ids).lengths(510)
    {'inputs': 512, 'labels': 131}
    """
    objective = masked_lm(ids, rate, mask_share, random_share, selection="bernoulli", framed=framed)
    first, last = ids.text
    adaptation = Adaptation(
        init=functools.partial(_initial, last - first, rate),
        chances=functools.partial(_chances, ids.text),
        measure=functools.partial(_answers, ids.text),
        update=functools.partial(_updated, rate, every),
        summary=_extremes,
    )
    return objective._replace(adaptation=adaptation)


class _Words(NamedTuple):
    """Masking probability of each text id, and its labels since the last update."""

    chances: Any  # f32[W]
    answers: "_Answers"


class _Answers(NamedTuple):
    """Label counts of each text id."""

    labels: Any  # i32[W] number of labels
    right: Any  # i32[W] number of correct predictions


def _initial(words: int, rate: float) -> _Words:
    zeros = jnp.zeros(words, jnp.int32)
    return _Words(jnp.full(words, rate, jnp.float32), _Answers(zeros, zeros))


def _chances(text: tuple[int, int], state: _Words, rows: Row):
    whole = jnp.clip(jnp.round(state.chances * 2.0**16), 1, 2**16 - 1).astype(jnp.int32)
    return whole[word_number(text, rows.tokens)]


def _answers(text: tuple[int, int], outputs: ModelOutputs, batch) -> _Answers:
    tokens, _, weights = predictions(batch)
    counts = weights > 0
    right = counts & (predicted_tokens(outputs, batch) == tokens)
    zeros = jnp.zeros(text[1] - text[0], jnp.int32)
    word = word_number(text, tokens)
    return _Answers(*(zeros.at[word].add(x.astype(jnp.int32)) for x in (counts, right)))


def _updated(rate: float, every: int, state: _Words, answers: _Answers, step) -> _Words:
    so_far = jax.tree.map(jnp.add, state.answers, answers)
    updated = _Words(
        updated_chances(state.chances, so_far.labels, so_far.right, rate),
        jax.tree.map(jnp.zeros_like, so_far),
    )
    accumulated = _Words(state.chances, so_far)
    due = (step % every == 0) & jnp.any(so_far.labels > 0)  # a mixture may train other members
    return jax.tree.map(functools.partial(jnp.where, due), updated, accumulated)


def _extremes(state: _Words) -> dict[str, Any]:
    return {"least_chance": jnp.min(state.chances), "greatest_chance": jnp.max(state.chances)}


def updated_chances(chances, labels, right, rate: float):
    """Returns f32[W]: the updated probabilities, given each word's labels and correct ones, i32[W].

    >>> labels, right = jnp.array([9, 9, 0]), jnp.array([9, 0, 0])
    >>> [round(float(x), 3) for x in updated_chances(jnp.full(3, 0.15), labels, right, 0.15)]
    [0.06, 0.24, 0.15]
    """
    accuracy = (right + 0.5) / (labels + 1.0)
    new = _KEPT_SHARE * chances + (1 - _KEPT_SHARE) * rate * (1 - accuracy)
    new = jnp.maximum(new, _LEAST_CHANCE)
    return new * (rate / jnp.mean(new))
