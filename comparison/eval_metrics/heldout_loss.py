"""Held-out loss under any objective that the model of a run can compute.

Text and rows are the same for every run of a corpus. Noise depends only on the row number.
"""

import contextlib
import functools
import math
import statistics
import warnings
from collections.abc import Callable, Sequence
from typing import Annotated

from annotated_types import MinLen

from ...constraints import Count, checked
from ...inference.prompting.windows import BeyondTraining
from ...objectives import Objective, members_of
from ...objectives.catalog import CATALOG, find
from ...objectives.mixtures import largest
from ...training.evaluator import Evaluator
from ...training.heldout_evaluation import plan_under
from ...training.heldout_scores import Score
from ...training.planning import Plan
from ...training.run import longest_rows
from ...training.run_configuration import read_fields
from ..figures import HIGHER, LOWER, NATS, NATS_SAVED, Figure
from .subject import Subject

FIGURES_VERSION = 1  # see `kept_figures.version_of`
TOKENS = 20_000  # number of tokens of held-out text
ROW_TOKENS = 120  # With its special tokens, a row fits into the 128 slots of the small runs.
TRAINED_ON_NOISE = "The model was trained on this kind of noise"  # start of a note of `loss_under`


@checked
def loss_under(
    subject: Subject,
    *,
    objectives: Annotated[Sequence[str], MinLen(1)],
    tokens: Count = TOKENS,
    row_tokens: Count = ROW_TOKENS,
) -> list[Figure]:
    """Held-out loss under each of these objectives, in nats per target.

        loss_under(subject, objectives=["causal_lm", "prefix_lm"])
        # loss_under, loss_under/causal_lm, loss_under/prefix_lm

    The first figure is the share of the baseline's nats that the model saves, averaged over the
    objectives. If the model cannot compute an objective, the average is nan, and the note gives the
    objective and the reason.

    The note also names the objectives with the run's own kind of noise, at any rate, where the run
    has an advantage. A combined noise, such as BART's, is a separate kind. The baseline is that of
    `training.evaluator`. Terms without a baseline do not count.

    Args:
      objectives: names of gin_configs/objectives, or short names ("mlm").
      row_tokens: number of tokens of each row, before corruption.

    Raises ValueError for an unknown objective, or if the model cannot compute any of them.
    """
    plan = subject.plan
    names = [*map(find, objectives)]
    plans: dict[str, Plan] = {}
    refused: dict[str, str] = {}
    for name in names:
        try:
            plans[name] = _plan_for(plan, name, row_tokens)
        except ValueError as error:
            refused[name] = str(error)
    if not plans:
        plan_for(plan, names[0], row_tokens)  # raises ValueError with the reason
    trained = noises_of(plan.recipe.objective)
    trained_on = []
    figures = []
    gains = []
    for name in (name for name in names if name not in refused):
        trained_on += [name] if trained & noises_of(plans[name].recipe.objective) else []
        _warn_beyond_training(plans[name])
        evaluate = Evaluator(plans[name], tokens)
        scores = [score for score in evaluate(subject.saved.params) if not score.metric]
        if shares := [score.gain for score in scores if score.gain is not None]:
            gains.append(statistics.fmean(shares))
        figures += _figures(name, scores)
    mean = math.nan if refused or not gains else statistics.fmean(gains)
    notes = [f"No mean: it cannot compute {name}. {why}" for name, why in refused.items()]
    if trained_on:
        notes.append(f"{TRAINED_ON_NOISE} ({', '.join(trained_on)}).")
    note = " ".join(notes)
    return [Figure("loss_under", mean, NATS_SAVED, HIGHER, 0.0, note), *figures]


def plan_for(plan: Plan, name: str, row_tokens: int = ROW_TOKENS) -> Plan:
    """Returns the plan for evaluating a run under an objective of the catalog, see `plan_under`.

    Raises ValueError, with the objectives that the model can compute, if it cannot compute this
    one.
    """
    name = find(name)
    try:
        return _plan_for(plan, name, row_tokens)
    except ValueError as error:
        names = ", ".join(computable(plan, row_tokens)) or "none of the catalog"
        raise ValueError(
            f"The model of {plan.run.run_dir}, of layout {plan.recipe.model.layout!r}, cannot "
            f"compute {name}. {error}\nIt can compute: {names}."
        ) from error


def noises_of(objective: Objective) -> set[tuple]:
    """Returns the kinds of noise of an objective's members, as names of corruption functions.

    Function-valued settings are part of a kind; rates are not.
    """
    return {_functions(member.objective.corrupt) for member in members_of(objective)}


def _functions(function: Callable) -> tuple:
    """Returns the names of a function and of the functions among its bound arguments."""
    bound: list = []
    while isinstance(function, functools.partial):
        bound += [*function.args, *function.keywords.values()]
        # `jax.tree_util.Partial` wraps a functools.partial in another object.
        function = getattr(function.func, "fun", function.func)
    # An argument may be a tuple of functions.
    flat = [
        x for argument in bound for x in (argument if isinstance(argument, tuple) else [argument])
    ]
    return function.__module__, function.__qualname__, *map(_functions, filter(callable, flat))


def computable(plan: Plan, row_tokens: int) -> list[str]:
    """Returns the objectives that a run's model can compute, without running it."""
    names = []
    for name in CATALOG:
        with contextlib.suppress(ValueError):
            _plan_for(plan, name, row_tokens)
            names.append(name)
    return names


def _plan_for(plan: Plan, name: str, row_tokens: int) -> Plan:
    objective = read_fields([f"objectives/{name}.gin"])["objective"](plan.recipe.ids)
    return plan_under(plan, objective, row_tokens)


def _warn_beyond_training(plan: Plan) -> None:
    trained = longest_rows(plan.run.sequence_lengths)
    for stack, slots in largest(group.stacks for group in plan.recipe.groups).items():
        if slots > trained.get(stack, slots):
            message = BeyondTraining(stack, slots, trained[stack], "Give fewer row_tokens.")
            warnings.warn(message, stacklevel=2)


def _figures(name: str, scores: Sequence[Score]) -> list[Figure]:
    members = len({score.member for score in scores}) > 1
    terms = len({score.term for score in scores}) > 1
    return [
        Figure(
            "/".join(["loss_under", name, *[score.member] * members, *[score.term] * terms]),
            score.loss,
            NATS,
            LOWER,
            score.baseline,
        )
        for score in scores
    ]
