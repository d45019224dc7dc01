"""The checksums of a checkpoint are the same in NumPy and in a program on any devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrax.training.devices.mesh import make_mesh
from pretrax.training.saved import checksums


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8", "bool"])
@pytest.mark.parametrize("shape", [(), (5,), (8, 3), (2, 8, 7), (3, 1, 4, 2)])
def test_few_values_have_the_sum_of_many(shape, dtype, monkeypatch):
    x = np.random.default_rng(0).integers(0, 255, shape).astype(jnp.dtype(dtype))
    few = checksums.checksums({"x": jnp.asarray(x)})
    monkeypatch.setattr(checksums, "FEW", -1)
    assert checksums.checksums({"x": jnp.asarray(x)}) == few


@pytest.mark.slow
def test_sums_are_those_that_earlier_checkpoints_hold():
    few, many = jnp.arange(24, dtype=jnp.float32).reshape(2, 3, 4), jnp.ones((300, 300))
    assert checksums.checksums({"few": few, "many": many}) == {
        "few": 2778726400,
        "many": 3758096384,
    }


@pytest.mark.parametrize("size", [16, 2**17])
def test_sharded_arrays_have_the_sum_of_whole_ones(size):
    x = jnp.asarray(np.random.default_rng(0).normal(size=size), jnp.float32)
    rows = jax.NamedSharding(make_mesh(data=8), jax.P("data"))
    spread = jax.device_put(x, rows)
    assert checksums.checksums({"x": spread}) == checksums.checksums({"x": x})


@pytest.mark.parametrize("size", [16, 2**17])
def test_arrays_of_numpy_have_the_sum_of_those_on_a_device(size):
    x = np.random.default_rng(0).normal(size=size).astype(np.float32)
    assert checksums.checksums({"x": x}) == checksums.checksums({"x": jnp.asarray(x)})
