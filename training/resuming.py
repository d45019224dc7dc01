"""Resuming a run from the latest checkpoint of its directory."""

from collections.abc import Sequence
from typing import NamedTuple

from pretrax.training import run_directory
from pretrax.training.batches import Batches
from pretrax.training.checkpoints import Checkpoints, MismatchError
from pretrax.training.configuration import read_directory
from pretrax.training.run import Run, differences, fields_of
from pretrax.training.state import Abstract, State


class Resumed(NamedTuple):
    """The state of a checkpoint."""

    state: State
    damaged: tuple[str, ...]  # a message for each damaged checkpoint that was skipped
    changed: list[str]  # fields of the run that differ from those it was last started with


def resume(
    run: Run, checkpoints: Checkpoints, abstract: Abstract, batches: Batches
) -> Resumed | None:
    """Restores the latest sound checkpoint, and `batches` to its data position; None without one.

    Raises ValueError, with the fields that changed, where the checkpoints do not fit the run.
    """
    changed = changed_fields(run)
    try:
        restored = checkpoints.restore(abstract.shapes)
    except MismatchError as error:
        raise ValueError(
            f"The checkpoints in {run.run_dir} do not fit this configuration.\n"
            f"Values that differ from the run's config.gin:\n{indented(changed or ['none'])}\n"
            f"Arrays that differ:\n{indented(_first(str(error).splitlines(), 12))}\n"
            "Set the values back, or start anew in another run directory."
        ) from None
    if restored is None:
        return None
    step = int(restored.state.step)
    try:
        batches.restore(step, restored.read)
    except (ValueError, OSError, KeyError) as error:
        raise ValueError(
            f"The data position of checkpoint {step} in {run.run_dir} does not fit: {error}\n"
            f"Values that differ from the run's config.gin:\n{indented(changed or ['none'])}"
        ) from error
    return Resumed(restored.state, restored.damaged, changed)


def changed_fields(run: Run) -> list[str]:
    """Returns how the run differs from the one last started in its directory, a line each.

    Raises ValueError where an earlier version of this code wrote the directory.
    """
    if not run_directory.is_run(run.run_dir):
        return []
    return differences(read_directory(run.run_dir), fields_of(run))


# Fields that change nothing of what a run comes to, and `steps`, by which a finished run goes on.
_FREE = (
    *("run_dir", "steps", "keep_checkpoints", "mesh", "distributed", "microbatches"),
    *("log_every", "evaluate_every", "checkpoint_every"),
)


def check_same_run(run: Run, changed: Sequence[str]) -> None:
    """Raises ValueError where a finished run's directory is asked for the results of another run."""
    other = [line for line in changed if line.partition(":")[0].partition(".")[0] not in _FREE]
    if other:
        raise ValueError(
            f"{run.run_dir} holds a finished run with other values:\n{indented(other)}\nSet them "
            "back, or give another directory (--gin.RUN_DIR=\"'runs/NAME'\")."
        )


def indented(lines: Sequence[str]) -> str:
    return "\n".join(f"  {line}" for line in lines)


def _first(lines: Sequence[str], count: int) -> list[str]:
    more = len(lines) - count
    return [*lines[:count], *([f"and {more} more"] if more > 0 else [])]
