"""`plan_run`: checks a run, opens its corpus and computes its lengths before training."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from ..data.corpus import Corpus
from ..data.packing import Packing, max_documents_per_row, plan_packing, resolve_packing
from ..inference.trained import check_modes
from ..models import Model
from ..objectives import Objective, Row, RowGroup, TokenIds, row_groups
from ..objectives.contract import build, with_corpus_classes
from ..objectives.layouts import LAYOUTS
from ..settings.run_directory import is_run
from .batches import Batches, GroupSchedule, group_schedules, member_of_step
from .checking import check_terms, check_user_code
from .devices.mesh import evaluation_mesh
from .processes import first_process_first
from .run import Run, padded_vocabulary, row_shapes
from .run_checks import (
    check_attention,
    check_columns,
    check_division,
    check_experts,
    check_longest,
    check_router,
    check_run,
    check_slots,
    check_sources,
    check_zeroed_token,
    warn_of_undivided,
)
from .saved.warm_start import check_source
from .step import Recipe, check_requirements, corrupt_and_arrange, recipe_of_member


class Plan(NamedTuple):
    """A checked run with its lengths, from which training and evaluation start."""

    corpus: Corpus
    mesh: Mesh
    recipe: Recipe  # run, objective, model, row groups and optimizer
    schedules: tuple[GroupSchedule, ...]  # the schedule of each row group of the recipe
    packing: Packing

    @property
    def run(self) -> Run:
        return self.recipe.run


def plan_evaluation(run: Run) -> Plan:
    """Returns the plan for evaluating a run, on any devices.

    Evaluation pads rows to divide over the devices, and does not need the kernels of fused
    attention.
    """
    return plan_run(run, mesh=evaluation_mesh(run.mesh), trains=False)


def plan_run(
    run: Run, corpus: Corpus | None = None, mesh: Mesh | None = None, trains: bool = True
) -> Plan:
    """Checks a run, builds its objective and model, and computes all lengths.

        plan = plan_run(run)

    Only opening the corpus may write files. A model of your own with up to
    `checking.MAX_PARAMETERS` parameters is checked on a small batch.

    Args:
      corpus: the corpus of the run, if it is open already. None: it is opened.
      mesh: the mesh of the devices. None: the run's own mesh.
      trains: whether the plan is for training. False: for evaluation, see `plan_evaluation`.

    Raises ValueError for settings that cannot work, and says what to change.
    """
    check_run(run)
    optimizer = run.optimizer(run.steps)  # may reject its settings before text is prepared
    mesh = run.mesh() if mesh is None else mesh
    corpus = _opened_corpus(run) if corpus is None else corpus
    objective = _checked_objective(run, corpus)
    model = run.model(padded_vocabulary(corpus.ids, run.vocabulary_rows), objective.facts.heads)
    policy, mark_ends = resolve_packing(objective, run.packing, run.mark_document_ends)
    groups = _row_groups(run, objective, model, corpus.ids, policy)
    if trains:
        check_attention(model, mesh)
        check_router(model, run)
        warn_of_undivided(model, mesh)
    check_experts(model, mesh)
    check_zeroed_token(model, corpus.ids)
    check_requirements(objective, model, groups)
    schedules = group_schedules(objective, groups, run.batch_size, run.data_shards, run.steps)
    if trains:
        check_division(run, groups, schedules, mesh)
        check_slots(model, groups, mesh)
    packing = plan_packing(
        policy,
        objective,
        LAYOUTS[model.layout],
        groups,
        weighted="weights" in corpus.columns,
        teacher=objective.facts.teacher,
        end_of_document=corpus.ids.eos if mark_ends else None,
    )
    check_longest(corpus, packing)
    recipe = Recipe(
        objective=objective,
        model=model,
        ids=corpus.ids,
        groups=groups,
        optimizer=optimizer,
        run=run,
    )
    check_user_code(recipe, packing.weighted)
    plan = Plan(corpus, mesh, recipe, schedules, packing)
    if len({member.objective.loss for member in objective.facts.members}) > 1:
        check_terms(recipe, abstract_batch(plan))  # the terms of all members must fit together
    return plan


def _opened_corpus(run: Run) -> Corpus:
    """Opens the corpus. The first start may train the vocabulary and tokenize the text here."""
    if run.initial_run is not None and not is_run(run.run_dir):
        check_source(run.initial_run)
    return first_process_first(lambda: run.corpus(run.run_dir))


def _checked_objective(run: Run, corpus: Corpus) -> Objective:
    """Returns the objective for the ids and classes of a corpus, which has what it reads."""
    objective = build(run.objective, corpus.ids)
    check_modes(objective.facts.prompt_forms)
    check_columns(corpus, objective)
    check_sources(corpus, objective)
    return with_corpus_classes(objective, len(corpus.classes))


def _row_groups(
    run: Run, objective: Objective, model: Model, ids: TokenIds, policy: str
) -> tuple[RowGroup, ...]:
    lengths = run.sequence_lengths
    most = max_documents_per_row(policy, run.max_documents)
    try:
        return row_groups(objective, LAYOUTS[model.layout], ids, row_shapes(lengths), most)
    except ValueError as error:  # the message does not name the setting
        raise ValueError(
            f'{error}\nThe run has --gin.training.Run.sequence_lengths="{lengths!r}".'
        ) from None


def with_steps(plan: Plan, steps: int) -> Plan:
    """Returns the plan of the same run with another number of steps.

    Rates and factors that follow training progress are spread over these steps.
    The optimizer does not change.
    """
    return plan._replace(
        recipe=plan.recipe._replace(run=dataclasses.replace(plan.run, steps=steps)),
        schedules=tuple(schedule._replace(steps=steps) for schedule in plan.schedules),
    )


def plan_of_step(plan: Plan, step: int) -> Plan:
    """Returns the plan of a step: of one member if `Facts.separate_steps`, else the plan itself.

    State and metrics have the shapes of the whole mixture.
    """
    number = member_of_step(plan.schedules, step)
    if number is None:
        return plan
    return plan._replace(
        recipe=recipe_of_member(plan.recipe, number),
        schedules=tuple(each.restricted_to(number) for each in plan.schedules),
    )


def open_batches(plan: Plan) -> Batches:
    return Batches(
        [text.open_shard for text in plan.corpus.texts],
        plan.recipe.groups,
        plan.schedules,
        data_shards=plan.run.data_shards,
        mesh=plan.mesh,
        packing=plan.packing,
        member_sources=plan.corpus.member_sources,
    )


def abstract_rows(plan: Plan, sharding=None) -> tuple[Row, ...]:
    """Returns the shapes of the rows that a step takes."""

    def array(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.int32, sharding=sharding)

    def rows(group, scheduled):
        text = array(scheduled.rows, group.row_length)
        row = Row(text, text, array(scheduled.rows))
        columns = plan.packing.columns.items()
        return row._replace(**{name: array(*text.shape, *shape) for name, shape in columns})

    return tuple(map(rows, plan.recipe.groups, plan.schedules))


def abstract_batch(plan: Plan) -> dict:
    """Returns the shapes of the model's batch of the first row group."""
    rows = abstract_rows(plan)[0]
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), rows.member.shape[0]))
    arrange = functools.partial(corrupt_and_arrange, plan.recipe, plan.recipe.groups[0])
    return jax.eval_shape(arrange, keys, rows)
