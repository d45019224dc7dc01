"""Matrix products of groups of rows, each group with a different matrix."""

import jax
import jax.numpy as jnp
from jax import lax

from .sharding import platform

# Number of rows that are multiplied at a time. GPUs use larger blocks, since starting a product
# takes longest there.
_BLOCK_OF_A_CPU = 128
_BLOCK_OF_A_GPU = 512
BLOCK_OF_A_TPU = 512  # block of the TPU kernels, to which rows are padded


@jax.custom_vjp
def grouped_product(x_AxI, kernels_NxIxO, sizes_N):
    """Returns the product of each group of rows with its kernel: [A, O] in the dtype of `x`.

        grouped_product(x, kernels, jnp.array([2, 0, 3]))  # x[:2] @ kernels[0], x[2:5] @ kernels[2]

    The groups are consecutive. Their numbers of rows, `sizes_N` i32, sum to at most A. The rows
    after the last group are undefined, and so are their gradients. Sums are in float32.

    On TPUs, kernels read only the rows of a group. On other platforms, blocks of rows are
    multiplied one after another. For the gradient of the matrices, `jax.lax.ragged_dot` would
    multiply all rows by each matrix.
    """
    return _product(x_AxI, kernels_NxIxO, sizes_N)


def _forward(x_AxI, kernels_NxIxO, sizes_N):
    return _product(x_AxI, kernels_NxIxO, sizes_N), (x_AxI, kernels_NxIxO, sizes_N)


def _backward(saved, d_y_AxO):
    x_AxI, kernels_NxIxO, sizes_N = saved
    d_x_AxI = _product(d_y_AxO, kernels_NxIxO, sizes_N, transposed=True)
    d_kernels_NxIxO = _outer(x_AxI, d_y_AxO, sizes_N, kernels_NxIxO.dtype)
    return d_x_AxI, d_kernels_NxIxO, None


grouped_product.defvjp(_forward, _backward)


def _product(x_AxI, kernels, sizes_N, transposed=False):
    if platform() == "tpu":
        from . import grouped_products_tpu  # imported here since only TPUs can use it

        return grouped_products_tpu.product(BLOCK_OF_A_TPU, x_AxI, kernels, sizes_N, transposed)
    kernels_NxIxO = kernels.swapaxes(1, 2) if transposed else kernels
    return _product_by_blocks(_block(), x_AxI, kernels_NxIxO, sizes_N)


def _outer(x_AxI, y_AxO, sizes_N, dtype):
    """Returns the sums of outer products over each group, [N, I, O], added in float32."""
    if platform() == "tpu":
        from . import grouped_products_tpu

        return grouped_products_tpu.outer(BLOCK_OF_A_TPU, x_AxI, y_AxO, sizes_N, dtype)
    return _outer_by_blocks(_block(), x_AxI, y_AxO, sizes_N).astype(dtype)


def _block():
    return _BLOCK_OF_A_CPU if platform() == "cpu" else _BLOCK_OF_A_GPU


def _product_by_blocks(block, x_AxI, kernels_NxIxO, sizes_N):
    padded_x = jnp.pad(x_AxI, ((0, block), (0, 0)))

    def multiply(group, row, _, y):
        x = lax.dynamic_slice_in_dim(padded_x, row, block)
        product = jnp.dot(x, kernels_NxIxO[group], preferred_element_type=jnp.float32)
        # Rows beyond the group are wrong until their own block, which comes later, overwrites them.
        return lax.dynamic_update_slice_in_dim(y, product.astype(y.dtype), row, 0)

    y = jnp.zeros((padded_x.shape[0], kernels_NxIxO.shape[2]), x_AxI.dtype)
    return _over_blocks(block, sizes_N, multiply, y)[: x_AxI.shape[0]]


def _outer_by_blocks(block, x_AxI, y_AxO, sizes_N):
    padded_x, padded_y = (jnp.pad(a, ((0, block), (0, 0))) for a in (x_AxI, y_AxO))

    def add(group, row, rows, total):
        inside = jnp.arange(block)[:, None] < rows
        x, y = (
            jnp.where(inside, lax.dynamic_slice_in_dim(a, row, block), 0)
            for a in (padded_x, padded_y)
        )
        return total.at[group].add(jnp.dot(x.T, y, preferred_element_type=jnp.float32))

    shape = (sizes_N.size, x_AxI.shape[1], y_AxO.shape[1])
    return _over_blocks(block, sizes_N, add, jnp.zeros(shape, jnp.float32))


def _over_blocks(block, sizes_N, body, carry):
    """Applies `body(group, first row, rows left of the group, carry)` to each block in order."""
    ends_N = jnp.cumsum(sizes_N)
    blocks_N = -(-sizes_N // block)
    ends_of_blocks_N = jnp.cumsum(blocks_N)

    def step(number, carry):
        group = (ends_of_blocks_N <= number).sum()
        within = number - (ends_of_blocks_N[group] - blocks_N[group])
        row = ends_N[group] - sizes_N[group] + within * block
        return body(group, row, ends_N[group] - row, carry)

    return lax.fori_loop(0, ends_of_blocks_N[-1], step, carry)
