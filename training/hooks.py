"""Hooks: what happens between the steps of a run, at intervals; a user's own is one function.

# my_hooks.py
def print_norm(plan: Plan, *, every: int = 100) -> Hook:
    return Hook(lambda at: print(at.step, optax.global_norm(at.state.params)), every)

# my_run.gin
training.Run.hooks = [@my_hooks.print_norm]
my_hooks.print_norm.every = 50
"""

from collections.abc import Callable
from typing import NamedTuple

from ..settings.partial import called_with
from .planning import Plan
from .state import State


class AfterStep(NamedTuple):
    """What a hook is given."""

    step: int  # the number of the step that was taken, from 1
    state: State  # after it; the next step takes its memory, so copy what is to be kept
    metrics: dict  # of this step alone, on the devices


class Hook(NamedTuple):
    """A function that is called after some steps, once their losses are known to be no spikes."""

    call: Callable[[AfterStep], None]
    every: int | None  # after each multiple of so many steps; None: of none
    at_end: bool = True  # after the last step of the run too
    at_stop: bool = False  # also after a step at which the run stops early, as at SIGTERM

    def is_due(self, step: int, last: bool, stopping: bool) -> bool:
        """Returns whether it is called after a step: the last one, or one at which the run stops.

        >>> [Hook(print, 2).is_due(step, last=step == 5, stopping=False) for step in range(1, 6)]
        [False, True, False, True, True]
        """
        at_interval = self.every is not None and step % self.every == 0
        return at_interval or (last and self.at_end) or (stopping and self.at_stop)


def own_hooks(plan: Plan) -> list[Hook]:
    """Returns the hooks of `Run.hooks`. Raises ValueError for a function that returns no hook."""
    return called_with(plan.run.hooks, plan, Hook)
