"""Decoding for a model without a KV cache: each new token reads its whole row again.

    model = without_cache(model)    # has `prefill` and `extend`, like a model with a KV cache

The tokens are the same. Decoding a row of n tokens takes n forward passes over the whole row.
"""

import functools

import jax.numpy as jnp

from .builders import Model, Outputs


@functools.lru_cache(maxsize=64)
def without_cache(model: Model) -> Model:
    """Returns the model with a `prefill` and an `extend` that keep the row instead of a KV cache.

    Equal models return the same object, so that compiled programs are reused.
    """

    def prefill(params, batch, capacity):
        row = {name: _with_capacity(name, x, capacity) for name, x in batch.items()}
        return model.apply(params, row), row

    def extend(params, row, batch):
        slots_BxT = batch["decoder_cache_slots"]
        row = dict(row)
        rows_Bx1 = jnp.arange(slots_BxT.shape[0])[:, None]
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
    """Returns an array of the decoder with `capacity` slots. The added slots are padding."""
    if not name.startswith(("decoder_", "cross_")):
        return x
    slot = jnp.arange(capacity)
    values = jnp.zeros((), x.dtype)
    if name == "decoder_key_intervals":  # padding attends to itself
        values = jnp.stack([slot, slot + 1]).astype(x.dtype)
    if name == "cross_key_intervals":  # padding attends to the first key: intervals are not empty
        values = jnp.array([[0], [1]], x.dtype)
    padded = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, capacity - x.shape[-1])])
    return jnp.where(slot < x.shape[-1], padded, values)
