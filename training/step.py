"""One training step, as pure functions: corrupt, compute the loss, differentiate, update.

Corruption, arrangement, the model, the loss and the update are one jitted program. The host sends
only raw rows of token ids, and every epoch draws new noise.
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

from ..models import Model
from ..models.heads import builders_with, check_heads
from ..objectives import Objective, Row, RowGroup, Term, TokenIds, batched, members_of
from ..objectives.catalog import ARCHITECTURES
from ..objectives.contract import scale_at
from ..objectives.layouts import LAYOUTS
from ..objectives.static_lengths import group_of_member
from ..objectives.streams import streams_named
from ..objectives.token_weights import in_units
from .devices.mesh import BATCH
from .router_terms import router_terms, router_weights
from .run import Run
from .state import State, updated_ema


class Recipe(NamedTuple):
    """The parts of a step that are fixed for a run. The jitted step closes over them."""

    objective: Objective
    model: Model
    ids: TokenIds
    groups: tuple[RowGroup, ...]
    optimizer: optax.GradientTransformation
    run: Run  # weights of losses, number of steps and microbatches, …


def check_requirements(objective: Objective, model: Model, groups: Sequence[RowGroup]) -> None:
    """Raises ValueError if the model or the rows lack something that the objective requires."""
    _check_heads(objective, model)
    _check_texts(objective, model)
    if objective.facts.couples_rows and len(groups) > 1:
        raise ValueError(
            "The objective's loss couples the rows of a batch, but row groups would separate them: "
            f"got {len(groups)} row groups, expected one: give one sequence length."
        )
    streams = streams_named({stream for group in groups for stream in group.features})
    stream_requirements = (requirement for stream in streams for requirement in stream.requires)
    for requirement in (*objective.facts.requires, *stream_requirements):
        missing = requirement(model, groups)
        if not isinstance(missing, str | None):
            raise ValueError(
                f"The requirement {getattr(requirement, '__name__', requirement)} returned "
                f"{missing!r}, expected what is missing, as a str, or None: change it."
            )
        if missing:
            raise ValueError(missing)


def recipe_of_member(recipe: Recipe, number: int) -> Recipe:
    """Returns the recipe of steps whose rows all belong to one member of the mixture.

    The metrics have the shapes of the whole mixture.
    """
    objective = recipe.objective
    member = members_of(objective)[number].objective
    layout = LAYOUTS[recipe.model.layout]
    return recipe._replace(
        objective=objective._replace(
            lengths=member.lengths, corrupt=member.corrupt, loss=member.loss
        ),
        groups=tuple(
            group_of_member(objective, layout, group, number)
            for group in recipe.groups
            if number in group.members
        ),
    )


def _check_heads(objective: Objective, model: Model) -> None:
    missing = [head for head in objective.facts.heads if head not in model.heads]
    if missing:
        check_heads(objective.facts.heads, model.heads)
        example = "".join(
            f", such as models.{builder} (`pretrax train {ARCHITECTURES[builder].small_run}`)"
            for builder in builders_with(objective.facts.heads)[:1]
        )
        raise ValueError(
            f"The objective needs the heads {missing}, the model has "
            f"{model.heads or 'none of them'}: choose a model that has them{example}."
        )


def _check_texts(objective: Objective, model: Model) -> None:
    texts = model.texts
    parts = objective.facts.rows.num_parts
    if None not in (texts, parts) and texts != parts:
        raise ValueError(
            f"The objective's documents have {parts} texts, but the model has towers for {texts}, "
            "so that a tower would read another tower's text: set "
            f"--gin.models.two_towers.texts={parts}."
        )


def count_text_tokens(rows: Sequence[Row], ids: TokenIds) -> Any:
    """Returns the number of text tokens in rows, i32[]. The rows may be on the host or a device.

    Ends of documents do not count: some objectives have them in their rows, others add them later.
    """
    return sum(((row.segments > 0) & (row.tokens != ids.eos)).sum() for row in rows)


def train_step(
    recipe: Recipe,
    seed_key: jax.Array,
    state: State,
    rows: Sequence[Row],
    shard_updates: Callable[[Any], Any] = lambda tree: tree,
) -> tuple[State, dict]:
    """Takes one step.

    Args:
      seed_key: key of the run. Each step derives its own keys from it.
      rows: raw rows of each row group.
      shard_updates: shards trees of the parameters' shapes for the update of the parameters.

    Returns the new state and the step's metrics.

    - `loss`: the differentiated loss, in nats.
    - `loss/TERM`: mean of each term. It is `metric/TERM` if the term is not part of the loss.
    - `z_loss/TERM`: z-loss of a term, if the run has a z-loss.
    - `member_terms`: {TERM: Term}, with sums and weights f32[members] over each member's rows.
    - `non_padding_fraction`: fraction of the stacks' slots that are not padding.
    - `text_tokens`: number of text tokens before corruption, without ends of documents.
    - `adaptation/NAME`: summary of the adapted noise after the step, if noise adapts to the model.
    - `gradient_norm`: norm of the gradients before clipping.
    - `parameter_norm`: norm of the parameters after the update.
    """
    noise_key, dropout_key = jax.random.split(jax.random.fold_in(seed_key, state.step))
    if recipe.run.hardware_rng:
        drawn = jax.random.bits(dropout_key, (4,), jnp.uint32)
        dropout_key = jax.random.wrap_key_data(drawn, impl="rbg")
    adaptation = recipe.objective.adaptation
    if adaptation:
        rows = [row._replace(chances=adaptation.chances(state.adaptation, row)) for row in rows]
    batches = make_batches(recipe, noise_key, rows)
    weights = term_weights(recipe, batches)
    loss, sums, grads = gradients(recipe, state.params, batches, weights, state.step, dropout_key)
    grads = shard_updates(grads)
    params = shard_updates(state.params)
    updates, opt_state = recipe.optimizer.update(grads, state.opt_state, params)
    params = shard_updates(optax.apply_updates(params, updates))
    metrics = {
        "loss": loss,
        "member_terms": sums.terms,
        "non_padding_fraction": non_padding_fraction(batches),
        "text_tokens": count_text_tokens(rows, recipe.ids),
        "gradient_norm": optax.tree.norm(grads),
        "parameter_norm": optax.tree.norm(params),
    }
    for name, term in sums.terms.items():
        metrics[f"{metric_prefix(term)}/{name}"] = jnp.sum(term.sums) / weights[name]
        if term.z_losses is not None:
            metrics[f"z_loss/{name}"] = jnp.sum(term.z_losses) / weights[name]
    steps_taken = state.step + 1
    adapted = None
    if adaptation:
        adapted = adaptation.update(state.adaptation, sums.counts, steps_taken)
        summary = adaptation.summary(adapted)
        metrics |= {f"adaptation/{name}": value for name, value in summary.items()}
    ema = None
    if recipe.run.ema_decay is not None:
        ema = updated_ema(state.ema, params, recipe.run.ema_decay, steps_taken)
    return State(steps_taken, params, opt_state, adapted, ema), metrics


def metric_prefix(term: Term) -> str:
    """Returns the prefix of a term's metric: "loss", or "metric" if it is not part of the loss."""
    return "metric" if term.scale is None else "loss"


def make_batches(recipe: Recipe, key, rows: Sequence[Row]) -> list[dict]:
    """Corrupts and arranges the rows of every group; each row has its own key."""
    batches = []
    first = 0
    for group, group_rows in zip(recipe.groups, rows):
        row_numbers = first + jnp.arange(group_rows.member.size)
        first += group_rows.member.size
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, row_numbers)
        # Every device has whole rows, even if the model shards slots. Then corruption needs no
        # communication.
        batch = corrupt_and_arrange(recipe, group, keys, group_rows)
        batches.append(jax.tree.map(functools.partial(_sharded, spec=P(BATCH)), batch))
    return batches


def _sharded(x, spec: P):
    if jax.sharding.get_abstract_mesh().empty:
        return x
    return lax.with_sharding_constraint(x, spec)


def corrupt_and_arrange(recipe: Recipe, group: RowGroup, keys, rows: Row) -> dict:
    """Returns the model's batch of raw rows."""
    features = batched(recipe.objective, group.features, group.max_documents)(keys, rows)
    arrange = LAYOUTS[recipe.model.layout].arrange
    bos = recipe.ids.bos
    arranged = jax.vmap(lambda row: arrange(row, group.stacks, bos, group.max_documents))
    batch = arranged(features)
    return batch if rows.weights is None else in_units(batch)


def term_weights(recipe: Recipe, batches: Sequence[dict]) -> dict:
    """Returns {term: f32[]}: the divisor of each term, the sum of its weights over the step's rows.

    If the weights sum to 0, so do the term's losses, and the divisor is 1. Weights are summed first
    over the rows of each member, then over members.
    """
    sums: dict = {}
    for batch in batches:
        terms = recipe.objective.loss(batch).terms
        weights = {name: term.weights for name, term in terms.items()} | router_weights(batch)
        for name, weights_B in weights.items():
            sums[name] = sums.get(name, 0.0) + by_member(recipe, batch, weights_B)
    totals = {name: jnp.sum(weights) for name, weights in sums.items()}
    return {name: jnp.where(total > 0, total, 1.0) for name, total in totals.items()}


class StepSums(NamedTuple):
    """Sums over the rows of a step, in addition to the loss."""

    terms: dict[str, Term]  # the terms of the loss, with sums and weights f32[members]
    counts: Any  # what the objective's adaptation measures; None without adaptation


def gradients(recipe: Recipe, params, batches, weights, step, key):
    """Returns the loss, `StepSums` and the gradients over all row groups and microbatches."""
    if recipe.run.microbatches == 1:
        group_gradients = _batch_gradients
    elif recipe.objective.facts.couples_rows:
        group_gradients = _cached_gradients
    else:
        group_gradients = _accumulated_gradients
    loss_of = functools.partial(weighted_loss, recipe, weights, step)
    by_group = (
        group_gradients(recipe, loss_of, params, batch, jax.random.fold_in(key, number))
        for number, batch in enumerate(batches)
    )
    (loss, sums), grads = functools.reduce(_added, by_group)
    return loss, sums, grads


def _added(tree, other):
    return jax.tree.map(jnp.add, tree, other)


def _batch_gradients(recipe: Recipe, loss_of: Callable, params, batch, key):
    def loss(params):
        return loss_of(recipe.model.apply(params, batch, {"dropout": key}), batch)

    return jax.value_and_grad(loss, has_aux=True)(params)


def _accumulated_gradients(recipe: Recipe, loss_of: Callable, params, batch, key):
    """Accumulates the gradients of the microbatches of a loss that is a sum over rows."""

    def differentiate(numbered):
        number, microbatch = numbered
        microbatch_key = jax.random.fold_in(key, number)
        return _batch_gradients(recipe, loss_of, params, microbatch, microbatch_key)

    microbatches = _microbatches(recipe, batch)
    first = jax.tree.map(lambda x: x[0], microbatches)
    zeros = jax.tree.map(jnp.zeros_like, jax.eval_shape(differentiate, first))

    def accumulate(total, numbered):
        return _added(total, differentiate(numbered)), None

    return lax.scan(accumulate, zeros, microbatches)[0]


def _cached_gradients(recipe: Recipe, loss_of: Callable, params, batch, key):
    """Returns gradients of a loss that couples rows, with one microbatch's activations at a time.

    The method is gradient caching (Gao et al. 2021, arXiv:2101.06983), in three passes:
    1. Compute the hidden states and the routing of every microbatch.
    2. Compute the loss of all rows, and its gradients for the hidden states and for the heads.
    3. Run each microbatch again, to propagate the gradients of its hidden states to the parameters.
    """
    microbatches = _microbatches(recipe, batch)

    def states_and_routing(params, numbered):
        number, microbatch = numbered
        dropout = {"dropout": jax.random.fold_in(key, number)}
        outputs = recipe.model.apply(params, microbatch, dropout)
        return outputs.hidden, outputs.routing

    cached = lax.map(functools.partial(states_and_routing, params), microbatches)
    whole = jax.tree.map(_joined_rows, microbatches[1])

    def loss(params, cached):
        # Only the heads of this application are used; XLA removes the rest.
        outputs = recipe.model.apply(params, whole)
        states, routing = cached
        # [M, L, B / M, …] -> [L, B, …]
        routing = jax.tree.map(jax.vmap(_joined_rows, in_axes=1), routing)
        outputs = outputs._replace(hidden=jax.tree.map(_joined_rows, states), routing=routing)
        return loss_of(outputs, whole)

    (value, sums), (grads, cached_grads) = jax.value_and_grad(loss, (0, 1), has_aux=True)(
        params, cached
    )

    def accumulate(total, numbered_and_cotangents):
        numbered, cotangents = numbered_and_cotangents
        _, pull_back = jax.vjp(lambda p: states_and_routing(p, numbered), params)
        return _added(total, pull_back(cotangents)[0]), None

    grads, _ = lax.scan(accumulate, grads, (microbatches, cached_grads))
    return (value, sums), grads


def _microbatches(recipe: Recipe, batch):
    """Returns (numbers of the microbatches, the batch as [microbatches, rows of each, …])."""
    count = recipe.run.microbatches

    def split(x):  # each microbatch has rows of every device, so that no row changes its device
        x = x.reshape((x.shape[0] // count, count) + x.shape[1:]).swapaxes(0, 1)
        return _sharded(x, P(None, BATCH))

    return jnp.arange(count), jax.tree.map(split, batch)


def _joined_rows(x):
    """Reshapes [M, B / M, …] to [B, …], the inverse of `_microbatches`."""
    return x.swapaxes(0, 1).reshape((-1,) + x.shape[2:])


def weighted_loss(recipe: Recipe, weights, step, outputs, batch):
    """Returns the contribution of these rows to the step's loss, and their `StepSums`."""
    batch_loss = recipe.objective.loss(batch)
    scales = {
        name: scale_at(term.scale, step, recipe.run.steps)
        for name, term in batch_loss.terms.items()
    }
    # Losses may precompute gradients with these factors, so they must equal the cotangents of the
    # terms' sums bit for bit.
    factors = {name: scale * (1.0 / weights[name]) for name, scale in scales.items()}
    outputs = outputs._replace(z_loss=recipe.run.z_loss, term_factors=factors)
    terms = batch_loss.scored(outputs) | router_terms(
        outputs.routing, batch, balance=recipe.run.load_balance_loss, z=recipe.run.router_z_loss
    )
    loss = 0.0
    for name, term in terms.items():
        sums = term.sums if term.z_losses is None else term.sums + term.z_losses
        if term.scale is not None:
            scale = scale_at(term.scale, step, recipe.run.steps)
            loss += scale * jnp.sum(sums) / weights[name]
    unlabeled = {name: dataclasses.replace(term, labels=None) for name, term in terms.items()}
    terms = jax.tree.map(functools.partial(by_member, recipe, batch), unlabeled)
    adaptation = recipe.objective.adaptation
    return loss, StepSums(terms, adaptation and adaptation.measure(outputs, batch))


def by_member(recipe: Recipe, batch, values_B):
    """Returns sums over the rows of each member of a mixture: f32[members]."""
    members = jnp.arange(len(members_of(recipe.objective)))
    is_of_member = batch["member"][None, :] == members[:, None]
    return jnp.sum(jnp.where(is_of_member, values_B[None, :], 0.0), axis=1)


def non_padding_fraction(batches: Sequence[dict]):
    """Returns the fraction of the model's slots that are not padding."""
    segments = [b[name] for b in batches for name in b if name.endswith("_segment_ids")]
    return sum(jnp.sum(s > 0) for s in segments) / sum(s.size for s in segments)
