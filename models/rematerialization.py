"""What the gradient takes from the forward pass, and what it computes again: `remat_policy`.

Policies know values by name.
"""

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

ATTENTION = "attention"  # its outputs, and the logs of the softmax's denominators
ACTIVATION = "activation"  # what a costly one gives, and its derivative
EXCHANGED = "exchanged"  # what experts get from other devices
GROUPED_PRODUCT = "grouped_product"  # into experts
PRODUCT = "product"  # a product with a weight, in bfloat16 on a CPU
ORDER = "order"  # the experts of tokens, and their order by these

_policies = jax.checkpoint_policies
POLICIES = {
    "none": None,  # save every intermediate value
    # Save products with a weight, and of attention and costly activations what the gradient needs.
    "minimal": _policies.save_from_both_policies(
        _policies.dots_with_no_batch_dims_saveable,
        _policies.save_only_these_names(
            ATTENTION, ACTIVATION, EXCHANGED, GROUPED_PRODUCT, PRODUCT, ORDER
        ),
    ),
    "full": _policies.nothing_saveable,  # save only what passes between layers
}


def named(x, name):
    """Returns x, whose bits have this name: of numbers that are saved and used JAX rounds all in a
    pass of its own, lest XLA compute them more precisely in one place."""
    bits = jax.lax.bitcast_convert_type(x, jnp.dtype(f"uint{8 * x.dtype.itemsize}"))
    return jax.lax.bitcast_convert_type(checkpoint_name(bits, name), x.dtype)
