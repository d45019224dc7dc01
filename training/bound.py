"""Functions with settings, as values: what a run's corpus, objective, model and optimizer are.

`functools.partial` would do, but for two things: partials are equal only to themselves, and their
settings may not be results of calls that are made later. A `Bound` is equal to another of the same
function and settings, so that runs can be compared field by field, written to a file, and read back.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any


class Bound:
    """A function with some of its keyword arguments.

    >>> from pretrax.training.optimizers import warmup_constant
    >>> schedule = Bound(warmup_constant, peak=0.1)
    >>> schedule == Bound(warmup_constant, peak=0.1), schedule == Bound(warmup_constant, peak=0.2)
    (True, False)
    >>> schedule
    Bound(training.optimizers.warmup_constant, peak=0.1)
    >>> float(schedule(100)(50))  # as warmup_constant(100, peak=0.1)(50)
    0.10000000149011612

    A setting may be a `Call`: its result is what the function is given.
    """

    __slots__ = ("function", "settings")

    def __init__(self, function: Callable, **settings: Any):
        object.__setattr__(self, "function", function)
        object.__setattr__(self, "settings", MappingProxyType(settings))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        settings = {name: _called(value) for name, value in self.settings.items()}
        return self.function(*args, **(settings | kwargs))

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"A {type(self).__name__} cannot be changed: make another one.")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self.function == other.function and self.settings == other.settings

    def __hash__(self) -> int:
        return hash((type(self), self.function, *sorted(self.settings)))

    def __repr__(self) -> str:
        settings = "".join(f", {name}={value!r}" for name, value in self.settings.items())
        return f"{type(self).__name__}({name_of(self.function)}{settings})"

    def __reduce__(self):
        return _rebuilt, (type(self), self.function, dict(self.settings))


class Call(Bound):
    """The result of a function with settings, which is computed where it is needed."""

    __slots__ = ()


def bound(value: Callable) -> Bound:
    """`value` itself if it is a `Bound`, else one without settings.

    >>> bound(len)
    Bound(len)
    """
    return value if isinstance(value, Bound) else Bound(value)


def name_of(function: Callable) -> str:
    """The module and name that a function was defined by, within `pretrax` or beyond it.

    >>> from pretrax.training.optimizers import adamw
    >>> name_of(adamw), name_of(len)
    ('training.optimizers.adamw', 'len')
    """
    name = getattr(function, "__qualname__", None)
    if name is None:
        return repr(function)
    module = getattr(function, "__module__", None) or "builtins"
    return f"{module}.{name}".removeprefix("builtins.").removeprefix("pretrax.")


def parameters(function: Callable) -> dict[str, inspect.Parameter] | None:
    """The parameters that may be given by name; None where any name may be, or none is known."""
    try:
        found = inspect.signature(function).parameters
    except (TypeError, ValueError):  # some functions written in C do not tell
        return None
    if any(p.kind is p.VAR_KEYWORD for p in found.values()):
        return None
    return {n: p for n, p in found.items() if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}


def flattened(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """(path, value) of everything that a value is made of, defaults of functions included.

    >>> from pretrax.training.optimizers import warmup_constant
    >>> dict(flattened("rate", Bound(warmup_constant, peak=0.1)))
    {'rate': 'training.optimizers.warmup_constant', 'rate.peak': 0.1, 'rate.warmup_steps': 0}
    """
    if isinstance(value, Bound):
        yield name, name_of(value.function)
        known = parameters(value.function) or {}
        given = {n: p.default for n, p in known.items() if p.default is not p.empty}
        for setting, inner in (given | dict(value.settings)).items():
            yield from flattened(f"{name}.{setting}", inner)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from flattened(f"{name}[{key!r}]", inner)
    elif isinstance(value, list | tuple) and any(
        isinstance(v, Bound | Mapping | list | tuple) for v in value
    ):
        for i, inner in enumerate(value):
            yield from flattened(f"{name}[{i}]", inner)
    elif callable(value):
        yield from flattened(name, Bound(value))
    else:
        yield name, value


def _called(value: Any) -> Any:
    """`value` with the results of its `Call`s in their place."""
    if isinstance(value, Call):
        return value()
    if isinstance(value, Mapping):
        return {key: _called(inner) for key, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_called, value))
    return value


def _rebuilt(kind: type[Bound], function: Callable, settings: dict) -> Bound:
    return kind(function, **settings)
