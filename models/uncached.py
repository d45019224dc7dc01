"""Decoding for a model without a KV cache: each new token reads its whole row again.

    model = without_cache(model)    # has `prefill` and `extend`, as a model with a KV cache has

The work grows with the square of the row, and then as attention does; the tokens are the same.
"""

import functools

import jax.numpy as jnp

from .builders import Model, Outputs


@functools.lru_cache(maxsize=64)
def without_cache(model: Model) -> Model:
    """The model with a `prefill` and an `extend` that keep the row in place of keys and values.

    The same model each time, so that what was compiled for it is found.
    """

    def prefill(params, batch, capacity):
        row = {name: _with_capacity(name, x, capacity) for name, x in batch.items()}
        return model.apply(params, row), row

    def extend(params, row, batch):
        rows_Bx1 = jnp.arange(batch["decoder_cache_slots"].shape[0])[:, None]
        slots_BxT = batch["decoder_cache_slots"]
        row = dict(row)
        for name, new in batch.items():
            if name in row and new.ndim == 2:
                row[name] = row[name].at[rows_Bx1, slots_BxT].set(new)
            elif name in row:  # intervals [B, 2, T]
                by_slot = row[name].swapaxes(1, 2).at[rows_Bx1, slots_BxT].set(new.swapaxes(1, 2))
                row[name] = by_slot.swapaxes(1, 2)
        outputs = model.apply(params, row)
        hidden = {"top": outputs.hidden["top"][rows_Bx1, slots_BxT]}
        return Outputs(hidden, outputs.head), row

    return model._replace(prefill=prefill, extend=extend)


def _with_capacity(name: str, x, capacity: int):
    """A feature of the decoder with `capacity` slots; new ones are padding, which sees itself
    alone."""
    missing = capacity - x.shape[-1]
    if not name.startswith(("decoder_", "cross_")):
        return x
    padded = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)])
    if name == "decoder_key_intervals":
        slot = jnp.arange(capacity)
        itself = jnp.stack([slot, slot + 1]).astype(x.dtype)[None]
        return jnp.where(slot < x.shape[-1], padded, itself)
    if name == "cross_key_intervals":  # the first key: never empty
        return jnp.where(
            jnp.arange(capacity) < x.shape[-1], padded, jnp.array([[[0], [1]]], x.dtype)
        )
    return padded
