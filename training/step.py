"""One training step, as pure functions: corrupt, weigh, differentiate, update.

The step is given raw rows. Corruption, arrangement, the model, the loss and the update are one
jitted program: the host ships token ids, and every epoch draws new noise.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import PartitionSpec as P

from objectives import Objective, Row, RowGroup, TokenIds, batched, members_of
from objectives.layouts import LAYOUTS
from training.mesh import BATCH
from training.state import State


class Recipe(NamedTuple):
    """What is fixed for a whole run; a static argument of the step."""

    objective: Objective
    model: object  # init, apply, layout, heads, flops: see `models.Model`
    ids: TokenIds
    groups: tuple[RowGroup, ...]
    optimizer: optax.GradientTransformation
    microbatches: int = 1
    z_loss: float = 0.0


def check_recipe(recipe: Recipe) -> Recipe:
    """Raises ValueError when the objective asks for what the model or the batch has not."""
    missing = [head for head in recipe.objective.heads if head not in recipe.model.heads]
    if missing:
        raise ValueError(
            f"The objective needs the heads {missing}, the model offers {recipe.model.heads}: "
            "choose a model that has them."
        )
    if recipe.objective.couples_rows and (recipe.microbatches > 1 or len(recipe.groups) > 1):
        raise ValueError(
            "The objective's loss couples the rows of a batch, which microbatches and row groups "
            f"would take apart: got {recipe.microbatches} microbatches and {len(recipe.groups)} "
            "row groups, expected one of each."
        )
    return recipe


def train_step(recipe: Recipe, seed_key, state: State, rows: Sequence[Row]) -> tuple[State, dict]:
    """Takes one step. Returns the new state and the step's metrics:

    loss             in nats, as differentiated
    loss/TERM        mean of each term
    member_sums      f32[members]: the first term's sum over the rows of each member of a mixture
    member_weights   f32[members]: and its weight
    useful           share of the stacks' slots that hold a token
    gradient_norm    before clipping
    parameter_norm   after the update
    """
    noise_key, dropout_key = jax.random.split(jax.random.fold_in(seed_key, state.step))
    batches = make_batches(recipe, noise_key, rows)
    weights = term_weights(recipe, batches)
    loss, sums, grads = gradients(recipe, state.params, batches, weights, dropout_key)
    updates, opt_state = recipe.optimizer.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    first = next(iter(sums))
    metrics = {
        "loss": loss,
        "member_sums": sums[first],
        "member_weights": weights[first],
        "useful": useful_share(batches),
        "gradient_norm": optax.tree.norm(grads),
        "parameter_norm": optax.tree.norm(params),
    }
    for name in sums:
        metrics[f"loss/{name}"] = jnp.sum(sums[name]) / _total(weights[name])
    return State(state.step + 1, params, opt_state), metrics


def make_batches(recipe: Recipe, key, rows: Sequence[Row]) -> list[dict]:
    """Corrupts and arranges the rows of every group; each row has a key of its own."""
    batches, first = [], 0
    for group, group_rows in zip(recipe.groups, rows):
        number = first + jnp.arange(group_rows.member.size)
        first += group_rows.member.size
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, number)
        batches.append(arranged(recipe, group, keys, group_rows))
    return batches


def arranged(recipe: Recipe, group: RowGroup, keys, rows: Row) -> dict:
    """Raw rows to the features that the model eats."""
    features = batched(recipe.objective, group.features)(keys, rows)
    layout = LAYOUTS[recipe.model.layout]
    return jax.vmap(lambda row: layout.arrange(row, group.stacks, recipe.ids.bos))(features)


def term_weights(recipe: Recipe, batches: Sequence[dict]) -> dict:
    """{term: f32[members]}: what each term of the loss is divided by, over all rows of the step.

    Weights depend on the batch alone, so this runs the loss on blank outputs; XLA drops all of it
    but the weights.
    """
    total: dict = {}
    for batch in batches:
        for name, term in recipe.objective.loss(_Blank(batch, recipe.model), batch).items():
            total[name] = total.get(name, 0.0) + by_member(recipe, batch, term.weights)
    return total


class _Blank:
    """Outputs of the right shapes, up to widths, for a loss whose weights alone are wanted."""

    def __init__(self, batch, model):
        self.hidden = {"top": jnp.zeros(batch["decoder_input_tokens"].shape + (1,))}
        self._width = {"vocabulary": model.vocab_size}

    def head(self, name, hidden):
        return jnp.zeros(hidden.shape[:-1] + (self._width[name],))


def gradients(recipe: Recipe, params, batches, weights, key):
    """Loss, sums by term and member, and gradients, over all row groups and microbatches."""
    total = None
    for number, batch in enumerate(batches):
        more = _group_gradients(recipe, params, batch, weights, jax.random.fold_in(key, number))
        total = more if total is None else jax.tree.map(jnp.add, total, more)
    (loss, sums), grads = total
    return loss, sums, grads


def _group_gradients(recipe: Recipe, params, batch, weights, key):
    differentiate = functools.partial(
        jax.value_and_grad(weighted_loss, argnums=1, has_aux=True), recipe, params
    )
    if recipe.microbatches == 1:
        return differentiate(batch, weights, key)

    def add(total, numbered):
        number, microbatch = numbered
        more = differentiate(microbatch, weights, jax.random.fold_in(key, number))
        return jax.tree.map(jnp.add, total, more), None

    pieces = jax.tree.map(lambda x: _split_rows(x, recipe.microbatches), batch)
    piece = jax.tree.map(lambda x: x[0], pieces)
    nothing = jax.tree.map(jnp.zeros_like, jax.eval_shape(differentiate, piece, weights, key))
    total, _ = lax.scan(add, nothing, (jnp.arange(recipe.microbatches), pieces))
    return total


def _split_rows(x, pieces: int):
    """[B, …] to [pieces, B / pieces, …], every device keeping rows of its own in each piece."""
    x = x.reshape((x.shape[0] // pieces, pieces) + x.shape[1:]).swapaxes(0, 1)
    if jax.sharding.get_abstract_mesh().empty:
        return x
    return lax.with_sharding_constraint(x, P(None, BATCH))


def weighted_loss(recipe: Recipe, params, batch, weights, key):
    """These rows' share of the loss of the whole step, and the sums it is made of."""
    outputs = recipe.model.apply(params, batch, {"dropout": key})
    terms = recipe.objective.loss(outputs, batch)
    loss = sum(
        (recipe.z_loss if name == "z" else term.scale) * jnp.sum(term.sums) / _total(weights[name])
        for name, term in terms.items()
    )
    return loss, {name: by_member(recipe, batch, term.sums) for name, term in terms.items()}


def _total(weights_by_member):
    return jnp.maximum(jnp.sum(weights_by_member), 1.0)


def by_member(recipe: Recipe, batch, values_B):
    """Sums over the rows of each member of a mixture: f32[members]."""
    members = jnp.arange(len(members_of(recipe.objective)))
    mine = batch["member"][None, :] == members[:, None]
    return jnp.sum(jnp.where(mine, values_B[None, :], 0.0), axis=1)


def useful_share(batches: Sequence[dict]):
    """Non-padding places over all places that the model computes."""
    segments = [b[name] for b in batches for name in b if name.endswith("_segment_ids")]
    return sum(jnp.sum(s > 0) for s in segments) / sum(s.size for s in segments)


def evaluate_batch(recipe: Recipe, group: RowGroup, params, rows: Row, keys):
    """Sums and weights of the loss's first term over rows, without dropout: two scalars."""
    batch = arranged(recipe, group, keys, rows)
    outputs = recipe.model.apply(params, batch)
    term = next(iter(recipe.objective.loss(outputs, batch).values()))
    return jnp.sum(term.sums), jnp.sum(term.weights)
