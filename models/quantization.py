"""Products of weights in int8 or fp8, by Qwix (the extra `quantized`).

Each token's input and each column of a weight is scaled by its largest absolute value and rounded
to eight bits; their product is scaled back. The two products of the gradient take the same rounded
values, and what comes from above is scaled and rounded for each. Parameters, their gradients and
the optimizer's state keep their precision. In fp8 values are e4m3 numbers, and gradients e5m2
(Micikevicius et al. 2022, arXiv:2209.05433).

Quantized are the linear layers of the stacks: queries, keys, values and outputs of attention, and
MLPs. Scores of attention, experts and their routers, embeddings and heads are not.
"""

import jax.numpy as jnp
import numpy as np
from flax import linen as nn

TYPES = {  # of weights and activations, and of gradients
    "int8": (jnp.int8, jnp.int8),
    "fp8": (jnp.float8_e4m3fn, jnp.float8_e5m2),
}


def quantized(network: nn.Module, kind: str | None) -> nn.Module:
    """Returns the network with such products in its `__call__`; None: as it is.

    quantized(Transformer(config), "int8")
    """
    if kind is None:
        return network
    import qwix

    class Provider(qwix.QtProvider):
        def _create_dot_general_qt_config(self, rule, op_id, lhs, rhs):
            # Both factors are rounded alike, so Qwix need not find out which of them is a weight:
            # within scanned layers it goes by their shapes, and fails where several have the same.
            no_weight = np.zeros(())
            return super()._create_dot_general_qt_config(rule, op_id, no_weight, no_weight)

    forward, backward = TYPES[kind]
    rule = qwix.QtRule(
        module_path=".*",
        op_names=("dot_general",),  # what `linear.project` calls, and no other
        weight_qtype=forward,
        act_qtype=forward,
        bwd_qtype=backward,
    )
    return qwix.quantize_model(network, Provider([rule]))
