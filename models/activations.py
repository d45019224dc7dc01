"""The activations of MLPs, by the names that a model's settings give them."""

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
    """Returns x times the standard normal distribution's share below x, computed in float32.

        gelu_exact(jnp.array([-1.0, 0.0, 1.0]))  # [-0.1587, 0, 0.8413]

    As Hendrycks and Gimpel 2016 (arXiv:1606.08415) define it, by the error function. The gradient
    takes the derivative that the forward pass computed: to compute it again takes twice as long.
    """
    return _with_derivative(x)[0]


def _with_derivative(x):
    x32 = x.astype(jnp.float32)
    below = 0.5 * (1 + jax.lax.erf(x32 * math.sqrt(0.5)))
    density = jnp.exp(-0.5 * x32 * x32) / math.sqrt(2 * math.pi)
    return (x32 * below).astype(x.dtype), (below + x32 * density).astype(x.dtype)


def _gelu_forward(x):
    both = tuple(named(y, ACTIVATION) for y in _with_derivative(x))
    # Else XLA for TPUs computes the derivative within each product that takes what it multiplies.
    return jax.lax.optimization_barrier(both) if platform() == "tpu" else both


gelu_exact.defvjp(_gelu_forward, lambda derivative, d_y: (d_y * derivative,))

ACTIVATIONS: Mapping[str, Callable[[jax.Array], jax.Array]] = {
    "gelu": nn.gelu,  # the tanh approximation: T5 1.1, GPT-2
    "gelu_exact": gelu_exact,  # BERT, BART
    "silu": nn.silu,
    "relu": nn.relu,
    "linear": lambda x: x,
}
