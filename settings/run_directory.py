"""The files of a run directory: their names, and functions for the smallest of them."""

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

CONFIG = "config.gin"  # the run's configuration; a directory that has this file is a run
COMPARISON = "comparison.gin"  # in a directory of several runs: how they are compared
VOCABULARY = "vocabulary.json"  # the special ids; the tokenizer is in one of the next two files
SENTENCEPIECE_MODEL = "vocabulary.model"  # the tokenizer of a SentencePiece vocabulary
TOKENIZER = "tokenizer.json"  # the tokenizer of a Hugging Face vocabulary
CLASSES = "classes.json"  # the names of the classes, in order
PROMPT_FORMS = "prompt_forms.json"  # how an imported model was trained to read a text
DATA = "data"  # folder with the tokenized text, a token store
CHECKPOINTS = "checkpoints"  # folder with one checkpoint for each saved step
COPIES_ID = "local_copies_id"  # in the checkpoint folder: the id of the run's local copies
RUN_ID = "run_id"  # also in the checkpoint folder, see `run_ids`
LOCK = ".lock"  # locked by the process that trains, see `locked`
METRICS = "metrics.jsonl"  # one line for each logged step
METRICS_UNTIL = "metrics.until_{}.jsonl"  # metrics up to that step, from before a run started over
TENSORBOARD = "tensorboard"  # folder with the same metrics for TensorBoard
WANDB_ID = "wandb_id"  # the id of the run in Weights & Biases, if it is tracked there
RESULT = "result.json"  # the figures of a finished run
LOSS_PLOT = "loss.png"  # training and held-out loss, drawn when the run is finished
EVALUATION = "evaluation"  # folder with answers to downstream tasks, and their scores in `METRICS`
FIGURES = "eval_metrics.jsonl"  # in that folder: eval metrics, one line for each measurement
IMPORTED = "hugging_face"  # folder with the files of an imported model other than its weights


def is_run(directory: str | os.PathLike) -> bool:
    """Returns whether a directory holds a run or an imported model."""
    return os.path.isfile(os.path.join(directory, CONFIG))


def add_evaluation(directory: str | os.PathLike, record: dict[str, Any]) -> None:
    """Appends a line to the scores of a run's downstream tasks, `METRICS` in `EVALUATION`."""
    folder = os.path.join(directory, EVALUATION)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, METRICS), "a", encoding="utf-8") as file:
        file.write(json.dumps(record, ensure_ascii=False) + "\n")


def check_is_run(directory: str | os.PathLike) -> None:
    """Raises ValueError if a directory does not hold a run."""
    if not is_run(directory):
        raise ValueError(
            f"{directory} is not a run directory (it has no {CONFIG}). Give the RUN_DIR of a run, "
            "or a directory that `pretrax convert` wrote."
        )


def checkpoints(directory: str, elsewhere: str | None = None) -> str:
    """Returns the folder of a run's checkpoints, on disk or in a bucket.

    Args:
      elsewhere: the folder, if it is not within the run directory.

    Raises ValueError if Orbax cannot write checkpoints to the folder.
    """
    folder = elsewhere or posixpath.join(address_of(directory), CHECKPOINTS)
    check_place(folder)
    return folder


def check_place(checkpoints: str) -> None:
    """Raises ValueError for a folder from which Orbax cannot read checkpoints that it wrote.

    The only buckets that Orbax supports are gs://. It does not support a path with a backslash:
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
            f"Got checkpoints in {checkpoints}, expected a folder on disk or in gs://, the only "
            "places that Orbax supports. To train, give "
            "--gin.training.Run.checkpoint_dir=FOLDER and keep the run_dir."
        )


def absolute(directory: str) -> epath.Path:
    """Returns the absolute path of a directory, which stays valid if the working folder changes.

    >>> absolute("gs://bucket/run").as_posix()
    'gs://bucket/run'
    """
    path = epath.Path(directory)
    return path if "://" in directory else path.absolute()


def local_mirror(address: str, purpose: str) -> str:
    """Returns the folder on this disk that mirrors a run directory in a bucket.

    A run directory may be within another, but its mirror is never within another mirror.

    Args:
      address: the run directory, such as "gs://bucket/runs/mine".
      purpose: "runs" to train the run, "read" to read it.
    """
    scheme, _, path = address.partition("://")
    return os.path.join(_mirrors_root(), purpose, scheme, quote(path.rstrip("/"), safe=""))


def address_of(directory: str) -> str:
    """Returns the address of the run that a folder mirrors; any other folder unchanged.

    >>> address_of(local_mirror("gs://bucket/runs/mine", "read")), address_of("runs/mine")
    ('gs://bucket/runs/mine', 'runs/mine')
    """
    path = Path(os.path.abspath(directory))
    if path.parents[2:3] != (Path(_mirrors_root()),):
        return directory
    return f"{path.parent.name}://{unquote(path.name)}"


def _mirrors_root() -> str:
    return os.path.abspath(os.path.expanduser("~/.cache/pretrax"))


def damaged_folder(checkpoints: str) -> str:
    """Returns the folder, next to a checkpoint folder, to which damaged checkpoints are moved.

    >>> damaged_folder("gs://bucket/mine/checkpoints/")
    'gs://bucket/mine/damaged_checkpoints'
    """
    folder, name = posixpath.split(checkpoints.rstrip("/"))
    return posixpath.join(folder, f"damaged_{name}")


def step_folder(checkpoints: epath.Path, step: int) -> epath.Path:
    """Returns the folder of a step's checkpoint. Orbax names it by the number alone.

    >>> step_folder(epath.Path("runs/mine/checkpoints"), 400).as_posix()
    'runs/mine/checkpoints/400'
    """
    return checkpoints / str(step)


def steps_with_folders(checkpoints: epath.Path) -> list[int]:
    """Returns the steps that have a checkpoint folder, in order: the inverse of `step_folder`.

    Orbax gives a folder on disk this name when its checkpoint is complete. The list is empty if
    there is no folder `checkpoints`.
    """
    try:
        names = [path.name for path in checkpoints.iterdir()]
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return []
    return sorted(int(name) for name in names if name.isdecimal())


def training_lock(run_dir: str) -> contextlib.AbstractContextManager[None]:
    """Returns a context in which no other training process writes to a run directory.

    Entering it raises ValueError if another process trains the run.
    """
    if jax.process_index() != 0:
        return contextlib.nullcontext()
    return locked(os.path.join(run_dir, LOCK), f"{run_dir} is trained")


def save_classes(run_dir: str | os.PathLike, classes: Sequence[str]) -> None:
    """Writes the names of a run's classes, in order.

    Raises ValueError for a repeated name, and if the directory already has other classes.
    """
    names = list(classes)
    if len(set(names)) < len(names):
        raise ValueError(f"Got the classes {', '.join(names)}, expected each name once.")
    saved = load_classes(run_dir)
    if saved and saved != names:
        raise ValueError(
            f"{run_dir} has the classes {', '.join(saved)}, got {', '.join(names)}: start a new "
            "run directory."
        )
    write_json(os.path.join(run_dir, CLASSES), names)


def load_classes(run_dir: str | os.PathLike) -> list[str]:
    """Returns the names of a run's classes; an empty list if it has no classes."""
    file = os.path.join(run_dir, CLASSES)
    if not os.path.exists(file):
        return []
    names = read_json(file)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise damaged(file, f"got {str(names)[:60]}, expected a list of names")
    return names
