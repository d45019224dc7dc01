"""`Result`: the figures of a run, as a value and as the file `RUN/result.json`."""

import os
from typing import Any, NamedTuple

import numpy as np
from jax.experimental import multihost_utils

from ...settings import atomic_writes, run_directory
from ..heldout_scores import Score


class Result(NamedTuple):
    """The figures of a run after its last step.

    Attributes:
      run_dir: Directory of the run.
      step: Last step that was taken.
      finished: Whether the run took all its steps. If not, the same call resumes it.
      scores: Held-out scores of each member of the objective.
      tasks: Values by name: "task/NAME/METRIC" and "baseline/task/NAME/METRIC".
      seconds: Seconds since the last start by kind, see `reporting.wall_time`.
    """

    run_dir: str
    step: int
    finished: bool
    scores: tuple[Score, ...]
    tasks: dict[str, float]
    seconds: dict[str, float]


def write_result(result: Result) -> None:
    """Writes `RUN/result.json` on every process, since each host may have its own disk."""
    record = result._asdict() | {"scores": [score._asdict() for score in result.scores]}
    del record["run_dir"]  # it may be moved
    atomic_writes.write_record(os.path.join(result.run_dir, run_directory.RESULT), record)


def read_result(run_dir: str) -> Result | None:
    """Returns the result in a run directory, or None without one.

    The first process decides for all, so that all of them end or all continue.
    """
    path = os.path.join(run_dir, run_directory.RESULT)
    if not multihost_utils.broadcast_one_to_all(np.array(os.path.exists(path))):
        return None
    if not os.path.exists(path):
        raise FileNotFoundError(f"{path} exists for the first process, but not for this one.")
    return local_result(run_dir)


def local_result(run_dir: str) -> Result | None:
    """Returns the result in a run directory, or None without one.

    It needs no other process and no devices. A process that only watches a run can call it, and
    leave the devices to the run.
    """
    path = os.path.join(run_dir, run_directory.RESULT)
    if not os.path.exists(path):
        return None

    def result(record: dict[str, Any]) -> Result:
        scores = tuple(Score(**score) for score in record["scores"])
        return Result(**record | {"run_dir": run_dir, "scores": scores})

    return atomic_writes.read_record(path, result)
