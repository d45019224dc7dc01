"""Products with weights in int8 or fp8, by Qwix (the extra `quantized`).

Each token's input and each column of a weight is scaled by its largest absolute value and rounded
to eight bits, and the product is scaled back. The gradient uses the same rounded values, and rounds
the incoming gradient for each product. Parameters, their gradients and the optimizer's state keep
their precision. With fp8, values are e4m3 and gradients e5m2 (Micikevicius et al. 2022,
arXiv:2209.05433).

The linear layers of the stacks are quantized: queries, keys, values and outputs of attention, and
MLPs. Attention scores, experts and their routers, embeddings and heads are not.
"""

import jax.numpy as jnp
import numpy as np
from flax import linen as nn

TYPES = {  # kind -> (type of weights and activations, type of gradients)
    "int8": (jnp.int8, jnp.int8),
    "fp8": (jnp.float8_e4m3fn, jnp.float8_e5m2),
}


def quantized(network: nn.Module, kind: str | None) -> nn.Module:
    """Returns the network with quantized products in its `__call__`.

        quantized(Transformer(config), "int8")

    If `kind` is None, the network is returned unchanged.
    """
    if kind is None:
        return network
    import qwix

    class Provider(qwix.QtProvider):
        def _create_dot_general_qt_config(self, rule, op_id, lhs, rhs):
            # Both factors are rounded in the same way, so Qwix does not need to know which one is
            # the weight. In scanned layers it would compare shapes, and fail if weights share a
            # shape.
            no_weight = np.zeros(())
            return super()._create_dot_general_qt_config(rule, op_id, no_weight, no_weight)

    forward, backward = TYPES[kind]
    rule = qwix.QtRule(
        module_path=".*",
        op_names=("dot_general",),  # only `linear.project` calls it
        weight_qtype=forward,
        act_qtype=forward,
        bwd_qtype=backward,
    )
    return qwix.quantize_model(network, Provider([rule]))
