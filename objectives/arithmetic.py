"""Exact integer arithmetic for densities, mean lengths and probabilities.

Numbers of corrupted tokens are computed with integers, so that host and device always agree. (T5
multiplies in float32 in one place and in float64 in another, and the results differ by one at 39 of
the lengths below 4097.)

Functions of a document's n tokens (`noise_counts`, `quota`, …) take n as an int or i32[...], and
fractions as pairs (numerator, denominator), traced or not (`kernel`). Their `xp` is numpy on the
host and jax.numpy in a kernel; the results are equal.
"""

import functools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, tree_util

# Largest denominator of a density, and the length of documents up to which products with it fit in
# an int32.
MAX_DENOMINATOR = 1000
MAX_LENGTH = 2**31 // (2 * MAX_DENOMINATOR)
MAX_DOCUMENTS = 2**16 - 1  # in a row: random ranks of tokens have 16 bits for the document's number


def ratio(value: float | Fraction, name: str) -> Fraction:
    """Returns the exact fraction of a decimal number: 3/20 for 0.15.

    Raises ValueError with the name of the setting if the denominator exceeds 1000.
    """
    exact = Fraction(str(value))
    near = exact.limit_denominator(MAX_DENOMINATOR)
    if abs(near - exact) > exact / 10**9:
        raise ValueError(
            f"{name} must be a fraction with a denominator up to {MAX_DENOMINATOR}, got {value}: "
            f"use the nearest such number, {near} = {float(near):.6g}."
        )
    return near


def kernel(function: Callable, *settings: Any, **named_settings: Any) -> tree_util.Partial:
    """Binds settings as arrays, so that JAX traces them.

    Members of a mixture whose kernels differ only in numbers then share a compiled function.

    Args:
      function: function of the settings, and then of further arguments.
      settings, named_settings: ints become i32[], bools bool[], fractions i32[2], and tuples of
        ints i32[n]. Other tuples are converted item by item. Everything else stays unchanged.

    >>> kernel(round_ratio, 7, b=2).keywords["b"].dtype
    dtype('int32')
    """
    named_arrays = {name: _as_arrays(x) for name, x in named_settings.items()}
    return tree_util.Partial(function, *map(_as_arrays, settings), **named_arrays)


def _as_arrays(x: Any) -> Any:
    if isinstance(x, bool):
        return np.bool_(x)
    if isinstance(x, Fraction):
        return np.array(x.as_integer_ratio(), np.int32)
    if type(x) is tuple and not all(isinstance(item, int) for item in x):
        return tuple(map(_as_arrays, x))
    return np.array(x, np.int32) if type(x) in (int, tuple) else x


def round_ratio(a, b):
    """Returns a / b rounded half to even, exactly, for ints or integer arrays (b > 0, a >= 0).

    >>> [round_ratio(a, 2) for a in (1, 3, 5)]
    [0, 2, 2]
    """
    q = a // b
    r = a % b
    return q + ((2 * r > b) | ((2 * r == b) & (q % 2 == 1)))


def isqrt(n, xp=jnp):
    """Returns the whole part of the square root of ints or integer arrays, exactly, up to 2**30.

    >>> int(isqrt(35, np)), int(isqrt(36, np))
    (5, 6)
    """
    root = xp.sqrt(xp.asarray(n, xp.float32)).astype(xp.int32)  # off by at most one
    root = root - (root * root > n)
    return root + ((root + 1) * (root + 1) <= n)


def running_sum(x_N):
    """Returns i32[N]: the sum of x up to and including each entry, for i32[N] or bool[N].

    Matrix products compute the sum, exactly as long as sums are below 2**24. On a CPU this is four
    times as fast as XLA's cumulative sum.

    >>> running_sum(jnp.array([1, 0, 2]))
    Array([1, 1, 3], dtype=int32)
    """
    if x_N.size > _MAX_LENGTH_BY_PRODUCTS:
        return jnp.cumsum(x_N, dtype=jnp.int32)
    width = max(16, 1 << ((x_N.size - 1).bit_length() // 2))
    rows = -(-x_N.size // width)
    blocks = jnp.pad(x_N.astype(jnp.float32), (0, rows * width - x_N.size)).reshape(rows, width)
    product = functools.partial(jnp.matmul, precision=lax.Precision.HIGHEST)
    within = product(blocks, np.triu(np.ones((width, width), np.float32)))
    before = product(np.tril(np.ones((rows, rows), np.float32), -1), within[:, -1])
    return (within + before[:, None]).reshape(-1)[: x_N.size].astype(jnp.int32)


_MAX_LENGTH_BY_PRODUCTS = 1 << 16


def randint(bits, n):
    """Returns uniform integers in 0 … n-1 from random uint32 bits, with a bias below n / 2**32."""
    return (bits % jnp.maximum(n, 1).astype(jnp.uint32)).astype(jnp.int32)


def is_text(tokens, text):
    """Returns bool[...]: whether ids are text, for the range [first, last) of `TokenIds.text`."""
    return (tokens >= text[0]) & (tokens < text[1])


def random_text(key, shape: tuple[int, ...], text):
    """Returns i32[shape]: uniform ids of text, for the range [first, last) of `TokenIds.text`."""
    return text[0] + randint(jax.random.bits(key, shape, jnp.uint32), text[1] - text[0])


def count_at_most(table, x):
    """Returns i32[...]: the number of entries of a short ascending table that are at most x.

    A few dozen comparisons in one loop are faster than the gathers of a binary search.

    >>> count_at_most(jnp.array([3, 7]), jnp.array([2, 3, 9]))
    Array([0, 1, 2], dtype=int32)
    """
    return sum((x >= table[k]).astype(jnp.int32) for k in range(table.size))


def fixed24(probability: float) -> int:
    """Returns a probability in fixed point with 24 bits, for exact comparisons with random bits.

    >>> fixed24(0.5)
    8388608
    """
    return round(probability * 2**24)


def uniform24(key, size: int):
    """Returns i32[size]: uniform 24-bit integers."""
    return (jax.random.bits(key, (size,), jnp.uint32) >> 8).astype(jnp.int32)


def bernoulli(bits, p24):
    """Returns bool[...]: True with a probability of p24 / 2**24, from random uint32 bits."""
    return (bits >> 8).astype(jnp.int32) < p24


def ratio24(count, total):
    """Returns count / total as a 24-bit integer; the total may be 0.

    >>> int(ratio24(jnp.int32(1), jnp.int32(4))) == 2**22
    True
    """
    share = count.astype(jnp.float32) / jnp.maximum(total, 1)
    return jnp.round(share * 2.0**24).astype(jnp.int32)


def product24(a, b):
    """Returns the integer part of a b / 2**24, exactly, although a b may overflow an int32.

    >>> int(product24(2**23, 2**24 - 1)) == 2**23 - 1
    True
    """
    a_high = a >> 12
    a_low = a & 4095
    b_high = b >> 12
    b_low = b & 4095
    return a_high * b_high + ((a_high * b_low + a_low * b_high + (a_low * b_low >> 12)) >> 12)
