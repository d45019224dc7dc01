"""Ending a comparison early: after numbers of seeds that were planned, where all is decided.

Each look tests at an equal share of the level (`statistics.differences`), so that ending for any
reason, and at any look, leaves the chance of a false claim at 5%: by Bonferroni, of Student's t at
any number of seeds, where the usual boundaries (O'Brien & Fleming 1979, Pocock 1977) are of normal
figures and too liberal for few of them. What it takes is that the looks were planned before any of
their figures was seen.
"""

from collections.abc import Sequence
from pathlib import Path

from ..settings import atomic_writes
from . import results
from .trials import Trial
from .collecting import results_of
from .comparison import Comparison
from .report.summary import summary
from .statistics import undecided

SEEN = "pilot.json"  # of a comparison whose figures a pilot has shown: the looks planned by then


def keep_looks(comparison: Comparison) -> None:
    """Keeps the planned looks, of a comparison of which a pilot now shows figures."""
    record = {"looks": list(comparison.planned_looks)}
    atomic_writes.write_record(Path(comparison.directory) / SEEN, record)


def check_looks(comparison: Comparison) -> None:
    """Raises ValueError where a comparison that has results, or that a pilot has shown figures of,
    was planned with other looks."""
    setup = results.read_setup(comparison.directory)
    now = comparison.planned_looks
    seen = Path(comparison.directory) / SEEN
    if setup is not None:
        planned = setup.looks
    elif seen.exists():
        planned = atomic_writes.read_record(seen, lambda record: tuple(record["looks"]))
    else:
        return
    if planned != now:
        raise ValueError(
            f"{comparison.directory} has results that were to be tested {_words(planned)}, and "
            f"now {_words(now)}. Looks keep the chance of a false claim only where they, and the "
            "number of seeds, are those that were planned before the first result: set them back, "
            "or give the comparison another directory and other seeds."
        )


def _words(looks: Sequence[int]) -> str:
    return f"after {', '.join(map(str, looks))} seeds" if looks else "once, at the end"


def ends_early(comparison: Comparison, trials: Sequence[Trial]) -> bool:
    """Returns whether these trials, of all variants up to a look, decide all that is wanted.

    Raises ValueError where something is wanted of a figure that they have not.
    """
    found = summary(results_of(comparison, trials)).differences
    return bool(found) and not undecided(found, comparison.wanted or {})
