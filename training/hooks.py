"""Hooks: functions that are called between the steps of a run, at intervals.

A file of your own:

    # my_hooks.py
    def print_norm(plan: Plan, *, every: int = 100) -> Hook:
        return Hook(lambda at: print(at.step, optax.global_norm(at.state.params)), every)

The gin file of a run that uses it:

    # my_run.gin
    training.Run.hooks = [@my_hooks.print_norm]
    my_hooks.print_norm.every = 50
"""

from collections.abc import Callable
from typing import NamedTuple

from ..constraints import Count, check_fields
from ..settings.partial import called_with
from .planning import Plan
from .state import State


class AfterStep(NamedTuple):
    """The argument of a hook.

    Attributes:
      step: Number of the step, from 1.
      state: State after the step. The next step reuses its memory.
      metrics: Metrics of this step alone, on the devices.
    """

    step: int
    state: State
    metrics: dict


class Hook(NamedTuple):
    """A function that is called after some steps.

    Attributes:
      call: Function of an `AfterStep`, which is called after the step.
      every: Number of steps between calls. None: no calls at intervals.
      at_end: Whether the hook is called after the last step of the run.
      at_stop: Whether the hook is called when the run stops early, such as at SIGTERM.
    """

    call: Callable[[AfterStep], None]
    every: Count | None
    at_end: bool = True
    at_stop: bool = False

    def is_due(self, step: int, last: bool, stopping: bool) -> bool:
        """Returns whether the hook is called after a step.

        >>> [Hook(print, 2).is_due(step, last=step == 5, stopping=False) for step in range(1, 6)]
        [False, True, False, True, True]
        """
        at_interval = self.every is not None and step % self.every == 0
        return at_interval or (last and self.at_end) or (stopping and self.at_stop)


def user_hooks(plan: Plan) -> list[Hook]:
    """Returns the hooks of `Run.hooks`.

    Raises ValueError for a function that does not return a hook, and for a hook with a wrong field.
    """
    hooks = called_with(plan.run.hooks, plan, Hook)
    for hook in hooks:
        check_fields(hook, "training.hooks.Hook.")
    return hooks
