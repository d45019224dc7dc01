"""Kernels of fused attention for NVIDIA GPUs, in Triton (`models.kernels.fused_attention`).

A program handles one block of queries and loops over the blocks of keys that the queries attend to.
For the gradients of keys and values, a program handles one block of keys and loops over the blocks
of queries that attend to it. No two programs add to the same sum, so gradients are deterministic.

In blocks near the diagonal, T5's bias is looked up by difference of slots. Far blocks have a single
bias. The kernel of the query gradients also sums the gradient of far blocks for each query, and
another kernel sums the gradient of near blocks tile by tile.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from ..attention import MASK_VALUE, capped, inner, softcap_gradient
from . import attention_blocks
from .attention_blocks import LOWEST, dot, padded

BLOCK = 64  # number of queries, and of keys, of a block
FAR = attention_blocks.far(BLOCK)
MAX_HEAD_BYTES = 512  # bytes per slot; wider heads do not fit into the shared memory of an H100


def forward(softcap, before, q, k, v, intervals, bias):
    """Returns the outputs [B, T, H, d], and the LSE of the scores f32[B, H, T].

    `before` i32[1] is the number of slots of the row before the first query, a multiple of `BLOCK`.
    """
    settings = attention_blocks.settings(q, k, softcap, _block)
    out, lse = _outputs(settings, _in_blocks(settings, before, q, k, v, intervals, bias))
    return _cut(out, q), lse[:, :, : q.shape[1]]


def backward(softcap, before, q, k, v, intervals, bias, out, lse, d_out, d_lse):
    """Returns the gradients of queries, keys, values and bias, given the outputs of `forward`."""
    settings = attention_blocks.settings(q, k, softcap, _block)
    inner_BxHxT = jnp.swapaxes(inner(out, d_out), 1, 2)
    lse, inner_BxHxT = attention_blocks.padded_statistics(settings, lse, inner_BxHxT - d_lse)
    d_out = _whole(settings, d_out, settings.queries)
    arrays = _in_blocks(settings, before, q, k, v, intervals, bias)
    arrays = arrays._replace(lse=lse, inner=inner_BxHxT, d_out=d_out)
    d_q, d_far = _query_gradients(settings, arrays)
    d_k, d_v = _key_gradients(settings, arrays)
    d_bias = None
    if bias is not None:
        d_tiles = _with_far(_tile_gradients(settings, arrays), d_far)
        d_bias = attention_blocks.bias_gradient(bias, BLOCK, d_tiles)
    return _cut(d_q, q), _cut(d_k, k), _cut(d_v, v), d_bias


class _Arrays(NamedTuple):
    """The inputs of the kernels, padded to whole blocks."""

    intervals: Any  # i32[B, 2, T]
    visible: Any  # i32[B, query blocks, 4]: see `_over_visible`
    q: Any  # [B, T, H, d]
    k: Any  # [B, S, G, d]
    v: Any
    bias: Any  # f32[H, D], or None
    before: Any  # i32[1]: number of blocks of the row before the first query; None without a bias
    lse: Any = None  # f32[B, H, T]; only gradients need this field and the next ones
    inner: Any = None
    d_out: Any = None  # [B, T, H, d]


class _At(NamedTuple):
    """The indices of the blocks that a kernel computes."""

    row: Any
    head: Any
    query_block: Any
    key_block: Any


def _block(length):
    return BLOCK, pl.cdiv(length, BLOCK)


def _in_blocks(s, before, q, k, v, intervals, bias):
    intervals = attention_blocks.in_blocks(s, intervals, k.shape[1])
    first, last, first_whole, last_whole, _ = attention_blocks.visible_blocks(s, intervals)
    whole = jnp.clip(first_whole, first, last + 1)
    after_whole = jnp.clip(last_whole + 1, whole, last + 1)
    visible = jnp.stack([first, whole, after_whole, last + 1], -1)
    q, k, v = (_whole(s, x, n) for x, n in ((q, s.queries), (k, s.keys), (v, s.keys)))
    return _Arrays(intervals, visible, q, k, v, bias, None if bias is None else before // BLOCK)


def _whole(s, x_BxTxHxd, length):
    """Returns the array padded to a length, with the heads padded to a power of two for Triton."""
    return padded(padded(x_BxTxHxd, length, 1), max(16, pl.next_power_of_2(s.width)))


def _cut(x_BxTxHxd, like_BxTxHxd):
    return x_BxTxHxd[:, : like_BxTxHxd.shape[1], :, : like_BxTxHxd.shape[3]]


# --- the four kernels -----------------------------------------------------------------------------


def _outputs(s, arrays):
    """Returns the outputs [B, T, H, d], and the LSE of the scores [B, H, T]."""
    lse = jax.ShapeDtypeStruct((s.rows, s.heads, s.queries), jnp.float32)
    out = jax.ShapeDtypeStruct(arrays.q.shape, arrays.v.dtype)
    return _call(s, _output_kernel, (s.rows, s.heads, s.query_blocks), arrays, (out, lse))


def _output_kernel(s, a, out, lse):
    row, head, query_block = (pl.program_id(axis) for axis in range(3))
    at = _At(row, head, query_block, None)
    q_Qxd = _of_queries(a.q, at)

    def step(at, masked, sums):
        top_Qx1, total_Qx1, sums_Qxd = sums
        k_Kxd = _of_keys(s, a.k, at)
        v_Kxd = _of_keys(s, a.v, at)
        _, scores_QxK = _scores(s, a, at, q_Qxd, k_Kxd, masked)
        higher_Qx1 = jnp.maximum(top_Qx1, scores_QxK.max(1)[:, None])
        weights_QxK = jnp.exp(scores_QxK - higher_Qx1)
        decay_Qx1 = jnp.exp(top_Qx1 - higher_Qx1)
        total_Qx1 = decay_Qx1 * total_Qx1 + weights_QxK.sum(1)[:, None]
        products_Qxd = dot(weights_QxK.astype(v_Kxd.dtype), v_Kxd, (1, 0))
        return higher_Qx1, total_Qx1, decay_Qx1 * sums_Qxd + products_Qxd

    top_Qx1 = jnp.full((BLOCK, 1), LOWEST, jnp.float32)
    start = top_Qx1, jnp.zeros_like(top_Qx1), jnp.zeros(q_Qxd.shape, jnp.float32)
    top_Qx1, total_Qx1, sums_Qxd = _over_visible(a, at, step, start)
    total_Qx1 = jnp.where(total_Qx1 == 0, 1.0, total_Qx1)  # 0: the interval is empty
    out[row, _slots(query_block), head, :] = (sums_Qxd / total_Qx1).astype(out.dtype)
    lse[row, head, _slots(query_block)] = (top_Qx1 + jnp.log(total_Qx1)).reshape(BLOCK)


def _query_gradients(s, arrays):
    """Returns the gradients of queries, and of the bias on far later and far earlier keys.

    The second gradient is summed for each query, f32[2, B, H, T]. It is None without a bias.
    """
    far = jax.ShapeDtypeStruct((2, s.rows, s.heads, s.queries), jnp.float32)
    outputs = arrays.q, None if arrays.bias is None else far
    grid = s.rows, s.heads, s.query_blocks
    return _call(s, _query_gradient_kernel, grid, arrays, outputs)


def _query_gradient_kernel(s, a, d_q, d_far):
    row, head, query_block = (pl.program_id(axis) for axis in range(3))
    at = _At(row, head, query_block, None)
    q_Qxd = _of_queries(a.q, at)
    d_out_Qxd = _of_queries(a.d_out, at)

    def step(at, masked, sums):
        sums_Qxd, later_Q, earlier_Q = sums
        k_Kxd = _of_keys(s, a.k, at)
        v_Kxd = _of_keys(s, a.v, at)
        gradients = _gradients(s, a, at, q_Qxd, k_Kxd, v_Kxd, d_out_Qxd, masked)
        _, d_scores_QxK, d_products_QxK = gradients
        sums_Qxd += dot(d_products_QxK, k_Kxd, (1, 0))
        if d_far is not None:
            ahead = _ahead(a, at)
            d_scores_Q = d_scores_QxK.sum(1)
            later_Q += jnp.where(ahead >= FAR, d_scores_Q, 0.0)
            earlier_Q += jnp.where(ahead <= -FAR, d_scores_Q, 0.0)
        return sums_Qxd, later_Q, earlier_Q

    zeros_Q = jnp.zeros(BLOCK, jnp.float32)
    start = jnp.zeros(q_Qxd.shape, jnp.float32), zeros_Q, zeros_Q
    sums_Qxd, later_Q, earlier_Q = _over_visible(a, at, step, start)
    d_q[row, _slots(query_block), head, :] = sums_Qxd.astype(d_q.dtype)
    if d_far is not None:
        d_far[0, row, head, _slots(query_block)] = later_Q
        d_far[1, row, head, _slots(query_block)] = earlier_Q


def _key_gradients(s, arrays):
    """Returns the gradients of keys and values."""
    first = arrays.visible[..., 0]
    end = arrays.visible[..., 3]
    seen_by = attention_blocks.seeing_blocks(s, first, end - 1)
    grid = s.rows, s.heads // s.share, s.key_blocks
    return _call(s, _key_gradient_kernel, grid, (arrays, seen_by), (arrays.k, arrays.v))


def _key_gradient_kernel(s, inputs, d_k, d_v):
    a, seen_by = inputs
    row, key_head, key_block = (pl.program_id(axis) for axis in range(3))
    first = seen_by.first[row, key_block]
    last = seen_by.last[row, key_block]
    at = _At(row, key_head * s.share, None, key_block)
    k_Kxd = _of_keys(s, a.k, at)
    v_Kxd = _of_keys(s, a.v, at)

    def step(head, query_block, sums):
        k_sums_Kxd, v_sums_Kxd = sums
        at = _At(row, head, query_block, key_block)
        q_Qxd = _of_queries(a.q, at)
        d_out_Qxd = _of_queries(a.d_out, at)
        p_QxK, _, d_products_QxK = _gradients(s, a, at, q_Qxd, k_Kxd, v_Kxd, d_out_Qxd, True)
        k_sums_Kxd += dot(d_products_QxK, q_Qxd, (0, 0))
        return k_sums_Kxd, v_sums_Kxd + dot(p_QxK, d_out_Qxd, (0, 0))

    def add_head(nth, sums):
        head = key_head * s.share + nth
        return jax.lax.fori_loop(first, last + 1, functools.partial(step, head), sums)

    zeros_Kxd = jnp.zeros(k_Kxd.shape, jnp.float32)
    k_sums_Kxd, v_sums_Kxd = jax.lax.fori_loop(0, s.share, add_head, (zeros_Kxd, zeros_Kxd))
    d_k[row, _slots(key_block), key_head, :] = k_sums_Kxd.astype(d_k.dtype)
    d_v[row, _slots(key_block), key_head, :] = v_sums_Kxd.astype(d_v.dtype)


def _tile_gradients(s, arrays):
    """Returns the gradients of each row's near tiles: f32[B, H, 2 FAR - 1, Q, K]."""
    near = 2 * FAR - 1
    d_tiles = jax.ShapeDtypeStruct((s.rows, s.heads, near, BLOCK, BLOCK), jnp.float32)
    (d_tiles,) = _call(s, _tile_gradient_kernel, (s.rows, s.heads, near), arrays, (d_tiles,))
    return d_tiles


def _tile_gradient_kernel(s, a, d_tiles):
    row, head, nth = (pl.program_id(axis) for axis in range(3))
    ahead = FAR - 1 - nth  # number of blocks from the queries to the keys

    def step(query_block, sum_QxK):
        at = _At(row, head, query_block, a.before[0] + query_block + ahead)

        def added():
            q_Qxd, d_out_Qxd = (_of_queries(x, at) for x in (a.q, a.d_out))
            k_Kxd, v_Kxd = (_of_keys(s, x, at) for x in (a.k, a.v))
            return sum_QxK + _gradients(s, a, at, q_Qxd, k_Kxd, v_Kxd, d_out_Qxd, True)[1]

        first = a.visible[row, query_block, 0]
        end = a.visible[row, query_block, 3]
        seen = (first <= at.key_block) & (at.key_block < end)
        return jax.lax.cond(seen, added, lambda: sum_QxK)

    first_key_block = a.before[0] + ahead  # block of keys for the first block of queries
    first = jnp.maximum(0, -first_key_block)
    end = jnp.minimum(s.query_blocks, s.key_blocks - first_key_block)
    zeros_QxK = jnp.zeros((BLOCK, BLOCK), jnp.float32)
    d_tiles[row, head, nth, :, :] = jax.lax.fori_loop(first, end, step, zeros_QxK)


def _with_far(d_tiles_BxHxNxQxK, d_far_2xBxHxT):
    """Returns the gradients of all tiles, in the order of `attention_blocks.tiles`."""
    corner = (0, BLOCK - 1)  # a far tile has a single value, so one element may hold the gradient
    later, earlier = (
        jnp.pad(x_H[:, None, None, None], ((0, 0), (0, 0), corner, corner))
        for x_H in d_far_2xBxHxT.sum((1, 3))
    )
    near = jnp.swapaxes(d_tiles_BxHxNxQxK.sum(0), 2, 3)
    return jnp.concatenate([later, near, earlier], 1)


# --- shared by the kernels ------------------------------------------------------------------------


def _call(s, kernel, grid, arrays, outputs):
    """Runs the kernel on the arrays, with one program for each point of the grid."""
    return pl.pallas_call(
        functools.partial(kernel, s),
        grid=grid,
        out_shape=jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), outputs),
        compiler_params=plt.CompilerParams(num_warps=4 if s.width <= 64 else 8, num_stages=2),
        name=f"attention{kernel.__name__.removesuffix('_kernel')}",
    )(arrays)


def _over_visible(a, at, step, sums):
    """Returns the sums after step(at, masked, sums) for each visible block of keys.

    Blocks of keys that all queries of the block attend to are not masked. The blocks before and
    after them are.
    """
    bounds = [a.visible[at.row, at.query_block, n] for n in range(4)]
    for first, end, masked in zip(bounds, bounds[1:], (True, False, True)):

        def add_block(key_block, sums, masked=masked):
            return step(at._replace(key_block=key_block), masked, sums)

        sums = jax.lax.fori_loop(first, end, add_block, sums)
    return sums


def _slots(block):
    return pl.ds(block * BLOCK, BLOCK)


def _of_queries(x_BxTxHxd, at):
    return x_BxTxHxd[at.row, _slots(at.query_block), at.head, :]


def _of_keys(s, x_BxSxGxd, at):
    return x_BxSxGxd[at.row, _slots(at.key_block), jax.lax.div(at.head, s.share), :]


def _scores(s, a, at, q_Qxd, k_Kxd, masked):
    """Returns the products of queries and keys, capped, and the scores: float32 [Q, K]."""
    products_QxK = capped(dot(q_Qxd, k_Kxd, (1, 1)), s.softcap)
    scores_QxK = products_QxK
    if a.bias is not None:
        scores_QxK += _bias(a.bias, at, _ahead(a, at))
    if masked:
        key_QxK = at.key_block * BLOCK + jax.lax.broadcasted_iota(jnp.int32, (BLOCK, BLOCK), 1)
        start_Q, end_Q = (a.intervals[at.row, n, _slots(at.query_block)] for n in range(2))
        seen_QxK = (start_Q[:, None] <= key_QxK) & (key_QxK < end_Q[:, None])
        scores_QxK = jnp.where(seen_QxK, scores_QxK, MASK_VALUE)
    return products_QxK, scores_QxK


def _gradients(s, a, at, q_Qxd, k_Kxd, v_Kxd, d_out_Qxd, masked):
    """Returns probabilities and the gradients of scores (float32) and of products: [Q, K]."""
    products_QxK, scores_QxK = _scores(s, a, at, q_Qxd, k_Kxd, masked)
    queries = _slots(at.query_block)
    p_QxK = jnp.exp(scores_QxK - a.lse[at.row, at.head, queries][:, None])
    d_p_QxK = dot(d_out_Qxd, v_Kxd, (1, 1))
    d_scores_QxK = p_QxK * (d_p_QxK - a.inner[at.row, at.head, queries][:, None])
    d_products_QxK = softcap_gradient(d_scores_QxK, products_QxK, s.softcap)
    return p_QxK.astype(q_Qxd.dtype), d_scores_QxK, d_products_QxK.astype(q_Qxd.dtype)


def _ahead(a, at):
    """Returns the number of blocks of the row from the queries to the keys."""
    return at.key_block - at.query_block - a.before[0]


def _bias(bias_HxD, at, ahead):
    """Returns the bias of a block [Q, K]."""
    differences = bias_HxD.shape[1]
    reach = differences // 2
    shape = (BLOCK, BLOCK)

    def one_value():
        # Pallas's Triton lowering turns a `where` between two Python numbers into booleans.
        farthest = (ahead > 0).astype(jnp.int32) * (differences - 1)
        return jnp.full(shape, bias_HxD[at.head, farthest])

    def looked_up():
        query, key = (jax.lax.broadcasted_iota(jnp.int32, shape, axis) for axis in range(2))
        difference = ahead * BLOCK + key - query
        return bias_HxD[at.head, jnp.clip(difference, -reach, reach) + reach]

    return jax.lax.cond(jnp.abs(ahead) >= FAR, one_value, looked_up)
