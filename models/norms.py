"""Norms of a Transformer's residual stream, its queries and its keys."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from .config import Config
from .linear import broadcast
from .sharding import partitioned


class Norm(nn.Module):
    """RMS norm (arXiv:1910.07467), or layer norm (1607.06450), which subtracts the mean first.

    The norm is computed in float32 over the last axis and multiplied by a learned scale. Layer
    norms have a bias if the model has `biases`. Like Flax's `LayerNorm`, a layer norm computes the
    variance as the mean of squares minus the squared mean, in one pass over x. If the mean is 100
    standard deviations, results are off by 4e-3.
    """

    config: Config
    axis: str = "embed"  # logical name of the last axis

    @nn.compact
    def __call__(self, x):
        c = self.config
        shape = (x.shape[-1],)
        x32 = x.astype(jnp.float32)
        variance = (x32 * x32).mean(-1, keepdims=True)
        if c.norm == "layer":
            mean = x32.mean(-1, keepdims=True)
            x32 = x32 - mean
            variance = jnp.maximum(variance - mean * mean, 0)
        x32 *= jax.lax.rsqrt(variance + c.norm_epsilon)
        init = nn.initializers.zeros if c.zero_centered_norms else nn.initializers.ones
        scale = self.param("scale", partitioned(init, self.axis), shape)
        x32 *= broadcast(scale, x) + c.zero_centered_norms
        if c.norm == "layer" and c.biases:
            zeros = partitioned(nn.initializers.zeros, self.axis)
            x32 += broadcast(self.param("bias", zeros, shape), x)
        return x32.astype(c.dtype)
