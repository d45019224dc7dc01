"""The device mesh, and the sharding of parameters and batches over its axes.

Mesh axes: `data` (parameters replicated), `fsdp` (parameters sharded, gathered when used), `expert`
(as `fsdp`, but each device keeps its own experts of sparse layers and computes them for the
others), `context` (as `fsdp`, but its devices share rows, of whose slots each has its part),
`tensor` (matrix products sharded).

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

SPREAD_SIZE = 2**16  # of the smallest array that is updated in parts: less takes no time

# Logical axis of a parameter or an activation -> mesh axes. Where experts have taken one of these,
# the next rule of that name holds.
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

    Neighbors in the mesh are neighbors in a TPU slice, as far as its shape allows. Several
    slices, which a slower network joins, are spread over `data`: once a step their gradients are
    summed, and nothing else crosses that network. Hosts of GPUs are spread over the first axes that
    are above 1, of which `fsdp` may be one.

    Raises ValueError when the axes do not multiply to the number of devices, or `data` is no
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
        raise ValueError(
            f"The mesh {requested} takes {taken} devices, there are {len(devices)}: "
            "choose data, fsdp, expert, context and tensor (mesh.make_mesh) so that they multiply "
            "to that."
        )
    return Mesh(_arranged(sizes, devices), AXES, axis_types=(AxisType.Auto,) * len(AXES))


def evaluation_mesh(build: Callable[[], Mesh]) -> Mesh:
    """Returns the mesh of a training where there are its devices; otherwise one of all that there
    are, over which parameters and rows are spread.

    >>> dict(evaluation_mesh(lambda: make_mesh(data=2, fsdp=8)).shape)  # on eight devices
    {'data': 1, 'fsdp': 8, 'expert': 1, 'context': 1, 'tensor': 1}
    """
    try:
        return build()
    except ValueError:  # it takes another number of devices
        return make_mesh(data=1, fsdp=-1)


def _arranged(sizes: Sequence[int], devices: Sequence[jax.Device]) -> np.ndarray:
    # An axis may be longer than one of the slice, such as 64 on 4x4x8: it takes parts of several.
    # JAX numbers hosts of GPUs as slices too, whose devices it orders host by host by itself.
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

    The devices of `data` have the same parameters, of which each updates a part (ZeRO stage 1,
    Rajbhandari et al. 2020, arXiv:1910.02054): the largest axis of an array is divided further, or
    the next that can be. Small arrays, and those that `data` does not divide, are updated by all.

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

    An array is sharded as the parameter that its path ends with, if it has that one's shape: with
    the parameters `{"mlp": {"wi": …}}`, Adam's `mu/mlp/wi` is sharded as `mlp/wi`. If it has that
    shape without one axis, as Adafactor's rows and columns of second moments, it is sharded as the
    others. All else is replicated.
    """
    flat, _ = jax.tree_util.tree_flatten_with_path(params)
    known = {path: (x.shape, s) for (path, x), s in zip(flat, jax.tree.leaves(shardings))}

    def sharding(path, x):
        ends = (path[i:] for i in range(len(path)))
        shape, like = next((known[end] for end in ends if end in known), ((), replicated(mesh)))
        if shape == x.shape:
            return like
        spec = (*like.spec, *[None] * len(shape))[: len(shape)]
        for axis in reversed(range(len(shape))):
            if shape[:axis] + shape[axis + 1 :] == x.shape:
                return NamedSharding(mesh, P(*spec[:axis], *spec[axis + 1 :]))
        return replicated(mesh)

    return jax.tree_util.tree_map_with_path(sharding, opt_state)
