"""Products of groups of rows, each with a matrix of its own."""

import jax
import jax.numpy as jnp
from jax import lax

SAVED = (
    "grouped_product"  # a result that is saved, by the name that rematerialisation policies know
)
_BLOCK = 128  # rows of one product on CPU


@jax.custom_vjp
def grouped_product(x_AxI, kernels_NxIxO, sizes_N):
    """Returns the product of each group of rows with its kernel: [A, O] in the dtype of `x`.

        grouped_product(x, kernels, jnp.array([2, 0, 3]))  # x[:2] @ kernels[0], x[2:5] @ kernels[2]

    The groups are consecutive, `sizes_N` i32 are their numbers of rows, in all at most A; the rows
    after them are zeros. Sums are in float32.

    It is `jax.lax.ragged_dot`, which on TPU and GPU skips what is in no group, but for CPU, where
    that multiplies all rows by all matrices: there, blocks of rows are multiplied one after another.
    """
    return _product(x_AxI, kernels_NxIxO, sizes_N)


def _forward(x_AxI, kernels_NxIxO, sizes_N):
    return _product(x_AxI, kernels_NxIxO, sizes_N), (x_AxI, kernels_NxIxO, sizes_N)


def _backward(saved, d_y_AxO):
    x_AxI, kernels_NxIxO, sizes_N = saved
    d_x_AxI = _product(d_y_AxO, kernels_NxIxO.swapaxes(1, 2), sizes_N)
    d_kernels_NxIxO = lax.platform_dependent(
        x_AxI, d_y_AxO, sizes_N, cpu=_outer_by_blocks, default=_outer
    )
    return d_x_AxI, d_kernels_NxIxO.astype(kernels_NxIxO.dtype), None


grouped_product.defvjp(_forward, _backward)


def _product(x_AxI, kernels_NxIxO, sizes_N):
    y_AxO = lax.platform_dependent(
        x_AxI, kernels_NxIxO, sizes_N, cpu=_product_by_blocks, default=_ragged_product
    )
    in_a_group_Ax1 = jnp.arange(x_AxI.shape[0])[:, None] < sizes_N.sum()
    return jnp.where(in_a_group_Ax1, y_AxO, 0).astype(x_AxI.dtype)


def _ragged_product(x_AxI, kernels_NxIxO, sizes_N):
    return lax.ragged_dot(x_AxI, kernels_NxIxO, sizes_N, preferred_element_type=jnp.float32)


_ROWS_CONTRACTED = lax.RaggedDotDimensionNumbers(
    dot_dimension_numbers=(((0,), (0,)), ((), ())),
    lhs_ragged_dimensions=[0],
    rhs_group_dimensions=[],
)


def _outer(x_AxI, y_AxO, sizes_N):
    """Returns the sums of outer products over each group: f32[N, I, O]."""
    return lax.ragged_dot_general(
        x_AxI, y_AxO, sizes_N, _ROWS_CONTRACTED, preferred_element_type=jnp.float32
    )


def _product_by_blocks(x_AxI, kernels_NxIxO, sizes_N):
    padded_x = jnp.pad(x_AxI, ((0, _BLOCK), (0, 0)))

    def multiply(group, row, _, y):
        block = lax.dynamic_slice_in_dim(padded_x, row, _BLOCK)
        product = jnp.dot(block, kernels_NxIxO[group], preferred_element_type=jnp.float32)
        # Rows beyond the group are wrong until their own block, which comes later, overwrites them.
        return lax.dynamic_update_slice_in_dim(y, product, row, 0)

    y = jnp.zeros((padded_x.shape[0], kernels_NxIxO.shape[2]), jnp.float32)
    return _over_blocks(sizes_N, multiply, y)[: x_AxI.shape[0]]


def _outer_by_blocks(x_AxI, y_AxO, sizes_N):
    padded_x, padded_y = (jnp.pad(a, ((0, _BLOCK), (0, 0))) for a in (x_AxI, y_AxO))

    def add(group, row, rows, total):
        inside = jnp.arange(_BLOCK)[:, None] < rows
        x = jnp.where(inside, lax.dynamic_slice_in_dim(padded_x, row, _BLOCK), 0)
        y = lax.dynamic_slice_in_dim(padded_y, row, _BLOCK)
        return total.at[group].add(jnp.dot(x.T, y, preferred_element_type=jnp.float32))

    shape = (sizes_N.size, x_AxI.shape[1], y_AxO.shape[1])
    return _over_blocks(sizes_N, add, jnp.zeros(shape, jnp.float32))


def _over_blocks(sizes_N, body, carry):
    """Applies `body(group, first row, rows left of the group, carry)` to each block in order."""
    ends_N = jnp.cumsum(sizes_N)
    blocks_N = -(-sizes_N // _BLOCK)
    ends_of_blocks_N = jnp.cumsum(blocks_N)

    def step(number, carry):
        group = jnp.searchsorted(ends_of_blocks_N, number, side="right")
        within = number - (ends_of_blocks_N[group] - blocks_N[group])
        row = ends_N[group] - sizes_N[group] + within * _BLOCK
        return body(group, row, ends_N[group] - row, carry)

    return lax.fori_loop(0, ends_of_blocks_N[-1], step, carry)
