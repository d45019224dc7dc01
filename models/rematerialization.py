"""Rematerialization: which values the forward pass saves for the gradient (`remat_policy`).

The gradient recomputes all other values. Policies refer to values by name.
"""

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

ATTENTION = "attention"  # outputs of attention, and the LSE of the scores
ACTIVATION = "activation"  # output and derivative of a costly activation
EXCHANGED = "exchanged"  # inputs that experts receive from other devices
GROUPED_PRODUCT = "grouped_product"  # products with the input kernels of experts
PRODUCT = "product"  # bfloat16 products with a weight on a CPU
ORDER = "order"  # the experts of each token, and the order of tokens by expert

_policies = jax.checkpoint_policies
POLICIES = {
    "none": None,  # save every intermediate value
    # Save products with weights, and the values of attention, costly activations and experts that
    # the gradient needs.
    "minimal": _policies.save_from_both_policies(
        _policies.dots_with_no_batch_dims_saveable,
        _policies.save_only_these_names(
            ATTENTION, ACTIVATION, EXCHANGED, GROUPED_PRODUCT, PRODUCT, ORDER
        ),
    ),
    "full": _policies.nothing_saveable,  # save only the inputs of layers
}


def named(x, name):
    """Returns x, and gives its bits this name for the policies.

    The name is on the bits because JAX adds a rounding pass over all saved floating-point values
    that are also used in the forward pass. The pass keeps XLA from computing such a value with
    different precision in two places.
    """
    bits = jax.lax.bitcast_convert_type(x, jnp.dtype(f"uint{8 * x.dtype.itemsize}"))
    return jax.lax.bitcast_convert_type(checkpoint_name(bits, name), x.dtype)
