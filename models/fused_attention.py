"""`attention.attend` as kernels for TPUs: no array [T, S] is ever in memory, T5's bias included.

    out = attend(q, k, v, intervals, bias_HxD)      # the values and gradients of `attention.attend`

The softmax runs over blocks of keys (Milakov and Gimelshein 2018, arXiv:1805.02867), and the gradient
computes the probabilities again from the saved log-sums, once for queries and bias and once for keys
and values (Dao 2023, arXiv:2307.08691). Blocks of keys outside of all intervals of a block of queries
are neither read nor computed, and those inside of all are computed without a mask.

Letters beside those of `models.attention`: D differences of slots, Q queries and K keys of a block.
Blocks have queries along the last axis, so that the figures of a query (its interval, its maximum) lie
as its scores do, and heads of 64 leave no lane of a register empty.

T5's bias depends on key slot - query slot alone, and is the same from MAX_DISTANCE on. Cut into tiles of
128 keys × 128 queries it has five different ones for each head, by the tiles that lie between: two or
more before, one, none, one or more behind. A block adds them up to its bias; its gradient is summed tile
by tile, and then by difference.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pretrax.models import attention
from pretrax.models.positions import bias_at, rotated_right

BLOCK = 512  # most queries, and most keys, of a block
TILE = 128  # lanes of a TPU's registers: blocks are a multiple of it
FAR = 2  # tiles of distance from which on the bias is one value
_NEVER = -1e30  # the score of a key outside of the interval
_LOWEST = -1e20  # where maxima start: with less, such keys would weigh exp(0) until one is inside


def attend(q_BxTxHxd, k_BxSxGxd, v_BxSxGxd, intervals_Bx2xT, bias_HxD=None, softcap=None):
    """`attention.attend`, with a bias by difference of slots, as `RelativeBias` without a length has it.

    Lengths are padded to blocks here. A query whose interval is empty gets zeros. Under a mesh each device
    computes the rows and heads that are its own. Where nothing is differentiated, as in inference, it
    computes `attention.attend` on platforms other than TPU, which have no such kernel; gradients are
    for TPUs alone.

    Raises ValueError for a bias that reaches farther than its tiles.
    """
    farthest = (FAR - 1) * TILE + 1  # the nearest key of a tile in which all have one value
    if bias_HxD is not None and bias_HxD.shape[1] > 2 * farthest + 1:
        raise ValueError(
            f"Got a bias of {bias_HxD.shape[1]} differences, expected at most {2 * farthest + 1}: keys "
            f"farther than {farthest} slots have to share a value."
        )
    return _attend(softcap, q_BxTxHxd, k_BxSxGxd, v_BxSxGxd, intervals_Bx2xT, bias_HxD)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(softcap, q, k, v, intervals, bias):
    def fused(*args):
        return _forward(softcap, *args)[0]

    def plain(q, k, v, intervals, bias):
        slots_1xT = jnp.arange(q.shape[1])[None]
        bias = None if bias is None else bias_at(bias, slots_1xT, k.shape[1])[0]
        return attention.attend(q, k, v, intervals, bias, softcap)

    return jax.lax.platform_dependent(q, k, v, intervals, bias, tpu=fused, default=plain)


def _forward(softcap, q, k, v, intervals, bias):
    local = functools.partial(_forward_of_a_device, softcap)
    out, log_sum = _on_every_device(local, (q, k, v, intervals, bias), (_HEADS, _LOG_SUM))
    out, log_sum = (checkpoint_name(x, attention.SAVED) for x in (out, log_sum))
    return out, (q, k, v, intervals, bias, out, log_sum)


def _backward(softcap, saved, d_out):
    local = functools.partial(_backward_of_a_device, softcap)
    outputs = (_HEADS, _HEADS, _HEADS, _BIAS)
    d_q, d_k, d_v, d_bias = _on_every_device(local, (*saved, d_out), outputs)
    return d_q, d_k, d_v, None, d_bias


_attend.defvjp(_forward, _backward)

# --- devices, among which XLA cannot divide a kernel ------------------------------------------------

_HEADS = ("batch", "length", "heads", "kv")
_LOG_SUM = ("batch", "heads", "length")
_BIAS = ("heads", None)
_INPUTS = (_HEADS, _HEADS, _HEADS, ("batch", None, "length"), _BIAS, _HEADS, _LOG_SUM, _HEADS)


def _on_every_device(function, arrays, outputs):
    """Calls function(mesh axes of rows, *arrays) on each device, with its rows and heads of the arrays."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return function((), *arrays)
    rows, _, heads, _ = arrays[1].shape
    batch, of_heads = _axes("batch"), _axes("heads")
    if heads % _devices(mesh, of_heads):
        raise ValueError(
            f"Got {heads} key heads on a mesh that shards heads over {_devices(mesh, of_heads)} devices, "
            "expected a multiple: lower the mesh's tensor (mesh.make_mesh.tensor), raise the model's "
            "num_kv_heads, or give it attention='plain'."
        )
    if rows % _devices(mesh, batch):
        batch = ()  # each device computes all rows
    sharded = {"batch": batch or None, "heads": of_heads or None}
    specs = [jax.P(*map(sharded.get, names)) for names in (*_INPUTS[: len(arrays)], *outputs)]
    return jax.shard_map(
        functools.partial(function, batch),
        in_specs=tuple(specs[: len(arrays)]),
        out_specs=tuple(specs[len(arrays) :]),
        check_vma=False,  # it cannot tell of a kernel's outputs
    )(*arrays)


def _axes(name):
    """Returns the mesh axes of a logical axis."""
    axes = tuple(nn.logical_to_mesh_axes((name,)) or (None,))[0] or ()
    return (axes,) if isinstance(axes, str) else axes


def _devices(mesh, axes):
    return math.prod(mesh.shape[axis] for axis in axes)


def _forward_of_a_device(softcap, _, q, k, v, intervals, bias):
    settings = _settings(q, k, softcap)
    out, log_sum = _outputs(settings, _in_blocks(settings, q, k, v, intervals, bias))
    return _heads_last(out, q.shape[1]), log_sum[:, :, 0, : q.shape[1]]


def _backward_of_a_device(softcap, row_axes, q, k, v, intervals, bias, out, log_sum, d_out):
    settings = _settings(q, k, softcap)
    arrays = _in_blocks(settings, q, k, v, intervals, bias)
    # The softmax's gradient needs the sum of p · d_p over keys, which is the sum of out · d_out.
    inner_BxTxH = (out.astype(jnp.float32) * d_out.astype(jnp.float32)).sum(-1)
    inner = jnp.swapaxes(inner_BxTxH, 1, 2)[:, :, None]
    arrays = arrays._replace(
        # Of padding so large that its probabilities are 0, whatever the bias is.
        log_sum=_padded(log_sum[:, :, None], settings.queries, constant_values=-_LOWEST),
        inner=_padded(inner, settings.queries),
        d_out=_padded(_slots_last(d_out), settings.queries),
    )
    d_q, d_tiles = _query_gradients(settings, arrays)
    d_k, d_v = _key_gradients(settings, arrays)
    d_bias = None
    if bias is not None:
        (d_bias,) = jax.vjp(_tiles, bias)[1](d_tiles)
        d_bias = jax.lax.psum(d_bias, row_axes)
    d_k, d_v = (_heads_last(x, k.shape[1]) for x in (d_k, d_v))
    return _heads_last(d_q, q.shape[1]), d_k, d_v, d_bias


# --- blocks and tiles ------------------------------------------------------------------------------


class _Settings(NamedTuple):
    """The fixed numbers of a kernel."""

    rows: int
    heads: int
    share: int  # query heads of a key head
    width: int  # d
    softcap: float | None
    query_block: int  # Q
    key_block: int  # K
    query_blocks: int
    key_blocks: int

    @property
    def queries(self):
        return self.query_block * self.query_blocks

    @property
    def keys(self):
        return self.key_block * self.key_blocks


class _Blocks(NamedTuple):
    """The arrays of a kernel, the specs of their blocks, or in the kernel a block of each."""

    intervals: Any  # i32[B, 2, T]
    q: Any  # [B, H, d, T]
    k: Any  # [B, G, d, S]
    v: Any
    tiles: Any  # f32[H, 5, keys, queries]; None: no bias
    log_sum: Any = None  # f32[B, H, 1, T]; this and the rest for gradients alone
    inner: Any = None
    d_out: Any = None  # [B, H, d, T]


def _settings(q_BxTxHxd, k_BxSxGxd, softcap):
    (rows, queries, heads, width), (keys, groups) = q_BxTxHxd.shape, k_BxSxGxd.shape[1:3]
    (Q, query_blocks), (K, key_blocks) = _block(queries), _block(keys)
    return _Settings(rows, heads, heads // groups, width, softcap, Q, K, query_blocks, key_blocks)


def _block(length):
    """Returns the length of a block, and their number: 640 slots are two of 384, not two of 512."""
    blocks = pl.cdiv(length, BLOCK)
    return pl.cdiv(pl.cdiv(length, blocks), TILE) * TILE, blocks


def _in_blocks(s, q, k, v, intervals, bias):
    """Returns the inputs of every kernel, slots last and padded to whole blocks."""
    # Padding has the last query's interval, so that no block has to see more keys for it.
    intervals = _padded(jnp.clip(intervals, 0, k.shape[1]), s.queries, mode="edge")
    q, k, v = (_padded(_slots_last(x), n) for x, n in ((q, s.queries), (k, s.keys), (v, s.keys)))
    return _Blocks(intervals, q, k, v, None if bias is None else _tiles(bias))


def _padded(x, length, **values):
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, length - x.shape[-1])], **values)


def _slots_last(x_BxTxHxd):
    return jnp.transpose(x_BxTxHxd, (0, 2, 3, 1))


def _heads_last(x_BxHxdxT, length):
    return jnp.transpose(x_BxHxdxT[..., :length], (0, 3, 1, 2))


def _tiles(bias_HxD):
    """Returns the tiles of the bias, f32[H, 5, keys, queries]: first that of the farthest later keys."""
    heads, differences = bias_HxD.shape
    # The differences of all tiles' first key, beside one another from 256 down to -383, and of the 127
    # keys after it, 257 … 383 at first: each key has the list of the one before, rotated by one.
    first, columns = FAR * TILE, (2 * FAR + 1) * TILE
    more = first + TILE - 1 - differences // 2
    descending = jnp.pad(bias_HxD[:, ::-1], ((0, 0), (more, more)), "edge")
    rotated = rotated_right(jnp.roll(descending, 1 - TILE, 1), TILE)[:, :, :columns]
    return jnp.swapaxes(rotated.reshape(heads, TILE, -1, TILE), 1, 2)


class _Visible(NamedTuple):
    """Which blocks of keys each block of queries attends to, i32[B * query blocks] each."""

    first: Any
    last: Any
    first_whole: Any  # from here to `last_whole` they are in the intervals of all its queries
    last_whole: Any


class _SeenBy(NamedTuple):
    """Which blocks of queries attend to each block of keys, i32[B * key blocks] each."""

    first: Any
    last: Any


def _visible(s, intervals_Bx2xT):
    """Returns `_Visible`, and the most blocks of keys that a block of queries attends to."""
    blocks = intervals_Bx2xT.reshape(s.rows, 2, s.query_blocks, s.query_block)
    start, end = blocks[:, 0], blocks[:, 1]
    found = _Visible(
        jnp.minimum(start.min(-1) // s.key_block, s.key_blocks - 1),
        (end.max(-1) - 1) // s.key_block,
        -(-start.max(-1) // s.key_block),
        end.min(-1) // s.key_block - 1,
    )
    return _Visible(*(x.reshape(-1) for x in found)), _most(found)


def _seen_by(s, visible):
    """Returns `_SeenBy`, and the most blocks of queries that attend to a block of keys."""
    first, last = (x.reshape(s.rows, s.query_blocks, 1) for x in visible[:2])
    key_block = jnp.arange(s.key_blocks)[None, None]
    query_block = jnp.arange(s.query_blocks)[None, :, None]
    seen = (first <= key_block) & (key_block <= last)
    found = _SeenBy(
        jnp.where(seen, query_block, s.query_blocks - 1).min(1),
        jnp.where(seen, query_block, -1).max(1),
    )
    return _SeenBy(*(x.reshape(-1) for x in found)), _most(found)


def _most(blocks):
    return jnp.maximum((blocks.last - blocks.first + 1).max(), 1)


# --- the grid --------------------------------------------------------------------------------------
#
# Of the first two kernels it is (head, row, block of queries, n-th block of keys that it sees), so that
# a head's tiles are read once; of the third (key head, row, block of keys, n-th of its query heads, n-th
# block of queries that sees it).


class _At(NamedTuple):
    """The blocks of one step of the grid."""

    row: Any
    head: Any
    key_head: Any
    query_block: Any
    key_block: Any
    is_nth: (
        Any  # False where there is no n-th block: these are the last ones, so that nothing is read
    )


def _by_query_block(s, head, row, query_block, n, visible):
    at = row * s.query_blocks + query_block
    key_block, is_nth = _nth(visible.first[at], visible.last[at], n)
    return _At(row, head, jax.lax.div(head, s.share), query_block, key_block, is_nth)


def _by_key_block(s, key_head, row, key_block, nth_head, n, visible, seen_by):
    at = row * s.key_blocks + key_block
    query_block, is_nth = _nth(seen_by.first[at], seen_by.last[at], n)
    at = row * s.query_blocks + query_block
    is_nth &= (visible.first[at] <= key_block) & (key_block <= visible.last[at])
    head = key_head * s.share + nth_head
    return _At(row, head, key_head, query_block, key_block, is_nth)


def _nth(first, last, n):
    return jnp.minimum(first + n, jnp.maximum(first, last)), first + n <= last


def _specs(s, place):
    """Returns the block specs of all arrays; `place`: `_by_query_block` or `_by_key_block`."""

    def spec(shape, index):
        return pl.BlockSpec(shape, lambda *grid: index(place(s, *grid)))

    of_queries = spec(
        (None, None, s.width, s.query_block), lambda at: (at.row, at.head, 0, at.query_block)
    )
    of_keys = spec(
        (None, None, s.width, s.key_block), lambda at: (at.row, at.key_head, 0, at.key_block)
    )
    figures = spec((None, None, 1, s.query_block), lambda at: (at.row, at.head, 0, at.query_block))
    return _Blocks(
        intervals=spec((None, 2, s.query_block), lambda at: (at.row, 0, at.query_block)),
        q=of_queries,
        k=of_keys,
        v=of_keys,
        tiles=spec((None, 2 * FAR + 1, TILE, TILE), lambda at: (at.head, 0, 0, 0)),
        log_sum=figures,
        inner=figures,
        d_out=of_queries,
    )


# --- the three kernels -----------------------------------------------------------------------------


def _outputs(s, arrays):
    """Returns the outputs [B, H, d, T], and the logs of the softmax's denominators [B, H, 1, T]."""
    visible, most = _visible(s, arrays.intervals)
    specs = _specs(s, _by_query_block)
    log_sum = jax.ShapeDtypeStruct((s.rows, s.heads, 1, s.queries), jnp.float32)
    return _call(
        functools.partial(_output_kernel, s),
        (visible,),
        (s.heads, s.rows, s.query_blocks, most),
        arrays,
        specs,
        [(jax.ShapeDtypeStruct(arrays.q.shape, arrays.v.dtype), specs.q), (log_sum, specs.log_sum)],
        [(1, s.query_block), (1, s.query_block), (s.width, s.query_block)],
        parallel=3,
    )


def _output_kernel(s, visible, block, out, log_sum, top, total, sums):
    head, row, query_block, n = (pl.program_id(axis) for axis in range(4))

    @pl.when(n == 0)
    def _():
        top[...] = jnp.full_like(top, _LOWEST)
        total[...], sums[...] = jnp.zeros_like(total), jnp.zeros_like(sums)

    def step(at, masked):
        _, scores_KxQ = _scores(s, at, block, masked)
        top_1xQ = jnp.maximum(top[...], scores_KxQ.max(0, keepdims=True))
        weights_KxQ = jnp.exp(scores_KxQ - top_1xQ)
        decay_1xQ = jnp.exp(top[...] - top_1xQ)
        total[...] = decay_1xQ * total[...] + weights_KxQ.sum(0, keepdims=True)
        products_dxQ = _dot(block.v[...], weights_KxQ.astype(block.v.dtype), (1, 0))
        sums[...] = decay_1xQ * sums[...] + products_dxQ
        top[...] = top_1xQ

    _if_visible(s, visible, _by_query_block(s, head, row, query_block, n, visible), step)

    @pl.when(n == pl.num_programs(3) - 1)
    def _():
        total_1xQ = jnp.where(total[...] == 0, 1, total[...])  # 0: the interval is empty
        out[...] = (sums[...] / total_1xQ).astype(out.dtype)
        log_sum[...] = top[...] + jnp.log(total_1xQ)


def _query_gradients(s, arrays):
    """Returns the gradients of the queries and of the tiles, None without a bias."""
    visible, most = _visible(s, arrays.intervals)
    specs, biased = _specs(s, _by_query_block), arrays.tiles is not None
    return _call(
        functools.partial(_query_gradient_kernel, s),
        (visible,),
        (s.heads, s.rows, s.query_blocks, most),
        arrays,
        specs,
        [(arrays.q, specs.q), (arrays.tiles, specs.tiles if biased else None)],
        [(s.width, s.query_block)],
        # All rows and blocks of a head add to the gradient of its tiles.
        parallel=1 if biased else 3,
    )


def _query_gradient_kernel(s, visible, block, d_q, d_tiles, sums):
    head, row, query_block, n = (pl.program_id(axis) for axis in range(4))

    @pl.when(n == 0)
    def _():
        sums[...] = jnp.zeros_like(sums)

    if d_tiles is not None:

        @pl.when((row == 0) & (query_block == 0) & (n == 0))
        def _():
            d_tiles[...] = jnp.zeros_like(d_tiles)

    def step(at, masked):
        _, d_scores_KxQ, d_products_KxQ = _gradients(s, at, block, masked)
        sums[...] += _dot(block.k[...], d_products_KxQ, (1, 0))
        if d_tiles is not None:
            _add_to_tiles(s, at, d_tiles, d_scores_KxQ)

    _if_visible(s, visible, _by_query_block(s, head, row, query_block, n, visible), step)

    @pl.when(n == pl.num_programs(3) - 1)
    def _():
        d_q[...] = sums[...].astype(d_q.dtype)


def _key_gradients(s, arrays):
    """Returns the gradients of keys and values."""
    visible, _ = _visible(s, arrays.intervals)
    seen_by, most = _seen_by(s, visible)
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
    )


def _key_gradient_kernel(s, visible, seen_by, block, d_k, d_v, k_sums, v_sums):
    key_head, row, key_block, nth_head, n = (pl.program_id(axis) for axis in range(5))

    @pl.when((nth_head == 0) & (n == 0))
    def _():
        k_sums[...], v_sums[...] = jnp.zeros_like(k_sums), jnp.zeros_like(v_sums)

    def step(at, masked):
        p_KxQ, _, d_products_KxQ = _gradients(s, at, block, masked)
        k_sums[...] += _dot(block.q[...], d_products_KxQ, (1, 1))
        v_sums[...] += _dot(block.d_out[...], p_KxQ, (1, 1))

    at = _by_key_block(s, key_head, row, key_block, nth_head, n, visible, seen_by)
    _if_visible(s, visible, at, step)

    @pl.when((nth_head == s.share - 1) & (n == pl.num_programs(4) - 1))
    def _():
        d_k[...], d_v[...] = k_sums[...].astype(d_k.dtype), v_sums[...].astype(d_v.dtype)


def _call(kernel, prefetched, grid, arrays, specs, outputs, scratch, parallel):
    """Runs a kernel; `outputs` are (shape and dtype, spec), and `parallel` the axes in any order."""
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
        name=f"attention{kernel.func.__name__.removesuffix('_kernel')}",
    )(*prefetched, arrays)


def _if_visible(s, visible, at, step):
    """Calls step(at, masked) where queries attend to keys, without a mask where all attend to all."""
    queries = at.row * s.query_blocks + at.query_block
    first, last = visible.first_whole[queries], visible.last_whole[queries]
    whole = (first <= at.key_block) & (at.key_block <= last)
    pl.when(at.is_nth & whole)(lambda: step(at, masked=False))
    pl.when(at.is_nth & ~whole)(lambda: step(at, masked=True))


def _scores(s, at, block, masked):
    """Returns the products of keys and queries, capped, and the scores: float32 [K, Q]."""
    products_KxQ = _dot(block.k[...], block.q[...], (0, 0))
    if s.softcap is not None:
        products_KxQ = s.softcap * jnp.tanh(products_KxQ / s.softcap)
    scores_KxQ = products_KxQ
    if block.tiles is not None:
        scores_KxQ += _bias(s, at, block.tiles)
    if masked:
        first = at.key_block * s.key_block
        key_KxQ = first + jax.lax.broadcasted_iota(jnp.int32, scores_KxQ.shape, 0)
        start_1xQ, end_1xQ = block.intervals[0:1], block.intervals[1:2]
        seen_KxQ = (start_1xQ <= key_KxQ) & (key_KxQ < end_1xQ)
        scores_KxQ = jnp.where(seen_KxQ, scores_KxQ, _NEVER)
    return products_KxQ, scores_KxQ


def _gradients(s, at, block, masked):
    """Returns probabilities and the gradients of scores (float32) and of products: [K, Q]."""
    products_KxQ, scores_KxQ = _scores(s, at, block, masked)
    p_KxQ = jnp.exp(scores_KxQ - block.log_sum[...])
    d_p_KxQ = _dot(block.v[...], block.d_out[...], (0, 0))
    d_scores_KxQ = p_KxQ * (d_p_KxQ - block.inner[...])
    d_products_KxQ = d_scores_KxQ
    if s.softcap is not None:
        d_products_KxQ *= 1 - (products_KxQ / s.softcap) ** 2  # the derivative of tanh
    dtype = block.q.dtype
    return p_KxQ.astype(dtype), d_scores_KxQ, d_products_KxQ.astype(dtype)


def _dot(a, b, contracted):
    axes = (contracted[:1], contracted[1:]), ((), ())
    return jax.lax.dot_general(a, b, axes, preferred_element_type=jnp.float32)


def _bias(s, at, tiles):
    """Returns the bias of a block [K, Q]."""
    rows, columns = s.key_block // TILE, s.query_block // TILE
    found = {n: tiles[_tile(s, at, n)] for n in range(1 - rows, columns)}
    of_keys = [jnp.concatenate([found[c - r] for c in range(columns)], 1) for r in range(rows)]
    return jnp.concatenate(of_keys, 0)


def _add_to_tiles(s, at, d_tiles, d_scores_KxQ):
    rows, columns = s.key_block // TILE, s.query_block // TILE
    for n in range(1 - rows, columns):
        of_keys = [r for r in range(rows) if 0 <= r + n < columns]
        tile = sum(
            d_scores_KxQ[r * TILE : (r + 1) * TILE, (r + n) * TILE : (r + n + 1) * TILE]
            for r in of_keys
        )
        d_tiles[_tile(s, at, n)] += tile


def _tile(s, at, n):
    """Returns the tile of the bias for queries that lie n tiles further in their block than the keys."""
    keys, queries = at.key_block * (s.key_block // TILE), at.query_block * (s.query_block // TILE)
    return jnp.clip(queries - keys + n, -FAR, FAR) + FAR
