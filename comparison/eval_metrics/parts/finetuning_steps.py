"""The steps of fine-tuning, the same whatever is learned: an optimizer and a schedule.

    params = stepped(loss, params, batch_of, examples, peak=0.05, steps=100, batch_size=16)

The optimizer is Adafactor, whose updates are relative to each parameter's size, as those of the
runs for a laptop: embeddings of size 1, fresh or trained, would hardly move at the rates that suit
kernels of .1. There is no dropout.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
import optax

from ....inference import Trained
from ....inference.decoding.batching import jitted
from ....models.builders import fresh_params
from ....training.state import unboxed

WARMUP_SHARE = 0.1
T = TypeVar("T", bound=tuple[float, Any])  # (score, what was learned)
_ADAFACTOR = optax.chain(
    optax.scale_by_factored_rms(min_dim_size_to_factor=32),
    optax.clip_by_block_rms(1.0),
    optax.scale_by_param_block_rms(),
)


def from_scratch(trained: Trained, seed: int) -> Trained:
    """Returns the model with fresh parameters, as a run of this seed draws them."""
    return trained._replace(params=jitted(_fresh, trained.model)(jax.random.key(seed)))


def at_best_peak(peaks: Sequence[float], tried: Callable[[float], T]) -> tuple[float, T]:
    """Returns the peak whose tuning trial has the highest score, and the tuning trial; of equal scores the first.

    Args:
      tried: a peak -> what was learned with it and its score, which comes first.
    """
    tuning_trials = ((peak, tried(peak)) for peak in peaks)  # so that two at most are in memory
    return max(tuning_trials, key=lambda one: one[1][0])


def _fresh(model, key) -> dict:
    return unboxed(fresh_params(model, key))


def stepped(
    loss: Callable,
    params: dict,
    batch_of: Callable[[np.ndarray], tuple],
    examples: np.ndarray,
    peak: float,
    steps: int,
    batch_size: int,
) -> dict:
    """Returns the parameters after so many steps on these examples.

    The learning rate rises for a tenth of the steps and falls linearly to 0.

    Args:
      loss: (params, *batch) -> a number; the same function at every call, to be compiled once.
      batch_of: from the numbers of examples to a batch.
      examples: the numbers of those to learn from.
      peak: learning rate, relative to the size of a parameter.
      batch_size: all examples, where there are fewer.
    """
    state = _ADAFACTOR.init(params)
    step = jitted(_step, loss)
    warmup = max(1, int(WARMUP_SHARE * steps))
    batch_size = min(batch_size, len(examples))
    for number, chosen in enumerate(_batches(examples, steps, batch_size)):
        rate = peak * min((number + 1) / warmup, (steps - number) / max(steps - warmup, 1))
        params, state = step(params, state, batch_of(chosen), rate)
    return params


def _batches(examples: np.ndarray, steps: int, batch_size: int) -> Iterator[np.ndarray]:
    """Yields the examples of each step, all in a random order again and again."""
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
