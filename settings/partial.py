"""Functions with settings, as values: a run's corpus, objective, model and optimizer.

Two `Partial`s with the same function and settings are equal, unlike those of `functools`. This
allows comparing runs field by field, writing them to a file, and reading them back. A setting may
also be the result of a call that is made later.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from ..constraints import check_settings, listed, name_of, selector_of

One = TypeVar("One")


class Partial:
    """A function with some of its keyword arguments.

    >>> from pretrax.training.optimizers import warmup_constant
    >>> schedule = Partial(warmup_constant, peak=0.1)
    >>> [schedule == Partial(warmup_constant, peak=peak) for peak in (0.1, 0.2)]
    [True, False]
    >>> schedule
    Partial(training.optimizers.warmup_constant, peak=0.1)
    >>> float(schedule(100)(50))  # as warmup_constant(100, peak=0.1)(50)
    0.10000000149011612

    If a setting is a `Call`, the function receives the result of the call.

    Calling it raises ValueError for a parameter that has no value or two values. It also raises
    ValueError for a setting that the function's annotation does not allow (`constraints`).
    """

    __slots__ = ("function", "settings")
    function: Callable
    settings: Mapping[str, Any]

    def __init__(self, function: Callable, /, **settings: Any):
        object.__setattr__(self, "function", function)
        object.__setattr__(self, "settings", MappingProxyType(settings))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        settings = {name: _called(value) for name, value in self.settings.items()} | kwargs
        _check_parameters(self.function, args, settings)
        check_settings(self.function, settings)
        return self.function(*args, **settings)

    def check(self, *args: Any) -> None:
        """Raises ValueError if a call with these arguments would raise it for the settings."""
        _check_parameters(self.function, args, self.settings)
        self.check_settings()

    def check_settings(self) -> None:
        """Raises ValueError for a setting that the function's annotation does not allow."""
        known = {name: x for name, x in self.settings.items() if not _is_later(x)}
        check_settings(self.function, known)

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


def _rebuilt(kind: type[Partial], function: Callable, settings: dict) -> Partial:
    return kind(function, **settings)


class Call(Partial):
    """A setting whose value is the result of a function.

    The function is called each time that the `Partial` with this setting is called.
    """

    __slots__ = ()


def as_partial(value: Callable) -> Partial:
    """Returns `value` itself if it is a `Partial`, otherwise a `Partial` without settings.

    >>> as_partial(len)
    Partial(len)
    """
    return value if isinstance(value, Partial) else Partial(value)


def called_with(functions: Iterable[Callable], argument: Any, kind: type[One]) -> list[One]:
    """Calls each function with an argument and returns the results, which must be of type `kind`.

    Raises ValueError for a result of another type.

    >>> called_with([str.strip, str.upper], " a", str)
    ['a', ' A']
    >>> called_with([len], " a", str)
    Traceback (most recent call last):
    ValueError: len returned 2, expected a str.
    """
    results = [function(argument) for function in functions]
    for function, result in zip(functions, results):
        if not isinstance(result, kind):
            name = name_of(getattr(function, "function", function))
            raise ValueError(f"{name} returned {result!r}, expected a {name_of(kind)}.")
    return results


def parameters(function: Callable) -> dict[str, inspect.Parameter] | None:
    """Returns the parameters that can be given by name.

    Returns None for a function that takes **kwargs, and for a function without a signature.
    """
    try:
        every = inspect.signature(function).parameters
    except (TypeError, ValueError):  # some functions written in C have no signature
        return None
    if any(p.kind is p.VAR_KEYWORD for p in every.values()):
        return None
    return {n: p for n, p in every.items() if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}


def flattened(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yields (path, value) of all parts of a value, including defaults of functions.

    >>> from pretrax.training.optimizers import warmup_constant
    >>> dict(flattened("rate", Partial(warmup_constant, peak=0.1)))
    {'rate': 'training.optimizers.warmup_constant', 'rate.warmup_steps': 0, 'rate.peak': 0.1}
    """
    if isinstance(value, Partial):
        yield name, name_of(value.function)
        known = parameters(value.function) or {}
        defaults = {n: p.default for n, p in known.items() if p.default is not p.empty}
        for setting, inner in (defaults | dict(value.settings)).items():
            yield from flattened(f"{name}.{setting}", inner)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from flattened(f"{name}[{key!r}]", inner)
    elif isinstance(value, list | tuple) and any(
        isinstance(v, Partial | Mapping | list | tuple) for v in value
    ):
        for i, inner in enumerate(value):
            yield from flattened(f"{name}[{i}]", inner)
    elif callable(value):
        yield from flattened(name, Partial(value))
    else:
        yield name, value


def functions_in(value: Any) -> list[Partial]:
    """Returns the functions in a value and, recursively, the functions in their settings.

    >>> from pretrax.training.optimizers import warmup_constant
    >>> functions_in({"a": (1, Call(warmup_constant, peak=0.1))})
    [Partial(training.optimizers.warmup_constant, peak=0.1)]
    """
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [function for inner in value for function in functions_in(inner)]
    if not callable(value):
        return []
    partial = as_partial(value)
    return [plain(partial), *functions_in(dict(partial.settings))]


def with_settings(value: Any, settings: Mapping[str, Any]) -> Any:
    """Returns a value whose functions have these settings, as gin bindings of these names.

    >>> from pretrax.training.optimizers import warmup_constant
    >>> with_settings([warmup_constant], {"optimizers.warmup_constant.peak": 0.2})
    [Partial(training.optimizers.warmup_constant, peak=0.2)]
    """
    if isinstance(value, Mapping):
        return {key: with_settings(inner, settings) for key, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(with_settings(inner, settings) for inner in value)
    if not callable(value):
        return value
    partial = as_partial(value)
    own = {name: with_settings(inner, settings) for name, inner in partial.settings.items()}
    for name in parameters(partial.function) or {}:
        if (setting := f"{selector_of(partial.function)}.{name}") in settings:
            own[name] = settings[setting]
    return type(partial)(partial.function, **own) if own else value


def plain(partial: Partial) -> Partial:
    """Returns the function with its settings as a `Partial`, also for a `Call`."""
    return Partial(partial.function, **partial.settings)


def _check_parameters(function: Callable, args: tuple, settings: Mapping[str, Any]) -> None:
    """Raises ValueError if a call would raise Python's TypeError about its arguments."""
    known = parameters(function)
    if known is None:
        return
    every = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in every):
        return
    positional = [p.name for p in every if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    by_position = positional[: len(args)]
    twice = sorted(name for name in by_position if name in settings)
    missing = [
        name
        for name, p in known.items()
        if p.default is p.empty and name not in (*by_position, *settings)
    ]
    if twice:
        raise ValueError(
            f"The run sets {listed(twice)} of {name_of(function)}: do not set it yourself."
        )
    if missing:
        raise ValueError(
            f"{name_of(function)} has no value for its {listed(missing)}: give "
            f"--gin.{selector_of(function)}.{missing[0]}=VALUE. "
            f"Its parameters: {', '.join(known)}."
        )


def _called(value: Any) -> Any:
    """Returns `value` with each `Call` replaced by its result."""
    if isinstance(value, Call):
        return value()
    if isinstance(value, Mapping):
        return {key: _called(inner) for key, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_called, value))
    return value


def _is_later(value: Any) -> bool:
    """Returns whether a value contains a `Call`, so that it is known only when it is called."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return any(map(_is_later, value))
    return isinstance(value, Call)
