"""What shows metrics while a run trains, beside the files of its directory."""

from collections.abc import Mapping
from typing import Protocol

from ..run import Run
from . import weights_and_biases


class Tracker(Protocol):
    """What shows metrics while a run trains; it raises OSError where it cannot take them."""

    def write(self, step: int, values: Mapping[str, float]) -> None: ...

    def write_text(self, step: int, name: str, text: str) -> None: ...

    def flush(self) -> None: ...

    def rewind(self, step: int) -> None:
        """Takes back what was written of later steps, as far as it can; they are taken again."""

    def close(self, failed: bool) -> None:
        """Ends; `failed` tells of a run that an error ended."""


def check_trackers(run: Run) -> None:
    """Raises ValueError for a run with a tracker whose package is not installed."""
    if run.wandb_project is not None:
        weights_and_biases.check_installed(run.wandb_project)


def open_trackers(run: Run) -> list[Tracker]:
    """Returns the trackers that a run names: Weights & Biases, where it has a project there."""
    return [] if run.wandb_project is None else [weights_and_biases.WeightsAndBiases(run)]
