"""The measured checkpoints of a run, evenly spaced up to its end."""

import dataclasses

from ..training.run import Run


def measured_steps(steps: int, number: int, most: int | None = None) -> tuple[int, ...]:
    """Returns the steps of the measured checkpoints, as evenly spaced as whole steps can be.

    All steps except the last are multiples of the first.

    Args:
      most: maximum number of steps between saved checkpoints, measured or not. None: no limit.

    >>> measured_steps(450, 3), measured_steps(446, 4), measured_steps(446, 1)
    ((150, 300, 450), (112, 224, 336, 446), (446,))

    Raises ValueError for more checkpoints than the steps can be divided by.
    """
    saved, measured = _spacing(steps, number, most)
    found = (*range(saved * measured, steps, saved * measured), steps)
    if len(found) != number:
        raise ValueError(
            f"comparison.Comparison.checkpoints = {number} cannot be spaced evenly over a run of "
            f"{steps} steps: give {len(found)} or fewer, or raise the budget."
        )
    return found


def with_checkpoints(run: Run, number: int) -> Run:
    """Returns a run that keeps the measured checkpoints, and saves at least as often as before."""
    if number == 1:
        return run
    saved, measured = _spacing(run.steps, number, run.checkpoint_every)
    return dataclasses.replace(run, checkpoint_every=saved, keep_every=saved * measured)


def _spacing(steps: int, number: int, most: int | None) -> tuple[int, int]:
    """Returns the steps between saved checkpoints, and the number of saves per measurement."""
    measured = 1 if most is None else -(-steps // (number * most))
    return -(-steps // (number * measured)), measured
