"""Held-out loss under any objective that a run's model can compute, its own or another.

The text and the rows are the same for every run of a corpus, and noise depends on the row's number
alone.
"""

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
from ...objectives.mixtures import longest
from ...training.evaluation import Evaluator, Score
from ...training.heldout import evaluator_under, recipe_under
from ...training.planning import Plan
from ...training.run import longest_rows
from ...training.run_configuration import read_fields
from ..figures import HIGHER, LOWER, NATS, NATS_SAVED, Figure
from .subject import Subject

FIGURES_VERSION = 1  # see `kept_figures.version_of`
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
        # loss_under, loss_under/causal_lm, loss_under/prefix_lm

    The first figure is the share of the baseline's nats that the model saves, on average over the
    objectives: losses of different objectives have no mean. A model that cannot compute one of them
    has no mean, nan, for it would be of others than another model's; the note has which and why.
    It also names the objectives whose noise, at whatever rates, the run was trained on: it is at
    home there. A noise that several make together, as BART's or BERT's, is not its parts'.
    The baseline is that of `training.evaluation`; a term without one does not count.

    Args:
      objectives: names of gin_configs/objectives, or short ones ("mlm").
      tokens: of held-out text.
      row_tokens: of each row, before corruption.

    Raises ValueError for a name that is none, or where the model computes no objective.
    """
    plan = subject.plan
    names = [*map(find, objectives)]
    refused = {name: why for name in names if (why := _refusal(plan, name, row_tokens))}
    if len(refused) == len(names):
        evaluator(plan, names[0], tokens=tokens, row_tokens=row_tokens)  # which raises why
    trained = noises_of(plan.recipe.objective)
    home = []
    figures = []
    gains = []
    for name in (name for name in names if name not in refused):
        objective = _objective(plan, name)
        home += [name] if trained & noises_of(objective) else []
        _warn_beyond_training(plan, objective, row_tokens)
        evaluate = evaluator_under(plan, objective, tokens, row_tokens)
        scores = [score for score in evaluate(subject.saved.params) if not score.metric]
        if shares := [score.gain for score in scores if score.gain is not None]:
            gains.append(statistics.fmean(shares))
        figures += _figures(name, scores)
    mean = math.nan if refused or not gains else statistics.fmean(gains)
    notes = [f"No mean: it cannot compute {name}. {why}" for name, why in refused.items()]
    if home:
        notes.append(f"Home ground: it was trained on such noise ({', '.join(home)}).")
    note = " ".join(notes)
    return [Figure("loss_under", mean, NATS_SAVED, HIGHER, 0.0, note), *figures]


def evaluator(
    plan: Plan, name: str, *, tokens: int = TOKENS, row_tokens: int = ROW_TOKENS
) -> Evaluator:
    """Returns what scores a run's parameters on held-out text under the objective of a name.

    Raises ValueError, naming those that can be, for one that its model cannot compute.
    """
    name = find(name)
    try:
        return evaluator_under(plan, _objective(plan, name), tokens, row_tokens)
    except ValueError as error:
        able = ", ".join(computable(plan, row_tokens)) or "none of the catalog"
        raise ValueError(
            f"The model of {plan.run.run_dir}, of layout {plan.recipe.model.layout!r}, cannot "
            f"compute {name}. {error}\nIt can compute: {able}."
        ) from error


def noises_of(objective: Objective) -> set[tuple]:
    """Returns the names of the functions that corrupt rows, one for each kind of noise among an
    objective's members; settings that are no functions do not count."""
    return {_functions(member.objective.corrupt) for member in members_of(objective)}


def _functions(function: Callable) -> tuple:
    """Returns the name of a function, and those of the functions that it is given."""
    given: list = []
    while isinstance(function, functools.partial):
        given += [*function.args, *function.keywords.values()]
        # `jax.tree_util.Partial` hides a functools.partial in an object of its own.
        function = getattr(function.func, "fun", function.func)
    # Several functions may come as a tuple of them.
    flat = [one for x in given for one in (x if isinstance(x, tuple) else (x,))]
    return function.__module__, function.__qualname__, *map(_functions, filter(callable, flat))


def computable(plan: Plan, row_tokens: int = ROW_TOKENS) -> list[str]:
    """Returns the names of the objectives that a run's model can compute; nothing is run."""
    return [name for name in CATALOG if not _refusal(plan, name, row_tokens)]


def _refusal(plan: Plan, name: str, row_tokens: int) -> str:
    """Returns why a run's model cannot compute an objective; "" where it can."""
    try:
        recipe_under(plan, _objective(plan, name), row_tokens)
    except ValueError as error:
        return str(error)
    return ""


def _objective(plan: Plan, name: str) -> Objective:
    return read_fields([f"objectives/{name}.gin"])["objective"](plan.recipe.ids)


def _warn_beyond_training(plan: Plan, objective: Objective, row_tokens: int) -> None:
    recipe, *_ = recipe_under(plan, objective, row_tokens)
    trained = longest_rows(plan.run.sequence_lengths)
    for stack, slots in longest(group.stacks for group in recipe.groups).items():
        if slots > trained.get(stack, slots):
            message = BeyondTraining(stack, slots, trained[stack], "Give fewer row_tokens.")
            warnings.warn(message, stacklevel=2)


def _figures(name: str, scores: Sequence[Score]) -> list[Figure]:
    members = len({score.member for score in scores}) > 1
    terms = len({score.term for score in scores}) > 1
    return [
        Figure(
            "/".join(["loss_under", name, *[score.member] * members, *[score.term] * terms]),
            *(score.loss, NATS, LOWER, score.baseline),
        )
        for score in scores
    ]
