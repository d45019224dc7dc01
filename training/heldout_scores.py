"""Held-out scores of the terms of a loss, and the loss that they make up."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple


class Score(NamedTuple):
    """Held-out score of one term of one member's loss."""

    member: str
    term: str
    loss: float  # nats per target (token, pair, …), or the mean of a metric
    baseline: float | None  # loss of a model that ignores its input, or None
    targets: int  # number of targets
    has_perplexity: bool = False  # whether targets are tokens
    metric: bool = False  # whether it is not part of the loss, such as an accuracy
    is_likelihood: bool = False  # whether it is the exact likelihood of the text
    # Weight in the total loss; for a schedule, the weight at the last step. It is 0 for a member of
    # a mixture whose rate follows training progress and is 0 at the end.
    scale: float = 1.0

    @property
    def name(self) -> str:
        return f"{self.member}/{self.term}"

    @property
    def gain(self) -> float | None:
        """Returns the share of the baseline's nats that the model saves, or None."""
        return 1.0 - self.loss / self.baseline if self.baseline else None

    @property
    def words(self) -> tuple[str, str]:
        """Returns the loss and its perplexity as they are printed.

        A value is "" if there are no targets, or if the loss has no perplexity.

        >>> Score("a", "b", 2.0, None, 9, has_perplexity=True).words
        ('2.000', '7.4')
        """
        if not self.targets:
            return "", ""
        perplexity = f"{math.exp(min(self.loss, 700.0)):,.1f}" if self.has_perplexity else ""
        return f"{self.loss:.3f}", perplexity


def total_loss(scores: Sequence[Score]) -> float:
    """Returns the held-out value of the trained loss: the sum of its scaled terms.

    The loss of a mixture is the mean of its members' losses, regardless of their rates. Members
    without weight, such as earlier phases, do not count.

    >>> total_loss([Score("a", "b", 4.0, None, 9), Score("a", "c", 2.0, None, 9, scale=0.5)])
    5.0
    >>> total_loss([Score("first", "b", 4.0, None, 9, scale=0.0), Score("last", "b", 3.0, None, 9)])
    3.0
    """
    totals: dict[str, float] = {}
    for score in scores:
        if not score.metric and score.scale:
            totals[score.member] = totals.get(score.member, 0.0) + score.scale * score.loss
    return statistics.fmean(totals.values() or [0.0])
