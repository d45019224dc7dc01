"""The held-out evaluation of a run during training, and under another objective."""

from collections.abc import Callable
from typing import NamedTuple

from .. import objectives
from ..data.corpus import Corpus
from ..data.packing import max_documents_per_row, plan_packing, resolve_packing
from ..objectives import Objective, members_of
from ..objectives.layouts import LAYOUTS
from ..objectives.mixtures import largest
from .evaluator import Evaluator
from .heldout_scores import Score, total_loss
from .planning import Plan
from .reporting.console import print_task_scores
from .reporting.reports import Reports
from .run import Run
from .run_checks import check_columns
from .step import check_requirements


class Evaluation(NamedTuple):
    """The scores of one evaluation during training."""

    scores: tuple[Score, ...]  # scores on held-out text
    tasks: dict[str, float]  # values of "task/NAME/METRIC" and "baseline/task/NAME/METRIC"

    @property
    def loss(self) -> float:
        """Returns the held-out value of the trained loss, see `total_loss`."""
        return total_loss(self.scores)


def prepare_evaluation(
    plan: Plan,
    score_tasks: Callable[[dict], dict[str, float]],
    reports: Reports,
) -> Callable[[int, dict], Evaluation]:
    """Reads and packs held-out text, and returns a function that evaluates parameters on it.

    The function (step, params) -> `Evaluation` also writes the scores as metrics.
    """
    heldout = Evaluator(plan, plan.run.heldout_tokens)

    def evaluate(step: int, params: dict) -> Evaluation:
        with reports.wall_time.measure("evaluation"):
            evaluation = Evaluation(tuple(heldout(params)), score_tasks(params))
        losses = {f"heldout/{s.name}": s.loss for s in evaluation.scores}
        baselines = {
            f"baseline/{s.name}": s.baseline for s in evaluation.scores if s.baseline is not None
        }
        reports.writer.write(step, losses | baselines | evaluation.tasks)
        print_task_scores(reports.console, evaluation.tasks, step)
        return evaluation

    return evaluate


def plan_under(plan: Plan, objective: Objective, row_tokens: int) -> Plan:
    """Returns the plan for evaluating a run under another objective.

    All rows have the raw length `row_tokens`, whatever the objective's members and the model are.
    Two runs with the same corpus therefore have the same rows. All members read the whole text.

    Raises ValueError if the layouts do not fit, or the model lacks a head or positions. Also raises
    ValueError if the vocabulary lacks sentinels, or the corpus lacks a column that the objective
    reads.
    """
    model = plan.recipe.model
    ids = plan.recipe.ids
    check_columns(plan.corpus, objective)
    layout = LAYOUTS[model.layout]
    needs = largest(layout.lengths(m.objective.lengths(row_tokens)) for m in members_of(objective))
    stacks = {name: slots for name, slots in needs.items() if name in ("encoder", "decoder")}
    if model.max_positions and max(stacks.values()) > model.max_positions:
        raise ValueError(
            f"Rows of {row_tokens} tokens need the slots {stacks}, but the model has only "
            f"{model.max_positions} positions: give fewer row_tokens."
        )
    policy, mark_ends = resolve_packing(objective)
    max_documents = max_documents_per_row(policy, Run.max_documents)
    (group,) = objectives.row_groups(objective, layout, ids, [stacks], max_documents)
    group = group._replace(raw_lengths=(row_tokens,) * len(group.raw_lengths))
    check_requirements(objective, model, (group,))
    end = ids.eos if mark_ends else None
    return Plan(
        corpus=plan.corpus._replace(sources=(), member_sources=()),
        mesh=plan.mesh,
        recipe=plan.recipe._replace(objective=objective, groups=(group,)),
        schedules=(),
        packing=plan_packing(policy, objective, layout, [group], end_of_document=end),
    )


def bytes_per_token(plan: Plan) -> dict[str, float]:
    """Returns the mean number of bytes of a token in each member's held-out text.

    The values are nan for token ids without text.
    """
    corpus = plan.corpus
    sizes = [bytes_per_token_of(text, plan.run.heldout_tokens) for text in corpus.texts]
    members = enumerate(members_of(plan.recipe.objective))
    return {member.name: sizes[corpus.source_of(number)] for number, member in members}


def bytes_per_token_of(corpus: Corpus, tokens: int) -> float:
    """Returns the mean number of bytes of a token in `tokens` held-out tokens of a corpus."""
    codec = corpus.codec
    if codec is None:
        return float("nan")
    pieces = corpus.heldout(tokens)
    counts = [(len(codec.decode(p.tokens.tolist()).encode()), p.tokens.size) for p in pieces]
    return sum(b for b, _ in counts) / sum(n for _, n in counts)
