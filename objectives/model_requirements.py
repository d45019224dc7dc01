"""What objectives and streams require of a model and its rows, checked before a run starts."""

from collections.abc import Sequence
from typing import Any, Protocol


class Requirement(Protocol):
    """What an objective, or a stream of its features, requires of a model and of the rows.

    def own_positions(model, groups):
        if model.config and model.config.positions == "none":
            return "The objective …, and this model has no positions: choose one with …."
    """

    def __call__(self, model: Any, groups: Sequence[Any], /) -> str | None:
        """Returns what is missing and what to change, or None where nothing is.

        Args:
          model: `models.Model`, whose `config` is None if it is not one of pretrax.
          groups: `RowGroup`s, the rows of a step.
        """
