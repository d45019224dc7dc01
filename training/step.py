"""One training step, as pure functions: corrupt, compute the loss, differentiate, update.

The step takes raw rows. Corruption, arrangement, the model, the loss and the update are one
jitted program: the host ships token ids, and every epoch draws new noise.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import PartitionSpec as P

from ..models import Model, Outputs
from ..models.heads import builders_with, check_heads
from ..objectives import Objective, Row, RowGroup, Term, TokenIds, batched, members_of
from ..objectives.catalog import SMALL_RUNS
from ..objectives.layouts import LAYOUTS
from ..objectives.streams import named
from .devices.mesh import BATCH
from .router_terms import router_terms, router_weights
from .state import State, moved_average


class Recipe(NamedTuple):
    """The parts of a step that are fixed for a run; a static argument."""

    objective: Objective
    model: Model
    ids: TokenIds
    groups: tuple[RowGroup, ...]
    optimizer: optax.GradientTransformation
    microbatches: int = 1
    z_loss: float = 0.0
    load_balance_loss: float = 0.0
    router_z_loss: float = 0.0
    hardware_rng: bool = False
    ema_decay: float | None = None


def check_recipe(recipe: Recipe) -> Recipe:
    """Raises ValueError when the objective requires what the model or the rows do not have."""
    objective = recipe.objective
    model = recipe.model
    groups = recipe.groups
    _check_heads(objective, model)
    _check_texts(objective, model)
    if objective.facts.couples_rows and len(groups) > 1:
        raise ValueError(
            "The objective's loss couples the rows of a batch, which row groups would take apart: "
            f"got {len(groups)} row groups, expected one: give one sequence length."
        )
    streams = named({stream for group in groups for stream in group.features})
    stream_requirements = (requirement for stream in streams for requirement in stream.requires)
    for requirement in (*objective.facts.requires, *stream_requirements):
        if missing := requirement(model, groups):
            raise ValueError(missing)
    return recipe


def _check_heads(objective: Objective, model: Model) -> None:
    missing = [head for head in objective.facts.heads if head not in model.heads]
    if missing:
        check_heads(objective.facts.heads, model.heads)
        able = builders_with(objective.facts.heads)[:1]
        such = (f", such as models.{one}, as --gin_file=runs/{SMALL_RUNS[one]}.gin" for one in able)
        raise ValueError(
            f"The objective needs the heads {missing}, the model offers "
            f"{model.heads or 'none of them'}: choose a model that has them{''.join(such)}."
        )


def _check_texts(objective: Objective, model: Model) -> None:
    texts = model.texts
    parts = objective.facts.rows.num_parts
    if None not in (texts, parts) and texts != parts:
        raise ValueError(
            f"The objective's documents have {parts} texts, the model is one of {texts}, whose "
            "towers would read texts of each other: set --gin.models.two_towers.texts="
            f"{parts}."
        )


def count_text_tokens(rows: Sequence[Row], ids: TokenIds) -> Any:
    """Returns i32[]: the tokens of text in rows, on the host or a device, without ends of
    documents, which some objectives have in their rows and others add."""
    return sum(((one.segments > 0) & (one.tokens != ids.eos)).sum() for one in rows)


def train_step(
    recipe: Recipe,
    seed_key,
    state: State,
    rows: Sequence[Row],
    spread: Callable[[Any], Any] = lambda tree: tree,
) -> tuple[State, dict]:
    """Takes one step. `spread` shards what has the parameters' shapes as they are updated.

    Returns the new state and the step's metrics:

    loss             in nats, as differentiated
    loss/TERM        mean of each term; metric/TERM of one that is not part of the loss
    z_loss/TERM      the z-loss of a term, in a run that has one
    member_terms     {TERM: Term}, with sums and weights f32[members] over the rows of each member
    useful           share of the stacks' slots that hold a token
    text_tokens      tokens of text in the rows, before corruption, without ends of documents
    adaptation/NAME  of the state after the step, where the noise adapts to the model
    gradient_norm    before clipping
    parameter_norm   after the update
    """
    noise_key, dropout_key = jax.random.split(jax.random.fold_in(seed_key, state.step))
    if recipe.hardware_rng:
        drawn = jax.random.bits(dropout_key, (4,), jnp.uint32)
        dropout_key = jax.random.wrap_key_data(drawn, impl="rbg")
    adaptation = recipe.objective.adaptation
    if adaptation:
        rows = [one._replace(chances=adaptation.chances(state.adaptation, one)) for one in rows]
    batches = make_batches(recipe, noise_key, rows)
    weights = term_weights(recipe, batches)
    loss, seen, grads = gradients(recipe, state.params, batches, weights, state.step, dropout_key)
    grads = spread(grads)
    params = spread(state.params)
    updates, opt_state = recipe.optimizer.update(grads, state.opt_state, params)
    params = spread(optax.apply_updates(params, updates))
    metrics = {
        "loss": loss,
        "member_terms": seen.terms,
        "useful": useful_share(batches),
        "text_tokens": count_text_tokens(rows, recipe.ids),
        "gradient_norm": optax.tree.norm(grads),
        "parameter_norm": optax.tree.norm(params),
    }
    for name, term in seen.terms.items():
        total = _total(weights[name])
        metrics[f"{kind_of(term)}/{name}"] = jnp.sum(term.sums) / total
        if term.z_losses is not None:
            metrics[f"z_loss/{name}"] = jnp.sum(term.z_losses) / total
    taken = state.step + 1
    adapted = None
    if adaptation:
        adapted = adaptation.update(state.adaptation, seen.counts, taken)
        summary = adaptation.summary(adapted)
        metrics |= {f"adaptation/{name}": value for name, value in summary.items()}
    ema = None
    if recipe.ema_decay is not None:
        ema = moved_average(state.ema, params, recipe.ema_decay, taken)
    return State(taken, params, opt_state, adapted, ema), metrics


def kind_of(term: Term) -> str:
    """Returns the prefix of a term's metric: "loss", or "metric" if it is not part of the loss."""
    return "metric" if term.scale is None else "loss"


def make_batches(recipe: Recipe, key, rows: Sequence[Row]) -> list[dict]:
    """Corrupts and arranges the rows of every group; each row has its own key."""
    batches = []
    first = 0
    for group, group_rows in zip(recipe.groups, rows):
        number = first + jnp.arange(group_rows.member.size)
        first += group_rows.member.size
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, number)
        # Whole rows on every device, also where the model has their slots in shards: corruption
        # needs no communication then.
        batch = arranged(recipe, group, keys, group_rows)
        batches.append(jax.tree.map(functools.partial(_sharded, spec=P(BATCH)), batch))
    return batches


def _sharded(x, spec: P):
    """Returns an array with this sharding, where there is a mesh."""
    if jax.sharding.get_abstract_mesh().empty:
        return x
    return lax.with_sharding_constraint(x, spec)


def arranged(recipe: Recipe, group: RowGroup, keys, rows: Row) -> dict:
    """Returns the model's features of raw rows."""
    features = batched(recipe.objective, group.features, group.max_documents)(keys, rows)
    arrange = LAYOUTS[recipe.model.layout].arrange
    bos = recipe.ids.bos
    return jax.vmap(lambda row: arrange(row, group.stacks, bos, group.max_documents))(features)


def term_weights(recipe: Recipe, batches: Sequence[dict]) -> dict:
    """Returns {term: f32[members]}: the divisor of each term, over all rows of the step."""
    total: dict = {}
    for batch in batches:
        terms = recipe.objective.loss(batch).terms
        weights = {name: term.weights for name, term in terms.items()} | router_weights(batch)
        for name, weights_B in weights.items():
            total[name] = total.get(name, 0.0) + by_member(recipe, batch, weights_B)
    return total


def _arrays(outputs: Outputs):
    return outputs.hidden, outputs.routing


class Seen(NamedTuple):
    """What a step sees of its rows beside their loss, as sums over them."""

    terms: dict[str, Term]  # with sums and weights f32[members]
    counts: Any  # of the objective's adaptation; None without one


def gradients(recipe: Recipe, params, batches, weights, step, key):
    """Returns loss, `Seen`, and gradients, over all row groups and microbatches."""
    total = None
    if recipe.microbatches == 1:
        group_gradients = _differentiated
    else:
        group_gradients = (
            _coupled_gradients if recipe.objective.facts.couples_rows else _summed_gradients
        )
    for number, batch in enumerate(batches):
        group_key = jax.random.fold_in(key, number)
        more = group_gradients(recipe, params, batch, weights, step, group_key)
        total = more if total is None else jax.tree.map(jnp.add, total, more)
    assert total is not None  # a recipe has a row group
    (loss, seen), grads = total
    return loss, seen, grads


def _differentiated(recipe: Recipe, params, batch, weights, step, key):
    def loss(params):
        outputs = recipe.model.apply(params, batch, {"dropout": key})
        return weighted_loss(recipe, outputs, batch, weights, step)

    return jax.value_and_grad(loss, has_aux=True)(params)


def _summed_gradients(recipe: Recipe, params, batch, weights, step, key):
    """Sums the gradients of one microbatch after another: the loss is a sum over rows."""

    def differentiate(numbered):
        number, microbatch = numbered
        own_key = jax.random.fold_in(key, number)
        return _differentiated(recipe, params, microbatch, weights, step, own_key)

    pieces = _microbatches(recipe, batch)
    first = jax.tree.map(lambda x: x[0], pieces)
    nothing = jax.tree.map(jnp.zeros_like, jax.eval_shape(differentiate, first))

    def add(total, piece):
        return jax.tree.map(jnp.add, total, differentiate(piece)), None

    return lax.scan(add, nothing, pieces)[0]


def _coupled_gradients(recipe: Recipe, params, batch, weights, step, key):
    """Gradients of a loss that is not a sum over rows, with one microbatch's activations at a time.

    First every microbatch's hidden states, and what its routers did; then the loss of all rows and
    its gradient with respect to these and the heads; then each microbatch again, to propagate that
    gradient to the parameters (Gao et al. 2021, arXiv:2101.06983).
    """
    pieces = _microbatches(recipe, batch)

    def hidden_states(params, numbered):
        number, microbatch = numbered
        dropout = {"dropout": jax.random.fold_in(key, number)}
        return _arrays(recipe.model.apply(params, microbatch, dropout))

    hidden = lax.map(lambda piece: hidden_states(params, piece), pieces)
    whole = jax.tree.map(_joined_rows, pieces[1])

    def loss(params, hidden):
        # Only the heads of this application are used; XLA removes the rest.
        outputs = recipe.model.apply(params, whole)
        states, routing = hidden
        # [M, L, B / M, …] -> [L, B, …]
        routing = jax.tree.map(jax.vmap(_joined_rows, in_axes=1), routing)
        outputs = outputs._replace(hidden=jax.tree.map(_joined_rows, states), routing=routing)
        return weighted_loss(recipe, outputs, whole, weights, step)

    (value, seen), (grads, hidden_grads) = jax.value_and_grad(loss, (0, 1), has_aux=True)(
        params, hidden
    )

    def add_gradient(total, piece):
        numbered, cotangents = piece
        _, pull_back = jax.vjp(lambda p: hidden_states(p, numbered), params)
        return jax.tree.map(jnp.add, total, pull_back(cotangents)[0]), None

    grads, _ = lax.scan(add_gradient, grads, (pieces, hidden_grads))
    return (value, seen), grads


def _microbatches(recipe: Recipe, batch):
    """Returns (their numbers, the batch as [microbatches, rows of each, …])"""
    count = recipe.microbatches

    def split(x):  # every device has its own rows in each microbatch
        x = x.reshape((x.shape[0] // count, count) + x.shape[1:]).swapaxes(0, 1)
        return _sharded(x, P(None, BATCH))

    return jnp.arange(count), jax.tree.map(split, batch)


def _joined_rows(x):
    """Reshapes [M, B / M, …] back to [B, …], as before `_microbatches`."""
    return x.swapaxes(0, 1).reshape((-1,) + x.shape[2:])


def weighted_loss(recipe: Recipe, outputs, batch, weights, step):
    """Returns these rows' share of the step's loss, and what else is `Seen` of them."""
    if recipe.z_loss:
        outputs = outputs._replace(z_loss=recipe.z_loss)
    terms = _terms(recipe, outputs, batch)
    loss = 0.0
    for name, term in terms.items():
        if term.scale is None:
            continue
        scale = term.scale(step) if callable(term.scale) else term.scale
        sums = term.sums if term.z_losses is None else term.sums + term.z_losses
        loss += scale * jnp.sum(sums) / _total(weights[name])
    unlabeled = {name: dataclasses.replace(term, labels=None) for name, term in terms.items()}
    terms = jax.tree.map(functools.partial(by_member, recipe, batch), unlabeled)
    adaptation = recipe.objective.adaptation
    return loss, Seen(terms, adaptation and adaptation.measure(outputs, batch))


def _terms(recipe: Recipe, outputs, batch) -> dict[str, Term]:
    routers = router_terms(
        outputs.routing, batch, balance=recipe.load_balance_loss, z=recipe.router_z_loss
    )
    return recipe.objective.loss(batch).scored(outputs) | routers


def _total(weights_by_member):
    """Returns the sum of a term's weights, and 1 for 0, where its sums are 0 as well."""
    total = jnp.sum(weights_by_member)
    return jnp.where(total > 0, total, 1.0)


def by_member(recipe: Recipe, batch, values_B):
    """Returns sums over the rows of each member of a mixture: f32[members]."""
    members = jnp.arange(len(members_of(recipe.objective)))
    mine = batch["member"][None, :] == members[:, None]
    return jnp.sum(jnp.where(mine, values_B[None, :], 0.0), axis=1)


def useful_share(batches: Sequence[dict]):
    """Returns the share of the model's slots that are not padding."""
    segments = [b[name] for b in batches for name in b if name.endswith("_segment_ids")]
    return sum(jnp.sum(s > 0) for s in segments) / sum(s.size for s in segments)
