"""Batches of rows of similar lengths, in a few shapes that share compiled programs."""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np

from .sampling import numbered_keys

LENGTH_MULTIPLE = 32  # rows are padded to a multiple, so that they share compiled programs


def padded_length(longest: int, limit: int | None = None) -> int:
    """Returns the length to which rows of up to `longest` tokens are padded.

    The length is at most `limit`, unless `limit` is 0 or None.

    >>> padded_length(40), padded_length(40, limit=50), padded_length(64)
    (64, 50, 64)
    """
    length = -(-longest // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
    return max(min(length, limit), longest) if limit else length


def by_length(sizes: Sequence[int], batch_size: int) -> Iterator[list[int]]:
    """Yields the indices of the rows of each batch, shortest rows first.

    Every batch has the same number of rows, a multiple of the devices that they are sharded over.
    The last batch repeats its last row.

    >>> list(by_length([5, 1, 3], 2))
    [[1, 2], [0, 0]]
    """
    order = sorted(range(len(sizes)), key=lambda i: sizes[i])
    rows = min(batch_size, max(len(order), 1))
    rows += -rows % _row_shards()
    for first in range(0, len(order), rows):
        chosen = order[first : first + rows]
        yield chosen + [chosen[-1]] * (rows - len(chosen))


class Batching(NamedTuple):
    """How many rows are computed together, and which random keys they get."""

    size: int = 32  # number of rows of a batch
    on_batch: Callable[[Any], None] | None = None  # called after a batch with its number of rows
    # Numbers of the rows, which their random keys are derived from. None: 0, 1, ….
    numbers: Sequence[int] | None = None

    def keys(self, seed: int, rows: Sequence[int]):
        """Returns a random key for each of these rows, given by their indices."""
        return numbered_keys(seed, [self.numbers[i] for i in rows] if self.numbers else rows)

    def run(self, compute: Callable[[list[int]], Iterable], sizes: Sequence[int]) -> list:
        """Returns the result of each row, in the order of the rows.

        >>> Batching(size=2).run(lambda rows: [10 * i for i in rows], [5, 1, 3])
        [0, 10, 20]

        Args:
          compute: function from the indices of a batch's rows to their results.
          sizes: length of each row; rows of similar lengths share a batch.
        """
        results: list = [None] * len(sizes)
        for chosen in by_length(sizes, self.size):
            for i, result in zip(chosen, compute(chosen)):
                results[i] = result
            if self.on_batch:
                self.on_batch(len(set(chosen)))
        return results


DEFAULT_BATCHING = Batching()


def _row_shards() -> int:
    """Returns the number of devices that rows are sharded over: 1 outside of a mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    spec = nn.logical_to_mesh_axes(("batch",))
    return math.prod(mesh.shape[axis] for axes in spec or () for axis in axes or ())


def encoder_batch(rows: Sequence[Sequence[int]], max_positions: int = 0, segment: int = 1) -> dict:
    """Returns a batch for an encoder: rows with bidirectional attention, padded to one length.

    encoder_batch([[5, 6, 7], [8]])["encoder_input_tokens"].shape    # (2, 32)

    Args:
      max_positions: maximum length of a row, including padding. 0: no limit.
      segment: segment id of all tokens, which distinguishes a pair's texts for two towers.

    Raises:
      ValueError: A row has no tokens.
    """
    batch, _ = padded_rows("encoder", rows, padded_width(rows, max_positions))
    return batch | {"encoder_segment_ids": segment * batch["encoder_segment_ids"]}


def padded_width(rows: Sequence[Sequence[int]], max_positions: int) -> int:
    return padded_length(max(len(row) for row in rows), max_positions)


def check_positions(
    max_positions: int,
    stack: str,
    slots: int,
    max_new: int = 0,
    whose: str = "this model's",
    shorter: str = "a shorter text",
) -> None:
    """Raises ValueError if a row has more slots, including `max_new`, than its stack has positions.

    The message names the model with the limit (`whose`) and the remedy (`shorter`).
    """
    if not max_positions or slots <= max_positions:
        return
    content = f"prompt and up to {max_new} new tokens" if max_new else "a text"
    fewer = ", or generate fewer tokens (max_new)" if max_new else ""
    raise ValueError(
        f"Got {slots} slots for the {stack} ({content}), expected at most {max_positions}, {whose} "
        f"max_positions: give {shorter}{fewer}."
    )


def padded_rows(stack: str, rows: Sequence[Sequence[int]], width: int | None = None):
    """Returns (a batch for `stack` with bidirectional attention, the rows' lengths i32[B]).

    Arrays are NumPy arrays, since JAX would compile a program for each width. If `width` is None,
    it is the length of the longest row.

    Raises ValueError if there are no rows, or if a row has no tokens.
    """
    if not rows or not all(len(row) for row in rows):
        raise ValueError("Got a text without tokens: give some words.")
    lengths_B = np.array([len(row) for row in rows], np.int32)
    tokens_BxT = np.zeros((len(rows), width or lengths_B.max()), np.int32)
    for tokens_T, row in zip(tokens_BxT, rows):
        tokens_T[: len(row)] = row
    return bidirectional_batch(stack, tokens_BxT, lengths_B, np), lengths_B


def bidirectional_batch(stack: str, tokens_BxT, lengths_B, numpy) -> dict:
    """Returns a batch for `stack` in which the tokens of a row attend to each other."""
    slots_T = numpy.arange(tokens_BxT.shape[1], dtype=np.int32)
    slots_BxT = numpy.broadcast_to(slots_T, tokens_BxT.shape)
    live_BxT = slots_BxT < lengths_B[:, None]
    # A padding slot attends to itself, since intervals must not be empty.
    start_BxT = numpy.where(live_BxT, 0, slots_BxT)
    end_BxT = numpy.where(live_BxT, lengths_B[:, None], slots_BxT + 1)
    return {
        f"{stack}_input_tokens": tokens_BxT,
        f"{stack}_segment_ids": live_BxT.astype(np.int32),
        f"{stack}_positions": slots_BxT,
        f"{stack}_key_intervals": numpy.stack([start_BxT, end_BxT], 1),
    }


@functools.lru_cache(maxsize=256)
def jitted(function: Callable, model, *settings, donated: int | tuple[int, ...] = ()):
    """Returns `function`, jitted with its first arguments fixed.

    jitted(function, model, 3)(params, batch)    # function(model, 3, params, batch)

    Calls with equal arguments return the same function, so that it is compiled once. `donated` are
    the numbers of the remaining arguments to donate.
    """
    return jax.jit(functools.partial(function, model, *settings), donate_argnums=donated)
