"""Checks the objectives, models and attention mechanisms of users before a run starts.

The tests of pretrax check the built-in ones.
"""

import warnings

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from ..data.packing import stacked
from ..models.config import Config
from ..objectives import RowGroup
from ..objectives.laws import check_objective, check_shapes, is_built_in, is_user_defined, text_row
from ..objectives.losses import predicting_stack
from .router_terms import router_terms
from .state import parameter_count
from .step import Recipe, corrupt_and_arrange

PROBES = 8  # number of slots of a stack whose inputs are changed
MAX_PARAMETERS = 2 * 10**8  # size of the largest model that is run for the checks


def check_user_code(recipe: Recipe, weighted: bool) -> None:
    """Checks the objective, the model and its attention mechanism, unless they are built in.

    `weighted` is whether the documents of the run have weights of tokens.

    Raises ValueError for features, losses or shapes that would silently train wrongly, and for
    outputs that depend on inputs outside of their key intervals.
    """
    user_objective = is_user_defined(recipe.objective)
    user_model = not is_built_in(recipe.model.apply) or _has_user_attention(recipe.model.config)
    if user_objective:
        check_objective(recipe.objective, recipe.ids, weighted)
    for group in recipe.groups if user_objective or user_model else ():
        batch = example_batch(recipe, group)
        check_terms(recipe, batch)
        if user_model:
            check_leaks(recipe, batch)


def _has_user_attention(config: Config | None) -> bool:
    """Returns whether a Transformer has an attention mechanism of a user.

    Experts of limited capacity would look like a leak.
    """
    if config is None or config.expert_capacity is not None:
        return False
    return not is_built_in(config.mechanism.attend)


def example_batch(recipe: Recipe, group: RowGroup) -> dict:
    """Returns a batch of two rows of random text, each with three documents if that is possible."""
    raw = min(group.raw_lengths)
    several = group.max_documents > 1 and raw >= 6
    lengths = [raw // 4, raw // 6, raw // 4] if several else [raw]
    kind = recipe.objective.facts.rows.kind
    texts = [
        text_row(recipe.ids, lengths[: group.max_documents], raw, seed, 0, kind)[0]
        for seed in (0, 1)
    ]
    rows = stacked([row._replace(member=group.members[0]) for row in texts], group.row_length)
    keys = jax.random.split(jax.random.key(0), 2)
    return jax.jit(lambda keys, rows: corrupt_and_arrange(recipe, group, keys, rows))(keys, rows)


def check_terms(recipe: Recipe, batch: dict) -> None:
    """Raises ValueError if the model's outputs and the loss do not match.

    Also raises ValueError if a term of the loss has the name of a router's term. Nothing is run.
    """

    def terms(batch):
        params = nn.unbox(recipe.model.init(jax.random.key(0), batch))
        outputs = recipe.model.apply(params, batch)
        router_losses = router_terms(outputs.routing, batch, 0.0, 0.0)
        losses = recipe.objective.loss(batch).scored(outputs)
        return outputs.hidden["top"], losses, router_losses

    top, losses, router_losses = jax.eval_shape(terms, batch)
    stack = predicting_stack(batch)
    rows, slots = batch[f"{stack}_segment_ids"].shape
    if top.shape[:2] != (rows, slots):
        raise ValueError(
            f"The model's hidden['top'] is of shape {list(top.shape)}, expected "
            f"[{rows}, {slots}, …]: return one state for each slot of the {stack}."
        )
    check_shapes(losses, rows)
    for name in losses.keys() & router_losses.keys():
        raise ValueError(
            f"The objective's loss has a term {name!r}, which the routers of the model's experts "
            "have too and would replace: give the objective's term another name."
        )


def check_leaks(recipe: Recipe, batch: dict) -> None:
    """Raises ValueError if an output depends on an input outside its key interval.

    Inputs are changed one at a time. Only outputs whose key intervals include the changed slot may
    change.
    """
    model = recipe.model
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), batch))
    size = parameter_count(shapes)
    if size > MAX_PARAMETERS:
        warnings.warn(
            f"The model has too many parameters ({size:,}) to check that documents of a row are "
            "separate: check a smaller model of the same kind.",
            stacklevel=2,
        )
        return
    params = nn.unbox(model.init(jax.random.key(0), batch))
    top = jax.jit(lambda batch: model.apply(params, batch).hidden["top"].astype(jnp.float32))
    before = np.asarray(top(batch))
    predicting = predicting_stack(batch)
    segments = np.asarray(batch[f"{predicting}_segment_ids"])
    for stack in ("encoder", "decoder"):
        if f"{stack}_segment_ids" not in batch:
            continue
        name = "cross" if stack != predicting else stack
        start, end = np.asarray(batch[f"{name}_key_intervals"]).swapaxes(0, 1)
        input_segments = np.asarray(batch[f"{stack}_segment_ids"])
        live = int((input_segments > 0).sum(1).min())
        for slot in np.unique(np.linspace(0, live - 1, PROBES).astype(int)):
            tokens = batch[f"{stack}_input_tokens"]
            first, last = recipe.ids.text
            other = first + (tokens[:, slot] - first + 1) % (last - first)
            changed = top(batch | {f"{stack}_input_tokens": tokens.at[:, slot].set(other)})
            moved = np.abs(np.asarray(changed) - before).max(-1) > 1e-4
            leak = moved & (segments > 0) & ~((start <= slot) & (slot < end))
            if leak.any():
                row, output = np.argwhere(leak)[0]
                raise ValueError(
                    _leak(stack, slot, input_segments[row, slot], output, segments[row, output])
                )


def _leak(
    stack: str, input_slot: int, input_document: int, output_slot: int, output_document: int
) -> str:
    message = (
        f"The model's output at slot {output_slot}, of document {output_document}, depends on "
        f"input {input_slot} of the {stack}, of document {input_document}, "
    )
    if input_document == output_document:
        return f"{message}which its {stack}_key_intervals hide: it sees its target."
    return (
        f"{message}so documents of a packed row leak into each other: look at {stack}_segment_ids "
        f"or {stack}_key_intervals in the model, or give packing = 'single' or 'concatenate'."
    )
