"""The objects to which a run reports while it trains."""

import dataclasses

from rich.console import Console

from .console import print_warning
from .metrics import MetricsWriter
from .profiling import Profiler
from .wall_time import WallTime


@dataclasses.dataclass(frozen=True)
class Reports:
    """The objects to which a run reports."""

    writer: MetricsWriter  # writes the metrics
    console: Console  # shows progress and warnings
    wall_time: WallTime  # counts seconds by kind of work
    profiler: Profiler  # traces steps for TensorBoard

    def warn(self, message: str) -> None:
        print_warning(self.console, message)
