"""The settings of an objective as controls of a form.

A control has the name that gin gives to its setting, so that a form is a list of gin bindings. The
ranges, choices and help texts come from the annotations and docstrings of the builders.
"""

import ast
import itertools
import math
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from annotated_types import Ge, Gt, Le, Lt

from ..constraints import limits, selector_of
from ..settings.partial import Partial, as_partial, functions_in, parameters, with_settings
from ..settings.setting_help import setting_help

STEPS = 100  # number of steps of a slider over an interval of real numbers
WHOLE = 64  # a slider of whole numbers without an upper bound ends here, or at four times its value
REAL = 4.0  # the same for real numbers


class Control(NamedTuple):
    """A setting of an objective, as a control of a form.

    Attributes:
      name: name of the setting in gin, such as "objectives.masked_lm.rate".
      kind: "whole" or "real" for a slider, "switch", "choice", or "literal" for a Python literal.
      value: the current value, or its Python literal.
      about: help text, from the builder's docstring.
      low, high, step: range of the slider. The setting may allow numbers beyond `high`.
      choices: values to choose from.
      optional: whether None is allowed.
    """

    name: str
    kind: Literal["whole", "real", "switch", "choice", "literal"]
    value: Any
    about: str = ""
    low: float | None = None
    high: float | None = None
    step: float | None = None
    choices: tuple[Any, ...] = ()
    optional: bool = False

    @property
    def label(self) -> str:
        return self.name.rpartition(".")[2]


def controls(build: Callable) -> list[Control]:
    """Returns the controls of a builder and of the builders in its settings, such as members.

    A setting whose function occurs twice with different values has no control, since a gin binding
    would change both.

    >>> [control.name for control in controls(Partial(objectives.goldfish_loss, k=8))]
    ['objectives.goldfish_loss.k', 'objectives.goldfish_loss.width']
    """
    by_name: dict[str, list[Control]] = {}
    for control in itertools.chain.from_iterable(map(_controls_of, functions_in(build))):
        by_name.setdefault(control.name, []).append(control)
    return [same[0] for same in by_name.values() if all(one == same[0] for one in same)]


def with_values(build: Callable, values: Mapping[str, Any]) -> Partial:
    """Returns a builder with other values of its controls, like gin bindings of these names.

    >>> with_values(objectives.masked_lm, {"objectives.masked_lm.rate": 0.4}).settings["rate"]
    0.4

    Raises ValueError for a name that is not a control.
    """
    build = as_partial(build)
    if unknown := values.keys() - {control.name for control in controls(build)}:
        raise ValueError(
            f"Got a value for {min(unknown)}, which is not a setting of this objective."
        )
    return as_partial(with_settings(build, values))


def value_of(control: Control, value: Any) -> Any:
    """Returns the value of a setting that a form sent for its control.

    Raises ValueError for a text that is not a Python literal, and for a number that is not whole.
    """
    if value is None and control.optional:
        return None
    if control.kind == "whole" and isinstance(value, float) and value.is_integer():
        return int(value)
    if control.kind != "literal" or not isinstance(value, str):
        return value
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError(
            f"{control.name} must be a Python literal, such as 0.5, None, 'text' or [1, 2], got "
            f"{value!r}."
        ) from error


def _controls_of(build: Partial) -> Iterator[Control]:
    """Yields the controls of the settings of a function."""
    function = build.function
    hints = typing.get_type_hints(function, include_extras=True)
    for setting, parameter in (parameters(function) or {}).items():
        value = build.settings.get(setting, parameter.default)
        if setting in hints and value is not parameter.empty:
            control = _control(f"{selector_of(function)}.{setting}", hints[setting], value)
            if control is not None:
                yield control._replace(about=setting_help(function, setting))


def _control(name: str, annotation: Any, value: Any) -> Control | None:
    """Returns the control of a setting without its help; None for a setting that is a function."""
    if functions_in(value):
        return None
    kinds, optional = _alternatives(annotation)
    plain = [kind for kind in kinds if not _is_function(kind)]
    number = next((kind for kind in plain if _base(kind) in (int, float)), None)
    if plain == [bool]:
        return Control(name, "switch", value, optional=optional)
    if len(plain) == 1 and typing.get_origin(plain[0]) is Literal:
        return Control(name, "choice", value, choices=typing.get_args(plain[0]), optional=optional)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if number is not None and (is_number or value is None):
        return _slider(name, number, value)._replace(optional=optional)
    return Control(name, "literal", repr(value), optional=optional)


def _alternatives(annotation: Any) -> tuple[Sequence[Any], bool]:
    """Returns the alternatives of an annotation other than None, and whether None is one."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        kinds = typing.get_args(annotation)
        return [kind for kind in kinds if kind is not type(None)], type(None) in kinds
    return [annotation], False


def _base(kind: Any) -> Any:
    return kind.__origin__ if typing.get_origin(kind) is Annotated else kind


def _is_function(kind: Any) -> bool:
    return typing.get_origin(kind) is Callable or kind is Callable


def _slider(name: str, kind: Any, value: float | None) -> Control:
    """Returns a slider over the range of an annotation; an open bound is one step away."""
    whole = _base(kind) is int
    ranges = limits(kind) if typing.get_origin(kind) is Annotated else ()
    bounds = {type(constraint): limit for constraint, limit in ranges}
    if whole:
        low = bounds.get(Ge, bounds.get(Gt, -1) + 1)
        high = bounds.get(Le, bounds.get(Lt, math.inf) - 1)
        high = min(high, max(WHOLE, 4 * (value or 0)))
        return Control(name, "whole", value, low=low, high=high, step=1)
    low = bounds.get(Ge, bounds.get(Gt, 0.0))
    high = min(bounds.get(Le, bounds.get(Lt, math.inf)), max(REAL, 4 * (value or 0)))
    step = _round_step((high - low) / STEPS)
    if Gt in bounds or 0 < low < step:
        low = step if low < step else low + step
    if bounds.get(Lt) == high:
        high -= step
    return Control(name, "real", value, low=low, high=round(high, 12), step=step)


def _round_step(size: float) -> float:
    """Returns the largest of 1, 2 and 5 times a power of ten that is at most `size`.

    >>> _round_step(0.01), _round_step(0.07)
    (0.01, 0.05)
    """
    power = 10.0 ** math.floor(math.log10(size) + 1e-9)
    return round(next(k * power for k in (5, 2, 1) if k * power <= size * (1 + 1e-9)), 12)
