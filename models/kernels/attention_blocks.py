"""The parts of attention kernels that all platforms share: blocks of slots, and tiles of T5's bias.

The letters are those of `models.attention`, and D differences of slots, Q queries of a block, K
keys of a block.

T5's bias depends only on key slot - query slot, and does not change beyond MAX_DISTANCE. The bias
is cut into square tiles. Each head has only a few different tiles, since a tile depends only on the
number of tiles between its keys and its queries. Tiles far from the diagonal have a single value.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..positions import MAX_DISTANCE, rotated_right

# Initial value of a running maximum. It must be larger than `attention.MASK_VALUE`, the score of a
# masked key. Otherwise the masked keys before the first visible key would have the weight exp(0).
LOWEST = -1e20


class Settings(NamedTuple):
    """The sizes of a kernel's arrays and blocks, and the softcap."""

    rows: int
    heads: int
    share: int  # number of query heads of each key head
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
    """Returns the `Settings`. `block` maps a length to the length and the number of blocks."""
    (rows, queries, heads, width), (keys, groups) = q_BxTxHxd.shape, k_BxSxGxd.shape[1:3]
    (Q, query_blocks), (K, key_blocks) = block(queries), block(keys)
    return Settings(rows, heads, heads // groups, width, softcap, Q, K, query_blocks, key_blocks)


def in_blocks(s, intervals_Bx2xT, keys):
    """Returns the intervals, clipped to the number of keys and padded to whole blocks.

    Padding queries have the last query's interval, so that no block has to read more keys for them.
    """
    return padded(jnp.clip(intervals_Bx2xT, 0, keys), s.queries, mode="edge")


def padded(x, length, axis=-1, **values):
    """Returns the array with one axis padded to a length."""
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, length - x.shape[axis])
    return jnp.pad(x, widths, **values)


def padded_statistics(s, lse_BxHxT, other_BxHxT):
    """Returns two statistics of each query for the gradients, padded to whole blocks.

    The first is the LSE of the scores. Both are f32[B, H, T].
    """
    # The LSE of padding is so large that its probabilities are 0 with any bias.
    lse = padded(lse_BxHxT, s.queries, constant_values=-LOWEST)
    return lse, padded(other_BxHxT, s.queries)


# --- visibility of blocks ------------------------------------------------------------------------


class Visible(NamedTuple):
    """The blocks of keys that each block of queries attends to, i32[B, query blocks] each."""

    first: Any
    last: Any
    first_whole: Any  # first block of keys that all queries of the block attend to
    last_whole: Any
    before: Any  # i32[1]: number of slots of the row before the first query; None: not needed


class SeenBy(NamedTuple):
    """The blocks of queries that attend to each block of keys, i32[B, key blocks] each."""

    first: Any
    last: Any


def visible_blocks(s, intervals_Bx2xT, before=None):
    """Returns `Visible`. If a block of queries attends to no keys, its `last` is before `first`."""
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
    """Returns `SeenBy`, given `Visible.first` and `Visible.last`.

    If no queries attend to a block of keys, its `last` is before `first`.
    """
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
    """Returns the float32 product of two matrices, contracting one axis of each."""
    axes = (contracted[:1], contracted[1:]), ((), ())
    return jax.lax.dot_general(a, b, axes, preferred_element_type=jnp.float32)


# --- the bias -------------------------------------------------------------------------------------


def far(tile):
    """Returns the distance in tiles from which on all values of a tile are equal.

    far(128), far(64)       # 2, 3
    """
    # The nearest key and query of two tiles are up to tile - 1 slots closer than the tiles.
    return -(-(MAX_DISTANCE + tile - 1) // tile)


def tiles(bias_HxD, tile):
    """Returns the different tiles of the bias, f32[H, 2 far + 1, keys, queries].

    The first tile has the farthest later keys. The middle tile is on the diagonal.
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
    """Returns the gradient of the bias, given the gradient of its tiles."""
    (d_bias_HxD,) = jax.vjp(lambda bias: tiles(bias, tile), bias_HxD)[1](d_tiles)
    return d_bias_HxD


def bias_gradient_of_diagonals(bias_HxD, tile, sums_HxNx2t):
    """Returns the gradient of the bias, given the diagonal sums of the gradient of its tiles.

    Element i of a tile's sums adds up the elements whose query is i slots, or i - 2 * tile slots,
    after the key.
    """
    at_or_after = sums_HxNx2t[:, :, :tile]
    before = sums_HxNx2t[:, :, tile:]
    # A negative difference in one tile is a positive difference in the previous tile.
    by_tile = jnp.pad(before, ((0, 0), (0, 1), (0, 0))) + jnp.pad(
        at_or_after, ((0, 0), (1, 0), (0, 0))
    )
    descending = by_tile.reshape(by_tile.shape[0], -1)
    more = (far(tile) + 1) * tile - MAX_DISTANCE

    def spread(bias):
        return jnp.pad(bias[:, ::-1], ((0, 0), (more, more - 1)), "edge")

    return jax.linear_transpose(spread, bias_HxD)(descending)[0]
