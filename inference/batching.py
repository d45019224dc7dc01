"""Rows of like lengths together, in batches of few shapes."""

import functools
import math
from collections.abc import Callable, Iterator, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

WIDTHS = 32  # rows are padded to a multiple of so many places, to share compiled programs


def width_for(longest: int, most: int | None = None) -> int:
    """Places to pad rows to.

    >>> width_for(40), width_for(40, most=50), width_for(64)
    (64, 50, 64)
    """
    width = -(-longest // WIDTHS) * WIDTHS
    return max(min(width, most), longest) if most else width


def by_length(sizes: Sequence[int], batch_size: int) -> Iterator[list[int]]:
    """Indices of batches, shortest rows first.

    All batches have as many rows, which divide over the devices that the rows of a batch are spread
    over; the last is filled up by repeating.

    >>> list(by_length([5, 1, 3], 2))
    [[1, 2], [0, 0]]
    """
    order = sorted(range(len(sizes)), key=lambda i: sizes[i])
    rows = min(batch_size, max(len(order), 1))
    rows += -rows % _row_shards()
    for first in range(0, len(order), rows):
        chosen = order[first : first + rows]
        yield chosen + [chosen[-1]] * (rows - len(chosen))


def _row_shards() -> int:
    """Over how many devices a batch is spread, within `training.mesh.placed_on`."""
    mesh, (axes,) = jax.sharding.get_abstract_mesh(), nn.logical_to_mesh_axes(("batch",))
    return math.prod(mesh.shape[axis] for axis in axes or ())


def encoder_batch(rows: Sequence[Sequence[int]], most: int = 0, segment: int = 1) -> dict:
    """What an encoder eats: rows seen both ways, with padding after them.

    Args:
      most: places that the model has; 0: any number.
      segment: number that the tokens get: two towers tell the texts of a pair by it.

    Raises ValueError where a row has no token, or more than `most`.
    """
    batch, _ = padded_rows("encoder", rows, _checked_width(rows, most))
    return batch | {"encoder_segment_ids": segment * batch["encoder_segment_ids"]}


def _checked_width(rows, most):
    longest = max(len(row) for row in rows)
    if most and longest > most:
        raise ValueError(
            f"Got a text of {longest} tokens, expected at most {most}, for which this model has "
            "positions: give a shorter one."
        )
    return width_for(longest, most)


def padded_rows(stack: str, rows: Sequence[Sequence[int]], width: int | None = None):
    """Rows seen both ways, with padding after them, as a batch for a stack; and their lengths.

    Raises ValueError for a row of no tokens.
    """
    if not rows or not all(len(row) for row in rows):
        raise ValueError("Got a text of no tokens, expected one or more: give some words.")
    lengths = np.array([len(row) for row in rows], np.int32)
    places = np.arange(width or lengths.max(), dtype=np.int32)[None] + 0 * lengths[:, None]
    live = places < lengths[:, None]
    tokens = np.zeros_like(places)
    tokens[live] = np.concatenate([np.asarray(row) for row in rows])
    # A place of padding sees itself: no interval may be empty.
    start = np.where(live, 0, places)
    end = np.where(live, lengths[:, None], places + 1)
    batch = {
        f"{stack}_input_tokens": tokens,
        f"{stack}_segment_ids": live.astype(np.int32),
        f"{stack}_positions": places,
        f"{stack}_key_intervals": np.stack([start, end], 1),
    }
    return {name: jnp.asarray(array) for name, array in batch.items()}, jnp.asarray(lengths)


@functools.lru_cache(maxsize=64)
def jitted(function: Callable, model, *settings):
    """(params, …) -> function(model, *settings, params, …), compiled once for each model."""
    return jax.jit(functools.partial(function, model, *settings))
