"""The mesh axes that shard an array's axes have several devices and divide the size."""

import jax
import numpy as np
import pytest
from flax import linen as nn
from jax.sharding import PartitionSpec as P

from pretrax.models.linear import project
from pretrax.models.sharding import num_shards, spec_of
from pretrax.training.devices.mesh import RULES, make_mesh, placed_on


@pytest.mark.parametrize(
    "names, shape, expected",
    [
        (("embed", "mlp"), (64, 8), P(("fsdp", "expert"), "tensor")),
        (("embed", "mlp"), (6, 7), P("fsdp", None)),  # 4 does not divide 6, and 2 does not divide 7
        (("experts", "embed", "mlp"), (4, 6, 8), P("expert", "fsdp", "tensor")),
        (("batch", "length"), (4, 5), P(("fsdp", "expert"), None)),  # the axis data has one device
        ((None, "embed"), (8, 3), P(None, None)),
    ],
)
def test_arrays_are_sharded_by_mesh_axes_that_divide_them(names, shape, expected):
    mesh = make_mesh(data=1, fsdp=2, expert=2, tensor=2)
    assert spec_of(names, shape, mesh, RULES) == expected


def test_context_axis_shards_slots_and_parameters():
    mesh = make_mesh(data=1, fsdp=2, expert=2, context=2)
    assert spec_of(("batch", "length", None), (4, 6, 8), mesh, RULES) == P(
        ("fsdp", "expert"), "context", None
    )
    assert spec_of(("embed",), (8,), mesh, RULES) == P(("fsdp", "context", "expert"))
    assert spec_of(("experts", "embed"), (4, 8), mesh, RULES) == P("expert", ("fsdp", "context"))


def test_nothing_is_sharded_without_rules():
    assert spec_of(("embed", "mlp"), (64, 8), make_mesh(data=8)) == P(None, None)


def test_num_shards_of_an_axis():
    with placed_on(make_mesh(data=2, fsdp=2, tensor=2)):
        assert [num_shards("batch", size) for size in (8, 6, 5)] == [4, 2, 1]
        assert num_shards("length", 8) == 1
    with nn.logical_axis_rules(RULES):  # and without a mesh
        assert num_shards("batch", 8) == 1


def test_projection_with_slots_last_works_with_context_shards():
    """Slots that a mesh shards are not joined with rows."""
    x, kernel = np.ones((2, 8, 3), np.float32), np.arange(15.0, dtype=np.float32).reshape(3, 5)
    for mesh in (make_mesh(data=1, devices=jax.devices()[:1]), make_mesh(data=2, context=4)):
        with placed_on(mesh):
            product = jax.jit(lambda x: project(x, kernel, slots_last=True))(x)
        np.testing.assert_allclose(product, x @ kernel)
