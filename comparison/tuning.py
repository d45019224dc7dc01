"""Tuning: how a setting of the optimizer is chosen for each variant before it is trained.

    comparison.Comparison.tuning = @tuning.successive_halving
    tuning.successive_halving.parameter = "optimizers.warmup_cosine.peak"
    tuning.successive_halving.factors = [0.3, 1, 3]
    tuning.successive_halving.seeds = [1000]

One learning rate for all variants answers which of them it suits. A tuning trial is a run of a variant
with a value, shorter than those that are compared, and scored on training text that it holds out.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from annotated_types import MinLen

from ..constraints import (
    AtLeastTwo,
    NonEmptyText,
    Positive,
    PositiveShare,
    Seed,
    checked,
    selector_of,
)

if TYPE_CHECKING:
    from ..settings.partial import Partial
    from ..training.run import Run

DIGITS = 3  # significant ones of a multiple


class Tuning(NamedTuple):
    parameter: str  # of the optimizer or its schedule: "optimizers.warmup_cosine.peak"
    values: Sequence[float]  # from the smallest: those that are tried, or
    are_factors: bool  # what the variant's own value is multiplied by
    seeds: Sequence[int]  # of tuning trials
    shares: Sequence[float]  # of the variant's steps that each round's tuning trials take
    eta: int


@checked
def successive_halving(
    *,
    parameter: NonEmptyText,
    seeds: Annotated[Sequence[Seed], MinLen(1)],
    factors: Annotated[Sequence[Positive], MinLen(2)] | None = None,
    values: Annotated[Sequence[float], MinLen(2)] | None = None,
    share: PositiveShare = 0.5,
    eta: AtLeastTwo = 2,
) -> Tuning:
    """Returns the rounds in which all values are tried for short, and the best of them for longer.

    >>> halving = successive_halving(parameter="a.b", values=[0.98, 0.9, 0.95], seeds=[7])
    >>> halving.values, halving.shares
    ([0.9, 0.95, 0.98], [0.25, 0.5])

    Three values take 3 × 25% + 2 × 50% of the steps of a run. Each tuning trial is a run of its own, whose
    schedule ends with it. Values are ranked by the mean over seeds of the loss that they train, on
    text that the tuning trials hold out; one whose training diverged loses. Jamieson & Talwalkar 2016
    (arXiv:1502.07943); rounds grow by `eta` as in Hyperband (Li et al. 2018, arXiv:1603.06560).

    Args:
      parameter: a setting of the run's optimizer, or of its schedule.
      seeds: of tuning trials; none of those that are compared.
      factors: what the variant's own value is multiplied by, so that one with a value of its own
        is served.
      values: in place of factors, the values themselves.
      share: of a variant's steps that the last round's tuning trials take.
      eta: the best 1/eta of a round are tried in the next, for eta times as many steps.

    Raises ValueError where neither factors nor values are given, or both, or one of them twice.
    """
    given = factors if values is None else values
    if given is None or (factors is not None and values is not None):
        raise ValueError(
            f"tuning.successive_halving tries factors = {factors} and values = {values}, expected "
            "one of them, such as factors = [0.3, 1, 3]."
        )
    for name, some in (("values" if factors is None else "factors", given), ("seeds", seeds)):
        if len(set(some)) < len(some):
            raise ValueError(f"tuning.successive_halving.{name} has one twice, got {list(some)}.")
    shares = [share]
    tried = _kept(len(given), eta)
    while tried > 1:
        shares = [shares[0] / eta, *shares]
        tried = _kept(tried, eta)
    return Tuning(parameter, sorted(given), factors is not None, list(seeds), shares, eta)


def _kept(tried: int, eta: int) -> int:
    return math.ceil(tried / eta)


def values_for(tuning: Tuning, run: "Run") -> list[float]:
    """Returns the values that are tried for a run, from the smallest.

    Raises ValueError where the run's optimizer has no such setting, or none that can be multiplied,
    and for factors that give one value twice.
    """
    own = _own_value(tuning.parameter, run)
    if not tuning.are_factors:
        return list(tuning.values)
    if isinstance(own, bool) or not isinstance(own, int | float) or own <= 0:
        raise ValueError(
            f"{tuning.parameter} is {own!r}, which cannot be multiplied by {list(tuning.values)}: "
            "give tuning.successive_halving.values in place of factors."
        )
    values = [float(f"{factor * own:.{DIGITS}g}") for factor in tuning.values]
    if len(set(values)) < len(values):
        raise ValueError(
            f"tuning.successive_halving.factors = {list(tuning.values)} give {tuning.parameter} "
            f"the values {values}, rounded to {DIGITS} digits, one of them twice: give factors "
            "that are farther apart."
        )
    return values


def _own_value(parameter: str, run: "Run") -> Any:
    from ..settings.partial import functions_in, parameters

    known: dict[str, list[Any]] = {}
    for one in functions_in(run.optimizer):
        for name, each in (parameters(one.function) or {}).items():
            if (value := one.settings.get(name, each.default)) is not each.empty:
                known.setdefault(f"{selector_of(one.function)}.{name}", []).append(value)
    if parameter not in known:
        raise ValueError(
            f"tuning.successive_halving.parameter = {parameter!r} is no setting of the optimizer, "
            f"which has {', '.join(known)}."
        )
    first, *others = known[parameter]
    if any(other != first for other in others):
        raise ValueError(
            f"The optimizer has several values of {parameter}, {known[parameter]}: expected one, "
            "which can be tuned."
        )
    return first


def with_value(tuning: Tuning, run: "Run", value: float | None) -> "Run":
    """Returns the run with another value of the setting that is tuned; None: with its own."""
    if value is None:
        return run
    return dataclasses.replace(run, optimizer=_with_value(run.optimizer, tuning.parameter, value))


def _with_value(function: Callable, parameter: str, value: float) -> "Partial":
    from ..settings.partial import as_partial, parameters

    one = as_partial(function)
    settings = {
        name: _with_value(inner, parameter, value) if callable(inner) else inner
        for name, inner in one.settings.items()
    }
    selector, _, name = parameter.rpartition(".")
    if selector == selector_of(one.function) and name in (parameters(one.function) or {}):
        settings[name] = value
    return type(one)(one.function, **settings)


def line_of(tuning: Tuning, value: float) -> str:
    """Returns the line that gives a variant the value."""
    return f"{tuning.parameter} = {value!r}"


def tuning_trial_steps(share: float, steps: int) -> int:
    """Returns the steps of a tuning trial, of those of its variant."""
    return max(1, round(share * steps))


def best_values(tuning: Tuning, losses: Mapping[float, float]) -> list[float]:
    """Returns the values of a round that the next round tries, the best first.

    >>> halving = successive_halving(parameter="a.b", values=[0.01, 0.03, 0.1], seeds=[7])
    >>> best_values(halving, {0.01: 5.0, 0.03: 4.0, 0.1: 4.5})
    [0.03, 0.1]
    >>> best_values(halving, {0.03: 3.0, 0.1: math.nan})
    [0.03]

    Args:
      losses: by value; not finite where training diverged.

    Raises ValueError where no loss is finite.
    """
    finite = [value for value, loss in losses.items() if math.isfinite(loss)]
    if not finite:
        raise ValueError(
            f"training diverged with each of {tuning.parameter} = "
            f"{', '.join(map(repr, losses))}: try smaller values."
        )
    return sorted(finite, key=lambda value: losses[value])[: _kept(len(losses), tuning.eta)]
