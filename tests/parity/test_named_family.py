"""Exports as a named family, with one setting of the family's model changed at a time."""

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


def changed(config: Config):
    """Yields (name of a setting, the config with another value of the setting)."""
    for field in dataclasses.fields(Config):
        for value in alternatives(field.name, getattr(config, field.name)):
            try:
                other = dataclasses.replace(config, **{field.name: value})
            except ValueError:
                continue
            if field.name not in TRAINING_FIELDS and other.layout == config.layout:
                yield field.name, other


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
    for number, (setting, config) in enumerate(changed(found.config)):
        if setting == "classifier_layer":  # this model has no classes
            continue
        try:
            check_family(config, found.family)  # since tracing the parameters takes long
            imported_config = exported(tmp_path / str(number), config, found.family)
        except ValueError as error:
            rejected.append((setting, str(error)))
            continue
        assert resolved_settings(imported_config)[setting] == resolved_settings(config)[setting], (
            setting
        )
        kept.append(setting)
    assert {"norm_epsilon", "mlp_dim"} & set(kept) and len(rejected) > 20
    named = [error for setting, error in rejected if f"{setting}=" in error]
    # Other messages name a setting that depends on this one, such as head_dim on num_heads.
    assert len(named) > 0.7 * len(rejected)


def test_export_as_family_without_setting_raises(tmp_path):
    perturbed("bert").save_pretrained(tmp_path / "saved")
    config = recognize(open_source(str(tmp_path / "saved"))).config
    other = dataclasses.replace(config, norm_epsilon=1e-5)
    with refuses(ValueError, "distilbert", "norm_epsilon", "1e-05", "1e-12"):
        exported(tmp_path / "out", other, FAMILIES["distilbert"])
    with refuses(ValueError, "encoder", "gpt2", "decoder"):
        exported(tmp_path / "out", config, FAMILIES["gpt2"])
