"""Exports as a named family, with changed settings of the family's model."""

import dataclasses
import typing

import numpy as np
import pytest

from pretrax.models import builders
from pretrax.models.config import Config
from pretrax.models.hugging_face import (
    FAMILIES,
    TRAINING_FIELDS,
    check_family,
    open_source,
    parameter_shapes,
    recognize,
    resolved_settings,
    write_model,
)
from pretrax.models.trees import nested
from tests.parity.models import MODELS, perturbed
from tests.refusals import refuses

NUMBERS = {int: (1, 3), float: (0.25, 3.0), type(None): (2, 0.5, (3.0,), (2, 3))}
ACTIVATIONS = [("relu",), ("gelu", "linear"), ("silu", "linear"), ("relu", "gelu"), ("linear",)]


def alternatives(name: str, value) -> list:
    """Returns other values of a setting, some of which are invalid."""
    kind = typing.get_type_hints(Config)[name]
    choices = typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else ()
    if isinstance(value, bool):
        choices = (not value,)
    elif name == "mlp_activations":
        choices = ACTIVATIONS
    elif not choices:
        choices = NUMBERS.get(type(value), ((2.0,), (2, 3)))
        choices += (None,) if type(None) in typing.get_args(kind) else ()
    return [choice for choice in choices if choice != value]


def changes(config: Config):
    """Yields (name of a setting, another value of the setting) that `Config` accepts."""
    for field in dataclasses.fields(Config):
        for value in alternatives(field.name, getattr(config, field.name)):
            try:
                other = dataclasses.replace(config, **{field.name: value})
            except ValueError:
                continue
            if field.name not in TRAINING_FIELDS and other.layout == config.layout:
                yield field.name, value


def rejection(config: Config, family, settings: dict) -> ValueError | None:
    """Returns why the family cannot express the model with other settings, or None if it can."""
    try:
        check_family(dataclasses.replace(config, **settings), family)
    except ValueError as error:
        return error
    return None


def combined(config: Config, family, accepted) -> list[dict]:
    """Combines single changes of settings into few sets of changes that the family can express."""
    groups: list[dict] = []
    for setting, value in accepted:
        for group in groups:
            if setting not in group and not rejection(config, family, {**group, setting: value}):
                group[setting] = value
                break
        else:
            groups.append({setting: value})
    return groups


def exported(directory, config: Config, family) -> Config:
    """Returns the settings of an export after importing it again."""
    params = nested(
        (path, np.zeros(shape, np.float32))
        for path, shape in parameter_shapes(builders.model_of(config)).items()
    )
    write_model(str(directory), config, params, family=family)
    return recognize(open_source(str(directory))).config


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_changed_settings_are_rejected_or_survive_export(name, tmp_path):
    perturbed(name).save_pretrained(tmp_path / "saved")
    found = recognize(open_source(str(tmp_path / "saved")))
    rejected, kept = [], []
    for setting, value in changes(found.config):
        if setting == "classifier_layer":  # this model has no classes
            continue
        if setting == "max_positions" and value == 1:  # shapes are traced on rows of two slots
            continue
        if error := rejection(found.config, found.family, {setting: value}):
            rejected.append((setting, str(error)))
        else:
            kept.append((setting, value))
    assert {"norm_epsilon", "mlp_dim"} & {setting for setting, _ in kept} and len(rejected) > 20
    named = [error for setting, error in rejected if f"{setting}=" in error]
    # Other messages name a setting that depends on this one, such as head_dim on num_heads.
    assert len(named) > 0.7 * len(rejected)
    # Each export traces a model, which takes long, so it has several changes.
    for number, group in enumerate(combined(found.config, found.family, kept)):
        config = dataclasses.replace(found.config, **group)
        imported = resolved_settings(exported(tmp_path / str(number), config, found.family))
        resolved = resolved_settings(config)
        assert {name: imported[name] for name in group} == {name: resolved[name] for name in group}


def test_export_as_family_without_setting_raises(tmp_path):
    perturbed("bert").save_pretrained(tmp_path / "saved")
    config = recognize(open_source(str(tmp_path / "saved"))).config
    other = dataclasses.replace(config, norm_epsilon=1e-5)
    with refuses(ValueError, "distilbert", "norm_epsilon", "1e-05", "1e-12"):
        exported(tmp_path / "out", other, FAMILIES["distilbert"])
    with refuses(ValueError, "encoder", "gpt2", "decoder"):
        exported(tmp_path / "out", config, FAMILIES["gpt2"])
