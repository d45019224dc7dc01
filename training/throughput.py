"""FLOPs of a training step, and the peak FLOP/s of the devices."""

from collections.abc import Sequence

import jax

from ..models.builders import later_keys_flops
from ..objectives import Objective, members_of
from .batches import GroupSchedule
from .devices.accelerators import ACCELERATORS, kind_of_device
from .step import Recipe


def step_flops(recipe: Recipe, schedules: Sequence[GroupSchedule]) -> int:
    """Returns the FLOPs of a step's forward and backward pass; recomputation does not count."""
    forward = sum(
        schedule.rows
        * recipe.model.flops({"predict": group.stacks.get("decoder", 0)} | group.stacks)
        for group, schedule in zip(recipe.groups, schedules)
    )
    return 3 * forward


def causal_flops(recipe: Recipe, schedules: Sequence[GroupSchedule]) -> int | None:
    """Returns `step_flops` without those for keys after their query, as MaxText counts them; None
    of a model that is no decoder or has windows, of which MaxText counts other keys, or whose
    objective lets a token see later ones."""
    config = recipe.model.config
    if recipe.model.layout != "decoder" or config is None or config.window is not None:
        return None
    if not all(_is_causal(member.objective) for member in members_of(recipe.objective)):
        return None
    later = sum(
        schedule.rows * later_keys_flops(config, group.stacks["decoder"])
        for group, schedule in zip(recipe.groups, schedules)
    )
    return step_flops(recipe, schedules) - 3 * later


def _is_causal(objective: Objective) -> bool:
    forms = objective.facts.prompt_forms  # of which an objective whose prompts are unknown has none
    return bool(forms) and all(form.causal for form in forms)


def peak_flops() -> float | None:
    """Returns the FLOP/s of all devices together; None where a device's peak is unknown (a CPU)."""
    kind = kind_of_device(jax.devices()[0].device_kind)
    return None if kind is None else ACCELERATORS[kind].flops * jax.device_count()
