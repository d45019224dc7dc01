"""Held-out loss under any objective that a run's model can compute, its own or another.

The text and the rows are the same for every run of a corpus, and noise depends on the row's number
alone. What a model was not trained for it may do badly: that is what the figures measure.
"""

import math
import statistics
import warnings
from collections.abc import Callable, Sequence
from typing import Annotated

from annotated_types import MinLen

from ...constraints import Count, checked
from ...inference.prompting.windows import BeyondTraining
from ...objectives import Objective, TokenIds
from ...objectives.catalogue import CATALOGUE, find
from ...objectives.mixtures import longest
from ...training.evaluation import Evaluator, Score
from ...training.heldout import evaluator_under, recipe_under
from ...training.planning import Plan
from ...training.settings.configuration import read_fields
from ...training.settings.run import longest_rows
from ..figures import HIGHER, LOWER, NATS, Figure
from .subject import Subject

TOKENS = 20_000  # of held-out text
ROW_TOKENS = 120  # with its special tokens a row fits the 128 slots of the small runs


@checked
def loss_under(
    subject: Subject,
    *,
    objectives: Annotated[Sequence[str], MinLen(1)],
    tokens: Count = TOKENS,
    row_tokens: Count = ROW_TOKENS,
) -> list[Figure]:
    """Held-out loss under each of these objectives, nats per target.

        loss_under(subject, objectives=["causal_lm", "prefix_lm"])
        -> [Figure("loss_under", …), Figure("loss_under/causal_lm", …),
        Figure("loss_under/prefix_lm", …)]

    The first figure is the share of the baseline's nats that the model saves, on average over the
    objectives: losses of different objectives have no mean. Where it is worse than the baseline the
    share is below 0. A model that cannot compute one of them has no mean, nan, for it would be of
    others than another model's; the note has which and why. The baseline knows frequencies alone,
    as in `training.evaluation`.

    Args:
      objectives: names of gin_configs/objectives, or short ones ("mlm").
      tokens: of held-out text.
      row_tokens: of each row, before corruption.

    Raises ValueError for a name that is none, or where the model computes none of the
    objectives.
    """
    plan, names = subject.plan, [*map(find, objectives)]
    refused = {name: why for name in names if (why := _refusal(plan, name, row_tokens))}
    if len(refused) == len(names):
        evaluator(plan, names[0], tokens=tokens, row_tokens=row_tokens)  # which raises why
    figures, gains = [], []
    for name in names:
        if name in refused:
            continue
        objective = _builder(name)(plan.recipe.ids)
        _warn_beyond_training(plan, objective, row_tokens)
        evaluate = evaluator_under(plan, objective, tokens, row_tokens)
        scores = [score for score in evaluate(subject.saved.params) if not score.metric]
        gains.append(statistics.fmean(score.gain for score in scores))
        figures += _figures(name, scores)
    mean = math.nan if refused else statistics.fmean(gains)
    unit = "share of the baseline's nats saved"
    note = " ".join(f"No mean: it cannot compute {name}. {why}" for name, why in refused.items())
    return [Figure("loss_under", mean, unit, HIGHER, 0.0, note), *figures]


def evaluator(
    plan: Plan, name: str, *, tokens: int = TOKENS, row_tokens: int = ROW_TOKENS
) -> Evaluator:
    """Returns what scores a run's parameters on held-out text under the objective of a name.

    Raises ValueError, naming those that can be, for one that its model cannot compute.
    """
    name = find(name)
    builder = _builder(name)
    try:
        return evaluator_under(plan, builder(plan.recipe.ids), tokens, row_tokens)
    except ValueError as error:
        able = ", ".join(computable(plan, row_tokens)) or "none of the catalogue"
        raise ValueError(
            f"The model of {plan.run.run_dir}, of layout {plan.recipe.model.layout!r}, cannot "
            f"compute {name}. {error}\nIt can compute: {able}."
        ) from error


def computable(plan: Plan, row_tokens: int = ROW_TOKENS) -> list[str]:
    """Returns the names of the objectives that a run's model can compute; nothing is run."""
    return [name for name in CATALOGUE if not _refusal(plan, name, row_tokens)]


def _refusal(plan: Plan, name: str, row_tokens: int) -> str:
    """Returns why a run's model cannot compute an objective; "" where it can."""
    builder = _builder(name)
    try:
        recipe_under(plan, builder(plan.recipe.ids), row_tokens)
    except ValueError as error:
        return str(error)
    return ""


def _builder(name: str) -> Callable[[TokenIds], Objective]:
    return read_fields([f"objectives/{name}.gin"])["objective"]


def _warn_beyond_training(plan: Plan, objective: Objective, row_tokens: int) -> None:
    """Warns of `BeyondTraining` where the rows of an objective are longer than those of
    training."""
    recipe, *_ = recipe_under(plan, objective, row_tokens)
    trained = longest_rows(plan.run.sequence_lengths)
    for stack, slots in longest(group.stacks for group in recipe.groups).items():
        if slots > trained.get(stack, slots):
            remedy = "Give fewer row_tokens."
            warnings.warn(BeyondTraining(stack, slots, trained[stack], remedy), stacklevel=2)


def _figures(name: str, scores: Sequence[Score]) -> list[Figure]:
    """A figure for each term of each member; an objective of a single one has no parts."""
    members = len({score.member for score in scores}) > 1
    terms = len({score.term for score in scores}) > 1
    found = []
    for score in scores:
        parts = ["loss_under", name, *[score.member] * members, *[score.term] * terms]
        figure = Figure("/".join(parts), score.loss, NATS, LOWER, score.baseline)
        found.append(figure)
    return found
