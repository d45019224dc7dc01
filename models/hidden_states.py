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

    The last one is what heads take, after the final norm. Of an encoder-decoder they are the
    encoder's: `batch` holds the encoder's arrays alone.

    Raises ValueError for scanned layers, whose states are never apart.
    """
    if config.scan_layers:
        raise ValueError(
            "Got scan_layers=True, expected False: give (model, params) of "
            "models.unrolled.unrolled."
        )
    plain = dataclasses.replace(config, remat_policy="none")
    network = quantized(Transformer(plain), config.quantization)
    hidden, captured = network.apply(
        {"params": params}, batch, capture_intermediates=_is_captured, mutable=["intermediates"]
    )
    (stack,) = captured["intermediates"].values()
    names = sorted((name for name in stack if "layer" in name), key=_number)
    layers = [stack[name]["__call__"][0][0] for name in names]
    # The last layer's, but normed; of heads that are layers of their own, it is beyond the trunk.
    trunk = layers if config.num_ahead and config.ahead == "parallel" else layers[:-1]
    top = hidden["top"]
    # Within a stack rows may be padded: `Transformer._padded`.
    own = [x[:, : top.shape[1]] for x in (stack["_embedded"][0], *trunk)]
    return jnp.stack([*own, top])


def _is_captured(module, method: str) -> bool:
    return (isinstance(module, Stack) and method == "_embedded") or (
        isinstance(module, Block) and method == "__call__"
    )


def _number(name: str) -> int:
    """Returns the number of "layers_3"; "first_layer" is before all."""
    found = re.search(r"\d+", name)
    return int(found[0]) if found else -1
