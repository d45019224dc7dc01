"""Tuning: choosing a setting of the optimizer for each variant before the variant is trained.

    comparison.Comparison.tuning = @tuning.successive_halving
    tuning.successive_halving.parameter = "optimizers.warmup_cosine.peak"
    tuning.successive_halving.factors = [0.3, 1, 3]
    tuning.successive_halving.seeds = [1000]

A single learning rate would favor the variants that it suits. A tuning trial is a short run of a
variant with one value of the setting, scored on training text that it holds out.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
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
from ..settings.partial import functions_in, parameters, with_settings

if TYPE_CHECKING:
    from ..training.run import Run

DIGITS = 3  # significant digits to which a value times a factor is rounded


class Tuning(NamedTuple):
    # A setting of the optimizer or its schedule, such as "optimizers.warmup_cosine.peak".
    parameter: str
    values: Sequence[float]  # the values to try, or the factors, in ascending order
    are_factors: bool  # whether the variant's own value is multiplied by `values`
    seeds: Sequence[int]  # the seeds of the tuning trials
    shares: Sequence[float]  # share of the variant's steps that a tuning trial takes, by round
    eta: int  # the best 1/eta of the values stay in the next round


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
    """Tries all values in short runs, and the best values in longer runs.

    >>> halving = successive_halving(parameter="a.b", values=[0.98, 0.9, 0.95], seeds=[7])
    >>> halving.values, halving.shares
    ([0.9, 0.95, 0.98], [0.25, 0.5])

    Here the tuning trials take 3 × 25% + 2 × 50% of a run's steps. A trial's schedule ends with the
    trial. Values are ranked by the mean loss over seeds on held-out training text; diverged values
    rank last.

    Sources: Jamieson & Talwalkar 2016 (arXiv:1502.07943); rounds grow by `eta`, as in Hyperband (Li
    et al. 2018, arXiv:1603.06560).

    Args:
      parameter: a setting of the run's optimizer, or of its schedule.
      seeds: seeds of the tuning trials, distinct from the compared seeds.
      factors: factors that multiply the value of each variant.
      values: values, instead of factors.
      share: share of a variant's steps that a tuning trial of the last round takes.
      eta: the best 1/eta of the values enter the next round, with eta times the steps.

    Raises ValueError if not exactly one of factors and values is given, or for a duplicate.
    """
    candidates = factors if values is None else values
    if candidates is None or (factors is not None and values is not None):
        raise ValueError(
            f"tuning.successive_halving got factors = {factors} and values = {values}, expected "
            "exactly one of them, such as factors = [0.3, 1, 3]."
        )
    name = "values" if factors is None else "factors"
    for setting, numbers in ((name, candidates), ("seeds", seeds)):
        if len(set(numbers)) < len(numbers):
            raise ValueError(
                f"tuning.successive_halving.{setting} must not have duplicates, got "
                f"{list(numbers)}: give each number once."
            )
    shares = [share]
    tried = _kept(len(candidates), eta)
    while tried > 1:
        shares = [shares[0] / eta, *shares]
        tried = _kept(tried, eta)
    return Tuning(parameter, sorted(candidates), factors is not None, list(seeds), shares, eta)


def _kept(tried: int, eta: int) -> int:
    return math.ceil(tried / eta)


def values_for(tuning: Tuning, run: "Run") -> list[float]:
    """Returns the values to try for a run, in ascending order.

    Raises ValueError if the run's optimizer does not have the setting, if its value cannot be
    multiplied, or if two factors give the same value.
    """
    current = _own_value(tuning.parameter, run)
    if not tuning.are_factors:
        return list(tuning.values)
    if isinstance(current, bool) or not isinstance(current, int | float) or current <= 0:
        raise ValueError(
            f"{tuning.parameter} is {current!r}, expected a positive number to multiply by "
            f"{list(tuning.values)}: give tuning.successive_halving.values in place of factors."
        )
    values = [float(f"{factor * current:.{DIGITS}g}") for factor in tuning.values]
    if len(set(values)) < len(values):
        raise ValueError(
            f"tuning.successive_halving.factors = {list(tuning.values)} give {tuning.parameter} "
            f"the values {values}, rounded to {DIGITS} digits, with a duplicate: give factors that "
            "are farther apart."
        )
    return values


def _own_value(parameter: str, run: "Run") -> Any:
    values: dict[str, list[Any]] = {}
    for partial in functions_in(run.optimizer):
        for name, argument in (parameters(partial.function) or {}).items():
            if (value := partial.settings.get(name, argument.default)) is not argument.empty:
                values.setdefault(f"{selector_of(partial.function)}.{name}", []).append(value)
    if parameter not in values:
        raise ValueError(
            f"tuning.successive_halving.parameter = {parameter!r} is not a setting of the "
            f"optimizer, expected one of {', '.join(values)}."
        )
    first, *others = values[parameter]
    if any(other != first for other in others):
        raise ValueError(
            f"The optimizer uses {parameter} with different values, {values[parameter]}, expected "
            "a single value to tune: tune another setting, or bind the same value everywhere."
        )
    return first


def with_value(tuning: Tuning, run: "Run", value: float | None) -> "Run":
    """Returns the run with this value of the tuned setting, or unchanged for None."""
    if value is None:
        return run
    optimizer = with_settings(run.optimizer, {tuning.parameter: value})
    return dataclasses.replace(run, optimizer=optimizer)


def line_of(tuning: Tuning, value: float) -> str:
    return f"{tuning.parameter} = {value!r}"


def tuning_trial_steps(share: float, steps: int) -> int:
    return max(1, round(share * steps))


def best_values(tuning: Tuning, losses: Mapping[float, float]) -> list[float]:
    """Returns the values that enter the next round, the best value first.

    >>> halving = successive_halving(parameter="a.b", values=[0.01, 0.03, 0.1], seeds=[7])
    >>> best_values(halving, {0.01: 5.0, 0.03: 4.0, 0.1: 4.5})
    [0.03, 0.1]
    >>> best_values(halving, {0.03: 3.0, 0.1: math.nan})
    [0.03]

    Raises ValueError if no loss is finite.
    """
    finite = [value for value, loss in losses.items() if math.isfinite(loss)]
    if not finite:
        raise ValueError(
            f"training diverged with each of {tuning.parameter} = "
            f"{', '.join(map(repr, losses))}: try smaller values."
        )
    return sorted(finite, key=lambda value: losses[value])[: _kept(len(losses), tuning.eta)]
