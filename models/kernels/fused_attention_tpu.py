"""Kernels of fused attention for TPUs (`models.kernels.fused_attention`).

Blocks have queries along the last axis. Statistics of a query (its interval, its maximum) then have
the same layout as its scores, and heads of width 64 use all lanes of a register. Blocks of keys
outside all intervals of a block of queries are neither read nor computed. Blocks inside all
intervals are computed without a mask.

T5's bias is read as five tiles of 128 keys × 128 queries, and each block is put together from them.
The gradient of the bias is summed tile by tile, and at the end of a head along the tiles'
diagonals.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ..attention import MASK_VALUE, capped, softcap_gradient
from . import attention_blocks
from .attention_blocks import LOWEST, dot, padded, seeing_blocks, tiles, visible_blocks

BLOCK = 512  # largest number of queries, and of keys, of a block
MAX_SUMS = 2**19  # number of gradient sums of a row's keys that fit next to a block
TILE = 128  # number of lanes of a TPU's registers; block lengths are multiples of it
SUBLANES = 8  # number of rows of a TPU's registers
FAR = attention_blocks.far(TILE)
MAX_HEAD_BYTES = 1024  # bytes per slot; wider heads do not fit into the vector memory of a v5e


def forward(softcap, before, q, k, v, intervals, bias):
    """Returns the outputs [B, T, H, d], and the LSE of the scores f32[B, H, T].

    `before` i32[1] is the number of slots of the row before the first query, a multiple of `TILE`.
    """
    settings = attention_blocks.settings(q, k, softcap, _block)
    out, lse = _outputs(settings, before, _in_blocks(settings, q, k, v, intervals, bias))
    return _heads_last(out, q), lse[:, :, 0, : q.shape[1]]


def backward(softcap, before, q, k, v, intervals, bias, out, lse, d_out, d_lse):
    """Returns the gradients of queries, keys, values and bias, given the outputs of `forward`."""
    settings = attention_blocks.settings(q, k, softcap, _block)
    arrays = _in_blocks(settings, q, k, v, intervals, bias)
    lse, d_lse = attention_blocks.padded_statistics(settings, lse, d_lse)
    out, d_out = (_slots_last(x, settings.queries) for x in (out, d_out))
    arrays = arrays._replace(lse=lse[:, :, None], d_out=d_out)
    gradients = _query_gradients(settings, before, arrays, out, d_lse[:, :, None])
    d_q, inner, diagonals, d_k, d_v = gradients
    if not _at_once(settings):
        d_k, d_v = _key_gradients(settings, before, arrays._replace(inner=inner))
    d_bias = None
    if bias is not None:
        d_bias = attention_blocks.bias_gradient_of_diagonals(bias, TILE, diagonals)
    return _heads_last(d_q, q), _heads_last(d_k, k), _heads_last(d_v, v), d_bias


# --- blocks and tiles -----------------------------------------------------------------------------


class _Blocks(NamedTuple):
    """The arrays of a kernel, the specs of their blocks, or inside the kernel one block of each."""

    intervals: Any  # i32[B, 2, T]
    q: Any  # [H, d, B T]
    k: Any  # [G, d, B S]
    v: Any
    tiles: Any  # f32[H, 5, keys, queries]; None without a bias
    lse: Any = None  # f32[B, H, 1, T]; only gradients need this field and the next ones
    d_out: Any = None  # [H, d, B T]
    inner: Any = None  # f32[B, H, 1, T]: the sum of p · d_p over keys, minus `d_lse`
    out: Any = None  # [H, d, B T]; `inner` is computed from it, `d_out` and `d_lse`
    d_lse: Any = None  # f32[B, H, 1, T]


def _block(length):
    """Returns the length and the number of blocks: 640 slots are two blocks of 384, not of 512."""
    blocks = pl.cdiv(length, BLOCK)
    return pl.cdiv(pl.cdiv(length, blocks), TILE) * TILE, blocks


def padded_length(slots):
    """Returns the number of slots to which the kernels pad a row."""
    return math.prod(_block(slots))


def _in_blocks(s, q, k, v, intervals, bias):
    """Returns the inputs of the kernels, with slots last and padded to whole blocks."""
    intervals = attention_blocks.in_blocks(s, intervals, k.shape[1])
    q, k, v = (_slots_last(x, n) for x, n in ((q, s.queries), (k, s.keys), (v, s.keys)))
    return _Blocks(intervals, q, k, v, None if bias is None else tiles(bias, TILE))


def _flat(blocks):
    """Returns the blocks with flattened rows, and the largest number of blocks in any range."""
    most = jnp.maximum((blocks.last - blocks.first + 1).max(), 1)
    return jax.tree.map(lambda x: x.reshape(-1), blocks), most


def _visible(s, before, arrays):
    return visible_blocks(s, arrays.intervals, None if arrays.tiles is None else before)


# The next two functions convert between [B, T, H, d] and [H, d, B T]. Both are matrices of slots
# and heads, which products with weights read and write in either order, so nothing is copied. The
# layout [B, H, d, T] would take two copies of each array, and gradients of weights would be
# products with 64 columns.


def _slots_last(x_BxTxHxd, length):
    """Returns [H, d, B T], with the slots of each row padded to a length."""
    rows, slots, heads, width = x_BxTxHxd.shape
    x_BxTxHd = padded(x_BxTxHxd.reshape(rows, slots, -1), length, axis=1)
    return x_BxTxHd.reshape(rows * length, -1).T.reshape(heads, width, rows * length)


def _heads_last(x_HxdxBT, like):
    """Returns [B, T, H, d], with the shape of `like`."""
    rows, slots, *heads = like.shape
    x_BTxHd = x_HxdxBT.reshape(-1, x_HxdxBT.shape[-1]).T
    x_BxTxHd = x_BTxHd.reshape(rows, -1, x_BTxHd.shape[-1])[:, :slots]
    return x_BxTxHd.reshape(rows, slots, *heads)


# --- the grid -------------------------------------------------------------------------------------
#
# The grid of the first two kernels is (head, row, block of queries, n-th block of keys that the
# queries attend to), so that a head's tiles are read once. The third kernel is not always needed.
# Its grid is (key head, row, block of keys, n-th of the key head's query heads, n-th block of
# queries that attends to the keys).


class _At(NamedTuple):
    """The blocks of one step of the grid."""

    row: Any
    head: Any
    key_head: Any
    query_block: Any
    key_block: Any
    query_tile: Any  # first tile of the block of queries, from the row's start; 0 without a bias
    is_nth: Any  # whether there is an n-th block; if not, the last one is kept, so nothing is read


def _by_query_block(s, head, row, query_block, n, visible):
    at = row * s.query_blocks + query_block
    key_block, is_nth = _nth(visible.first[at], visible.last[at], n)
    tile = _query_tile(s, visible, query_block)
    key_head = jax.lax.div(head, s.share)
    return _At(row, head, key_head, query_block, key_block, tile, is_nth)


def _by_key_block(s, key_head, row, key_block, nth_head, n, visible, seen_by):
    at = row * s.key_blocks + key_block
    query_block, is_nth = _nth(seen_by.first[at], seen_by.last[at], n)
    at = row * s.query_blocks + query_block
    is_nth &= (visible.first[at] <= key_block) & (key_block <= visible.last[at])
    head = key_head * s.share + nth_head
    tile = _query_tile(s, visible, query_block)
    return _At(row, head, key_head, query_block, key_block, tile, is_nth)


def _query_tile(s, visible, query_block):
    if visible.before is None:
        return 0
    return jax.lax.div(visible.before[0], TILE) + query_block * (s.query_block // TILE)


def _nth(first, last, n):
    return jnp.minimum(first + n, jnp.maximum(first, last)), first + n <= last


def _specs(s, place):
    """Returns the block specs of all arrays. `place` is `_by_query_block` or `_by_key_block`."""

    def spec(shape, index):
        return pl.BlockSpec(shape, lambda *grid: index(place(s, *grid)))

    def by_query(at):
        return at.head, 0, at.row * s.query_blocks + at.query_block

    def by_key(at):
        return at.key_head, 0, at.row * s.key_blocks + at.key_block

    query_spec = spec((None, s.width, s.query_block), by_query)
    key_spec = spec((None, s.width, s.key_block), by_key)
    statistic_spec = spec(
        (None, None, 1, s.query_block), lambda at: (at.row, at.head, 0, at.query_block)
    )
    return _Blocks(
        intervals=spec((None, 2, s.query_block), lambda at: (at.row, 0, at.query_block)),
        q=query_spec,
        k=key_spec,
        v=key_spec,
        tiles=spec((None, 2 * FAR + 1, TILE, TILE), lambda at: (at.head, 0, 0, 0)),
        lse=statistic_spec,
        d_out=query_spec,
        inner=statistic_spec,
        out=query_spec,
        d_lse=statistic_spec,
    )


# --- the three kernels ----------------------------------------------------------------------------


def _outputs(s, before, arrays):
    """Returns the outputs [H, d, B T], and the LSE of the scores [B, H, 1, T]."""
    visible, most = _flat(_visible(s, before, arrays))
    specs = _specs(s, _by_query_block)
    lse = jax.ShapeDtypeStruct((s.rows, s.heads, 1, s.queries), jnp.float32)
    return _call(
        functools.partial(_output_kernel, s),
        (visible,),
        (s.heads, s.rows, s.query_blocks, most),
        arrays,
        specs,
        [(jax.ShapeDtypeStruct(arrays.q.shape, arrays.v.dtype), specs.q), (lse, specs.lse)],
        [(1, s.query_block), (1, s.query_block), (s.width, s.query_block)],
        parallel=3,
        products=2,
    )


def _output_kernel(s, visible, block, out, lse, top, total, sums):
    head, row, query_block, n = (pl.program_id(axis) for axis in range(4))

    @pl.when(n == 0)
    def _():
        top[...] = jnp.full_like(top, LOWEST)
        total[...], sums[...] = jnp.zeros_like(total), jnp.zeros_like(sums)

    def step(at, masked):
        _, scores_KxQ = _scores(s, at, block, masked)
        top_1xQ = jnp.maximum(top[...], scores_KxQ.max(0, keepdims=True))
        weights_KxQ = jnp.exp(scores_KxQ - top_1xQ)
        decay_1xQ = jnp.exp(top[...] - top_1xQ)
        total[...] = decay_1xQ * total[...] + weights_KxQ.sum(0, keepdims=True)
        products_dxQ = dot(block.v[...], weights_KxQ.astype(block.v.dtype), (1, 0))
        sums[...] = decay_1xQ * sums[...] + products_dxQ
        top[...] = top_1xQ

    _if_visible(s, visible, _by_query_block(s, head, row, query_block, n, visible), step)

    @pl.when(n == pl.num_programs(3) - 1)
    def _():
        total_1xQ = jnp.where(total[...] == 0, 1, total[...])  # 0: the interval is empty
        out[...] = (sums[...] / total_1xQ).astype(out.dtype)
        lse[...] = top[...] + jnp.log(total_1xQ)


def _at_once(s):
    """Returns whether one kernel computes all gradients, and each probability only once.

    This requires that the gradient sums of a row's keys, for one query head, fit into memory.
    """
    return s.share == 1 and s.width * s.keys <= MAX_SUMS


def _query_gradients(s, before, arrays, out, d_lse):
    """Returns the gradients of the queries and everything that is computed with them.

    Returns:
      The gradients of the queries; `_Blocks.inner`; the diagonal sums of the tiles' gradients,
      f32[H, 5, 2 TILE], or None without a bias; the gradients of keys and of values, or None unless
      `_at_once`.
    """
    visible, most = _flat(_visible(s, before, arrays))
    specs = _specs(s, _by_query_block)
    biased = arrays.tiles is not None
    at_once = _at_once(s)
    diagonals = jax.ShapeDtypeStruct((s.heads, 2 * FAR + 1, 2 * TILE), jnp.float32)
    diagonal_spec = pl.BlockSpec((None, *diagonals.shape[1:]), lambda head, *_: (head, 0, 0))
    whole_keys_spec = pl.BlockSpec((None, s.width, s.keys), lambda head, row, *_: (head, 0, row))
    return _call(
        functools.partial(_query_gradient_kernel, s),
        (visible,),
        (s.heads, s.rows, s.query_blocks, most),
        arrays._replace(out=out, d_lse=d_lse),
        specs,
        [
            (arrays.q, specs.q),
            (d_lse, specs.inner),
            (diagonals, diagonal_spec) if biased else (None, None),
            *((x, whole_keys_spec) if at_once else (None, None) for x in (arrays.k, arrays.v)),
        ],
        [
            (s.width, s.query_block),
            *[(2 * FAR + 1, TILE, TILE)] * biased,
            *[(s.width, s.keys)] * 2 * at_once,
        ],
        # All rows and blocks of a head add to the gradient of its tiles. All blocks of queries add
        # to the gradients of keys and values.
        parallel=1 if biased else 2 if at_once else 3,
        products=5 if at_once else 3,
    )


def _query_gradient_kernel(s, visible, block, d_q, inner, diagonals, d_k, d_v, sums, *more_sums):
    head, row, query_block, n = (pl.program_id(axis) for axis in range(4))
    d_tiles = None if diagonals is None else more_sums[0]
    k_sums, v_sums = (None, None) if d_k is None else more_sums[-2:]
    is_first = n == 0
    is_last = n == pl.num_programs(3) - 1

    @pl.when(is_first)
    def _():
        sums[...] = jnp.zeros_like(sums)
        products_dxQ = block.out[...].astype(jnp.float32) * block.d_out[...].astype(jnp.float32)
        inner[...] = products_dxQ.sum(0, keepdims=True) - block.d_lse[...]

    first_of_row = is_first & (query_block == 0)
    if d_k is not None:
        pl.when(first_of_row)(functools.partial(_clear, k_sums, v_sums))
    if diagonals is not None:
        pl.when(first_of_row & (row == 0))(functools.partial(_clear, d_tiles))

    def step(at, masked):
        with_inner = block._replace(inner=inner)
        p_KxQ, d_scores_KxQ, d_products_KxQ = _gradients(s, at, with_inner, masked)
        sums[...] += dot(block.k[...], d_products_KxQ, (1, 0))
        if d_k is not None:
            first = pl.multiple_of(at.key_block * s.key_block, TILE)
            k_block_sums, v_block_sums = (
                x.at[:, pl.ds(first, s.key_block)] for x in (k_sums, v_sums)
            )
            _add_to_keys(k_block_sums, v_block_sums, block, p_KxQ, d_products_KxQ)
        if diagonals is not None:
            _add_to_tiles(s, at, d_tiles, d_scores_KxQ)

    _if_visible(s, visible, _by_query_block(s, head, row, query_block, n, visible), step)

    @pl.when(is_last)
    def _():
        d_q[...] = sums[...].astype(d_q.dtype)

    last_of_row = is_last & (query_block == s.query_blocks - 1)
    if d_k is not None:
        pl.when(last_of_row)(functools.partial(_write, (k_sums, v_sums), (d_k, d_v)))
    if diagonals is not None:
        pl.when(last_of_row & (row == s.rows - 1))(
            functools.partial(_write_diagonals, d_tiles, diagonals)
        )


def _write(sums, results):
    for x, y in zip(sums, results):
        y[...] = x[...].astype(y.dtype)


def _write_diagonals(d_tiles, diagonals):
    for tile in range(2 * FAR + 1):
        diagonals[tile : tile + 1] = _sums_of_diagonals(d_tiles[tile])


def _clear(*sums):
    for x in sums:
        x[...] = jnp.zeros_like(x)


def _key_gradients(s, before, arrays):
    """Returns the gradients of keys and values."""
    visible = _visible(s, before, arrays)
    seen_by, most = _flat(seeing_blocks(s, visible.first, visible.last))
    visible, _ = _flat(visible)
    specs = _specs(s, _by_key_block)
    return _call(
        functools.partial(_key_gradient_kernel, s),
        (visible, seen_by),
        (s.heads // s.share, s.rows, s.key_blocks, s.share, most),
        arrays,
        specs,
        [(arrays.k, specs.k), (arrays.v, specs.v)],
        [(s.width, s.key_block)] * 2,
        parallel=3,
        products=4,
    )


def _key_gradient_kernel(s, visible, seen_by, block, d_k, d_v, k_sums, v_sums):
    key_head, row, key_block, nth_head, n = (pl.program_id(axis) for axis in range(5))

    @pl.when((nth_head == 0) & (n == 0))
    def _():
        _clear(k_sums, v_sums)

    def step(at, masked):
        p_KxQ, _, d_products_KxQ = _gradients(s, at, block, masked)
        _add_to_keys(k_sums, v_sums, block, p_KxQ, d_products_KxQ)

    at = _by_key_block(s, key_head, row, key_block, nth_head, n, visible, seen_by)
    _if_visible(s, visible, at, step)

    @pl.when((nth_head == s.share - 1) & (n == pl.num_programs(4) - 1))
    def _():
        _write((k_sums, v_sums), (d_k, d_v))


def _add_to_keys(k_sums, v_sums, block, p_KxQ, d_products_KxQ):
    k_sums[...] += dot(block.q[...], d_products_KxQ, (1, 1))
    v_sums[...] += dot(block.d_out[...], p_KxQ, (1, 1))


def _call(kernel, prefetched, grid, arrays, specs, outputs, scratch, parallel, products):
    """Runs a kernel.

    Args:
      kernel: the kernel, a `functools.partial` with its `Settings`.
      prefetched: arrays that the specs of blocks read.
      arrays, specs: the inputs, and the specs of their blocks.
      outputs: (shape and dtype, spec) of each output.
      scratch: shapes of float32 arrays in memory.
      parallel: number of leading grid axes whose steps may run in any order.
      products: number of matrix products for a block of keys and a block of queries.
    """
    specs = _Blocks(*(None if x is None else spec for x, spec in zip(arrays, specs)))
    shapes, out_specs = zip(*outputs)
    return pl.pallas_call(
        kernel,
        out_shape=jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), shapes),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(prefetched),
            grid=grid,
            in_specs=(specs,),
            out_specs=out_specs,
            scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in scratch],
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel",) * parallel + ("arbitrary",) * (len(grid) - parallel)
        ),
        cost_estimate=_cost(kernel.args[0], products, [*arrays, *shapes]),
        name=f"attention{kernel.func.__name__.removesuffix('_kernel')}",
    )(*prefetched, arrays)


def _cost(s, products, arrays):
    """Returns the cost estimate for the compiler.

    It assumes that every query attends to every key, since the intervals are known only at run
    time.
    """
    scores = s.rows * s.heads * s.queries * s.keys
    return pl.CostEstimate(
        flops=2 * products * scores * s.width,
        transcendentals=scores,
        bytes_accessed=sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(arrays)),
    )


def _if_visible(s, visible, at, step):
    """Calls step(at, masked) if queries attend to the keys; without a mask if all attend to all."""
    queries = at.row * s.query_blocks + at.query_block
    first = visible.first_whole[queries]
    last = visible.last_whole[queries]
    whole = (first <= at.key_block) & (at.key_block <= last)
    pl.when(at.is_nth & whole)(lambda: step(at, masked=False))
    pl.when(at.is_nth & ~whole)(lambda: step(at, masked=True))


def _scores(s, at, block, masked):
    """Returns the products of keys and queries, capped, and the scores: float32 [K, Q]."""
    products_KxQ = capped(dot(block.k[...], block.q[...], (0, 0)), s.softcap)
    scores_KxQ = products_KxQ
    if block.tiles is not None:
        scores_KxQ += _bias(s, at, block.tiles)
    if masked:
        first = at.key_block * s.key_block
        key_KxQ = first + jax.lax.broadcasted_iota(jnp.int32, scores_KxQ.shape, 0)
        start_1xQ = block.intervals[0:1]
        end_1xQ = block.intervals[1:2]
        seen_KxQ = (start_1xQ <= key_KxQ) & (key_KxQ < end_1xQ)
        scores_KxQ = jnp.where(seen_KxQ, scores_KxQ, MASK_VALUE)
    return products_KxQ, scores_KxQ


def _gradients(s, at, block, masked):
    """Returns probabilities and the gradients of scores (float32) and of products: [K, Q]."""
    products_KxQ, scores_KxQ = _scores(s, at, block, masked)
    p_KxQ = jnp.exp(scores_KxQ - block.lse[...])
    d_p_KxQ = dot(block.v[...], block.d_out[...], (0, 0))
    d_scores_KxQ = p_KxQ * (d_p_KxQ - block.inner[...])
    d_products_KxQ = softcap_gradient(d_scores_KxQ, products_KxQ, s.softcap)
    dtype = block.q.dtype
    return p_KxQ.astype(dtype), d_scores_KxQ, d_products_KxQ.astype(dtype)


def _bias(s, at, tiles):
    """Returns the bias of a block [K, Q]."""
    rows = s.key_block // TILE
    columns = s.query_block // TILE
    by_offset = {n: tiles[_tile(s, at, n)] for n in range(1 - rows, columns)}
    bias_rows = [
        jnp.concatenate([by_offset[c - r] for c in range(columns)], 1) for r in range(rows)
    ]
    return jnp.concatenate(bias_rows, 0)


def _add_to_tiles(s, at, d_tiles, d_scores_KxQ):
    rows = s.key_block // TILE
    columns = s.query_block // TILE
    for n in range(1 - rows, columns):
        key_tiles = [r for r in range(rows) if 0 <= r + n < columns]
        d_tiles[_tile(s, at, n)] += sum(
            d_scores_KxQ[r * TILE : (r + 1) * TILE, (r + n) * TILE : (r + n + 1) * TILE]
            for r in key_tiles
        )


def _tile(s, at, n):
    """Returns the tile of the bias for queries n tiles further in their block than the keys."""
    return jnp.clip(at.query_tile - at.key_block * (s.key_block // TILE) + n, -FAR, FAR) + FAR


def _sums_of_diagonals(tile_KxQ):
    """Returns the sums along the diagonals of a tile, [1, 2 TILE].

    Element i is the sum over the keys of the element whose query is i slots, or i - 2 TILE slots,
    after the key.
    """
    x = jnp.concatenate([tile_KxQ, jnp.zeros_like(tile_KxQ)], 1)
    keys = TILE
    while keys > 1:  # adds key k + keys / 2, rolled back by keys / 2, to key k
        keys //= 2
        later = x[keys:] if keys >= SUBLANES else pltpu.roll(x, SUBLANES - keys, 0)
        x = x[: max(keys, SUBLANES)] + pltpu.roll(later, 2 * TILE - keys, 1)
    return x[:1]
