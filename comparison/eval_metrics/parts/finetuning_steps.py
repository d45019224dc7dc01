"""The steps of fine-tuning: an optimizer and a schedule, the same for every task.

    batches = map(batch_of, shuffled_batches(examples, steps=100, batch_size=16))
    params = stepped(loss, params, batches, peak=0.05, steps=100)

The optimizer is Adafactor, whose updates are relative to each parameter's size. With absolute
updates, embeddings of size 1 would hardly change at rates that suit kernels of size 0.1. There is
no dropout.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
import optax

from ....inference import Trained
from ....inference.decoding.batching import jitted
from ....models.builders import fresh_params
from ....training.state import unboxed

WARMUP_SHARE = 0.1
MAX_FURTHER = 3  # maximum number of peaks tried beyond a grid
T = TypeVar("T", bound=tuple[float, Any])  # (score, result of training)
_ADAFACTOR = optax.chain(
    optax.scale_by_factored_rms(min_dim_size_to_factor=32),
    optax.clip_by_block_rms(1.0),
    optax.scale_by_param_block_rms(),
)


def from_scratch(trained: Trained, seed: int) -> Trained:
    return trained._replace(params=jitted(_fresh, trained.model)(jax.random.key(seed)))


class Peak(NamedTuple):
    """A peak learning rate, and the grid that it was chosen from."""

    best: float
    grid: Sequence[float]  # all peaks tried, ascending


def at_best_peak(peaks: Sequence[float], tried: Callable[[float], T]) -> tuple[Peak, T]:
    """Returns the peak with the highest score, and the result of training with it.

    While the best peak is at an edge of the grid, the grid is extended geometrically, up to
    `MAX_FURTHER` times. A single peak is not extended. The peak nearest to the middle of the grid
    wins ties.

    >>> at_best_peak([1, 2, 4], lambda peak: (-abs(peak - 9), "a model"))
    (Peak(best=8.0, grid=[1, 2, 4, 8.0, 16.0]), (-1.0, 'a model'))
    """
    grid = sorted(set(peaks))
    middle = (len(grid) - 1) / 2
    outward = sorted(grid, key=lambda peak: abs(grid.index(peak) - middle))
    results = ((peak, tried(peak)) for peak in outward)  # At most two results are in memory.
    best, result = max(results, key=lambda tried_peak: tried_peak[1][0])
    for _ in range(MAX_FURTHER):
        if len(grid) == 1 or best not in (grid[0], grid[-1]):
            break
        neighbor = grid[1] if best == grid[0] else grid[-2]
        further = best * best / neighbor
        grid = sorted([*grid, further])
        further_result = tried(further)
        if further_result[0] > result[0]:
            best, result = further, further_result
    return Peak(best, grid), result


def _fresh(model, key) -> dict:
    return unboxed(fresh_params(model, key))


def stepped(
    loss: Callable, params: dict, batches: Iterable[tuple], peak: float, steps: int
) -> dict:
    """Returns the parameters after training on a batch in each step, by loss(params, *batch).

    The learning rate, relative to a parameter's size, rises to the peak in a tenth of the steps,
    and then falls linearly to 0.
    """
    state = _ADAFACTOR.init(params)
    step = jitted(_step, loss)
    warmup = max(1, int(WARMUP_SHARE * steps))
    for number, batch in enumerate(batches):
        rate = peak * min((number + 1) / warmup, (steps - number) / max(steps - warmup, 1))
        params, state = step(params, state, batch, rate)
    return params


def shuffled_batches(examples: np.ndarray, steps: int, batch_size: int) -> Iterator[np.ndarray]:
    """Yields the examples of each step. Each epoch has all examples in a new random order.

    With fewer examples than `batch_size`, a batch has all of them.
    """
    batch_size = min(batch_size, len(examples))
    rng = np.random.default_rng(0)
    left = np.array([], int)
    for _ in range(steps):
        while len(left) < batch_size:
            left = np.concatenate([left, rng.permutation(examples)])
        yield left[:batch_size]
        left = left[batch_size:]


def _step(loss, params, state, batch, rate):
    updates, state = _ADAFACTOR.update(jax.grad(loss)(params, *batch), state, params)
    return jax.tree.map(lambda p, u: p - rate * u, params, updates), state
