"""A run directory read back: the model that it trained, and its parameters."""

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, SingleDeviceSharding

from ...models import Model
from ...models.builders import abstract_params
from ...models.trees import named
from ...objectives import TokenIds
from ...objectives.contract import with_counted_classes
from ...settings import run_directory, run_ids
from ..devices.mesh import shardings_of
from ..run import padded_vocabulary
from ..run_configuration import read_directory
from ..state import unboxed
from .checkpoints import Checkpoints, damage_in_words, differences


class SavedModel(NamedTuple):
    """The model of a run directory, with the parameters of one checkpoint."""

    directory: str
    step: int  # of the checkpoint
    model: Any  # a `models.Model`
    params: dict  # float32


def open_run(
    directory: str,
    step: int | None = None,
    mesh: Mesh | None = None,
    model: Model | None = None,
    trusted: Collection[str] = (),
) -> SavedModel:
    """The model of a run, with the parameters of its latest checkpoint, or of that of a step.

    Args:
      model: as its plan builds it, or `model_of_run`. None: it is built anew with the heads that
        were saved, which can be told of the models of this package.
      trusted: modules that the directory may name, see `settings.trust`.

    The parameters are spread over the mesh as in training, or, without one, whole on this machine's
    first device.

    Raises ValueError where `directory` is no run, has no such checkpoint, or one that is damaged or
    of another model.
    """
    return load_model(directory, read_directory(directory, trusted), step, mesh, model)


def load_model(
    directory: str,
    fields: Mapping[str, Any],
    step: int | None = None,
    mesh: Mesh | None = None,
    model: Model | None = None,
) -> SavedModel:
    """Does what `open_run` does, with the fields of the run's config.gin, once they are read."""
    builder = fields.get("model")
    if builder is None:
        raise ValueError(
            f"{directory}/config.gin names no model: expected training.Run.model = @models.NAME."
        )

    def load(step: int) -> SavedModel:
        with damage_in_words(directory, step):
            shapes = checkpoints.param_shapes(step)
        built = model
        if built is None:
            rows = _embedding_rows(shapes, f"Checkpoint {step} of {directory}")
            with settings_in_words(directory):
                built = _saved_model(builder, shapes, rows)
        target = placed(abstract_params(built), mesh)
        different = differences(shapes, {name: x.shape for name, x in named(target).items()})
        if different:
            raise ValueError(
                f"Checkpoint {step} of {directory} is of another model than its config.gin builds: "
                "it was changed since, or written by another version of this code.\n"
                + "\n".join(different[:5])
            )
        with damage_in_words(directory, step):
            params = checkpoints.load_params(step, target)
        return SavedModel(directory, step, built, params)

    with _saved(directory, fields) as checkpoints:
        if step is None:
            loaded = checkpoints.read_latest(load)
            if loaded is None:
                raise ValueError(f"{directory} holds no checkpoint: the run has saved none yet.")
            return loaded
        if step not in (steps := checkpoints.steps()):
            raise ValueError(f"{directory} holds no checkpoint of step {step}, but of {steps}.")
        return load(step)


def model_of_run(fields: Mapping[str, Any], ids: TokenIds, num_classes: int = 0) -> Model | None:
    """The model of a run's fields, with the heads that its objective needs; None: it has none.

    `num_classes` is of the run's classes.json, which an objective may have counted.
    """
    if fields.get("model") is None or fields.get("objective") is None:
        return None
    rows = padded_vocabulary(ids, fields.get("vocabulary_rows"))
    objective = with_counted_classes(fields["objective"](ids), num_classes)
    return fields["model"](rows, objective.facts.heads)


@contextlib.contextmanager
def settings_in_words(directory: str) -> Iterator[None]:
    """Names the file where a setting of the wrong kind or value ends a call of what a run names."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{directory}/{run_directory.CONFIG}: {error}") from error
    except (TypeError, AttributeError, ArithmeticError) as error:
        raise ValueError(
            f"{directory}/{run_directory.CONFIG} gives its model or its objective a value of "
            f"another kind than expected: {error}."
        ) from error


def _embedding_rows(shapes: dict[str, tuple[int, ...]], where: str) -> int:
    """The rows of the token embedding among parameters of these shapes."""
    rows = next((x[0] for n, x in shapes.items() if n.endswith("token_embedding")), None)
    if rows is None:
        raise ValueError(
            f"{where} holds no token_embedding, so its model is none of `models`, and its heads "
            "cannot be told by its parameters: expected a run with an objective and a vocabulary."
        )
    return rows


def _saved_model(builder: Callable, shapes: dict[str, tuple[int, ...]], rows: int) -> Model:
    """The model that has parameters of these shapes."""
    model = builder(rows)
    heads = saved_heads(shapes)
    c = model.config
    if c is None:  # pairs of stacks have the heads that they have
        return model
    # The vocabulary's head may take no parameters.
    if c.logits_via_embedding and not (c.vocabulary_layer or c.vocabulary_bias):
        heads = {"vocabulary": None, **heads}
    return builder(rows, heads)


def placed(params, mesh: Mesh | None) -> dict:
    """Returns abstract parameters with where they go: over a mesh as in training, or, without one,
    to the first device."""

    def abstract(x, sharding):
        return jax.ShapeDtypeStruct(x.shape, jnp.float32, sharding=sharding)

    if mesh is not None:
        return jax.tree.map(abstract, unboxed(params), shardings_of(params, mesh))
    first = SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(lambda x: abstract(x, first), unboxed(params))


def saved_steps(directory: str, trusted: Collection[str] = ()) -> list[int]:
    """The steps of a run's checkpoints. Raises ValueError where `directory` is no run."""
    with _saved(directory, read_directory(directory, trusted)) as checkpoints:
        return checkpoints.steps()


def _saved(directory: str, fields: Mapping[str, Any]) -> Checkpoints:
    where = run_ids.own_checkpoints(directory, fields.get("checkpoint_dir"))
    return Checkpoints(where, keep=None)


def saved_heads(shapes: dict[str, tuple[int, ...]]) -> dict[str, int | None]:
    """The heads that have parameters here, with their numbers of classes where they classify."""
    tops = {name.partition("/")[0] for name in shapes}
    heads: dict[str, int | None] = {"vocabulary": None} if "vocabulary" in tops else {}
    for top in sorted(tops):
        if top.startswith("projections_"):
            classifier = shapes.get(f"{top}/classifier/kernel")
            heads[top.removeprefix("projections_")] = classifier[-1] if classifier else None
    if any(name.startswith("decoder/dynamics/") for name in shapes):
        heads["next_latent"] = None
    return heads | {f"ahead_{k + 2}": None for k in range(_num_ahead(shapes))}


def _num_ahead(shapes: dict[str, tuple[int, ...]]) -> int:
    """How many tokens beyond the next these parameters predict."""

    def count(kind: str, norm: str = "layer/mlp_norm") -> int:
        scale = "decoder/ahead/{}/" + norm + "/scale"
        scanned = shapes.get(scale.format(kind), (0,))[0]
        return scanned or sum(scale.format(f"{kind}_{k}") in shapes for k in range(64))

    return max(count("layers") - 1, count("modules"), count("modules", "norm"), 0)
