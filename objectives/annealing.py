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

_DIGITS = len(str(MAX_DENOMINATOR)) - 1  # that densities may have


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
    """An objective of which one number goes from `first` to `last` in a line, and stays there.

        annealed(ids, masked_lm, "rate", first=0.30, last=0.15, steps=1000)

    It is a mixture of the objective at `stages` values, evenly spaced. At each step the two nearest
    ones share the rows, so that the mean over rows is the value on the line. Held-out text is
    scored under each of them. The model is used as one of the last stage is. Noise that adapts to
    the model has one state, which is updated as by the stage that is nearest.

    Args:
      ids: for the builder.
      builder: builder of an objective that is not a mixture.
      setting: one of its parameters, a number, but not the scale of a term of its loss, which all
        stages share. A whole number at both ends is whole in between.
      first, last: its value at the first step, and from step `steps` on.
      steps: from the first value to the last.
      stages: those that come to one value, with whole numbers, are one.

    >>> objective = annealed(ids, masked_lm, "rate", first=0.30, last=0.10, steps=100, stages=3)
    >>> [member.name for member in objective.facts.members]
    ['rate_0.3', 'rate_0.2', 'rate_0.1']
    >>> [round(member.rate(25), 2) for member in objective.facts.members]
    [0.5, 0.5, 0.0]

    Raises ValueError for fewer steps or stages, two ends that are one value or have more
    than three decimals, and as the builder does.
    """
    values = _between(first, last, stages)
    if (values[0], values[-1]) != (first, last):
        raise ValueError(
            f"annealed takes numbers of at most {_DIGITS} decimals, got first={first} and "
            f"last={last}: round them."
        )
    if len(values) < 2:
        raise ValueError(
            f"annealed goes from one value of {setting} to another, got {first} and {last}: give "
            "two values, or the objective by itself."
        )
    at = (np.array(values, np.float64) - first) / (last - first) * steps
    members = {}
    for i, value in enumerate(values):
        one = functools.partial(builder, **{setting: value})
        try:
            built = build(one, ids)
        except TypeError as error:
            raise ValueError(
                f"annealed cannot set {setting!r} to {value}: {error}. Give a parameter of the "
                "builder that is a number."
            ) from None
        if built.facts.members:
            raise ValueError(
                "annealed takes an objective that is not a mixture, got one of "
                f"{len(built.facts.members)} members: anneal a member of it, by a rate that "
                "follows the step."
            )
        members[f"{setting}_{value:g}"] = (one, _share_of(i, at))
    joint = mixture(ids, members)
    last_stage = joint.facts.members[-1].objective
    return joint._replace(adaptation=_joint_adaptation(joint.facts.members, at)).with_facts(
        prompt_forms=last_stage.facts.prompt_forms
    )


def _joint_adaptation(stages: Sequence[Member], at: np.ndarray) -> Adaptation | None:
    """Returns the adaptation of all stages. A stage starts from the state of the stage before."""
    found = [stage.objective.adaptation for stage in stages]
    adaptations = [one for one in found if one is not None]  # all, of one builder, or none
    if not adaptations:
        return None

    def update(state, counts, step):
        nearest = jnp.argmin(jnp.abs(jnp.asarray(at, jnp.float32) - step))
        return lax.switch(nearest, [one.update for one in adaptations], state, counts, step)

    return adaptations[0]._replace(update=update)


def _between(first: float, last: float, stages: int) -> list:
    """Returns the values of the stages in turn: whole numbers if both ends are, else floats."""
    line = np.linspace(first, last, stages)
    if isinstance(first, int) and isinstance(last, int):
        return list(dict.fromkeys(int(round(x)) for x in line))
    return list(dict.fromkeys(round(float(x), _DIGITS) for x in line))


def _share_of(stage: int, at: np.ndarray) -> Callable[[int], float]:
    """Returns a stage's share of rows by the step: 1 at its own value, 0 at the next one's."""
    peak = np.zeros(at.size)
    peak[stage] = 1.0
    return lambda step: float(np.interp(step, at, peak))
