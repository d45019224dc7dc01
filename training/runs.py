"""A run directory read back: the model that it trained, and its parameters."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gin
import jax
import jax.numpy as jnp

from models.trees import nested
from training.checkpoints import Checkpoints, damage_in_words
from training.configuration import configure


class Run(NamedTuple):
    """What a run directory holds of a model."""

    directory: str
    step: int  # of the checkpoint
    model: Any  # a `models.Model`
    params: dict  # float32, whole, on this machine's first device


def configured(parameter: str, otherwise: Any = None) -> Any:
    """What the gin files that were read bind to `train.train`'s parameter, a function or a value."""
    try:
        reference = gin.query_parameter(f"train.train.{parameter}")
    except ValueError:
        return otherwise
    while isinstance(reference, gin.config.ConfigurableReference):
        function = reference.scoped_configurable_fn
        reference = function() if reference.evaluate else function
    return reference


def open_run(directory: str) -> Run:
    """The model of a run, with the parameters of its latest checkpoint.

    The model has the heads that were saved, whatever objective it was trained with.

    Raises ValueError where `directory` is no run, has no checkpoint, or one that is damaged.
    """
    config = Path(directory) / "config.gin"
    if not config.is_file():
        raise ValueError(
            f"{directory} is no run directory: it holds no config.gin. Give the RUN_DIR of a run, or "
            "what convert.py wrote."
        )
    configure([str(config)], [])
    builder = configured("model")
    if builder is None:
        raise ValueError(f"{config} names no model: expected train.train.model = @models.NAME.")
    checkpoints = Checkpoints(checkpoint_directory(directory), keep=None)
    with contextlib.closing(checkpoints):
        if not checkpoints.steps():
            raise ValueError(f"{directory} holds no checkpoint: the run has saved none yet.")
        step = checkpoints.steps()[-1]
        with damage_in_words(directory, step):
            shapes = {
                name.removeprefix("params/"): shape
                for name, shape in checkpoints.shapes(step).items()
                if name.startswith("params/")
            }
            device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
            target = nested(
                (name, jax.ShapeDtypeStruct(shape, jnp.float32, sharding=device))
                for name, shape in shapes.items()
            )
            params = checkpoints.load_params(step, target)
    heads = saved_heads(shapes)
    model = _with_heads(builder, shapes["token_embedding"][0], heads)
    return Run(directory, step, model, params)


def checkpoint_directory(directory: str) -> str:
    """Where a run keeps its checkpoints; `configure` has read its config.gin."""
    return configured("checkpoint_dir") or os.path.join(directory, "checkpoints")


def saved_heads(shapes: dict[str, tuple[int, ...]]) -> tuple[str, ...]:
    """The heads that these parameters are of, but for a vocabulary head without any of its own."""
    tops = {name.partition("/")[0] for name in shapes}
    heads = tuple(
        sorted(t.removeprefix("projections_") for t in tops if t.startswith("projections_"))
    )
    return (("vocabulary",) if "vocabulary" in tops else ()) + heads


def _with_heads(builder: Callable, rows: int, heads: tuple[str, ...]):
    """The model with these heads, and the vocabulary's where that takes no parameters."""
    if "vocabulary" not in heads:
        model = builder(rows, ("vocabulary", *heads))
        c = model.config
        if c and c.logits_via_embedding and not (c.vocabulary_layer or c.vocabulary_bias):
            return model
    return builder(rows, heads)
