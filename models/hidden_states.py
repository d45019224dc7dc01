"""Hidden states after each layer of a Transformer."""

import dataclasses
import re

import jax
import jax.numpy as jnp

from .config import Config
from .quantization import quantized
from .transformer import Block, Stack, Transformer


def layer_states(config: Config, params: dict, batch: dict) -> jax.Array:
    """Returns [1 + layers, B, T, E]: the embeddings, then the residual stream after each layer.

    The last state is the input of the heads, after the final norm. For an encoder-decoder, `batch`
    has only the encoder's arrays, and the states are the encoder's.

    Raises ValueError for scanned layers, whose states are not available separately.
    """
    if config.scan_layers:
        raise ValueError(
            "Got scan_layers=True, expected False: pass the (model, params) that "
            "models.unrolled.unrolled returns."
        )
    plain = dataclasses.replace(config, remat_policy="none")
    network = quantized(Transformer(plain), config.quantization)
    hidden, captured = network.apply(
        {"params": params}, batch, capture_intermediates=_is_captured, mutable=["intermediates"]
    )
    (stack,) = captured["intermediates"].values()
    names = sorted((name for name in stack if "layer" in name), key=_number)
    layers = [stack[name]["__call__"][0][0] for name in names]
    # The state after the last layer is replaced by "top", the normed state. With parallel heads,
    # the last layer is a head, and all layers of the stack belong to the trunk.
    trunk = layers if config.num_ahead and config.ahead == "parallel" else layers[:-1]
    top = hidden["top"]
    # A stack may pad its rows (`Transformer._padded`).
    unpadded = [x[:, : top.shape[1]] for x in (stack["_embedded"][0], *trunk)]
    return jnp.stack([*unpadded, top])


def _is_captured(module, method: str) -> bool:
    return (isinstance(module, Stack) and method == "_embedded") or (
        isinstance(module, Block) and method == "__call__"
    )


def _number(name: str) -> int:
    """Returns 3 for "layers_3", and -1 for "first_layer"."""
    match = re.search(r"\d+", name)
    return int(match[0]) if match else -1
