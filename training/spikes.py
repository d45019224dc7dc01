"""Loss spikes: which losses are, and where a run was rolled back for them.

A run with `rollback_sigmas` that meets one continues from a checkpoint before it, and skips the
batches that were read since, as Chowdhery et al. 2022 ("PaLM", arXiv:2204.02311, section 5.1): what
follows is other data on other parameters, and the combination of both is what made the spike. A run
that was killed and resumed meets the same spikes: the losses before, and the roll-backs so far, are
saved with its checkpoints.
"""

import collections
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

# Metrics of a step that must be finite. The loss and the gradient belong to the parameters before
# the step, the norm of the parameters to those after it, which may be about to be saved.
WATCHED = ("loss", "gradient_norm", "parameter_norm")

# The rule of OLMo-core's `SkipStepOptimizer`, whose standard deviations are 6 by default.
WINDOW = 128  # losses before a step, of which mean and standard deviation are taken
LEAST = 64  # of them; with fewer no finite loss is a spike
MOST_ROLLBACKS = 3  # to one checkpoint

_FILE = "spikes.json"  # of a checkpoint
_ADVICE = (
    "Lower the learning rate, warm up for longer or clip the gradient's norm (clip_norm), and "
    "start the same command again."
)


class LossSpike(Exception):
    def __init__(self, step: int, message: str):
        super().__init__(message)
        self.step = step


class Rollback(NamedTuple):
    """A return from the step of a spike to that of a checkpoint."""

    spike: int
    checkpoint: int

    @property
    def skipped(self) -> int:  # batches that were read between them
        return self.spike - self.checkpoint


class Spikes:
    """Tells spikes by the losses before them.

    A loss that is `sigmas` standard deviations above their mean is a spike, as is what is not
    finite; None: only that is one, and no run is rolled back.
    """

    def __init__(self, sigmas: float | None):
        self._sigmas = sigmas
        self._losses: collections.deque[float] = collections.deque(maxlen=WINDOW)
        self.rollbacks: list[Rollback] = []  # of the run, oldest first

    def check(self, step: int, watched: Mapping[str, float]) -> None:
        """Raises LossSpike where the `WATCHED` metrics of a step are one, else keeps its loss."""
        if not all(map(math.isfinite, watched.values())):
            values = ", ".join(f"{name} {value:g}" for name, value in watched.items())
            raise LossSpike(step, f"At step {step} the training is no longer finite: {values}.")
        loss = watched["loss"]
        if self._sigmas is not None and len(self._losses) >= LEAST:
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
        """Returns the step of the checkpoint to which a run is rolled back, of those `saved`.

        It is the last one that was due, every so many steps: where a run was stopped, or by the
        clock, and has saved others must not change what it comes to.

        Raises FloatingPointError where the run is to stop: it has no checkpoint that was due, was
        rolled back to this one `MOST_ROLLBACKS` times, or is not to be rolled back.
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
        earlier = [str(one.spike) for one in self.since(last_due)]
        if len(earlier) >= MOST_ROLLBACKS:
            raise FloatingPointError(
                f"{spike} The run was rolled back to the checkpoint of step {last_due} "
                f"{len(earlier)} times already, from the steps {', '.join(earlier)}, and stops "
                f"here. {_ADVICE} Or delete that checkpoint and later ones: it is then rolled back "
                "to the one before."
            )
        return last_due

    def since(self, checkpoint: int) -> list[Rollback]:
        """Returns the roll-backs to a checkpoint, and to later ones that are no more."""
        return [one for one in self.rollbacks if one.checkpoint >= checkpoint]

    def state(self) -> dict[str, bytes]:
        """Returns the file that one process saves with a checkpoint, if the run is rolled back."""
        if self._sigmas is None or jax.process_index() != 0:
            return {}
        content = {"losses": list(self._losses), "rollbacks": self.rollbacks}
        return {_FILE: json.dumps(content).encode()}

    def restore(self, read: Callable[[str], bytes]) -> None:
        """Continues from a checkpoint, whose file of a name `read` returns.

        One that was saved without roll-backs has no such file: the losses are then collected anew.
        """
        if self._sigmas is None:
            return
        try:
            content = json.loads(read(_FILE))
        except FileNotFoundError:
            content = {"losses": [], "rollbacks": []}
        self._losses = collections.deque(content["losses"], WINDOW)
        self.rollbacks = [Rollback(*one) for one in content["rollbacks"]]
