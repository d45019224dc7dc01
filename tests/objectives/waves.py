"""Inputs that published code, in another framework, can be run on as well."""

import numpy as np


def waves(*shape: int, step: float = 0.7, size: float = 2.0) -> np.ndarray:
    """Returns f32[*shape]: size * sin(step * n) for n = 0, 1, …

    >>> waves(3).round(2).tolist()
    [0.0, 1.29, 1.97]
    """
    return (size * np.sin(step * np.arange(np.prod(shape)))).reshape(shape).astype(np.float32)
