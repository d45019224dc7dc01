"""Constraints of settings in annotations, and where they are checked."""

import importlib
import inspect
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Literal

import numpy as np
import pytest
from annotated_types import Interval, MinLen

from pretrax import constraints, models, objectives
from pretrax.constraints import (
    Count,
    NonEmptyText,
    NonNegative,
    OpenShare,
    check_settings,
    checked,
    import_name,
)
from pretrax.models.config import Config
from pretrax.settings.partial import Call, Partial
from pretrax.training.run import Run
from tests.import_graph import modules_without_tasks
from tests.objectives.registry import IDS
from tests.refusals import refuses


@checked
def setting(
    count: Count = 1,
    *,
    share: OpenShare | None = None,
    rate: Callable | NonNegative = 0.0,
    choice: Literal["a", "b", "c"] = "a",
    names: Annotated[Sequence[str], MinLen(1)] = ("x",),
    widths: Mapping[str, Count] = {"x": 1},  # noqa: B006
    pair: tuple[int, int] = (1, 2),  # Only plain types are checked.
    layers: Annotated[int, Interval(ge=0, le=4096)] = 0,
    tail: tuple[float, ...] = (),
    switch: bool = False,
    text: NonEmptyText = "x",
):
    """A function with a setting of each type."""
    return count


@pytest.mark.parametrize(
    "given",
    [
        *(dict(count=x) for x in (1, 7, np.int64(3), np.uint8(3), 10**400)),
        *(dict(share=x) for x in (None, 0.5, np.float32(0.5), np.float64(0.1))),
        *(dict(rate=x) for x in (0, 0.0, 3, len, lambda step: step)),
        *(dict(names=x) for x in (["a", "b"], ("a",), np.array(["a"]))),
        *(dict(widths=x) for x in ({}, {"x": 3})),
        *(dict(tail=x) for x in ((), (1.0, 2), [3.0], np.ones(3))),
        *(dict(pair="any"), dict(layers=4096), dict(switch=True), dict(choice="c")),
    ],
)
def test_valid_settings_are_accepted(given):
    assert setting(**given) == given.get("count", 1)


@pytest.mark.parametrize(
    "given, expected",
    [
        (dict(count=0), [1]),
        (dict(count=True), [1]),
        (dict(count=1.0), [1]),
        (dict(count="1"), [1]),
        (dict(share=1), [0, 1, None]),
        (dict(share=float("nan")), [0, 1, None]),
        (dict(share="0.5"), [0, 1, None]),
        (dict(rate=float("inf")), ["function", 0]),
        (dict(choice="d"), ["'a'", "'b'", "'c'"]),
        (dict(choice=1), ["'a'", "'b'", "'c'"]),
        (dict(names=[]), ["texts", "empty"]),
        (dict(names="x"), ["list"]),
        (dict(names=["x", 1]), ["list"]),
        (dict(text=""), ["empty"]),
        (dict(text="a\udcff"), ["empty"]),
        (dict(widths={"x": 0}), ["mapping", 1]),
        (dict(widths=[1]), ["mapping"]),
        (dict(layers=4097), [0, "4,096"]),
        (dict(tail=8.0), ["list"]),
        (dict(tail=("a",)), ["list"]),
        (dict(switch=1), [True, False]),
    ],
)
def test_invalid_setting_is_rejected_with_the_expected_values(given, expected):
    ((name, value),) = given.items()
    with refuses(ValueError, f"test_constraints.setting.{name}", repr(value), *expected):
        setting(**given)
    with refuses(ValueError, name, repr(value), *expected):  # Gin checks it before the call.
        Partial(setting, **given).check()


def test_positional_arguments_are_checked():
    with refuses(ValueError, "count"):
        setting(0)
    with refuses(TypeError, "counts"):
        setting(counts=0)


def test_results_of_deferred_calls_are_checked_when_called():
    later = Partial(setting, names=[Call(str)], count=Call(int))
    later.check()
    with refuses(ValueError, "count"):
        later()


def test_unresolvable_annotations_accept_any_value():
    def mine(x: "absent.Thing"):  # noqa: F821
        """A function as in a user's module."""

    check_settings(mine, {"x": object()})


def test_checked_function_is_picklable_and_keeps_its_import_name():
    build = objectives.span_corruption
    assert import_name(build) == ("pretrax.objectives", "span_corruption")
    assert pickle.loads(pickle.dumps(build)) is build
    assert pickle.loads(pickle.dumps(Partial(build, mode="R"))) == Partial(build, mode="R")
    assert [*inspect.signature(build).parameters][:2] == ["ids", "noise_density"]
    assert build.__module__ == "pretrax.objectives.denoising"


def test_direct_builder_call_names_the_invalid_setting():
    with refuses(ValueError, "objectives.span_corruption", "noise_density"):
        objectives.span_corruption(IDS, noise_density=2.0)
    with refuses(ValueError, "models.decoder", "num_layers"):
        models.decoder(64, num_layers=0)


def test_defaults_satisfy_their_annotations():
    """All annotations of checked functions must be readable, or they would check nothing."""
    owners = [Run, Config]
    for module in map(importlib.import_module, modules_without_tasks()):
        for function in filter(inspect.isfunction, vars(module).values()):
            if function.__code__.co_filename == constraints.__file__ != module.__file__:
                owners += [function] if hasattr(function, "__wrapped__") else []
    assert len(owners) > 50
    for owner in owners:
        assert constraints._hints(owner), owner
        defaults = {name: p.default for name, p in inspect.signature(owner).parameters.items()}
        given = {name: x for name, x in defaults.items() if x is not inspect.Parameter.empty}
        check_settings(owner, given)
