"""Loads the trained model of a run directory, with its parameters."""

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, SingleDeviceSharding

from ...models import Model
from ...models.builders import abstract_params
from ...models.heads import HEADS
from ...models.trees import flattened
from ...objectives import TokenIds
from ...objectives.contract import with_corpus_classes
from ...settings import run_directory, run_ids
from ..devices.mesh import shardings_of
from ..run import padded_vocabulary
from ..run_configuration import read_directory
from ..state import unboxed
from .checkpoints import Checkpoints, array_differences, reading_errors


class SavedModel(NamedTuple):
    """The model of a run directory, with the parameters of one checkpoint."""

    directory: str
    step: int  # step of the checkpoint
    model: Any  # a `models.Model`
    params: dict  # float32 parameters
    fields: Mapping[str, Any]  # fields of its config.gin


def open_saved_model(
    directory: str,
    step: int | None = None,
    mesh: Mesh | None = None,
    model: Model | None = None,
    fields: Mapping[str, Any] | None = None,
) -> SavedModel:
    """Returns the model of a run with the parameters of a checkpoint.

    Args:
      step: step of the checkpoint. None: the latest checkpoint.
      mesh: mesh over which the parameters are sharded as in training. None: all parameters are on
        the first device of this machine.
      model: the model, as built by the run's plan or by `model_of_run`. None: the model is built
        with the heads that were saved. This works for the models of this package.
      fields: fields of the directory's config.gin (`read_directory`). None: they are read, and may
        name only functions of this package.

    Raises ValueError if `directory` is not a run or has no such checkpoint. Also raises ValueError
    if the checkpoint is damaged or belongs to another model.
    """
    fields = read_directory(directory) if fields is None else fields
    builder = fields.get("model")
    if builder is None:
        raise ValueError(
            f"{directory}/config.gin names no model: expected training.Run.model = @models.NAME."
        )

    def load(step: int) -> SavedModel:
        with reading_errors(directory, step):
            shapes = checkpoints.param_shapes(step)
        built = model
        if built is None:
            rows = _embedding_rows(shapes, f"Checkpoint {step} of {directory}")
            with setting_errors(directory):
                built = _saved_model(builder, shapes, rows)
        target = placed(abstract_params(built), mesh)
        different = array_differences(
            shapes, {name: x.shape for name, x in flattened(target).items()}
        )
        if different:
            raise ValueError(
                f"Checkpoint {step} of {directory} is of another model than its config.gin builds: "
                "the file was changed, or another version of pretrax wrote it.\n"
                + "\n".join(different[:5])
            )
        with reading_errors(directory, step):
            params = checkpoints.load_params(step, target)
        return SavedModel(directory, step, built, params, fields)

    with _saved(directory, fields) as checkpoints:
        if step is None:
            loaded = checkpoints.read_latest(load)
            if loaded is None:
                raise ValueError(f"{directory} holds no checkpoint: the run has saved none yet.")
            return loaded
        if step not in (steps := checkpoints.steps()):
            raise ValueError(f"{directory} holds no checkpoint of step {step}, but of {steps}.")
        return load(step)


def model_of_run(fields: Mapping[str, Any], ids: TokenIds, num_classes: int) -> Model | None:
    """Returns the model of a run with the heads of its objective.

    Returns None if the fields contain no model or no objective.

    Args:
      num_classes: number of classes in the run's classes.json, for objectives that count them.
    """
    if fields.get("model") is None or fields.get("objective") is None:
        return None
    rows = padded_vocabulary(ids, fields.get("vocabulary_rows"))
    objective = with_corpus_classes(fields["objective"](ids), num_classes)
    return fields["model"](rows, objective.facts.heads)


@contextlib.contextmanager
def setting_errors(directory: str) -> Iterator[None]:
    """Turns errors of a run's functions into a ValueError that names its config.gin."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{directory}/{run_directory.CONFIG}: {error}") from error
    except (TypeError, AttributeError, ArithmeticError) as error:
        raise ValueError(
            f"{directory}/{run_directory.CONFIG} gives its model or its objective a value of the "
            f"wrong type: {error}."
        ) from error


def _embedding_rows(shapes: dict[str, tuple[int, ...]], where: str) -> int:
    rows = next((x[0] for n, x in shapes.items() if n.endswith("token_embedding")), None)
    if rows is None:
        raise ValueError(
            f"{where} holds no token_embedding, so its model is not one of `models`, and its heads "
            "cannot be inferred from its parameters: expected a run with an objective and a "
            "vocabulary."
        )
    return rows


def _saved_model(builder: Callable, shapes: dict[str, tuple[int, ...]], rows: int) -> Model:
    model = builder(rows)
    heads = saved_heads(shapes)
    c = model.config
    if c is None:  # pairs of stacks have fixed heads
        return model
    # The vocabulary's head may have no parameters of its own.
    if c.logits_via_embedding and not (c.vocabulary_layer or c.vocabulary_bias):
        heads = {"vocabulary": None, **heads}
    return builder(rows, heads)


def placed(params, mesh: Mesh | None) -> dict:
    """Returns abstract parameters with their shardings.

    The parameters are sharded over a mesh as in training. Without a mesh they go to the first
    device.
    """

    def abstract(x, sharding):
        return jax.ShapeDtypeStruct(x.shape, jnp.float32, sharding=sharding)

    if mesh is not None:
        return jax.tree.map(abstract, unboxed(params), shardings_of(params, mesh))
    first = SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(lambda x: abstract(x, first), unboxed(params))


def saved_steps(directory: str, trusted: Collection[str] = ()) -> list[int]:
    """Returns the steps of a run's checkpoints. Raises ValueError if it is not a run directory."""
    with _saved(directory, read_directory(directory, trusted)) as checkpoints:
        return checkpoints.steps()


def _saved(directory: str, fields: Mapping[str, Any]) -> Checkpoints:
    where = run_ids.own_checkpoints(directory, fields.get("checkpoint_dir"))
    return Checkpoints(where, keep=None)


def saved_heads(shapes: dict[str, tuple[int, ...]]) -> dict[str, int | None]:
    """Returns the heads that have parameters. A classifier has its number of classes as value."""
    tops = {name.partition("/")[0] for name in shapes}
    heads: dict[str, int | None] = {"vocabulary": None} if "vocabulary" in tops else {}
    for top in sorted(tops):
        if top.startswith("projections_"):
            classifier = shapes.get(f"{top}/classifier/kernel")
            heads[top.removeprefix("projections_")] = classifier[-1] if classifier else None
    for head in HEADS.values():
        if head.scope and any(name.startswith(f"decoder/{head.scope}/") for name in shapes):
            heads[head.name] = None
    return heads | {f"ahead_{k + 2}": None for k in range(_num_ahead(shapes))}


def _num_ahead(shapes: dict[str, tuple[int, ...]]) -> int:
    """Returns the number of tokens after the next token that these parameters predict."""

    def count(kind: str, norm: str = "layer/mlp_norm") -> int:
        scale = "decoder/ahead/{}/" + norm + "/scale"
        scanned = shapes.get(scale.format(kind), (0,))[0]
        return scanned or sum(scale.format(f"{kind}_{k}") in shapes for k in range(64))

    return max(count("layers") - 1, count("modules"), count("modules", "norm"), 0)
