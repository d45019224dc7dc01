"""The scale of linear layers, which multiplies what has fewer numbers."""

import jax
import numpy as np
import pytest
from flax import linen as nn

from pretrax.models.config import Config
from pretrax.models.linear import linear

INPUTS, HEADS, WIDTH = 16, 3, 6


class _Scaled(nn.Module):
    config: Config
    scale: float

    @nn.compact
    def __call__(self, x_BxTxE):
        shape, axes = (INPUTS, HEADS, WIDTH), ("embed", "heads", "kv")
        return linear(self, "query", x_BxTxE, shape, axes, scale=self.scale)


@pytest.mark.parametrize("slots, of_weights", [(1, False), (20, True)])
def test_the_scale_multiplies_weights_or_the_result_of_few_slots(slots, of_weights):
    config = Config(8, 0, 1, (), INPUTS, HEADS, WIDTH, 8, biases=True)
    x = jax.random.normal(jax.random.key(0), (2, slots, INPUTS))
    params = nn.unbox(_Scaled(config, 1.0).init(jax.random.key(1), x))
    params = jax.tree.map(lambda parameter: parameter + 0.1, params)
    apply = _Scaled(config, 0.3).apply
    np.testing.assert_allclose(
        apply(params, x), 0.3 * _Scaled(config, 1.0).apply(params, x), rtol=1e-4, atol=1e-5
    )
    equations = jax.make_jaxpr(apply)(params, x).jaxpr.eqns
    scaled = [e.outvars[0].aval.shape for e in equations if e.primitive.name == "mul"]
    weights = [(INPUTS, HEADS, WIDTH), (HEADS, WIDTH)]
    assert scaled == (weights if of_weights else [(2, slots, HEADS, WIDTH)])
