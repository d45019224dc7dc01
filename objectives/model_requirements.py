"""Requirements of objectives and streams on models and rows, checked before a run starts."""

from collections.abc import Sequence
from typing import Any, Protocol


class Requirement(Protocol):
    """A requirement of an objective, or of a stream of its features, on a model and its rows.

    def has_positions(model, groups):
        if model.config and model.config.positions == "none":
            return "The objective …, but this model has no positions: choose a model with …."
    """

    def __call__(self, model: Any, groups: Sequence[Any], /) -> str | None:
        """Returns a message that says what is missing and what to change, or None.

        Args:
          model: `models.Model`, whose `config` is None if the model is not from pretrax.
          groups: `RowGroup`s, the rows of a step.
        """
