"""Positive controls: whether an eval metric detects a known difference.

The comparison `positive_controls` trains two models, one with an eighth of the other's updates on
the same text. An eval metric that does not distinguish them at this size cannot show that two other
models are equal.

A control is passed if the 95% interval of the better model's advantage lies above 0, uncorrected
for the number of eval metrics.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .. import results
from ..statistics import Estimate
from .summary import Summary, summary_of

KEPT = Path(__file__).parents[2] / "docs" / "comparisons" / "positive_controls"


class PositiveControl(NamedTuple):
    """The advantage of a better-trained model that an eval metric measured."""

    figure: str
    unit: str
    gain: Estimate  # advantage of the better model over seeds; positive if the figure shows it
    parameters: int  # number of parameters of the models

    @property
    def passed(self) -> bool:
        return self.gain.low > 0


def controls_of(figure: str, directory: Path = KEPT) -> list[PositiveControl]:
    """Returns the kept controls of the eval metric that measures a figure, with any settings.

    The list is empty without the folder docs/.
    """
    if results.read_setup(directory) is None:
        return []
    controls = controls_in(summary_of(results.read(directory)))
    return [control for control in controls if _function(control.figure) == _function(figure)]


def controls_in(summary: Summary) -> Iterator[PositiveControl]:
    parameters = max(run.parameters for run in summary.trained)
    for difference in summary.differences:
        column = summary.column(difference.figure)
        # The reference is the better model.
        gain = summary.gain(difference, difference.other).estimate
        yield PositiveControl(difference.figure, column.unit, gain, parameters)


def _function(figure: str) -> str:
    """
    >>> _function("finetune (python_word_kinds)"), _function("minimal_pairs")
    ('finetune', 'minimal_pairs')
    """
    return figure.partition(" (")[0]
