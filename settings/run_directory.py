"""The files of a run directory: their names, and what the smallest of them hold."""

import contextlib
import json
import os
import posixpath
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import jax
from etils import epath

from .atomic_writes import damaged, locked, read_json, write_json

CONFIG = "config.gin"  # the run's configuration; a directory that holds one is a run
COMPARISON = "comparison.gin"  # of a directory of several runs: how they are compared
VOCABULARY = "vocabulary.json"  # the special ids; the tokenizer's own file lies beside it:
SENTENCEPIECE_MODEL = "vocabulary.model"  # of a SentencePiece vocabulary
TOKENIZER = "tokenizer.json"  # of a Hugging Face vocabulary
CLASSES = "classes.json"  # the names of the classes, in order
PROMPT_FORMS = "prompt_forms.json"  # how an imported model was trained to read a text
DATA = "data"  # a folder: the tokenized text, a token store
CHECKPOINTS = "checkpoints"  # a folder: one checkpoint for each saved step
COPIES_ID = "local_copies_id"  # in the folder of checkpoints: of what `local_copies` keeps
RUN_ID = "run_id"  # also in the folder of checkpoints, see `run_ids`
LOCK = ".lock"  # held by the process that trains, see `locked`
METRICS = "metrics.jsonl"  # a line for each step that was logged
METRICS_UNTIL = "metrics.until_{}.jsonl"  # that step, of a run that then found no checkpoint
TENSORBOARD = "tensorboard"  # a folder: the same for TensorBoard
WANDB_ID = "wandb_id"  # of the run in Weights & Biases, where it has a project there
RESULT = "result.json"  # the figures of a finished run
LOSS_PLOT = "loss.png"  # training and held-out loss, drawn when the run is finished
EVALUATION = "evaluation"  # a folder: answers to downstream tasks, and their scores in `METRICS`
FIGURES = "eval_metrics.jsonl"  # in that folder: what eval metrics measured, a line each time
IMPORTED = "hugging_face"  # a folder: what came with an imported model beside its weights


def is_run(directory: str | os.PathLike) -> bool:
    """Whether a directory holds a run, or an imported model."""
    return os.path.isfile(os.path.join(directory, CONFIG))


def add_evaluation(directory: str | os.PathLike, record: dict[str, Any]) -> None:
    """Adds a line to the figures of a run's downstream tasks, `METRICS` in `EVALUATION`."""
    folder = os.path.join(directory, EVALUATION)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, METRICS), "a", encoding="utf-8") as file:
        file.write(json.dumps(record, ensure_ascii=False) + "\n")


def check_is_run(directory: str | os.PathLike) -> None:
    """Raises ValueError where a directory holds no run."""
    if not is_run(directory):
        raise ValueError(
            f"{directory} is no run directory: it holds no {CONFIG}. Give the RUN_DIR of a run, or "
            "what `pretrax convert` wrote."
        )


def checkpoints(directory: str, elsewhere: str | None = None) -> str:
    """The folder of a run's checkpoints: `elsewhere`, or within its directory, in a bucket too.

    Raises ValueError where Orbax writes none.
    """
    where = elsewhere or posixpath.join(address_of(directory), CHECKPOINTS)
    check_place(where)
    return where


def check_place(checkpoints: str) -> None:
    """Raises ValueError for a place where Orbax cannot read the checkpoints that it writes.

    Orbax supports no buckets other than gs://. It does not support a path with a backslash either:
    one of its libraries takes the backslash for a slash and splits a checkpoint over two folders.
    """
    if "://" not in checkpoints and "\\" in os.path.abspath(checkpoints):
        raise ValueError(
            f"Got checkpoints in {os.path.abspath(checkpoints)}, expected a path without a "
            "backslash, since Orbax cannot read what it writes there: give another run_dir, or "
            "rename the folder."
        )
    if "://" in checkpoints and not checkpoints.startswith("gs://"):
        raise ValueError(
            f"Got checkpoints in {checkpoints}, expected a folder on disk or in gs://, since Orbax "
            "reads and writes them nowhere else: give another, of a run that trains by "
            "--gin.training.Run.checkpoint_dir=FOLDER, and leave its run_dir where it is."
        )


def absolute(directory: str) -> epath.Path:
    """Returns where a directory is, for whoever changes the folder that a command runs in.

    >>> absolute("gs://bucket/run").as_posix()
    'gs://bucket/run'
    """
    path = epath.Path(directory)
    return path if "://" in directory else path.absolute()


def stand_in(address: str, purpose: str) -> str:
    """The folder on this disk for a run in a bucket, to train it ("runs") or to read it ("read").

    No such folder is within another, as a run directory may be within another.
    """
    scheme, _, path = address.partition("://")
    return os.path.join(_stand_ins(), purpose, scheme, quote(path.rstrip("/"), safe=""))


def address_of(directory: str) -> str:
    """The address of the run that a folder is the `stand_in` for; another folder as it is.

    >>> address_of(stand_in("gs://bucket/runs/mine", "read")), address_of("runs/mine")
    ('gs://bucket/runs/mine', 'runs/mine')
    """
    path = Path(os.path.abspath(directory))
    if path.parents[2:3] != (Path(_stand_ins()),):
        return directory
    return f"{path.parent.name}://{unquote(path.name)}"


def _stand_ins() -> str:
    return os.path.abspath(os.path.expanduser("~/.cache/pretrax"))


def damaged_folder(checkpoints: str) -> str:
    """The folder beside one of checkpoints to which the damaged ones are moved.

    >>> damaged_folder("gs://bucket/mine/checkpoints/")
    'gs://bucket/mine/damaged_checkpoints'
    """
    folder, name = posixpath.split(checkpoints.rstrip("/"))
    return posixpath.join(folder, f"damaged_{name}")


def held(run_dir: str) -> contextlib.AbstractContextManager[None]:
    """A context in which no other training writes to a run directory; ValueError where one does."""
    if jax.process_index() != 0:
        return contextlib.nullcontext()
    return locked(os.path.join(run_dir, LOCK), f"{run_dir} is trained")


def save_classes(run_dir: str | os.PathLike, classes: Sequence[str]) -> None:
    """Keeps the names of a run's classes, in order.

    Raises ValueError for a name that comes twice, and where the directory holds others.
    """
    names = list(classes)
    if len(set(names)) < len(names):
        raise ValueError(f"Got classes of which one comes twice: {', '.join(names)}.")
    kept = load_classes(run_dir)
    if kept and kept != names:
        raise ValueError(
            f"{run_dir} holds the classes {', '.join(kept)}, got {', '.join(names)}: start a new "
            "run directory."
        )
    write_json(os.path.join(run_dir, CLASSES), names)


def load_classes(run_dir: str | os.PathLike) -> list[str]:
    """The names of a run's classes; none where it has none."""
    file = os.path.join(run_dir, CLASSES)
    if not os.path.exists(file):
        return []
    names = read_json(file)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise damaged(file, f"got {str(names)[:60]}, expected a list of names")
    return names
