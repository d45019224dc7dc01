"""Random draws that a key of whole numbers determines, the same in every version of NumPy.

NumPy guarantees the raw bits of Philox for all versions, but not what `Generator` makes of them.
"""

from collections.abc import Sequence

import numpy as np


def drawn_bits(key: int | Sequence[int], n: int) -> np.ndarray:
    """Returns n draws of 64 bits, u64[n]."""
    return np.random.Philox(np.random.SeedSequence(key)).random_raw(n)


def uniform(bits: np.ndarray) -> np.ndarray:
    """Returns draws of 64 bits as numbers in [0, 1).

    >>> uniform(drawn_bits((1, 2), 2)).round(3)
    array([0.3  , 0.074])
    """
    return (bits >> np.uint64(11)) / 2.0**53


def permutation(key: int | Sequence[int], n: int) -> np.ndarray:
    """Returns the numbers below n in a random order, i64[n].

    >>> permutation((1, 2, 3), 9)
    array([1, 8, 2, 4, 6, 5, 0, 7, 3])
    """
    return np.argsort(drawn_bits(key, n), kind="stable")
