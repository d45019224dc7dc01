"""The held-out evaluation of a run: as training makes it, and under another objective."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

from rich.console import Console

from .. import objectives
from ..data.corpus import Corpus
from ..data.packing import Packing, documents_of_a_row, plan_packing, resolve
from ..objectives import Objective, members_of
from ..objectives.layouts import LAYOUTS
from ..objectives.mixtures import longest
from .evaluation import Evaluator, Score, total_loss
from .planning import Plan, check_columns
from .reporting.console import print_task_scores
from .reporting.metrics import MetricsWriter
from .reporting.wall_time import WallTime
from .run import Run
from .step import Recipe, check_recipe


class Evaluation(NamedTuple):
    """The figures of one evaluation while a run trains."""

    scores: tuple[Score, ...]  # on held-out text
    tasks: dict[str, float]  # "task/NAME/METRIC" and "baseline/task/NAME/METRIC"

    @property
    def loss(self) -> float:
        """The loss that is trained, on held-out text: see `total_loss`."""
        return total_loss(self.scores)


def evaluator_of_training(
    plan: Plan,
    score_tasks: Callable[[dict], dict[str, float]],
    writer: MetricsWriter,
    console: Console,
    wall_time: WallTime,
) -> Callable[[int, dict], Evaluation]:
    """Returns (step, params) -> figures on held-out text and of `score_tasks`, which it writes."""
    heldout = heldout_evaluator(plan)

    def evaluate(step: int, params: dict) -> Evaluation:
        with wall_time.of("evaluation"):
            evaluation = Evaluation(tuple(heldout(params)), score_tasks(params))
        losses = {f"heldout/{s.name}": s.loss for s in evaluation.scores}
        baselines = {f"baseline/{s.name}": s.baseline for s in evaluation.scores}
        known = {name: x for name, x in baselines.items() if x is not None}
        writer.write(step, losses | known | evaluation.tasks)
        print_task_scores(console, evaluation.tasks, step)
        return evaluation

    return evaluate


def heldout_evaluator(plan: Plan) -> Evaluator:
    """Returns what scores parameters, sharded over the run's mesh, on its held-out text."""
    return Evaluator(
        plan.recipe,
        plan.packing,
        plan.mesh,
        plan.corpus.sources or (plan.corpus,),
        tokens=plan.run.heldout_tokens,
        steps=plan.run.steps,
        end_of_document=plan.end_of_document,
        member_sources=plan.corpus.member_sources,
    )


def evaluator_under(plan: Plan, objective: Objective, tokens: int, row_tokens: int) -> Evaluator:
    """Returns what scores the run's parameters under an objective that need not be its own, on so
    many `tokens` of held-out text.

    All rows are of raw length `row_tokens`, whatever the objective's members and the model are: two
    runs with one corpus have the same rows.

    Raises ValueError for an objective that the model or the corpus cannot have (`recipe_under`).
    """
    recipe, packing, end = recipe_under(plan, objective, row_tokens)
    run = dataclasses.replace(plan.run, heldout_tokens=tokens)
    all_texts = plan.corpus._replace(sources=(), member_sources=())
    under = plan._replace(
        run=run, corpus=all_texts, recipe=recipe, packing=packing, end_of_document=end
    )
    return heldout_evaluator(under)


def recipe_under(
    plan: Plan, objective: Objective, row_tokens: int
) -> tuple[Recipe, Packing, int | None]:
    """Returns the recipe of the run's model with another objective, the packing that this has by
    itself, and the id after every document.

    Raises ValueError where the layouts do not fit, the model lacks a head or positions, the
    vocabulary sentinels, or the corpus what the objective reads.
    """
    model = plan.recipe.model
    ids = plan.recipe.ids
    check_columns(plan.corpus, objective)
    layout = LAYOUTS[model.layout]
    needs = longest(layout.lengths(m.objective.lengths(row_tokens)) for m in members_of(objective))
    stacks = {name: slots for name, slots in needs.items() if name in ("encoder", "decoder")}
    if model.max_positions and max(stacks.values()) > model.max_positions:
        raise ValueError(
            f"Rows of {row_tokens} tokens need the slots {stacks}, and the model has positions for "
            f"{model.max_positions}: give fewer row_tokens."
        )
    policy, mark_ends = resolve(objective)
    most = documents_of_a_row(policy, Run.max_documents)
    (group,) = objectives.plan(objective, layout, ids, [stacks], most)
    group = group._replace(raw_lengths=(row_tokens,) * len(group.raw_lengths))
    recipe = check_recipe(plan.recipe._replace(objective=objective, groups=(group,)))
    packing = plan_packing(policy, objective, layout, [group])
    return recipe, packing, ids.eos if mark_ends else None


def bytes_per_token(plan: Plan) -> dict[str, float]:
    """Returns the mean bytes of a token in the held-out text of each member of the objective.

    They are nan for token ids without text.
    """
    corpora = plan.corpus.sources or (plan.corpus,)
    sizes = [bytes_per_token_of(corpus, plan.run.heldout_tokens) for corpus in corpora]
    members = members_of(plan.recipe.objective)
    sources = plan.corpus.member_sources or (0,) * len(members)
    return {member.name: sizes[source] for member, source in zip(members, sources)}


def bytes_per_token_of(corpus: Corpus, tokens: int) -> float:
    """Returns the mean bytes of a token in so many held-out `tokens` of a corpus."""
    codec = corpus.codec
    if codec is None:
        return float("nan")
    pieces = corpus.heldout(tokens)
    counts = [(len(codec.decode(p.tokens.tolist()).encode()), p.tokens.size) for p in pieces]
    return sum(b for b, _ in counts) / sum(n for _, n in counts)
