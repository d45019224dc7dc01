"""Detects loss spikes, and records the roll-backs of a run.

After a spike, a run with `rollback_sigmas` continues from a checkpoint before it and skips the
batches that were read since (Chowdhery et al. 2022, "PaLM", arXiv:2204.02311, section 5.1). A spike
comes from the combination of certain data with certain parameters, and both are different then.
Checkpoints include the losses before them and the roll-backs so far. Therefore a run that was
killed and resumed meets the same spikes.
"""

import collections
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

# Metrics of a step that must be finite. The loss and the gradient are computed from the parameters
# before the step. The parameter norm covers the parameters after it, which may be saved next.
WATCHED = ("loss", "gradient_norm", "parameter_norm")

# The rule of OLMo-core's `SkipStepOptimizer`, whose standard deviations are 6 by default.
WINDOW = 128  # number of previous losses for the mean and the standard deviation
MIN_PREVIOUS = 64  # smallest number of previous losses; with fewer, no finite loss is a spike
MAX_ROLLBACKS = 3  # largest number of roll-backs to the same checkpoint

_FILE = "spikes.json"  # file in a checkpoint
_ADVICE = (
    "Lower the learning rate, warm up for longer or clip the gradient's norm (clip_norm), and "
    "start the same command again."
)


class LossSpike(Exception):
    """Raised when the metrics of a step are a spike."""

    def __init__(self, step: int, message: str):
        super().__init__(message)
        self.step = step


class Rollback(NamedTuple):
    """A return from the step of a spike to the step of a checkpoint."""

    spike: int
    checkpoint: int

    @property
    def skipped(self) -> int:  # batches that were read between them
        return self.spike - self.checkpoint


class Spikes:
    """Detects spikes by comparing each loss with the losses before it.

    Args:
      sigmas: number of standard deviations above the mean of the previous losses at which a loss
        is a spike. None: only values that are not finite are spikes, and runs are not rolled back.
    """

    def __init__(self, sigmas: float | None):
        self._sigmas = sigmas
        self._losses: collections.deque[float] = collections.deque(maxlen=WINDOW)
        self.rollbacks: list[Rollback] = []  # roll-backs of the run, oldest first

    def check(self, step: int, watched: Mapping[str, float]) -> None:
        """Raises LossSpike if the `WATCHED` metrics of a step are a spike.

        Otherwise the loss is recorded.
        """
        if not all(map(math.isfinite, watched.values())):
            values = ", ".join(f"{name} {value:g}" for name, value in watched.items())
            raise LossSpike(step, f"At step {step} the metrics are no longer finite: {values}.")
        loss = watched["loss"]
        if self._sigmas is not None and len(self._losses) >= MIN_PREVIOUS:
            mean = np.mean(self._losses)
            deviation = np.std(self._losses)
            if loss > mean + self._sigmas * deviation:
                message = (
                    f"At step {step} the loss {loss:.4g} is a spike: in the {len(self._losses)} "
                    f"steps before it was {mean:.4g}, with a standard deviation of {deviation:.2g}."
                )
                raise LossSpike(step, message)
        self._losses.append(loss)

    def checkpoint_before(self, spike: LossSpike, saved: Sequence[int], every: int | None) -> int:
        """Returns the step of the checkpoint to which a run is rolled back.

        This is the last checkpoint at a multiple of `every`. Other checkpoints, saved by the clock
        or when a run was stopped, do not count, so that they cannot change the run's result.

        Raises FloatingPointError if the run has to stop: roll-backs are off, there is no such
        checkpoint, or the run was rolled back to it `MAX_ROLLBACKS` times already.
        """
        rolled_back = self._sigmas is not None and every is not None
        due = [step for step in saved if every is not None and step % every == 0]
        if not rolled_back or not due:
            last = "no checkpoint is saved yet"
            if saved:
                last = f"the last checkpoint is of step {saved[-1]}"
            if saved and rolled_back:
                steps = ", ".join(map(str, saved))
                last = f"none of its checkpoints, of the steps {steps}, is of a multiple of {every}"
            raise FloatingPointError(f"{spike} It stops here; {last}. {_ADVICE}")
        last_due = due[-1]
        earlier = [str(rollback.spike) for rollback in self.since(last_due)]
        if len(earlier) >= MAX_ROLLBACKS:
            raise FloatingPointError(
                f"{spike} The run was rolled back to the checkpoint of step {last_due} "
                f"{len(earlier)} times already, from the steps {', '.join(earlier)}, and stops "
                f"here. {_ADVICE} Or delete this checkpoint and all later ones: the run is then "
                "rolled back to the checkpoint before."
            )
        return last_due

    def since(self, checkpoint: int) -> list[Rollback]:
        """Returns the roll-backs to a checkpoint, and to later checkpoints, which were removed."""
        return [rollback for rollback in self.rollbacks if rollback.checkpoint >= checkpoint]

    def state(self) -> dict[str, bytes]:
        """Returns the file for a checkpoint; {} if roll-backs are off or another process saves."""
        if self._sigmas is None or jax.process_index() != 0:
            return {}
        content = {"losses": list(self._losses), "rollbacks": self.rollbacks}
        return {_FILE: json.dumps(content).encode()}

    def restore(self, read: Callable[[str], bytes]) -> None:
        """Restores the losses and roll-backs of a checkpoint. `read` returns one of its files.

        If the checkpoint was saved without roll-backs, the file is missing and no losses are known.
        """
        if self._sigmas is None:
            return
        try:
            content = json.loads(read(_FILE))
        except FileNotFoundError:
            content = {"losses": [], "rollbacks": []}
        self._losses = collections.deque(content["losses"], WINDOW)
        self.rollbacks = [Rollback(*steps) for steps in content["rollbacks"]]
