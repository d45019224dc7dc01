r"""Warm start: initializes a run with the parameters of another run, matched by name and shape.

This assignment map starts both stacks of an encoder-decoder from a decoder (arXiv:2504.06225):

    assignment_map = {
        r"encoder/(.*)": r"decoder/\1",
        r"decoder/(.*)/cross_attention(.*)": r"decoder/\1/self_attention\2",
    }
"""

import os
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from etils import epath
from jax.sharding import Mesh

from ...models.heads import classifiers
from ...models.trees import flattened, nested
from ...settings import atomic_writes, run_directory, run_ids
from ...settings.directories import own_file
from ..run import Run
from ..state import AbstractState, State, new_state, with_initial_ema
from .checkpoints import Checkpoints, MismatchError, reading_errors


class WarmStart(NamedTuple):
    """The first state of a run, and the origin of its parameters."""

    state: State
    source: str  # run directory or folder of checkpoints
    step: int  # step of the checkpoint
    taken: tuple[str, ...]  # names of the parameters from the checkpoint
    fresh: tuple[str, ...]  # names of the parameters that were initialized
    unused: tuple[str, ...]  # names of parameters that only the checkpoint has

    def describe(self) -> str:
        sizes = {name: x.size for name, x in flattened(self.state.params).items()}
        count = sum(sizes[name] for name in self.taken)
        text = (
            f"Starting from step {self.step} of {self.source}: "
            f"{len(self.taken)} arrays, {count:,} parameters."
        )
        if self.fresh:
            text += (
                "\nInitialized, since they are missing there or have other classes: "
                f"{', '.join(self.fresh)}"
            )
        if self.unused:
            text += f"\nThere, but not used: {', '.join(self.unused)}"
        return text


def first_state(
    run: Run, abstract: AbstractState, mesh: Mesh, classes: Sequence[str]
) -> tuple[State, str]:
    """Returns the first state of a run, and a note about the origin of its parameters.

    The note is "" if the parameters are random.

    Raises ValueError if the checkpoint or the vocabulary of `Run.initial_run` does not fit.
    """
    state = new_state(abstract, run.seed, mesh)
    if run.initial_run is None:
        return state, ""
    check_same_vocabulary(run.initial_run, run.run_dir)
    start = warm_start(run.initial_run, state, classes, run.assignment_map or {})
    return start.state, start.describe()


def source_name(name: str, assignment_map: Mapping[str, str]) -> str:
    r"""Returns the name that a parameter of this model has in the source of a warm start.

    >>> source_name("encoder/layers/mlp/wo", {r"encoder/(.*)": r"decoder/\1"})
    'decoder/layers/mlp/wo'
    """
    for pattern, name_in_source in assignment_map.items():
        if match := re.fullmatch(pattern, name):
            return match.expand(name_in_source)
    return name


def warm_start(
    source: str,
    state: State,
    classes: Sequence[str] = (),
    assignment_map: Mapping[str, str] = {},
) -> WarmStart:
    """Returns a fresh state with the parameters of the latest checkpoint of `source`.

    Args:
      source: a run directory or a directory of checkpoints. The checkpoints of a run may be in
        another folder (`Run.checkpoint_dir`).
      state: the state of step 0. The parameters keep their shardings, and the optimizer keeps its
        initial state.
      classes: the classes that the run predicts, in order. If the source has other classes or
        another order, the last layers of classifiers stay as initialized.
      assignment_map: patterns of parameter names -> names in the source, see `Run.assignment_map`.

    Raises ValueError if there is no checkpoint or it is damaged. Also raises ValueError if a
    parameter has another shape there, or if no name or no pattern of the map matches.
    """
    in_run = flattened(state.params)

    def start(step: int) -> WarmStart:
        with reading_errors(source, step):
            in_source = checkpoints.param_shapes(step)
            names = _matched_names(source, step, in_source, in_run, classes, assignment_map)
            params = in_run | _loaded(checkpoints, step, in_run, names)
        warmed = state._replace(params=nested(params.items()))
        return WarmStart(
            state=warmed if state.ema is None else with_initial_ema(warmed),
            source=source,
            step=step,
            taken=tuple(names),
            fresh=tuple(sorted(in_run.keys() - names.keys())),
            unused=tuple(sorted(in_source.keys() - set(names.values()))),
        )

    with _open_checkpoints(source) as checkpoints:
        started = checkpoints.read_latest(start)
    if started is None:
        raise _no_checkpoint(source)
    return started


def _matched_names(
    source: str,
    step: int,
    in_source: Mapping[str, tuple[int, ...]],
    in_run: Mapping[str, jax.Array],
    classes: Sequence[str],
    assignment_map: Mapping[str, str],
) -> dict[str, str]:
    """Returns the names of the parameters that a run takes, each with its name in the source.

    Raises MismatchError for a pattern that matches nothing, a parameter of another shape, and a
    source without any parameter of the run.
    """
    names = {name: source_name(name, assignment_map) for name in sorted(in_run)}
    names = {name: original for name, original in names.items() if original in in_source}
    for pattern in assignment_map:
        if not any(re.fullmatch(pattern, name) for name in names):
            raise MismatchError(
                f"Got {pattern!r} in training.Run.assignment_map, which fits no parameter of "
                f"this model that checkpoint {step} of {source} has: leave it out, or correct "
                f"it. The checkpoint has {_first_names(in_source)}. The model has "
                f"{_first_names(in_run)}."
            )
    source_classes = run_directory.load_classes(source)
    if source_classes and classes and source_classes != list(classes):
        # A classifier's last layer has a column for each class.
        layers = tuple(f"projections_{head}/classifier/" for head in classifiers())
        names = {name: x for name, x in names.items() if not name.startswith(layers)}
    different = [
        f"{name}: there {in_source[original]}, here {in_run[name].shape}"
        for name, original in names.items()
        if in_source[original] != in_run[name].shape
    ]
    if different or not names:
        reason = "; ".join(different) or "no array has the name of a parameter of this model"
        raise MismatchError(
            f"Checkpoint {step} of {source} does not fit this model: {reason}. Configure the "
            "same model and vocabulary as that run's config.gin."
        )
    return names


def _loaded(
    checkpoints: Checkpoints, step: int, in_run: Mapping[str, jax.Array], names: Mapping[str, str]
) -> dict[str, jax.Array]:
    """Returns loaded parameters by their names in this model.

    Each parameter is a separate array, so that a step may donate it. A source parameter that
    several parameters take is therefore read several times.
    """
    loaded: dict[str, jax.Array] = {}
    while left := {name: x for name, x in names.items() if name not in loaded}:
        name_of_original = {original: name for name, original in left.items()}
        arrays_like = {original: in_run[name] for original, name in name_of_original.items()}
        target = nested(
            (original, jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding))
            for original, x in arrays_like.items()
        )
        arrays = flattened(checkpoints.load_params(step, target))
        loaded |= {name: arrays[original] for original, name in name_of_original.items()}
    return loaded


def _first_names(names: Collection[str]) -> str:
    return ", ".join(sorted(names)[:4]) + ", …" * (len(names) > 4)


def check_source(source: str) -> None:
    """Raises ValueError if `source` holds no checkpoint for `warm_start`."""
    with _open_checkpoints(source) as checkpoints:
        if not checkpoints.steps():
            raise _no_checkpoint(source)


def _open_checkpoints(source: str) -> Checkpoints:
    return Checkpoints(_folder(source), keep=None)


def _no_checkpoint(source: str) -> ValueError:
    return ValueError(
        f"initial_run = {source!r} has no checkpoint in {_folder(source)}: train that run first, "
        "or give another run or folder of checkpoints by --gin.training.Run.initial_run, which is "
        "--initial_run in the runs for fine-tuning."
    )


def _folder(source: str) -> str:
    """Returns the checkpoint folder of a source, which may be the source itself."""
    run_directory.check_place(source)
    if run_directory.is_run(source):
        # Imported here, since a run in Python does not need gin.
        from ...settings.gin_reader import plain_fields

        elsewhere = plain_fields(source).get("checkpoint_dir")
        return run_ids.own_checkpoints(source, elsewhere)
    folder = epath.Path(source) / run_directory.CHECKPOINTS
    return str(folder if folder.exists() else source)


def check_same_vocabulary(source: str, run_dir: str) -> None:
    """Raises ValueError if two runs have different tokenizers or ids of special tokens.

    Nothing is checked if one of them has no vocabulary.
    """
    files = [os.path.join(directory, run_directory.VOCABULARY) for directory in (source, run_dir)]
    if not all(map(os.path.exists, files)):
        return
    in_source, in_run = (_kept_values(directory) for directory in (source, run_dir))
    moved = [
        f"{name} is {i} there and {in_run['names'][name]} here"
        for name, i in in_source["names"].items()
        if in_run["names"].get(name, i) != i
    ]
    if in_source["tokenizer"] != in_run["tokenizer"]:
        moved = ["the tokenizers differ"]
    if moved:
        raise ValueError(
            f"The parameters of {source} are for another vocabulary than the one in {run_dir}: "
            f"{', '.join(moved[:5])}. Start in a new run directory with the vocabulary "
            f"vocabularies.from_run and vocabularies.from_run.run = {source!r}."
        )


def _kept_values(directory: str) -> dict[str, Any]:
    """Returns the ids of special tokens by name, and values that identify the tokenizer."""
    file = os.path.join(directory, run_directory.VOCABULARY)
    values = atomic_writes.read_json(file)
    try:
        content = own_file(directory, values["file"]).read_bytes() if values["file"] else b""
        return {
            "names": dict(values["names"]),
            "tokenizer": (values["kind"], values["extra_ids"], content),
        }
    except (KeyError, TypeError, ValueError) as error:
        raise atomic_writes.damaged(file, error) from error
