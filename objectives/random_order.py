"""Random order, by sorting."""

import jax.numpy as jnp
from jax import lax

from .contract import Array

_RANDOM = 16  # number of random bits, which does not depend on padding


def random_order(bits_N: Array, group_N: Array, groups: int):
    """Returns the slots of group 0 in random order, then the slots of group 1, and so on.

    Group, upper 16 bits and slot number form one sort key, since XLA on CPU sorts one array six
    times as fast as several. Slots with equal bits keep their order: a share of about n / 2**17 of
    n slots, or 6% of 8,192. Groups of more than 65,536 slots are ordered by all 32 bits.

    >>> bits = jnp.array([3, 1, 2, 1, 0], jnp.uint32) << 16
    >>> random_order(bits, jnp.array([0, 0, 0, 1, 1]), 2)
    Array([1, 2, 0, 4, 3], dtype=int32)

    Args:
      bits_N: u32[N] of random bits.
      group_N: i32[N] in 0 … groups - 1.
      groups: number of groups.

    Returns i32[N], a permutation of 0 … N - 1.
    """
    bits = bits_N >> (32 - _RANDOM)
    group = group_N.astype(jnp.uint32)
    slot_bits = (bits.size - 1).bit_length()
    group_bits = (groups - 1).bit_length()
    if group_bits + _RANDOM + slot_bits <= 32:
        return _sorted_slots((group << _RANDOM) | bits, slot_bits)
    if max(group_bits, _RANDOM) + slot_bits <= 32:
        by_bits = _sorted_slots(bits, slot_bits)
        return by_bits[_sorted_slots(group[by_bits], slot_bits)]
    is_large = jnp.bincount(group_N, length=groups)[group_N] > 1 << _RANDOM
    bits = jnp.where(is_large, bits_N, bits << (32 - _RANDOM))
    slot = jnp.arange(bits.size, dtype=jnp.int32)
    return lax.sort((group, bits, slot), num_keys=3)[2]


def _sorted_slots(keys_N, slot_bits: int):
    """Returns i32[N]: slots sorted by key, then by slot number, which has `slot_bits` bits."""
    slot = jnp.arange(keys_N.size, dtype=jnp.uint32)
    last = (1 << slot_bits) - 1
    return (jnp.sort((keys_N << slot_bits) | slot) & last).astype(jnp.int32)
