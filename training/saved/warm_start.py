"""Warm start: a run that starts with the parameters of another one, matched by name and shape."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
from etils import epath
from jax.sharding import Mesh

from ...data import whole_files
from ...models.directories import own_file
from ...models.heads import CLASSIFIERS
from ...models.trees import named, nested
from .. import run_directory
from ..settings.run import Run
from ..state import Abstract, State, new_state
from .checkpoints import Checkpoints, MismatchError, damage_in_words


class WarmStart(NamedTuple):
    state: State
    source: str
    step: int  # of the checkpoint
    taken: tuple[str, ...]  # names of parameters
    fresh: tuple[str, ...]  # not in the checkpoint, or of other classes: as initialised
    unused: tuple[str, ...]  # of the checkpoint, not in the model

    def describe(self) -> str:
        sizes = {name: x.size for name, x in named(self.state.params).items()}
        count = sum(sizes[name] for name in self.taken)
        text = (
            f"Starting from step {self.step} of {self.source}: "
            f"{len(self.taken)} arrays, {count:,} parameters."
        )
        if self.fresh:
            text += f"\nNot there, or of other classes, and initialised: {', '.join(self.fresh)}"
        if self.unused:
            text += f"\nThere, and not used: {', '.join(self.unused)}"
        return text


def first_state(
    run: Run, shapes: Abstract, mesh: Mesh, classes: Sequence[str]
) -> tuple[State, str]:
    """Returns the state that a run starts with, and in words where its parameters are from, unless
    they are fresh; `classes` as for `warm_start`.

    Raises ValueError as `warm_start` and `check_same_vocabulary` do.
    """
    state = new_state(shapes, run.seed, mesh)
    if run.initial_run is None:
        return state, ""
    check_same_vocabulary(run.initial_run, run.run_dir)
    start = warm_start(run.initial_run, state, classes)
    return start.state, start.describe()


def warm_start(source: str, state: State, classes: Sequence[str] = ()) -> WarmStart:
    """Returns a fresh state with the parameters of the latest checkpoint of `source`.

    Args:
      source: a run directory, or a directory of checkpoints.
      state: step 0; its parameters keep their shardings. The optimizer starts anew.
      classes: that the run predicts, in order. Where the source names others, or in another order,
        the last layer of its classifiers would take one for another: it is left as initialised.

    Raises ValueError where there is no checkpoint, where a parameter has another shape there, where
    no name matches, or where one is damaged.
    """
    with _saved(source) as (checkpoints, step), damage_in_words(source, step):
        in_source, in_run = checkpoints.param_shapes(step), named(state.params)
        taken = sorted(in_run.keys() & in_source.keys())
        if _other_classes(source, classes):  # the last layer of a classifier has a column for each
            layers = tuple(f"projections_{head}/classifier/" for head in CLASSIFIERS)
            taken = [name for name in taken if not name.startswith(layers)]
        differ = [
            f"{name}: there {in_source[name]}, here {in_run[name].shape}"
            for name in taken
            if in_source[name] != in_run[name].shape
        ]
        if differ or not taken:
            reason = "; ".join(differ) or "no array has a name of this model's"
            raise MismatchError(
                f"Checkpoint {step} of {source} does not fit this model: {reason}. Configure the "
                "same model and vocabulary as that run's config.gin."
            )
        target = nested((name, _abstract(in_run[name])) for name in taken)
        loaded = named(checkpoints.load_params(step, target))
    return WarmStart(
        state._replace(params=nested((in_run | loaded).items())),
        source,
        step,
        tuple(taken),
        tuple(sorted(in_run.keys() - set(taken))),
        tuple(sorted(in_source.keys() - set(taken))),
    )


def _other_classes(source: str, classes: Sequence[str]) -> bool:
    in_source = run_directory.load_classes(source)
    return bool(in_source and classes) and in_source != list(classes)


def _abstract(x: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)


def check_source(source: str) -> None:
    """Raises ValueError where `source` holds nothing that `warm_start` can take."""
    with _saved(source):
        pass


@contextlib.contextmanager
def _saved(source: str) -> Iterator[tuple[Checkpoints, int]]:
    """The checkpoints of a source, and the step of the latest one."""
    folder = epath.Path(source) / run_directory.CHECKPOINTS
    with Checkpoints(str(folder if folder.exists() else source), keep=None) as checkpoints:
        steps = checkpoints.steps()
        if not steps:
            raise ValueError(
                f"initial_run = {source!r} holds no checkpoint: give the directory of a run that "
                "has saved one, or of its checkpoints."
            )
        yield checkpoints, steps[-1]


def check_same_vocabulary(source: str, run_dir: str) -> None:
    """Raises ValueError where two runs, if both have a vocabulary, have other tokenizers, or other
    ids of special tokens."""
    kept = [os.path.join(directory, run_directory.VOCABULARY) for directory in (source, run_dir)]
    if not all(map(os.path.exists, kept)):
        return
    in_source, in_run = (_kept_values(directory) for directory in (source, run_dir))
    moved = [
        f"{name} is {i} there and {in_run['names'][name]} here"
        for name, i in in_source["names"].items()
        if in_run["names"].get(name, i) != i
    ]
    if in_source["tokenizer"] != in_run["tokenizer"]:
        moved = ["the tokenizer is another one"]
    if moved:
        raise ValueError(
            f"The parameters of {source} are of another vocabulary than that of {run_dir}: "
            f"{', '.join(moved[:5])}. Give the corpus vocabularies.of_run, in a new run directory: "
            f"vocabularies.of_run.run = {source!r}."
        )


def _kept_values(directory: str) -> dict[str, Any]:
    """Returns the ids of special tokens by name, and values that identify the tokenizer."""
    file = os.path.join(directory, run_directory.VOCABULARY)
    values = whole_files.read_json(file)
    try:
        content = own_file(directory, values["file"]).read_bytes() if values["file"] else b""
        return {
            "names": dict(values["names"]),
            "tokenizer": (values["kind"], values["extra_ids"], content),
        }
    except (KeyError, TypeError, ValueError) as error:
        raise whole_files.damaged(file, error) from error
