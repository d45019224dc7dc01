"""Controls of objectives: their ranges, and that three ways give the same objective."""

import argparse
import functools
import inspect
import shlex

import pytest

from pretrax import objectives
from pretrax.explorer.commands import commands
from pretrax.explorer.controls import controls, value_of, with_values
from pretrax.objectives.catalog import CATALOG, run_of
from pretrax.objectives.token_ids import specimen_ids
from pretrax.settings.partial import Call, Partial
from pretrax.tasks.showing import choice_of
from pretrax.training.run_choices import add_run_arguments, parse_run
from pretrax.training.run_configuration import read_fields
from tests.refusals import refuses

IDS = specimen_ids(1000)


def control(builder, setting, **settings):
    return next(c for c in controls(Partial(builder, **settings)) if c.label == setting)


def changed_values(build) -> dict:
    """Returns another allowed value for each control that has one."""
    values = {}
    for one in controls(build):
        if one.kind in ("whole", "real"):
            values[one.name] = one.high if one.value == one.low else one.low
        elif one.kind == "switch":
            values[one.name] = not one.value
        elif one.kind == "choice":
            values[one.name] = next(choice for choice in one.choices if choice != one.value)
    return values


def test_slider_range_follows_the_annotation():
    rate = control(objectives.masked_lm, "rate")
    assert (rate.kind, rate.low, rate.high, rate.step) == ("real", 0.01, 0.99, 0.01)
    share = control(objectives.masked_lm, "mask_share")
    assert (share.low, share.high) == (0, 1)
    k = control(objectives.goldfish_loss, "k", k=100)
    assert (k.kind, k.low, k.high) == ("whole", 2, 400)
    assert control(objectives.masked_lm, "static_copies").optional


def test_control_kind_follows_the_setting_type():
    assert control(objectives.masked_lm, "whole_words").kind == "switch"
    spm = control(objectives.fill_in_the_middle, "spm")
    assert (spm.kind, spm.value, spm.choices) == ("choice", "spmv2", ("spm", "spmv2"))
    lengths = control(objectives.masked_lm, "span_lengths", span_lengths=[0.5, 0.5])
    assert (lengths.kind, lengths.value) == ("literal", "[0.5, 0.5]")
    assert "tokens" in control(objectives.masked_lm, "rate").about


def test_nested_settings_have_controls():
    names = [c.name for c in controls(choice_of("spans_and_prefix").build)]
    assert "objectives.span_corruption.noise_density" in names
    assert "objectives.prefix_lm.suffix_share" in names
    spanbert = choice_of("spanbert").build
    changed = with_values(spanbert, {"objectives.geometric_lengths.p": 0.5})
    assert changed.settings["span_lengths"].settings == {"p": 0.5, "longest": 10}


def test_setting_with_two_values_has_no_control():
    halves = {
        name: (Partial(objectives.masked_next_token, rate=rate), 1)
        for name, rate in (("few", 0.1), ("many", 0.5))
    }
    names = [c.name for c in controls(Partial(objectives.mixture, members=halves))]
    assert "objectives.masked_next_token.rate" not in names
    assert "objectives.masked_next_token.mask_share" in names
    with refuses(ValueError, "objectives.masked_next_token.rate"):
        with_values(
            Partial(objectives.mixture, members=halves), {"objectives.masked_next_token.rate": 0.2}
        )


def test_form_values_are_parsed():
    literal = control(objectives.masked_lm, "span_lengths")
    assert value_of(literal, "[0.5, 0.5]") == [0.5, 0.5] and value_of(literal, None) is None
    assert value_of(control(objectives.goldfish_loss, "k"), 8.0) == 8
    with refuses(ValueError, "objectives.masked_lm.span_lengths", "[0.5"):
        value_of(literal, "[0.5")


@pytest.mark.parametrize("name", CATALOG)
def test_slider_ends_are_valid_settings(name):
    build = choice_of(name).build
    for one in controls(build):
        for value in {one.low, one.high} - {None}:
            with_values(build, {one.name: value}).check(IDS)


@pytest.mark.sampled
@pytest.mark.parametrize("name", CATALOG)
def test_gin_shell_and_python_give_the_same_objective(name, tmp_path):
    base = choice_of(name).build
    values = changed_values(base)
    build = with_values(base, values)
    got = commands(name, build, values, run=run_of(name), text="a b", options={"seed": 3})
    file = tmp_path / "mine.gin"
    file.write_text(got.gin)
    assert read_fields([f"runs/{run_of(name)}.gin", str(file)])["objective"] == build
    parser = argparse.ArgumentParser()
    add_run_arguments(parser)
    words = shlex.split(got.train)[2:]
    _, given, _ = parse_run(parser, words, required=True)
    assert given.reader().settings()["objective"] == build
    assert shlex.split(got.shell)[:2] == ["pretrax", "show"] and "--seed=3" in got.shell
    if values and "turns" not in got.python:  # the turn of a schedule must be below their number
        taken = {"take": lambda builder, *_, **__: builder}
        exec(got.python.replace("pretrax.show(", "shown = take("), taken)
        assert nested(taken["shown"]) == nested(build)


def nested(value):
    """Returns a value with partials that can be compared, and with the results of its calls."""
    if isinstance(value, Call):
        return value()
    if isinstance(value, Partial):
        return Partial(value.function, **{name: nested(x) for name, x in value.settings.items()})
    if isinstance(value, functools.partial):
        return Partial(value.func, **{name: nested(x) for name, x in value.keywords.items()})
    if isinstance(value, dict):
        return {name: nested(x) for name, x in value.items()}
    if isinstance(value, tuple):
        return tuple(map(nested, value))
    return Partial(value) if inspect.isfunction(value) else value
