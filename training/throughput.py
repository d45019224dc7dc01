"""FLOPs of a training step, and the peak FLOP/s of the devices."""

from collections.abc import Sequence

import jax

from ..models import Model
from ..models.builders import later_keys_flops
from ..objectives import RowGroup, members_of
from .batches import GroupSchedule
from .devices.accelerators import ACCELERATORS, kind_of_device
from .planning import Plan
from .step import Recipe, recipe_of_member


def step_flops(plan: Plan) -> int:
    """Returns the FLOPs of a step's forward and backward pass, without recomputation.

    If the members of a mixture have separate steps, this is the mean over the steps of training.
    """
    recipe = plan.recipe
    first = plan.schedules[0]
    if not first.separate_steps:
        return _flops(recipe, plan.schedules)
    return round(
        sum(
            share * _flops(recipe_of_member(recipe, member), plan.schedules)
            for member, share in first.step_shares().items()
        )
    )


def _flops(recipe: Recipe, schedules: Sequence[GroupSchedule]) -> int:
    forward = sum(
        schedule.rows * row_flops(recipe.model, group)
        for group, schedule in zip(recipe.groups, schedules)
    )
    return 3 * forward


def row_flops(model: Model, group: RowGroup) -> int:
    """Returns the FLOPs of the forward pass of a row of a row group."""
    return model.flops({"predict": group.stacks.get("decoder", 0)} | group.stacks)


def causal_flops(plan: Plan) -> int | None:
    """Returns the FLOPs of a step without the keys after each query, as MaxText counts them.

    Returns None for a model that is not a decoder, and for an objective that lets a token see later
    tokens. Returns None for attention windows too, for which MaxText counts other keys.
    """
    recipe = plan.recipe
    config = recipe.model.config
    if recipe.model.layout != "decoder" or config is None or config.window is not None:
        return None
    for member in members_of(recipe.objective):
        forms = member.objective.facts.prompt_forms  # empty if the objective's prompts are unknown
        if not forms or not all(form.causal for form in forms):
            return None
    later = sum(
        schedule.rows * later_keys_flops(config, group.stacks["decoder"])
        for group, schedule in zip(recipe.groups, plan.schedules)
    )
    return step_flops(plan) - 3 * later


def peak_flops() -> float | None:
    """Returns the peak FLOP/s of all devices together; None if it is unknown, as for a CPU."""
    kind = kind_of_device(jax.devices()[0].device_kind)
    return None if kind is None else ACCELERATORS[kind].flops * jax.device_count()
