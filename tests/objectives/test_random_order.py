"""Running sums and random order, compared with NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrax.objectives.arithmetic import running_sum
from pretrax.objectives.random_order import random_order


@pytest.mark.parametrize("size", [1, 15, 513, 2**16, 2**16 + 1])
def test_running_sums_are_exact(size):
    x = np.random.default_rng(size).integers(0, 255, size).astype(np.int32)
    x[-1] = 0
    for given in (x, x > 100):
        found = jax.jit(running_sum)(given)
        assert found.dtype == jnp.int32
        np.testing.assert_array_equal(found, np.cumsum(given))


# One number has room for all three values, for two of them, or for one. Groups of 70,000 have more
# slots than 16 bits can distinguish.
@pytest.mark.parametrize(
    "size, groups", [(1, 1), (513, 17), (513, 200), (2000, 70), (70_000, 3), (140_000, 2)]
)
def test_random_order_sorts_by_group_bits_and_slot(size, groups):
    random = np.random.default_rng(size)
    bits = random.integers(0, 2**32, size, np.uint32)
    bits[::3] = bits[0]  # Many slots share a draw.
    group = random.integers(0, groups, size).astype(np.int32)
    found = jax.jit(random_order, static_argnums=2)(bits, group, groups)
    compared = bits if size > 2**17 else bits >> 16
    expected = np.lexsort((np.arange(size), compared, group))
    np.testing.assert_array_equal(found, expected)
