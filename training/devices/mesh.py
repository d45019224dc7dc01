"""The device mesh, and the sharding of parameters and batches over its axes.

The axes of the mesh are:
- `data`: parameters are replicated.
- `fsdp`: parameters are sharded, and gathered when they are used.
- `expert`: like `fsdp`, but each device keeps its own experts of sparse layers and computes them
  for the other devices.
- `context`: like `fsdp`, but its devices share rows, and each device has a part of their slots.
- `tensor`: matrix products are sharded.

Attention over `context` gathers keys and values along it, and each device computes its own queries
(Llama 3, arXiv:2407.21783, section 3.3.2).
"""

import contextlib
import math
from collections.abc import Callable, Sequence

import flax.linen as nn
import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from ...models.sharding import mesh_axes, spec_of

AXES = ("data", "fsdp", "expert", "context", "tensor")
BATCH = ("data", "fsdp", "expert")

SPREAD_SIZE = 2**16  # size of the smallest array that is updated in parts

# Logical axis of a parameter or an activation -> mesh axes. If experts use one of these mesh axes
# already, the next rule with the same name holds.
RULES = (
    ("batch", BATCH),
    ("vocab", "tensor"),
    ("heads", "tensor"),
    ("mlp", "tensor"),
    ("experts", "expert"),
    ("embed", ("fsdp", "context", "expert")),
    ("embed", ("fsdp", "context")),
    ("kv", None),
    ("length", "context"),
    ("layers", None),
    ("relpos_buckets", None),
)


def make_mesh(
    data: int = -1,
    fsdp: int = 1,
    tensor: int = 1,
    expert: int = 1,
    context: int = 1,
    devices=None,
) -> Mesh:
    """Returns a mesh over all devices of all processes; one axis may be -1, the remaining devices.

    >>> dict(make_mesh(data=2, fsdp=2, tensor=2).shape)  # on eight devices
    {'data': 2, 'fsdp': 2, 'expert': 1, 'context': 1, 'tensor': 2}

    Neighbors in the mesh are neighbors in a TPU slice, as far as its shape allows. Several slices
    are spread over `data`, since a slower network connects them. Only the gradients cross that
    network, once in each step. Hosts of GPUs are spread over the first axes above 1, which may
    include `fsdp`.

    Raises ValueError if the product of the axes is not the number of devices, or if `data` is not a
    multiple of the number of TPU slices.
    """
    devices = jax.devices() if devices is None else devices
    sizes = [data, fsdp, expert, context, tensor]
    requested = dict(zip(AXES, sizes))
    if sizes.count(-1) > 1 or any(size < 1 and size != -1 for size in sizes):
        raise ValueError(f"Mesh axes must be above 0, at most one of them -1, got {requested}.")
    if -1 in sizes:
        others = -math.prod(sizes)  # one factor is -1
        sizes[sizes.index(-1)] = max(len(devices) // others, 1)
    taken = math.prod(sizes)
    if taken != len(devices):
        raise DeviceCountError(
            f"The mesh {requested} takes {taken} devices, there are {len(devices)}: "
            "choose data, fsdp, expert, context and tensor (mesh.make_mesh) so that their product "
            "is the number of devices."
        )
    return Mesh(_arranged(sizes, devices), AXES, axis_types=(AxisType.Auto,) * len(AXES))


class DeviceCountError(ValueError):
    """A mesh needs another number of devices than there are."""


def evaluation_mesh(build: Callable[[], Mesh]) -> Mesh:
    """Returns the training mesh if its devices exist, otherwise a mesh of all devices.

    The mesh of all devices spreads parameters and rows over `fsdp`.

    >>> dict(evaluation_mesh(lambda: make_mesh(data=2, fsdp=8)).shape)  # on eight devices
    {'data': 1, 'fsdp': 8, 'expert': 1, 'context': 1, 'tensor': 1}
    """
    try:
        return build()
    except DeviceCountError:
        return make_mesh(data=1, fsdp=-1)


def _arranged(sizes: Sequence[int], devices: Sequence[jax.Device]) -> np.ndarray:
    # An axis of the mesh may be longer than an axis of the slice, such as 64 on 4x4x8. It then
    # takes parts of several axes. JAX also numbers hosts of GPUs as slices, but it already orders
    # their devices host by host.
    is_tpu = devices[0].platform == "tpu"
    slices = len({getattr(device, "slice_index", 0) for device in devices}) if is_tpu else 1
    if slices == 1:
        return mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True)
    data, *others = sizes
    if data % slices:
        raise ValueError(
            f"The mesh {dict(zip(AXES, sizes))} is spread over {slices} slices, whose number must "
            "divide data: raise mesh.make_mesh.data, and lower fsdp."
        )
    return mesh_utils.create_hybrid_device_mesh(
        (data // slices, *others),
        (slices, *[1] * len(others)),
        devices,
        allow_split_physical_axes=True,
    )


@contextlib.contextmanager
def placed_on(mesh: Mesh | AbstractMesh):
    """A context in which logical axis names map to axes of this mesh."""
    is_abstract = isinstance(mesh, AbstractMesh)
    use: Callable = jax.sharding.use_abstract_mesh if is_abstract else jax.set_mesh
    with use(mesh), nn.logical_axis_rules(RULES):
        yield


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of a batch: rows over `BATCH`, other axes replicated."""
    return NamedSharding(mesh, P(BATCH))


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, P())


def batch_shards(mesh: Mesh) -> int:
    """Returns the number of shards of a batch's rows."""
    return math.prod(mesh.shape[axis] for axis in BATCH)


def shardings_of(boxed, mesh: Mesh):
    """Returns the shardings of a tree of abstract arrays, boxed with logical axis names or not."""

    def sharding(leaf):
        if not isinstance(leaf, nn.LogicallyPartitioned):
            return replicated(mesh)
        return NamedSharding(mesh, spec_of(leaf.names, leaf.value.shape, mesh, RULES))

    return jax.tree.map(sharding, boxed, is_leaf=lambda x: isinstance(x, nn.LogicallyPartitioned))


def spread_over_data(params, shardings, mesh: Mesh):
    """Returns the shardings in which parameters are updated: their own, and over `data`.

    The devices of `data` have the same parameters, and each updates a part of them (ZeRO stage 1,
    Rajbhandari et al. 2020, arXiv:1910.02054). The largest axis of an array that `data` can divide
    is divided further. All devices update small arrays, and arrays that `data` cannot divide.

        [512, 2048] over ("fsdp", None) -> ("fsdp", "data")
    """
    data = mesh.shape["data"]

    def spread(x, sharding):
        if data == 1 or x.size < SPREAD_SIZE:
            return sharding
        spec = (*sharding.spec, *[None] * x.ndim)[: x.ndim]
        shards = [math.prod(mesh.shape[name] for name in mesh_axes(entry)) for entry in spec]
        for axis in sorted(range(x.ndim), key=lambda i: x.shape[i] // shards[i], reverse=True):
            if x.shape[axis] % (shards[axis] * data) == 0:
                entry = (*mesh_axes(spec[axis]), "data")
                return NamedSharding(mesh, P(*spec[:axis], entry, *spec[axis + 1 :]))
        return sharding

    return jax.tree.map(spread, params, shardings)


def shardings_like(opt_state, params, shardings, mesh: Mesh):
    """Returns the shardings of an optimizer's state, from those of the parameters.

    An array is sharded like the parameter that its path ends with, if both have the same shape. For
    the parameters `{"mlp": {"wi": …}}`, Adam's `mu/mlp/wi` is sharded like `mlp/wi`. Adafactor's
    rows and columns of second moments lack one axis of the parameter; they are sharded like its
    other axes. All other arrays are replicated.
    """
    flat, _ = jax.tree_util.tree_flatten_with_path(params)
    by_path = {path: (x.shape, s) for (path, x), s in zip(flat, jax.tree.leaves(shardings))}

    def sharding(path, x):
        ends = (path[i:] for i in range(len(path)))
        shape, like = next((by_path[end] for end in ends if end in by_path), ((), replicated(mesh)))
        if shape == x.shape:
            return like
        spec = (*like.spec, *[None] * len(shape))[: len(shape)]
        for axis in reversed(range(len(shape))):
            if shape[:axis] + shape[axis + 1 :] == x.shape:
                return NamedSharding(mesh, P(*spec[:axis], *spec[axis + 1 :]))
        return replicated(mesh)

    return jax.tree_util.tree_map_with_path(sharding, opt_state)
