"""A run before any parameter exists: lengths solved, everything checked against everything."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from pretrax.objectives import Objective, Row, TokenIds, plan
from pretrax.objectives.layouts import LAYOUTS
from pretrax.training.batches import GroupSchedule, schedule
from pretrax.training.mesh import replicated
from pretrax.training.packing import Packing, documents_of_a_row, plan_packing, resolve
from pretrax.training.state import State
from pretrax.training.step import Recipe, arranged, check_recipe, train_step


class Setup(NamedTuple):
    recipe: Recipe
    schedules: tuple[GroupSchedule, ...]  # of the recipe's row groups
    packing: Packing


def make_setup(
    *,
    objective: Objective,
    model,
    optimizer: optax.GradientTransformation,
    ids: TokenIds,
    sequence_lengths: Mapping[str, int] | Sequence[Mapping[str, int]],
    batch_size: int,
    microbatches: int = 1,
    data_shards: int = 1,
    packing: str | None = None,
    max_documents: int = 16,
    z_loss: float = 0.0,
    batch_shards: int = 1,
    longest: int | None = None,
) -> Setup:
    """Solves all lengths and checks that everything fits together: the place that says no.

    Arguments are those of `train.train`; `batch_shards` is over how many devices rows are spread,
    `longest` as in `training.data.Corpus`.
    Raises ValueError, saying what was got, what is expected and what to change.
    """
    shapes = [sequence_lengths] if isinstance(sequence_lengths, Mapping) else sequence_lengths
    policy, _ = resolve(objective, packing)
    layout, documents = LAYOUTS[model.layout], documents_of_a_row(policy, max_documents)
    groups = plan(objective, layout, ids, shapes, documents)
    recipe = check_recipe(Recipe(objective, model, ids, groups, optimizer, microbatches, z_loss))
    schedules = schedule(objective, groups, batch_size, data_shards)
    for group, scheduled in zip(groups, schedules):
        if scheduled.rows % (microbatches * batch_shards):
            raise ValueError(
                f"The row group {group.stacks} has {scheduled.rows} rows, which {microbatches} "
                f"microbatches over {batch_shards} devices do not divide: change batch_size, or "
                f"set data_shards to a multiple of {microbatches * batch_shards}."
            )
    packed = plan_packing(policy, objective, layout, groups)
    raw = min(limits.raw for limits in packed.limits.values())
    if longest is not None and longest > raw:
        raise ValueError(
            f"A document of this corpus may hold {longest} tokens and a row of the objective only "
            f"{raw}, which would cut it in two: raise sequence_lengths, or lower the corpus's limits "
            "(given_tokens and answer_tokens, longest_tokens, docstring_tokens and code_tokens)."
        )
    return Setup(recipe, schedules, packed)


def padded_vocabulary(ids: TokenIds, rows: int | None = None) -> int:
    """Rows of the embedding: ids rounded up to 128, so that they split evenly over devices.

    >>> padded_vocabulary(TokenIds(size=32100, text=(3, 32000)))
    32128

    Raises ValueError where `rows`, if they are given, are too few.
    """
    if rows is None:
        return -(-ids.size // 128) * 128
    if rows < ids.size:
        raise ValueError(
            f"vocabulary_rows = {rows} are fewer than the {ids.size} ids of the vocabulary: raise "
            "them, or leave them out."
        )
    return rows


def compiled_step(setup: Setup, seed: int, shapes: State, mesh: Mesh) -> Callable:
    """(state, rows) -> (state, metrics), jitted; the new state takes the old one's memory.

    The new state is spread as the old one, which `shapes` tells (`Abstract.shapes`): left to
    itself XLA may choose otherwise, and compile again for the next step.
    """
    step = functools.partial(train_step, setup.recipe, jax.random.key(seed))
    shardings = jax.tree.map(lambda x: x.sharding, shapes)
    return jax.jit(step, donate_argnums=0, out_shardings=(shardings, replicated(mesh)))


def abstract_rows(setup: Setup, sharding=None) -> tuple[Row, ...]:
    """Shapes of the rows that a step is given."""

    def array(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.int32, sharding=sharding)

    return tuple(
        Row(array(s.rows, g.row_length), array(s.rows, g.row_length), array(s.rows))
        for g, s in zip(setup.recipe.groups, setup.schedules)
    )


def abstract_batch(setup: Setup) -> dict:
    """Shapes of what the model eats of the first row group."""
    rows = abstract_rows(setup)[0]
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), rows.member.shape[0]))
    arrange = functools.partial(arranged, setup.recipe, setup.recipe.groups[0])
    return jax.eval_shape(arrange, keys, rows)
