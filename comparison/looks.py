"""Ending a comparison early, after a planned number of seeds, if all differences are decided.

Each look tests at an equal share of the level (Bonferroni, `statistics.differences`), so the
probability of a false claim stays at 5% for any stopping rule. The looks must be planned before any
of their figures is seen. The usual boundaries (O'Brien & Fleming 1979, Pocock 1977) assume a known
variance, and are too liberal for few seeds.
"""

from collections.abc import Sequence
from pathlib import Path

from ..settings import atomic_writes
from . import results
from .collecting import results_of
from .comparison import Comparison
from .report.summary import summary_of
from .statistics import undecided
from .trials import Trial

SEEN = "pilot.json"  # the planned looks at the time of a pilot


def keep_looks(comparison: Comparison) -> None:
    """Saves the planned looks of a comparison before a pilot shows its figures."""
    record = {"looks": list(comparison.planned_looks)}
    atomic_writes.write_record(Path(comparison.directory) / SEEN, record)


def check_looks(comparison: Comparison) -> None:
    """Raises ValueError if the looks were changed after the first results, including a pilot's."""
    setup = results.read_setup(comparison.directory)
    looks = comparison.planned_looks
    path = Path(comparison.directory) / SEEN
    if setup is not None:
        planned = setup.looks
    elif path.exists():
        planned = atomic_writes.read_record(path, lambda record: tuple(record["looks"]))
    else:
        return
    if planned != looks:
        raise ValueError(
            f"{comparison.directory} has results that were planned to be tested {_words(planned)}, "
            f"but are now tested {_words(looks)}. The error rate holds only if the looks and the "
            "number of seeds are planned before the first result: restore them, or give the "
            "comparison another directory and other seeds."
        )


def _words(looks: Sequence[int]) -> str:
    return f"after {', '.join(map(str, looks))} seeds" if looks else "once, at the end"


def ends_early(comparison: Comparison, trials: Sequence[Trial]) -> bool:
    """Returns whether the trials up to a look decide all differences.

    Raises ValueError if `smallest_effects` names a figure that they do not have.
    """
    differences = summary_of(results_of(comparison, trials)).differences
    return bool(differences) and not undecided(differences, comparison.smallest_effects or {})
