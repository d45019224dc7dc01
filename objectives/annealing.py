"""Settings that change during training, such as a noise rate that rises or falls.

Sources: Ankner et al. 2023 (arXiv:2305.15096), whose masking rate falls linearly from 0.30 to 0.15.
"""

import functools
from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
from jax import lax

from ..constraints import AtLeastTwo, Count, checked
from .arithmetic import MAX_DENOMINATOR
from .contract import Adaptation, Builder, Member, Objective, build
from .mixtures import mixture
from .token_ids import TokenIds

_DIGITS = len(str(MAX_DENOMINATOR)) - 1  # maximum number of decimals in a density


@checked
def annealed(
    ids: TokenIds,
    builder: Builder,
    setting: str,
    first: float,
    last: float,
    steps: Count,
    stages: AtLeastTwo = 7,
) -> Objective:
    """An objective with a number that changes linearly from `first` to `last` and then stays.

        annealed(ids, masked_lm, "rate", first=0.30, last=0.15, steps=1000)

    The result is a mixture of the objective at `stages` evenly spaced values. At each step, the two
    nearest stages share the rows so that the mean over rows is the current value. Held-out text is
    scored under every stage, and the trained model is used like a model of the last stage. Adaptive
    noise has one state, which the nearest stage updates.

    Args:
      ids: token ids, passed to the builder.
      builder: builder of an objective that is not a mixture.
      setting: name of a numeric parameter of the builder, except the scale of a loss term, which
        all stages share. If both ends are whole numbers, so are the values between them.
      first, last: value at the first step, and value from step `steps` on.
      steps: number of steps from the first value to the last.
      stages: number of values. Stages that round to the same whole number are merged.

    >>> objective = annealed(ids, masked_lm, "rate", first=0.30, last=0.10, steps=100, stages=3)
    >>> [member.name for member in objective.facts.members]
    ['rate_0.3', 'rate_0.2', 'rate_0.1']
    >>> [round(member.rate(25), 2) for member in objective.facts.members]
    [0.5, 0.5, 0.0]

    Raises ValueError if first and last are equal or have more than three decimals, if the builder
    has no such number or builds a mixture, and for settings that the builder rejects.
    """
    values = _between(first, last, stages)
    if (values[0], values[-1]) != (first, last):
        raise ValueError(
            f"annealed takes numbers with at most {_DIGITS} decimals, got first={first} and "
            f"last={last}: round them."
        )
    if len(values) < 2:
        raise ValueError(
            f"annealed needs two different values of {setting}, got {first} and {last}: change "
            "one, or use the objective without annealed."
        )
    at = (np.array(values, np.float64) - first) / (last - first) * steps
    members = {}
    for i, value in enumerate(values):
        stage_builder = functools.partial(builder, **{setting: value})
        built = build(stage_builder, ids)
        if built.facts.members:
            raise ValueError(
                "annealed takes an objective that is not a mixture, got a mixture of "
                f"{len(built.facts.members)} members: anneal its members separately, or give them "
                "rates that depend on the step."
            )
        members[f"{setting}_{value:g}"] = (stage_builder, _share_of(i, at))
    joint = mixture(ids, members)
    last_stage = joint.facts.members[-1].objective
    return joint._replace(adaptation=_joint_adaptation(joint.facts.members, at)).with_facts(
        prompt_forms=last_stage.facts.prompt_forms
    )


def _joint_adaptation(stages: Sequence[Member], at: np.ndarray) -> Adaptation | None:
    """Returns the adaptation of all stages, which share one state."""
    candidates = [stage.objective.adaptation for stage in stages]
    adaptations = [x for x in candidates if x is not None]  # either all stages have one, or none
    if not adaptations:
        return None

    def update(state, counts, step):
        nearest = jnp.argmin(jnp.abs(jnp.asarray(at, jnp.float32) - step))
        updates = [adaptation.update for adaptation in adaptations]
        return lax.switch(nearest, updates, state, counts, step)

    return adaptations[0]._replace(update=update)


def _between(first: float, last: float, stages: int) -> list:
    """Returns the values of the stages in order: whole numbers if both ends are, else floats."""
    line = np.linspace(first, last, stages)
    if isinstance(first, int) and isinstance(last, int):
        return list(dict.fromkeys(int(round(x)) for x in line))
    return list(dict.fromkeys(round(float(x), _DIGITS) for x in line))


def _share_of(stage: int, at: np.ndarray) -> Callable[[int], float]:
    """Returns a stage's share of rows at a step: 1 at its value, 0 at the next stage's value."""
    peak = np.zeros(at.size)
    peak[stage] = 1.0
    return lambda step: float(np.interp(step, at, peak))
