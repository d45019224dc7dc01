"""Linear layers: weights, their initial values, products, activations and dropout.

The functions take a Flax module that has a `Config`, and create its parameters.
"""

import functools
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.sharding import PartitionSpec as P

from .activations import ACTIVATIONS
from .config import Config
from .rematerialization import PRODUCT, named
from .sharding import mesh_axes, num_shards, on_one_cpu, partitioned, platform, spec_of

STREAM = ("batch", "length", None)  # logical axes of the residual stream


def linear(
    module: Any,
    name: str,
    x: jax.Array,
    shape: Sequence[int],
    axes: Sequence[str | None],
    init: Callable | None = None,
    inputs: int = 1,
    slots_last: bool = False,
    scale: float = 1.0,
):
    """Returns `scale` times the linear layer of x: the product with a weight, plus a bias if any.

    Args:
      module: the Flax module that gets the parameters.
      x: input, whose last `inputs` axes are contracted.
      shape: shape of the weight, input axes first.
      axes: logical axes of the weight.
      init: initializer of the weight. None: `weights(config)`.
      slots_last: whether the product is computed and saved as the matrix columns × slots.
      scale: factor of the result.
    """
    c = module.config
    bias = None
    kernel = module.param(name, partitioned(init or weights(c), *axes), shape)
    if c.biases or (c.qkv_biases and name in ("query", "key", "value")):
        zeros = partitioned(nn.initializers.zeros, *axes[inputs:])
        bias = module.param(f"{name}_bias", zeros, shape[inputs:])
    # The smaller array is scaled: usually the weights, but the result if x has few slots, as in
    # decoding.
    scales_weights = math.prod(x.shape[:-inputs]) > math.prod(shape[:inputs])
    if scale != 1 and scales_weights:
        kernel, bias = jax.tree.map(lambda parameter: parameter * scale, (kernel, bias))
    y = project(x, kernel.astype(c.dtype), inputs, slots_last, bias)
    return y if scale == 1 or scales_weights else y * scale


def project(x, kernel, axes=1, slots_last=False, bias=None):
    """Contracts the last `axes` axes of x with the first of the kernel, and adds a bias.

    The product is computed with two matrices. With more axes, XLA's gradient on CPU copies both
    operands, and takes 1.3 to 1.7 times as long. With `slots_last`, the product is computed, and
    saved for the gradient, as the matrix columns × slots.
    """
    rows = x.shape[:-axes]
    columns = kernel.shape[axes:]
    inputs = math.prod(kernel.shape[:axes])
    # Sharded slots are not joined with the rows, since XLA would gather them.
    has_sharded_slots = len(rows) > 1 and num_shards("length", rows[1]) > 1
    x = x.reshape(*(rows if has_sharded_slots else (-1,)), inputs)
    kernel = kernel.reshape(inputs, -1)
    # The gradients of matrices are computed whole. For separate heads, XLA for TPUs would compute
    # them with 64 columns, half of the matrix unit. Attention kernels write their gradients with
    # slots last.
    if axes > 1 and not has_sharded_slots:
        x = with_gradient_barrier(x.T).T
    if len(columns) > 1:
        kernel = with_gradient_barrier(kernel)
    slots_last &= not has_sharded_slots
    if slots_last:
        y = jax.lax.dot_general(kernel, x, (((0,), (1,)), ((), ())))
        y = y if bias is None else _with_bias(y, bias.reshape(-1).astype(y.dtype))
        bias = None
        y = y.T
    else:
        y = _product(x, kernel)
    if len(columns) > 1 and not has_sharded_slots:
        y = with_gradient_barrier(y.T).T
    y = y.reshape(*rows, *columns)
    return y if bias is None else y + broadcast(bias, y).astype(y.dtype)


def _product(x, kernel_KxC):
    """Returns x [..., K] times a kernel, in the dtype of x."""
    if x.dtype == jnp.bfloat16 and x.ndim == 2 and on_one_cpu():
        return _product_on_cpus(x, kernel_KxC)
    return jax.lax.dot_general(x, kernel_KxC, (((x.ndim - 1,), (0,)), ((), ())))


@jax.custom_vjp
def _product_on_cpus(x_NxK, kernel_KxC):
    return _bfloat16_einsum("nk,kc->nc", x_NxK, kernel_KxC)


def _product_and_operands(x_NxK, kernel_KxC):
    y_NxC = _bfloat16_einsum("nk,kc->nc", x_NxK, kernel_KxC)
    return named(y_NxC, PRODUCT), (x_NxK, kernel_KxC)


def _gradients_on_cpus(operands, d_NxC):
    x_NxK, kernel_KxC = operands
    d_x_NxK = _bfloat16_einsum("nc,kc->nk", d_NxC, kernel_KxC)
    # XLA's kernels do not contract the first axis of both matrices. Contracting two axes makes XLA
    # transpose the first operand, which should be the smaller one.
    parts = 2 if len(x_NxK) % 2 == 0 else 1
    x_PxMxK, d_PxMxC = (a.reshape(parts, -1, a.shape[1]) for a in (x_NxK, d_NxC))
    if x_NxK.shape[1] <= d_NxC.shape[1]:
        return d_x_NxK, _bfloat16_einsum("pmk,pmc->kc", x_PxMxK, d_PxMxC)
    return d_x_NxK, _bfloat16_einsum("pmc,pmk->ck", d_PxMxC, x_PxMxK).T


_product_on_cpus.defvjp(_product_and_operands, _gradients_on_cpus)


def _bfloat16_einsum(spec, a, b):
    """Returns a product of bfloat16 arrays in bfloat16, by a CPU's bfloat16 instructions.

    XLA's bfloat16 kernels for CPUs return float32. XLA converts the operands of every other
    bfloat16 product to float32 first.
    """
    return jnp.einsum(spec, a, b, preferred_element_type=jnp.float32).astype(jnp.bfloat16)


def _with_bias(y_CxN, bias_C):
    """Returns a matrix product, one column for each input, with the bias added to each column.

    On TPUs the gradient of the bias is computed as a matrix product, since a sum over the last axis
    takes six times as long.
    """
    return _with_bias_on_tpus(y_CxN, bias_C) if platform() == "tpu" else y_CxN + bias_C[:, None]


@jax.custom_vjp
def _with_bias_on_tpus(y_CxN, bias_C):
    return y_CxN + bias_C[:, None]


def _gradient_of_bias(_, d_CxN):
    ones_8xN = jax.lax.optimization_barrier(jnp.ones((8, d_CxN.shape[1]), d_CxN.dtype))  # a tile's
    contracting = (((1,), (1,)), ((), ()))
    # With less than the highest precision, TPUs round float32 inputs to bfloat16.
    sums_8xC = jax.lax.dot_general(ones_8xN, d_CxN, contracting, precision="highest")
    return d_CxN, sums_8xC[0]


_with_bias_on_tpus.defvjp(lambda y, bias: (y + bias[:, None], None), _gradient_of_bias)


def with_gradient_barrier(x):
    """Returns x, with an optimization barrier on its gradient on TPUs.

    XLA then computes the gradient once, in the shape of x. Without the barrier, it may recompute
    the gradient, more slowly, in each product that uses it.
    """
    return _with_gradient_barrier(x) if platform() == "tpu" else x


@jax.custom_vjp
def _with_gradient_barrier(x):
    return x


_with_gradient_barrier.defvjp(
    lambda x: (x, None), lambda _, d_x: (jax.lax.optimization_barrier(d_x),)
)


def on_slots_last(function, x_BxTxHxd):
    """Applies a function to x in the shape [H, d, B T], and returns [B, T, H, d].

    The kernels of fused attention for TPUs read and write this shape. The compiler would copy
    arrays that are computed as [B, T, H, d] before and after the kernels.
    """
    rows, slots, heads, width = x_BxTxHxd.shape
    x_HxdxBT = x_BxTxHxd.reshape(rows * slots, -1).T.reshape(heads, width, -1)
    return function(x_HxdxBT).reshape(heads * width, -1).T.reshape(x_BxTxHxd.shape)


def activated(activations, projections):
    """Returns the product of an MLP's projections after their activations: `act(x W0) * x W1`."""
    pairs = zip(activations, projections, strict=True)
    return functools.reduce(operator.mul, (ACTIVATIONS[name](y) for name, y in pairs))


def broadcast(x, like):
    """Returns x with leading axes of 1 up to the rank of `like`, for strict rank promotion."""
    return x.reshape((1,) * (like.ndim - x.ndim) + x.shape)


def dropout(module, x, over=-2, names=STREAM):
    """Applies dropout, with one draw for the axis `over` if the model has `dropout_shared`.

    Dropout is off unless `apply` got a 'dropout' key. `names` are the logical axes of x.
    """
    rate = module.config.dropout_rate
    if not rate or not module.has_rng("dropout"):
        return x
    shape = list(x.shape)
    if module.config.dropout_shared:
        shape[over] = 1
    keep = _bernoulli(module.make_rng("dropout"), 1 - rate, shape, names)
    return jnp.where(keep, x / (1 - rate), 0)


def inner_dropout(module, x, names=STREAM):
    """Applies dropout if the model has `dropout_inside`."""
    return dropout(module, x, names=names) if module.config.dropout_inside else x


def _bernoulli(key, p, shape, names):
    """Returns `jax.random.bernoulli` with this key, probability and shape.

    With an accelerator's random bits ("rbg"), each device draws only its part. XLA would draw all
    numbers on each device.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if jax.random.key_impl(key) != "rbg" or mesh.empty or mesh.size == 1:
        return jax.random.bernoulli(key, p, shape)
    spec = spec_of(names, shape, mesh)
    axes = [mesh_axes(entry) for entry in spec]
    local = [
        n // math.prod(mesh.shape[a] for a in mesh_names) for n, mesh_names in zip(shape, axes)
    ]

    def on_device(data):
        key = jax.random.wrap_key_data(data, impl="rbg")
        for axis in itertools.chain(*axes):
            key = jax.random.fold_in(key, jax.lax.axis_index(axis))
        return jax.random.bernoulli(key, p, local)

    drawn = jax.shard_map(on_device, in_specs=P(), out_specs=spec, check_vma=False)
    return drawn(jax.random.key_data(key))


def embedding_weights(c: Config):
    """Returns the initializer of an embedding, with variance 1 or deviation `init_stddev`."""
    return nn.initializers.normal(1.0 if c.init_stddev is None else c.init_stddev)


def weights(
    c: Config,
    in_axis=0,
    out_axis=1,
    distribution="truncated_normal",
    to_stream=False,
    batch_axis=(),
):
    """Returns the initializer of a weight, with variance 1 / inputs or deviation `init_stddev`.

    `batch_axis` are axes along which an array holds several weights.
    """
    if c.init_stddev is None:
        return nn.initializers.variance_scaling(
            1.0, "fan_in", distribution, in_axis, out_axis, batch_axis
        )
    writers = 2 * c.num_layers if to_stream and c.init_scaled_by_depth else 1
    return nn.initializers.normal(c.init_stddev / math.sqrt(writers))
