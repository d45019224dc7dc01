"""The checksums of a checkpoint are the same in NumPy and in a program on any devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrax.training.devices.mesh import make_mesh
from pretrax.training.saved import checksums


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8", "bool"])
@pytest.mark.parametrize("shape", [(), (5,), (8, 3), (2, 8, 7), (3, 1, 4, 2)])
def test_small_and_large_array_paths_give_the_same_checksum(shape, dtype, monkeypatch):
    x = np.random.default_rng(0).integers(0, 255, shape).astype(jnp.dtype(dtype))
    small = checksums.checksums({"x": jnp.asarray(x)})
    monkeypatch.setattr(checksums, "FEW", -1)
    assert checksums.checksums({"x": jnp.asarray(x)}) == small


@pytest.mark.slow
def test_checksums_match_those_of_earlier_checkpoints():
    small, large = jnp.arange(24, dtype=jnp.float32).reshape(2, 3, 4), jnp.ones((300, 300))
    assert checksums.checksums({"few": small, "many": large}) == {
        "few": 2778726400,
        "many": 3758096384,
    }


@pytest.mark.parametrize("size", [16, 2**17])
def test_sharded_and_whole_arrays_have_the_same_checksum(size):
    x = jnp.asarray(np.random.default_rng(0).normal(size=size), jnp.float32)
    rows = jax.NamedSharding(make_mesh(data=8), jax.P("data"))
    spread = jax.device_put(x, rows)
    assert checksums.checksums({"x": spread}) == checksums.checksums({"x": x})


@pytest.mark.parametrize("size", [16, 2**17])
def test_numpy_and_device_arrays_have_the_same_checksum(size):
    x = np.random.default_rng(0).normal(size=size).astype(np.float32)
    assert checksums.checksums({"x": x}) == checksums.checksums({"x": jnp.asarray(x)})
