"""FLOPs of a training step, and the peak FLOP/s of the devices."""

from collections.abc import Sequence

import jax

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


def peak_flops() -> float | None:
    """Returns the FLOP/s of all devices together; None where a device's peak is unknown (a CPU)."""
    kind = kind_of_device(jax.devices()[0].device_kind)
    return None if kind is None else ACCELERATORS[kind].flops * jax.device_count()
