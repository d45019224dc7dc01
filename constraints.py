"""Checks the types, ranges and choices of settings, which annotations declare.

    @checked
    def masking(ids, rate: OpenShare = 0.15, replace: Literal["mask", "random"] = "mask"): ...

    masking(ids, rate=1.5)
    # ValueError: mine.masking.rate must be a number above 0 and below 1, got 1.5.

Ranges are written with `annotated_types`, choices as `typing.Literal`. Functions that take settings
are decorated by `checked`, and dataclasses of settings call `check_fields`. What gin binds to a
function is checked by `settings.partial.Partial` before the function is called. A number is a
Python or NumPy number, but not a bool. A number with a range must be finite. Only numbers, texts,
bools, functions, lists and mappings are checked. Relations between settings are not checked here.
"""

import dataclasses
import difflib
import functools
import importlib
import inspect
import math
import numbers
import operator
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from annotated_types import Ge, GroupedMetadata, Gt, Interval, Le, Lt, MinLen, MultipleOf

# Ranges that many settings share. Other ranges are written where they are used, for example
# `Annotated[int, Ge(4)]`.
Count = Annotated[int, Ge(1)]
AtLeastTwo = Annotated[int, Ge(2)]
Natural = Annotated[int, Ge(0)]
Seed = Annotated[int, Interval(ge=0, lt=2**32)]  # JAX only reads the last 32 bits of a seed
Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]
Share = Annotated[float, Interval(ge=0, le=1)]
PositiveShare = Annotated[float, Interval(gt=0, le=1)]
OpenShare = Annotated[float, Interval(gt=0, lt=1)]
Percentage = Annotated[int, Interval(ge=1, le=100)]
NonEmptyText = Annotated[str, MinLen(1)]

_Function = TypeVar("_Function", bound=Callable)


def checked(function: _Function) -> _Function:
    """Decorates a function to check its arguments against its annotations at every call.

    >>> @checked
    ... def halves(size: Count): ...
    >>> halves(0)
    Traceback (most recent call last):
    ValueError: constraints.halves.size must be a whole number of at least 1, got 0.
    """
    names = tuple(inspect.signature(function).parameters)

    @functools.wraps(function)
    def call(*args: Any, **settings: Any) -> Any:
        check_settings(call, dict(zip(names, args)) | settings)
        return function(*args, **settings)

    return typing.cast(_Function, call)


def check_fields(settings: Any, prefix: str = "") -> None:
    """Checks the fields of a dataclass or a NamedTuple. Errors name a field with this prefix."""
    names = getattr(settings, "_fields", None) or [x.name for x in dataclasses.fields(settings)]
    check_settings(type(settings), {name: getattr(settings, name) for name in names}, prefix)


def check_settings(owner: Callable, values: Mapping[str, Any], prefix: str | None = None) -> None:
    """Raises ValueError for a value that does not match its annotation.

    Args:
      owner: function or dataclass with the annotations.
      values: {name of a setting: value}.
      prefix: prefix of names of settings in errors; by default the name of the function, as in gin.
    """
    hints = _hints(owner)
    for name, value in values.items():
        if name in hints and not _admits(hints[name], value):
            where = f"{selector_of(owner)}." if prefix is None else prefix
            raise ValueError(f"{where}{name} must be {_description(hints[name])}, got {value!r}.")


@functools.lru_cache(maxsize=1024)
def _hints(owner: Callable) -> dict[str, Any]:
    declares = inspect.isfunction(owner) or dataclasses.is_dataclass(owner)
    if not (declares or hasattr(owner, "_fields")):
        return {}
    try:
        return typing.get_type_hints(owner, include_extras=True)
    except (NameError, TypeError, AttributeError):
        # Annotations of a user may name something that does not exist.
        return {}


# --- what annotations admit ---------------------------------------------------------------------

# Constraint -> (comparison of a value and the limit, attribute with the limit, its text).
_RANGES: dict[type, tuple[Callable[[Any, Any], bool], str, str]] = {
    Gt: (operator.gt, "gt", " above {:,}"),
    Ge: (operator.ge, "ge", " of at least {:,}"),
    Lt: (operator.lt, "lt", " below {:,}"),
    Le: (operator.le, "le", " at most {:,}"),
    MultipleOf: (
        lambda value, factor: value % factor == 0,
        "multiple_of",
        " that is a multiple of {}",
    ),
    MinLen: (lambda value, least: len(value) >= least, "min_length", ", not empty"),
}
# Type -> (its name in a message, its plural).
_WORDS: dict[Any, tuple[str, str]] = {
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    str: ("a text", "texts"),
    bool: ("True or False", "True or False"),
    type(None): ("None", "None"),
    Callable: ("a function (in gin: @MODULE.NAME)", "functions"),
    Mapping: ("a mapping", "mappings"),
    Sequence: ("a list", "lists"),
}


def _admits(kind: Any, value: Any) -> bool:
    """Returns whether a value matches an annotation. An annotation that is not plain admits all."""
    if typing.get_origin(kind) is Annotated:
        return _admits(kind.__origin__, value) and _within(kind, value)
    if kind in (int, float):
        number_type = numbers.Integral if kind is int else numbers.Real
        return isinstance(value, number_type) and not isinstance(value, bool)
    if kind is str:
        return isinstance(value, str) and _is_unicode(value)
    if kind in (bool, type(None)):
        return isinstance(value, kind)
    origin = _origin(kind)
    args = typing.get_args(kind)
    if origin is typing.Union:
        return any(_admits(arg, value) for arg in args)
    if origin is Literal:
        return any(isinstance(value, type(arg)) and value == arg for arg in args)
    if origin is Callable:
        return callable(value)
    if origin is Sequence:
        is_list = isinstance(value, Sequence | np.ndarray) and not isinstance(value, str)
        return is_list and all(_admits(args[0] if args else Any, item) for item in value)
    if origin is Mapping:
        inner = args[1] if args else Any
        return isinstance(value, Mapping) and all(_admits(inner, item) for item in value.values())
    return True


def _is_unicode(text: str) -> bool:
    """Returns whether a text can be encoded. Lone surrogates represent bytes that are not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _origin(kind: Any) -> Any:
    """Returns the origin of an annotation, which is Sequence for `tuple[X, ...]` and `list[X]`."""
    origin = typing.get_origin(kind) or kind
    if origin is types.UnionType:
        return typing.Union
    args = typing.get_args(kind)
    return Sequence if origin is list or (origin is tuple and args[1:] == (...,)) else origin


def _within(kind: Any, value: Any) -> bool:
    is_number = isinstance(value, numbers.Real)
    if is_number and not -math.inf < value < math.inf:
        return False
    return all(_RANGES[type(constraint)][0](value, limit) for constraint, limit in limits(kind))


def limits(kind: Any) -> Iterator[tuple[Any, Any]]:
    """Yields the constraints of an annotation with ranges, such as `OpenShare`, and their limits.

    >>> [(type(constraint).__name__, limit) for constraint, limit in limits(OpenShare)]
    [('Gt', 0), ('Lt', 1)]
    """
    for metadata in kind.__metadata__:
        for constraint in metadata if isinstance(metadata, GroupedMetadata) else (metadata,):
            if type(constraint) in _RANGES:
                yield constraint, getattr(constraint, _RANGES[type(constraint)][1])


def _description(kind: Any, several: bool = False) -> str:
    """Describes the values that an annotation admits.

    >>> _description(OpenShare | None), _description(Sequence[Count])
    ('a number above 0 and below 1, or None', 'a list of whole numbers of at least 1')
    """
    if typing.get_origin(kind) is Annotated:
        ranges = [
            f", at least {limit} of them"
            if isinstance(constraint, MinLen) and limit > 1
            else _RANGES[type(constraint)][2].format(limit)
            for constraint, limit in limits(kind)
        ]
        return _description(kind.__origin__, several) + " and".join(ranges)
    origin = _origin(kind)
    args = typing.get_args(kind)
    if origin is typing.Union:
        kinds = [_description(arg, several) for arg in args]
        is_long = any(" and " in text or ", " in text for text in kinds)
        return (", or " if is_long else " or ").join(kinds)
    if origin is Literal:
        return listed(map(repr, args), "or")
    words = _WORDS[origin][several] if origin in _WORDS else "of another kind"
    inner = args[origin is Mapping] if args and origin in (Sequence, Mapping) else Any
    if _admits(inner, object()):  # a list or mapping of anything
        return words
    return f"{words} {'of' if origin is Sequence else 'to'} {_description(inner, True)}"


# --- the names of functions ---------------------------------------------------------------------


def name_of(function: Callable) -> str:
    """Returns the module and name of a function, without "pretrax." for our own.

    >>> from pretrax.training.optimizers import adamw
    >>> name_of(adamw), name_of(len)
    ('training.optimizers.adamw', 'len')
    """
    name = getattr(function, "__qualname__", None)
    if name is None:
        return repr(function)
    module = getattr(function, "__module__", None) or "builtins"
    return f"{module}.{name}".removeprefix("builtins.").removeprefix("pretrax.")


def import_name(function: Callable) -> tuple[str, str] | None:
    """Returns the module to import a function from, and its name there; None if there is none.

    For a function of pretrax, the module is the outermost package that exports it. The same holds
    for a function of a private module, since another version may move it:

    >>> from pretrax import models
    >>> import_name(models.decoder), import_name(lambda ids: ids)
    (('pretrax.models', 'decoder'), None)
    >>> import optax                       # defined in optax.schedules._schedule
    >>> import_name(optax.linear_schedule)
    ('optax', 'linear_schedule')
    """
    module = getattr(function, "__module__", None) or ""
    name = getattr(function, "__qualname__", "")
    parts = module.split(".")
    private = next((i for i, part in enumerate(parts) if part.startswith("_")), 0)
    own = range(2, len(parts)) if parts[0] == "pretrax" else range(0)
    above = [".".join(parts[:n]) for n in (*own, *range(1, private + 1))]
    for source in [*above, module]:
        if source not in ("", "__main__") and _holds(source, name, function):
            return source, name
    return None


def selector_of(function: Callable) -> str:
    """Returns a function's module and name, as gin files name it.

    >>> from pretrax import models
    >>> selector_of(models.decoder)
    'models.decoder'
    """
    module, name = import_name(function) or ("", name_of(function))
    return f"{module.rpartition('.')[2]}.{name}".lstrip(".")


def _holds(module: str, name: str, function: Callable) -> bool:
    try:
        return getattr(importlib.import_module(module), name, None) is function
    except ImportError:
        return False


def near(
    name: str,
    known: Iterable[str],
    otherwise: str = ".",
    *,
    count: int = 1,
    cutoff: float = 0.6,
    prefix: str = "",
) -> str:
    """Returns the end of a sentence about an unknown name, with the most similar known names.

    >>> near("masked_ml", ["causal_lm", "masked_lm"])
    "; did you mean 'masked_lm'?"

    Args:
      name: the unknown name.
      known: the known names.
      otherwise: the end of the sentence if no known name is similar.
      count: maximum number of names to suggest.
      cutoff: the lowest similarity of a suggested name, from 0 to 1.
      prefix: text to put before each suggested name.
    """
    known = list(known)
    similar = (difflib.get_close_matches(x, known, count, cutoff) for x in (name, name.lower()))
    matches = next(filter(None, similar), [])
    suggested = listed([repr(prefix + match) for match in matches], "or")
    return f"; did you mean {suggested}?" if matches else otherwise


def listed(words: Iterable[str], conjunction: Literal["and", "or"] = "and") -> str:
    """Returns words as a list in a sentence; "" for no words.

    >>> listed(["a"]), listed(["a", "b"], "or"), listed(["a", "b", "c"])
    ('a', 'a or b', 'a, b and c')
    """
    words = list(words)
    return f" {conjunction} ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))
