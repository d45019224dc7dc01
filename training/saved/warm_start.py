"""Warm start: a run that starts with the parameters of another one, matched by name and shape.

From a decoder to an encoder-decoder with its layers in both stacks (arXiv:2504.06225), a run has

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
from ...models.trees import named, nested
from ...settings import run_directory, run_ids, atomic_writes
from ...settings.directories import own_file
from ..run import Run
from ..state import Abstract, State, averaged_from_here, new_state
from .checkpoints import Checkpoints, MismatchError, damage_in_words


class WarmStart(NamedTuple):
    state: State
    source: str
    step: int  # of the checkpoint
    taken: tuple[str, ...]  # names of parameters
    fresh: tuple[str, ...]  # not in the checkpoint, or of other classes: as initialized
    unused: tuple[str, ...]  # of the checkpoint, not in the model

    def describe(self) -> str:
        sizes = {name: x.size for name, x in named(self.state.params).items()}
        count = sum(sizes[name] for name in self.taken)
        text = (
            f"Starting from step {self.step} of {self.source}: "
            f"{len(self.taken)} arrays, {count:,} parameters."
        )
        if self.fresh:
            text += f"\nNot there, or of other classes, and initialized: {', '.join(self.fresh)}"
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
    start = warm_start(run.initial_run, state, classes, run.assignment_map or {})
    return start.state, start.describe()


def name_there(name: str, assignment_map: Mapping[str, str]) -> str:
    r"""Returns the name that a parameter of this model has in the source of a warm start.

    >>> name_there("encoder/layers/mlp/wo", {r"encoder/(.*)": r"decoder/\1"})
    'decoder/layers/mlp/wo'
    """
    for pattern, there in assignment_map.items():
        if found := re.fullmatch(pattern, name):
            return found.expand(there)
    return name


def warm_start(
    source: str,
    state: State,
    classes: Sequence[str] = (),
    assignment_map: Mapping[str, str] = {},
) -> WarmStart:
    """Returns a fresh state with the parameters of the latest checkpoint of `source`.

    Args:
      source: a run directory, whose checkpoints may lie elsewhere (`Run.checkpoint_dir`), or a
        directory of checkpoints.
      state: step 0; its parameters keep their shardings. The optimizer starts anew.
      classes: that the run predicts, in order. Where the source names others, or in another order,
        the last layer of its classifiers would take one for another: it is left as initialized.
      assignment_map: names of parameters there by patterns of names here: `Run.assignment_map`.

    Raises ValueError where there is no checkpoint, where a parameter has another shape there, where
    no name or no pattern of the map matches, or where one is damaged.
    """

    def start(step: int) -> WarmStart:
        with damage_in_words(source, step):
            return _started(checkpoints, step, source, state, classes, assignment_map)

    with _saved(source) as checkpoints:
        started = checkpoints.read_latest(start)
    if started is None:
        raise _no_checkpoint(source)
    return started


def _started(
    checkpoints: Checkpoints,
    step: int,
    source: str,
    state: State,
    classes: Sequence[str],
    assignment_map: Mapping[str, str],
) -> WarmStart:
    """Does what `warm_start` does, from the checkpoint of one step."""
    in_source = checkpoints.param_shapes(step)
    in_run = named(state.params)
    there = {name: name_there(name, assignment_map) for name in in_run}
    taken = sorted(name for name in in_run if there[name] in in_source)
    for pattern in assignment_map:
        if not any(re.fullmatch(pattern, name) for name in taken):
            raise MismatchError(
                f"Got {pattern!r} in training.Run.assignment_map, which fits no parameter of "
                f"this model that checkpoint {step} of {source} has: leave it out, or correct "
                f"it. Those there are {_some(in_source)}, those here {_some(in_run)}."
            )
    if _other_classes(source, classes):  # the last layer of a classifier has a column for each
        layers = tuple(f"projections_{head}/classifier/" for head in classifiers())
        taken = [name for name in taken if not name.startswith(layers)]
    differ = [
        f"{name}: there {in_source[there[name]]}, here {in_run[name].shape}"
        for name in taken
        if in_source[there[name]] != in_run[name].shape
    ]
    if differ or not taken:
        reason = "; ".join(differ) or "no array has a name of this model's"
        raise MismatchError(
            f"Checkpoint {step} of {source} does not fit this model: {reason}. Configure the "
            "same model and vocabulary as that run's config.gin."
        )
    names = {name: there[name] for name in taken}
    loaded = _loaded(checkpoints, step, in_run, names)
    warmed = state._replace(params=nested((in_run | loaded).items()))
    return WarmStart(
        warmed if state.ema is None else averaged_from_here(warmed),
        source,
        step,
        tuple(taken),
        tuple(sorted(in_run.keys() - set(taken))),
        tuple(sorted(in_source.keys() - set(names.values()))),
    )


def _loaded(
    checkpoints: Checkpoints, step: int, in_run: Mapping[str, jax.Array], there: Mapping[str, str]
) -> dict[str, jax.Array]:
    """Returns parameters by their names here, each an array of its own, which a step may donate.

    One that several here are taken from is read as often.
    """
    loaded: dict[str, jax.Array] = {}
    while left := {here: name for here, name in there.items() if here not in loaded}:
        one_each = {name: here for here, name in left.items()}
        target = nested((name, _abstract(in_run[here])) for name, here in one_each.items())
        arrays = named(checkpoints.load_params(step, target))
        loaded |= {here: arrays[name] for name, here in one_each.items()}
    return loaded


def _some(names: Collection[str], shown: int = 4) -> str:
    return ", ".join(sorted(names)[:shown]) + ", …" * (len(names) > shown)


def _other_classes(source: str, classes: Sequence[str]) -> bool:
    in_source = run_directory.load_classes(source)
    return bool(in_source and classes) and in_source != list(classes)


def _abstract(x: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)


def check_source(source: str) -> None:
    """Raises ValueError where `source` holds nothing that `warm_start` can take."""
    with _saved(source) as checkpoints:
        if not checkpoints.steps():
            raise _no_checkpoint(source)


def _saved(source: str) -> Checkpoints:
    return Checkpoints(_folder(source), keep=None)


def _no_checkpoint(source: str) -> ValueError:
    return ValueError(
        f"initial_run = {source!r} holds no checkpoint in {_folder(source)}: give the directory of "
        "a run that has saved one, or of its checkpoints."
    )


def _folder(source: str) -> str:
    """Returns the folder of the checkpoints of a source: where its run kept them, or itself."""
    run_directory.check_place(source)
    if run_directory.is_run(source):
        from ...settings.gin_reader import plain_field

        return run_ids.own_checkpoints(source, plain_field(source, "checkpoint_dir"))
    folder = epath.Path(source) / run_directory.CHECKPOINTS
    return str(folder if folder.exists() else source)


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
            f"{', '.join(moved[:5])}. Give the corpus vocabularies.from_run, in a new run "
            f"directory: vocabularies.from_run.run = {source!r}."
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
