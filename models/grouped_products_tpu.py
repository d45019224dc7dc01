"""Grouped products on TPUs, by Megablox: JAX's kernels that read only the rows of groups.

Source: Gale et al. 2022, "MegaBlocks", arXiv:2211.15841.
"""

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.megablox.gmm import gmm, tgmm

# Inner and outer sizes of a block of 512 rows. With these, two blocks of each operand and the
# float32 sums fit into the 16 MiB of a core.
SIZES = 1024, 1024  # in bfloat16; float32 uses half the inner size
SIZES_OF_OUTER = 512, 1024


def product(block: int, x_AxI, kernels: jax.Array, sizes_N, transposed):
    """Returns the product of each group with its kernel, [A, O] in the dtype of `x`.

    The rows after the last group are undefined.

    Args:
      kernels: [N, I, O], or [N, O, I] if `transposed`.
    """
    x = _whole_blocks(block, x_AxI)
    inner, outer = SIZES
    tile = block, inner * 2 // x.itemsize, outer
    tile = _within(tile, *x.shape, kernels.shape[1 if transposed else 2])
    y = gmm(x, kernels, sizes_N, x.dtype, tile, transpose_rhs=transposed)
    return y[: x_AxI.shape[0]]


def outer(block, x_AxI, y_AxO, sizes_N, dtype):
    """Returns the sums of outer products over each group, [N, I, O], added in float32."""
    x = _whole_blocks(block, x_AxI)
    y = _whole_blocks(block, y_AxO)
    tile = _within((block, *SIZES_OF_OUTER), *x.shape, y.shape[1])
    return tgmm(x.T, y, sizes_N, dtype, tile)


def _within(tile, *sizes):
    return tuple(map(min, tile, sizes))


def _whole_blocks(block, x_AxI):
    rows = x_AxI.shape[0]
    block = min(block, -(-rows // 128) * 128)
    return jnp.pad(x_AxI, ((0, -rows % block), (0, 0)))
