"""Checksums of arrays, computed on their devices, that do not depend on the sharding."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

FEW = 2**16  # largest number of values that NumPy sums; compiling a program would take longer
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32}


def checksums(tree) -> dict[str, int]:
    """Returns a 32-bit checksum of every array, by name, computed on its devices.

    The arrays are summed one after another, since a CPU needs a copy of the array for its sum.
    """
    return {name: int(_sum_of(x)) for name, x in by_path(tree).items()}


def _sum_of(x):
    is_distributed = isinstance(x, jax.Array) and not x.is_fully_addressable
    if x.size > FEW or is_distributed:
        return jax.device_get(_sum_bits(x))
    x = np.asarray(x)
    return _weighted_sum(x.view(_UNSIGNED[x.dtype.itemsize]).astype(np.uint32), np)


@jax.jit
def _sum_bits(x):
    x = x.astype(jnp.uint8) if x.dtype == bool else x  # JAX cannot bitcast booleans
    words = jax.lax.bitcast_convert_type(x, _UNSIGNED[x.dtype.itemsize])
    return _weighted_sum(words.astype(jnp.uint32), jnp)


def _weighted_sum(words, numpy):
    # Each index has an odd weight, so that two swapped values change the sum. Integer sums do not
    # depend on the order, so they do not depend on the sharding.
    weight = numpy.uint32(1)
    for axis, size in enumerate(words.shape):
        index = numpy.arange(size, dtype=numpy.uint32)
        index = index.reshape([-1 if axis == other else 1 for other in range(words.ndim)])
        weight = weight + index * numpy.uint32(2 * (0x9E3779B1 >> axis) & 0xFFFFFFFE)
    return numpy.sum(words * weight, dtype=numpy.uint32)


def by_path(tree) -> dict[str, Any]:
    """Returns the arrays of a tree by name, such as "params/mlp/wi"."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree.leaves_with_path(tree)
        if hasattr(leaf, "shape")
    }
