"""What kernels of attention share on every platform: blocks of slots, and T5's bias cut into tiles.

Letters, in addition to those of `models.attention`: D differences of slots, Q queries and K keys of
a block.

T5's bias depends on key slot - query slot alone, and is the same from MAX_DISTANCE on. Cut into
tiles of equal sides it has few different ones for each head, by the tiles that lie between its keys
and queries: from some distance on, before or behind, a tile is of one value.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..positions import MAX_DISTANCE, rotated_right

# Where maxima start: with less, keys outside of the interval, of score `attention.NEVER`, would
# weigh exp(0) until one is inside.
LOWEST = -1e20


class Settings(NamedTuple):
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


def settings(q_BxTxHxd, k_BxSxGxd, softcap, block):
    """Returns `Settings`; block(length): the length of a block, and the number of blocks."""
    (rows, queries, heads, width), (keys, groups) = q_BxTxHxd.shape, k_BxSxGxd.shape[1:3]
    (Q, query_blocks), (K, key_blocks) = block(queries), block(keys)
    return Settings(rows, heads, heads // groups, width, softcap, Q, K, query_blocks, key_blocks)


def in_blocks(s, intervals_Bx2xT, keys):
    """Returns the intervals cut to the keys there are, and those of padding.

    Padding has the last query's interval, so that no block has to see more keys for it.
    """
    return padded(jnp.clip(intervals_Bx2xT, 0, keys), s.queries, mode="edge")


def padded(x, length, axis=-1, **values):
    """Returns the array, one of its axes padded to a length."""
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, length - x.shape[axis])
    return jnp.pad(x, widths, **values)


def figures(s, log_sum_BxHxT, other_BxHxT):
    """Returns what gradients need of each query, f32[B, H, T] padded: the log of its softmax's
    denominator, and another figure."""
    # The log-sums of padding are so large that its probabilities are 0 with any bias.
    log_sum = padded(log_sum_BxHxT, s.queries, constant_values=-LOWEST)
    return log_sum, padded(other_BxHxT, s.queries)


# --- which blocks see which -----------------------------------------------------------------------


class Visible(NamedTuple):
    """Which blocks of keys each block of queries attends to, i32[B, query blocks] each."""

    first: Any
    last: Any
    first_whole: Any  # from here to `last_whole` they are in the intervals of all its queries
    last_whole: Any
    before: Any  # i32[1]: how many slots of the row are before the first query; None: not needed


class SeenBy(NamedTuple):
    """Which blocks of queries attend to each block of keys, i32[B, key blocks] each."""

    first: Any
    last: Any


def visible_blocks(s, intervals_Bx2xT, before=None):
    """Returns `Visible`; where a block sees nothing, `last` is before `first`."""
    blocks = intervals_Bx2xT.reshape(s.rows, 2, s.query_blocks, s.query_block)
    start = blocks[:, 0]
    end = blocks[:, 1]
    return Visible(
        jnp.minimum(start.min(-1) // s.key_block, s.key_blocks - 1),
        (end.max(-1) - 1) // s.key_block,
        -(-start.max(-1) // s.key_block),
        end.min(-1) // s.key_block - 1,
        before,
    )


def seeing_blocks(s, first, last):
    """Returns `SeenBy` of the first and last block that each sees, as `Visible` has them; where no
    block attends to one, `last` is before `first`."""
    first = first[..., None]
    last = last[..., None]
    key_block = jnp.arange(s.key_blocks)[None, None]
    query_block = jnp.arange(s.query_blocks)[None, :, None]
    seen = (first <= key_block) & (key_block <= last)
    return SeenBy(
        jnp.where(seen, query_block, s.query_blocks - 1).min(1),
        jnp.where(seen, query_block, -1).max(1),
    )


def dot(a, b, contracted):
    """Returns the product of two matrices in float32, which contracts an axis of each."""
    axes = (contracted[:1], contracted[1:]), ((), ())
    return jax.lax.dot_general(a, b, axes, preferred_element_type=jnp.float32)


# --- the bias -------------------------------------------------------------------------------------


def far(tile):
    """Returns the tiles of distance from which on the bias is one value.

    far(128), far(64)       # 2, 3
    """
    # The nearest key and query of two tiles are tile - 1 slots nearer than the tiles are.
    return -(-(MAX_DISTANCE + tile - 1) // tile)


def tiles(bias_HxD, tile):
    """Returns the different tiles of the bias, f32[H, 2 far + 1, keys, queries].

    First that of the farthest later keys; the middle one is of the same keys and queries.
    """
    heads, differences = bias_HxD.shape
    # The list has the descending differences of the first key of all tiles, one tile after another.
    # Before them are the differences of later keys: each key has the list of the previous key,
    # rotated by one.
    first = far(tile) * tile
    columns = (2 * far(tile) + 1) * tile
    more = first + tile - 1 - differences // 2
    descending = jnp.pad(bias_HxD[:, ::-1], ((0, 0), (more, more)), "edge")
    rotated = rotated_right(jnp.roll(descending, 1 - tile, 1), tile)[:, :, :columns]
    return jnp.swapaxes(rotated.reshape(heads, tile, -1, tile), 1, 2)


def bias_gradient(bias_HxD, tile, d_tiles):
    """Returns the gradient of the bias, from that of its tiles."""
    (d_bias_HxD,) = jax.vjp(lambda bias: tiles(bias, tile), bias_HxD)[1](d_tiles)
    return d_bias_HxD


def bias_gradient_of_diagonals(bias_HxD, tile, sums_HxNx2t):
    """Returns the gradient of the bias, from the sums along the diagonals of that of its tiles: for
    each tile at i the sum where the query is i slots after the key, or i - 2 tile."""
    at_or_after = sums_HxNx2t[:, :, :tile]
    before = sums_HxNx2t[:, :, tile:]
    # The keys before a tile's first are those of the tile before it, from its second on.
    by_tile = jnp.pad(before, ((0, 0), (0, 1), (0, 0))) + jnp.pad(
        at_or_after, ((0, 0), (1, 0), (0, 0))
    )
    descending = by_tile.reshape(by_tile.shape[0], -1)
    more = (far(tile) + 1) * tile - MAX_DISTANCE

    def spread(bias):
        return jnp.pad(bias[:, ::-1], ((0, 0), (more, more - 1)), "edge")

    return jax.linear_transpose(spread, bias_HxD)(descending)[0]
