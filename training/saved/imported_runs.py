"""Writes the run directory of an imported model, which all commands can open.

For example:

    write_parameters("runs/t5", arrays, rows)       # checkpoints/0
    config_text("runs/t5", "hf:t5", "encoder_decoder", settings, rows)      # of its config.gin
"""

import dataclasses
import os
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ... import models
from ...models import Model
from ...models.trees import nested
from ...objectives import TokenIds
from ...settings.gin_writer import one_line
from ...settings.partial import Partial
from ...settings.run_directory import CHECKPOINTS, check_place, is_run
from ..run import padded_vocabulary
from ..run_file import run_text
from ..state import State, parameter_count
from .checkpoints import Checkpoints

CORPORA = ("text_files", "python_library")  # corpora that use the imported vocabulary
# Parameters with a row for each id.
VOCABULARY_PARAMETERS = frozenset(
    ("token_embedding", "encoder_embedding", "vocabulary/embedding", "vocabulary/bias")
)


def check_new(run_dir: str) -> None:
    """Raises ValueError if the directory holds a run already or cannot hold checkpoints."""
    check_place(os.path.join(run_dir, CHECKPOINTS))
    if is_run(run_dir):
        raise ValueError(
            f"{run_dir} holds a run already: convert to a new directory, or delete it."
        )


def embedding_rows(model: Model, ids: TokenIds | None) -> int:
    """Returns the number of rows of the embedding, including rows for ids that were added."""
    if ids is None or ids.size <= model.vocab_size:
        return model.vocab_size
    return padded_vocabulary(ids)


def write_parameters(run_dir: str, arrays: Iterable[tuple[str, np.ndarray]], rows: int) -> int:
    """Writes the checkpoint of step 0; returns the number of parameters.

    All arrays are read before anything is written.

    Args:
      arrays: (path, array) of each parameter.
      rows: number of rows of the embedding. Added rows are the mean of the model's rows.
    """
    params = nested(
        (path, jax.device_put(with_rows(path, array, rows), may_alias=True))
        for path, array in arrays
    )
    os.makedirs(run_dir, exist_ok=True)
    with Checkpoints(os.path.join(run_dir, CHECKPOINTS)) as checkpoints:
        checkpoints.save(State(jnp.int32(0), params, {}), {}, one_by_one=True)
    return parameter_count(params)


def with_rows(path: str, array: np.ndarray, rows: int) -> np.ndarray:
    """Returns the array. Missing rows of the vocabulary are filled with the mean of its rows.

    >>> with_rows("token_embedding", np.array([[1.0], [3.0]]), 3)
    array([[1.],
           [3.],
           [2.]])
    """
    if path not in VOCABULARY_PARAMETERS or len(array) == rows:
        return array
    mean = array.mean(0, keepdims=True)
    return np.concatenate([array, np.repeat(mean, rows - len(array), 0)])


def config_text(
    run_dir: str, source: str, layout: str, settings: Mapping[str, Any], rows: int
) -> str:
    """Returns the gin file of an imported model, which a run can include.

    Args:
      source: source of the import, "hf:DIR" or "t5x:DIR".
    """
    model = Partial(getattr(models, layout), **settings)
    fields = {"model": model, "initial_run": run_dir, "vocabulary_rows": rows}
    command = one_line(f"pretrax convert --from={source} --to={run_dir}")
    lines = [
        f"# Written by `{command}`: a model to train further.",
        "",
        run_text(fields).text,
        "from pretrax import corpora",
        "from pretrax.corpora import vocabularies",
        "",
        # This holds even without an imported vocabulary: the embeddings fit no other vocabulary.
        *(f"corpora.{name}.vocabulary = @vocabularies.from_run" for name in CORPORA),
        f"vocabularies.from_run.run = {run_dir!r}",
    ]
    return "\n".join(lines) + "\n"


def settings_of(model: Model) -> dict[str, Any]:
    """Returns the keyword arguments of the model's builder, without heads."""
    assert model.config is not None  # every imported model has a configuration
    values = dataclasses.asdict(model.config)
    for name in ("vocab_size", "heads", "num_ahead", "ahead"):
        del values[name]
    if model.layout != "encoder_decoder":
        values["num_layers"] = values.pop(f"num_{model.layout}_layers")
        values.pop("num_encoder_layers", None)
        values.pop("num_decoder_layers", None)
    return values
