"""Batches of small runs."""

import jax
import numpy as np

from tests.training import tiny


def setup(**settings):
    return tiny.plan(
        tiny.encoder_decoder(), tiny.small_ul2(), tiny.ROWS_OF_TWO_SHAPES, batch_size=48, **settings
    )


def batches(one, mesh, **settings):
    return tiny.batches(one, mesh, stream=tiny.Stream, **settings)


def steps(rows, n) -> list:
    return [jax.device_get(next(rows)) for _ in range(n)]


def assert_same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)
