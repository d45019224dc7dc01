"""Positions within a document, in the forms that a Transformer's layers use.

    relative   T5's learned bias on attention scores, by distance
    rotary     rotations of queries and keys (RoPE)
    sinusoids  added to embeddings; used for positions within a blank

Learned positions are an embedding table in `models.transformer`, which also defines the letters.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from .config import Config
from .linear import on_slots_last
from .sharding import partitioned

# T5's relative positions
NUM_BUCKETS = 32
MAX_DISTANCE = 128


class RelativeBias(nn.Module):
    """T5's bias on attention scores, by the bucket of `key index - query index`: [H, T, T].

    An index is a slot of the row. Documents packed in a row are contiguous and do not attend to
    each other, so the difference of slots is the difference of positions.

    Without a length, the result is [H, D], the bias by difference from -MAX_DISTANCE to
    MAX_DISTANCE. `bias_at` looks up the bias of queries in any slots.

    The bias is initially small and random. `init_locality` adds `local_biases`.
    """

    config: Config
    bidirectional: bool

    @nn.compact
    def __call__(self, length):
        heads = self.config.num_heads
        init = nn.initializers.variance_scaling(1.0, "fan_avg", "uniform")
        if strength := self.config.init_locality:
            random = init
            near_HxN = local_biases(heads, strength, self.bidirectional)
            init = lambda *args: random(*args) + near_HxN  # noqa: E731
        init = partitioned(init, "heads", "relpos_buckets")
        table_HxN = self.param("table", init, (heads, NUM_BUCKETS))
        # The list has one value per distance, 0 1 … T-1 -T … -1. Row i of the bias is the list
        # rotated right by i. A gather of T × T entries would need a scatter of that size in the
        # gradient.
        distances = np.arange(-MAX_DISTANCE, MAX_DISTANCE + 1)
        if length is not None:
            distances = np.r_[0:length, -length:0]
        buckets = relative_position_buckets(distances, self.bidirectional)
        one_hot = np.eye(NUM_BUCKETS, dtype=np.float32)[buckets]
        values_Hx2T = jnp.einsum("hn,tn->ht", table_HxN, one_hot, precision="highest")
        return values_Hx2T if length is None else rotated_right(values_Hx2T, length)[:, :, :length]


def local_biases(heads, strength, bidirectional):
    """Returns initial biases by bucket that prefer near keys: NumPy float32 [H, N].

        local_biases(4, 2.0, True)[:, relative_position_buckets(np.array([-2, -1, 0, 1, 2]), True)]
        # [[-2, 0, -2, -4, -6], [-6, -4, -2, 0, -2], [0, -0.5, -1, -1.5, -2],
        #  [-2, -1.5, -1, -0.5, 0]]

    Head 0 prefers the key just before the query, and head 1 the key just after it. Heads 2 and 3
    prefer the keys two slots away, and so on. If all keys are before the query, head h prefers the
    key h + 1 slots before it.

    The penalty per slot from the preferred key is `strength` for the first two heads, and a quarter
    of the previous pair's for each later pair, at most 8 in total. Compare ConViT (d'Ascoli et al.
    2021, arXiv:2103.10697) and ALiBi (Press et al. 2022, arXiv:2108.12409).
    """
    pair, second = np.divmod(np.arange(heads), 2)
    preferred_H = np.where(second, 1, -1) * (pair + 1) if bidirectional else -1 - np.arange(heads)
    distances = np.arange(-MAX_DISTANCE, MAX_DISTANCE + 1 if bidirectional else 1)
    buckets = relative_position_buckets(distances, bidirectional)
    in_bucket_NxD = buckets == np.arange(NUM_BUCKETS)[:, None]
    mean_N = in_bucket_NxD @ distances / np.maximum(in_bucket_NxD.sum(1), 1)  # one bucket has none
    penalty_HxN = strength / 4.0 ** pair[:, None] * np.abs(mean_N - preferred_H[:, None])
    return -np.minimum(penalty_HxN, 8).astype(np.float32)


def rotated_right(values_HxN, rows):
    """Returns [H, rows, N - 1]: row i is the list rotated right by i, without its last value.

    rotated_right(jnp.array([[0, 1, 2, 3]]), 3)     # [[[0, 1, 2], [3, 0, 1], [2, 3, 0]]]
    """
    heads, size = values_HxN.shape
    repeated = jnp.tile(values_HxN, (1, rows))[:, : rows * (size - 1)]
    return repeated.reshape(heads, rows, size - 1)


def bias_at(bias_HxD, slots_BxT, keys):
    """Returns the bias [B, H, T, S] of queries in these slots on keys 0, 1, …, `keys` - 1.

    The last bucket starts before MAX_DISTANCE, so all farther keys share its bias.
    """
    distances_BxTxS = jnp.arange(keys)[None, None] - slots_BxT[..., None]
    nearest = jnp.clip(distances_BxTxS, -MAX_DISTANCE, MAX_DISTANCE) + MAX_DISTANCE
    return jnp.moveaxis(bias_HxD[:, nearest], 0, 1)


def relative_position_buckets(distances, bidirectional):
    """Returns T5's bucket for each `key index - query index` (arXiv:1910.10683, section 2.1).

        relative_position_buckets(np.array([0, -1, -15, -16, -127, -900]), False)
        # [0, 1, 15, 16, 31, 31]

    Small distances have a separate bucket each. Large distances up to MAX_DISTANCE share
    logarithmic buckets. If bidirectional, half of the buckets are for keys after the query.
    Otherwise all keys after the query share bucket 0 with the query itself.
    """
    buckets = NUM_BUCKETS
    ahead = np.zeros_like(distances)
    if bidirectional:
        buckets //= 2
        ahead = np.where(distances > 0, buckets, 0)
        distances = np.abs(distances)
    else:
        distances = np.maximum(-distances, 0)
    exact = buckets // 2
    # The epsilon keeps powers of two, whose logarithm is a whole number, in the right bucket.
    far = np.log(np.maximum(distances, 1) / exact + 1e-7) / math.log(MAX_DISTANCE / exact)
    far = np.minimum(exact + (far * (buckets - exact)).astype(int), buckets - 1)
    return ahead + np.where(distances < exact, distances, far)


def sinusoids(positions_BxT, width):
    """Returns sinusoidal position embeddings (Vaswani et al. 2017), float32 [B, T, width]."""
    cos, sin = rotation_of(positions_BxT, width, 10_000.0)
    return jnp.concatenate([sin, cos], -1)[:, :, 0, :width]


def rotation_of(positions_BxT, width, theta, scaling=None, float16=False):
    """Returns the cosines and sines of RoPE (arXiv:2104.09864), each [B, T, 1, d/2]."""
    frequencies = rotary_frequencies(width, theta, scaling, float16).reshape(1, 1, 1, -1)
    angles = positions_BxT[..., None, None].astype(jnp.float32) * frequencies
    return jnp.cos(angles), jnp.sin(angles)


def model_rotation(c: Config, positions_BxT):
    """Returns the cosines and sines of RoPE with the model's settings, each [B, T, 1, d/2]."""
    return rotation_of(positions_BxT, c.head_dim, c.rope_theta, c.rope_scaling, c.rope_float16)


def rotary_frequencies(width, theta, scaling=None, float16=False):
    """Returns radians per position for each pair of dimensions: NumPy float32 [d/2].

        rotary_frequencies(4, 10_000.0)            # [1, 0.01]
        rotary_frequencies(4, 10_000.0, (2.0,))    # [0.5, 0.005]

    A scaling of (factor,) divides all frequencies by the factor. A scaling of (factor, low, high,
    length) is LLaMA 3.1's scaling (arXiv:2407.21783; Meta's reference code). Frequencies with fewer
    than `low` turns within `length` positions are divided by the factor. Frequencies with more than
    `high` turns do not change. Between them, the mix is linear in the number of turns.

    With `float16`, unscaled frequencies are rounded to float16, as in the published ESM-2.
    """
    frequencies = theta ** -(np.arange(0, width, 2, dtype=np.float32) / width)
    if float16:
        frequencies = frequencies.astype(np.float16).astype(np.float32)
    if scaling is None:
        return frequencies
    factor, *bounds = scaling
    if not bounds:
        return (frequencies / factor).astype(np.float32)
    low, high, length = bounds
    turns = length * frequencies / (2 * np.pi)
    unscaled = np.clip((turns - low) / (high - low), 0, 1)
    return (frequencies * (unscaled + (1 - unscaled) / factor)).astype(np.float32)


def rotate(x_BxTxHxd, rotation):
    """Rotates the pairs (i, i + d/2), in the 'rotate-half' order of published LLaMA weights."""
    cos, sin = rotation
    a, b = jnp.split(x_BxTxHxd.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
    return rotated.astype(x_BxTxHxd.dtype)


def rotate_slots_last(x_BxTxHxd, rotation):
    """Returns the result of `rotate`, computed with the axes [H, d, B T].

    The members of a pair are swapped by reversing an axis of the halves, P = 2, which XLA for TPUs
    fuses with the other operations. XLA would pad the halves if they were concatenated.
    """
    cos_RxBT, sin_RxBT = (x.reshape(-1, x.shape[-1]).T for x in rotation)

    def turned(x_HxdxBT):
        x_HxPxRxBT = x_HxdxBT.reshape(len(x_HxdxBT), 2, *cos_RxBT.shape)
        return _turned(x_HxPxRxBT, cos_RxBT, sin_RxBT).reshape(x_HxdxBT.shape)

    return on_slots_last(turned, x_BxTxHxd)


@jax.custom_vjp
def _turned(x_HxPxRxN, cos_RxN, sin_RxN):
    """Rotates the pairs along P.

    The gradient is the inverse rotation, computed from the saved angles. XLA's own gradient would
    keep two terms.
    """
    # Both halves are converted separately. XLA would write a shared conversion to memory.
    x, other = (y.astype(jnp.float32) for y in (x_HxPxRxN, x_HxPxRxN[:, ::-1]))
    signed_PxRxN = jnp.stack([-sin_RxN, sin_RxN])
    turned = x * cos_RxN[None, None] + other * signed_PxRxN[None]
    return turned.astype(x_HxPxRxN.dtype)


_turned.defvjp(
    lambda x, cos, sin: (_turned(x, cos, sin), (cos, sin)),
    lambda rotation, d_x: (_turned(d_x, rotation[0], -rotation[1]), None, None),
)
