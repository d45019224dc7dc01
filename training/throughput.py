"""FLOPs of a training step, and the peak FLOP/s of the hardware."""

from collections.abc import Sequence

import jax

from pretrax.training.batches import GroupSchedule
from pretrax.training.step import Recipe

# Dense bf16 peak of one device by JAX's name, FLOP/s, from the makers' data sheets.
PEAK_FLOPS = {
    "TPU v3": 61.5e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5": 459e12,
    "TPU v5p": 459e12,
    "TPU v6 lite": 918e12,
    "TPU v6e": 918e12,
    "NVIDIA A100": 312e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H200": 989e12,
    "NVIDIA B200": 2250e12,
}


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
    kind = jax.devices()[0].device_kind
    known = [name for name in PEAK_FLOPS if kind.startswith(name)]
    return PEAK_FLOPS[max(known, key=len)] * jax.device_count() if known else None
