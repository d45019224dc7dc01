"""Logical names of the axes of arrays, and the mesh axes that shard them.

Training sets rules that map logical names to mesh axes (`training.devices.mesh`). Without rules, or
without a mesh, nothing is sharded.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
from flax import linen as nn
from jax.sharding import AbstractMesh, Mesh
from jax.sharding import PartitionSpec as P

Names = Sequence[str | None]  # logical name of each axis of an array; None: never sharded


def constrain(x, *names):
    """Returns an activation that is sharded by the logical names of its axes."""
    return nn.with_logical_constraint(x, names)


def partitioned(init, *names):
    """Returns the initializer of a parameter whose axes have these logical names."""
    return nn.with_logical_partitioning(init, names)


def spec_of(names: Names, shape: Sequence[int], mesh: Mesh | AbstractMesh, rules: Any = None) -> P:
    """Returns the mesh axes that shard each axis of an array, if they divide the axis's size.

        spec_of(("embed", "mlp"), (64, 6), mesh)      # P("fsdp", None) on a mesh with tensor=4

    If an axis has several mesh axes, the last ones are left out until the others divide its size.
    Mesh axes with a single device are left out.

    Args:
      rules: pairs of a logical name and mesh axes. None: the current rules.
    """

    def dividing(axes, size):
        kept = [axis for axis in mesh_axes(axes) if mesh.shape[axis] > 1]
        while kept and size % math.prod(mesh.shape[axis] for axis in kept):
            kept.pop()
        return tuple(kept) if len(kept) > 1 else kept[0] if kept else None

    entries = nn.logical_to_mesh_axes(names, rules) or ()
    return P(*map(dividing, entries, shape))


def num_shards(name: str, size: int) -> int:
    """Returns the number of shards of an axis with this size and logical name."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return 1
    (entry,) = spec_of((name,), (size,), mesh) or (None,)
    return math.prod(mesh.shape[axis] for axis in mesh_axes(entry))


def platform() -> str:
    """Returns JAX's name of the platform of the current mesh, or of the default platform."""
    # `jax.lax.platform_dependent` would trace both branches, which takes a third of the time to
    # trace a step.
    device = jax.sharding.get_abstract_mesh().abstract_device  # None without a mesh or devices
    return device.platform if device else jax.default_backend()


def on_one_cpu() -> bool:
    """Returns whether arrays are computed on a CPU and are not sharded over several devices."""
    return platform() == "cpu" and jax.sharding.get_abstract_mesh().size <= 1


def mesh_axes(entry) -> tuple[str, ...]:
    """Returns the mesh axes of an entry of a spec: none, one, or several."""
    return entry if isinstance(entry, tuple) else () if entry is None else (entry,)
