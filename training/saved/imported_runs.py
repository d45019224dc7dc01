"""A run directory of an imported model, from which other runs start and which every verb opens.

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
from ...settings.partial import Partial
from ...settings.gin_writer import one_line
from ...settings.run_directory import CHECKPOINTS, check_place, is_run
from ..run import padded_vocabulary
from ..run_file import run_text
from ..state import State
from .checkpoints import Checkpoints

CORPORA = ("text_files", "python_library")  # which are to take the imported vocabulary
OF_VOCABULARY = (  # a row for each id
    *("token_embedding", "encoder_embedding", "vocabulary/embedding", "vocabulary/bias"),
)


def check_new(run_dir: str) -> None:
    """Raises ValueError if the directory holds a run already or cannot hold checkpoints."""
    check_place(os.path.join(run_dir, CHECKPOINTS))
    if is_run(run_dir):
        raise ValueError(
            f"{run_dir} holds a run already: convert to a new directory, or delete it."
        )


def embedding_rows(model: Model, ids: TokenIds | None) -> int:
    """Rows of the embedding: the model's, and more where its vocabulary got further ids."""
    if ids is None or ids.size <= model.vocab_size:
        return model.vocab_size
    return padded_vocabulary(ids)


def write_parameters(run_dir: str, arrays: Iterable[tuple[str, np.ndarray]], rows: int) -> int:
    """Writes the checkpoint of step 0; returns the number of parameters.

    All of `arrays`, (path, array) each, are read before anything is written; `rows` of the
    embedding beyond the model's are the mean of those.
    """
    params = nested(
        (path, jax.device_put(with_rows(path, array, rows), may_alias=True))
        for path, array in arrays
    )
    os.makedirs(run_dir, exist_ok=True)
    with Checkpoints(os.path.join(run_dir, CHECKPOINTS)) as checkpoints:
        checkpoints.save(State(jnp.int32(0), params, {}), {}, one_by_one=True)
    return sum(x.size for x in jax.tree.leaves(params))


def with_rows(path: str, array: np.ndarray, rows: int) -> np.ndarray:
    """The array; of the vocabulary, with the mean of its rows for each row that it lacks.

    >>> with_rows("token_embedding", np.array([[1.0], [3.0]]), 3)
    array([[1.],
           [3.],
           [2.]])
    """
    if path not in OF_VOCABULARY or len(array) == rows:
        return array
    mean = array.mean(0, keepdims=True)
    return np.concatenate([array, np.repeat(mean, rows - len(array), 0)])


def config_text(
    run_dir: str, source: str, layout: str, settings: Mapping[str, Any], rows: int
) -> str:
    """The gin file of a model imported from "hf:DIR" or "t5x:DIR", for a run to include.

    `layout` is the builder among `models`, `settings` its keywords, `rows` the embedding's.
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
        # Without one there too: to learn another vocabulary would make the embeddings nonsense.
        *(f"corpora.{name}.vocabulary = @vocabularies.from_run" for name in CORPORA),
        f"vocabularies.from_run.run = {run_dir!r}",
    ]
    return "\n".join(lines) + "\n"


def settings_of(model: Model) -> dict[str, Any]:
    """The keywords with which the model's builder makes its network, heads left out."""
    assert model.config is not None  # an imported model is built from one
    values = dataclasses.asdict(model.config)
    for name in ("vocab_size", "heads", "num_ahead", "ahead"):
        del values[name]
    if model.layout != "encoder_decoder":
        values["num_layers"] = values.pop(f"num_{model.layout}_layers")
        values.pop("num_encoder_layers", None)
        values.pop("num_decoder_layers", None)
    return values
