"""`Figure`: what a yardstick measures."""

import math
from typing import NamedTuple

LOWER, HIGHER, NEITHER = "lower", "higher", "neither"


class Figure(NamedTuple):
    """One figure of a run, with what is needed to read it.

    >>> Figure("minimal_pairs", 0.75, "share", HIGHER, baseline=0.5).gain
    0.25
    """

    name: str  # the yardstick's, and below it a part's: "minimal_pairs", "minimal_pairs/brackets"
    value: float
    unit: str  # "bits per byte", "nats per token", "share", "seconds", …
    better: str  # LOWER or HIGHER; NEITHER of a cost, which is what it is
    baseline: float | None = None  # of a model that knows nothing; None: there is none
    note: str = ""  # what its reader must know besides, such as what was left out

    @property
    def gain(self) -> float:
        """Returns by how much it is better than its baseline; nan without one."""
        if self.baseline is None or self.better == NEITHER:
            return math.nan
        return (self.value - self.baseline) * (1 if self.better == HIGHER else -1)
