"""The activations of MLPs, by their names in `Config`."""

import math
from collections.abc import Callable, Mapping
from typing import Literal

import jax
import jax.numpy as jnp
from flax import linen as nn

from .rematerialization import ACTIVATION, named
from .sharding import platform

Activation = Literal["gelu", "gelu_exact", "silu", "relu", "linear"]


@jax.custom_vjp
def gelu_exact(x):
    """Returns x times the standard normal distribution function at x, computed in float32.

        gelu_exact(jnp.array([-1.0, 0.0, 1.0]))  # [-0.1587, 0, 0.8413]

    This is the exact GELU (Hendrycks and Gimpel 2016, arXiv:1606.08415). The forward pass saves the
    derivative, since recomputing it takes twice as long.
    """
    return _with_derivative(x)[0]


def _with_derivative(x):
    x32 = x.astype(jnp.float32)
    below = 0.5 * (1 + jax.lax.erf(x32 * math.sqrt(0.5)))
    density = jnp.exp(-0.5 * x32 * x32) / math.sqrt(2 * math.pi)
    return (x32 * below).astype(x.dtype), (below + x32 * density).astype(x.dtype)


def _gelu_forward(x):
    both = tuple(named(y, ACTIVATION) for y in _with_derivative(x))
    # Without the barrier, XLA for TPUs recomputes the derivative inside each matrix product that
    # uses the gradient.
    return jax.lax.optimization_barrier(both) if platform() == "tpu" else both


gelu_exact.defvjp(_gelu_forward, lambda derivative, d_y: (d_y * derivative,))

ACTIVATIONS: Mapping[str, Callable[[jax.Array], jax.Array]] = {
    "gelu": nn.gelu,  # the tanh approximation, as in T5 1.1 and GPT-2
    "gelu_exact": gelu_exact,  # as in BERT and BART
    "silu": nn.silu,
    "relu": nn.relu,
    "linear": lambda x: x,
}
