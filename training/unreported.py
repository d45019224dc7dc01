"""The metrics of the steps that metrics.jsonl does not report yet.

Checkpoints keep these metrics, so that a resumed run writes the same lines as an uninterrupted run.
"""

import json
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax

_FILE = "unreported.json"  # name of the file in a checkpoint


class StepMetrics(NamedTuple):
    """The metrics of one step."""

    values: dict[str, float]  # "loss", "gradient_norm", …
    members: dict[str, tuple[float, float]]  # "loss/MEMBER/TERM" -> (sum, weight)


class Unreported:
    """The metrics of the steps since the last report, and the seconds that they took."""

    def __init__(self) -> None:
        self.steps: list[StepMetrics] = []
        self.seconds: dict[str, float] = {}  # seconds before the run was resumed, by kind

    def clear(self) -> None:
        self.steps = []
        self.seconds = {}

    def means(self) -> dict[str, float]:
        """Returns the mean of each metric of the last step, over the steps that have the metric.

        A member's mean is weighted. It is left out if its weights sum to 0.
        """
        means = {}
        for name in self.steps[-1].values:
            values = [step.values[name] for step in self.steps if name in step.values]
            means[name] = sum(values) / len(values)
        for name in self.steps[-1].members:
            pairs = [step.members[name] for step in self.steps if name in step.members]
            total = sum(pair[0] for pair in pairs)
            weight = sum(pair[1] for pair in pairs)
            if weight:
                means[name] = total / weight
        return means

    def state(self, seconds: Mapping[str, float]) -> dict[str, bytes]:
        """Returns the file that the first process saves with a checkpoint.

        `seconds` gives the time since the last report, by kind.
        """
        if jax.process_index() != 0:  # only the first process writes metrics
            return {}
        content = {"steps": self.steps, "seconds": dict(seconds)}
        return {_FILE: json.dumps(content).encode()}

    def restore(self, read: Callable[[str], bytes]) -> None:
        """Restores the metrics of a checkpoint. `read` returns one of its files by name."""
        self.clear()
        content = json.loads(read(_FILE))
        self.steps = [StepMetrics(*step) for step in content["steps"]]
        self.seconds = content["seconds"]
