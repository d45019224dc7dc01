"""The id of a run, which is kept in the run directory and in the folder of its checkpoints.

    claim("runs/mine", "/disk/checkpoints")     # before the folder is opened for writing
    owns("runs/mine", "/disk/checkpoints")      # True

A run deletes old checkpoints when it saves new ones. Therefore it writes only into a folder that it
started, even if its user or its config.gin gives a different folder.
"""

import contextlib
import json
import os
import posixpath
import secrets
from typing import NamedTuple

import jax
from etils import epath
from jax.experimental import multihost_utils

from . import atomic_writes, run_directory
from .folders import Folder


class RunId(NamedTuple):
    id: str  # drawn at random when the run starts
    run: str  # address of the run directory; identifies the run if that directory is lost


def claim(run_dir: str, checkpoints: str) -> None:
    """Marks a folder of checkpoints as this run's.

    All processes of a run must call it together. They must call it before the folder is opened for
    writing, because opening the folder removes files from it.

    Raises ValueError, and writes nothing, if another run started the folder.
    """
    if jax.process_index() == 0:
        with _alone(checkpoints):
            _claim(run_dir, checkpoints)
    multihost_utils.sync_global_devices(f"claimed {checkpoints}")


def _claim(run_dir: str, checkpoints: str) -> None:
    here = _address(run_dir)
    mine = _read(run_dir)
    owner = _read(checkpoints)
    if not _may_write(here, mine, owner, checkpoints):
        raise _refusal(run_dir, checkpoints, owner, fitting=mine or _new(run_dir))
    claimed = (owner or mine or _new(run_dir))._replace(run=here)
    for folder, before in ((run_dir, mine), (checkpoints, owner)):
        if before != claimed:
            _write(folder, claimed)


def _alone(checkpoints: str) -> contextlib.AbstractContextManager[None]:
    """Locks a folder that has no id yet, so that only this process can give it one.

    Entering the context raises ValueError if another process holds the lock. Folders in a bucket
    cannot be locked.
    """
    if "://" in checkpoints or _read(checkpoints) is not None:
        return contextlib.nullcontext()
    lock = os.path.join(checkpoints, f".{run_directory.RUN_ID}.lock")
    return atomic_writes.locked(lock, f"Another run starts with the checkpoints {checkpoints}")


def claim_copies(checkpoints: str, copies: str) -> None:
    """Marks a folder of local copies as belonging to the run with these checkpoints.

    Raises ValueError, and writes nothing, if the folder holds copies of another run.
    """
    mine = _read(checkpoints)
    owner = _read(copies)
    if owner is not None and (mine is None or owner.id != mine.id):
        raise ValueError(
            f"{copies} holds local copies of another run, {owner.run}, expected an empty folder "
            "or copies of this run: give another --gin.training.Run.local_checkpoint_dir, or "
            "delete that folder if the other run is over."
        )
    if mine is not None and owner is None:
        _write(copies, mine)


def owns(run_dir: str, checkpoints: str) -> bool:
    """Returns whether a run directory and a folder of checkpoints have the same id."""
    mine = _read(run_dir)
    return mine is not None and (owner := _read(checkpoints)) is not None and owner.id == mine.id


def own_checkpoints(run_dir: str, checkpoint_dir: str | None) -> str:
    """Returns the checkpoint folder of a run whose config.gin sets `checkpoint_dir`.

    Raises ValueError if that folder has another id than the run directory: the directory is
    untrusted, and the folder may belong to another run.
    """
    where = run_directory.checkpoints(run_dir, checkpoint_dir)
    if checkpoint_dir is not None and not owns(run_dir, where):
        fitting = _read(where) or _read(run_dir) or _new(run_dir)
        files = " and ".join(posixpath.join(x, run_directory.RUN_ID) for x in (run_dir, where))
        raise ValueError(
            f"{run_dir}/{run_directory.CONFIG} says that its checkpoints are in {where}, which may "
            "be another run's, since the two folders do not hold the same id. If you know that "
            f"they belong together, write {json.dumps(fitting._asdict())} to {files}."
        )
    return where


def _may_write(here: str, mine: RunId | None, owner: RunId | None, checkpoints: str) -> bool:
    within = _address(checkpoints).startswith(f"{here}/")
    if owner is None:  # no run has claimed the folder
        return within or not run_directory.steps_with_folders(epath.Path(checkpoints))
    if mine is None:  # the run is new, or its directory was lost with its machine
        return owner.run == here
    if owner.id != mine.id:
        return False
    # If another directory has this id too, this one is a copy, and the folder belongs to the other.
    others = _read(owner.run) if owner.run != here and not within else None
    return others is None or others.id != owner.id


def _refusal(run_dir: str, checkpoints: str, owner: RunId | None, fitting: RunId) -> ValueError:
    whose = f"another run, {owner.run}" if owner else "an unknown run"
    return ValueError(
        f"{checkpoints} holds checkpoints of {whose}, and {run_dir} would continue from them and "
        "delete them. Give a folder that is empty (--gin.training.Run.checkpoint_dir=FOLDER) or "
        "another --run_dir. If you know that they are this run's own, write "
        f"{json.dumps(fitting._asdict())} to {posixpath.join(checkpoints, run_directory.RUN_ID)}."
    )


def _new(run_dir: str) -> RunId:
    return RunId(secrets.token_hex(8), _address(run_dir))


def _address(folder: str) -> str:
    address = run_directory.address_of(folder).rstrip("/")
    return address if "://" in address else os.path.realpath(address)


def _read(folder: str) -> RunId | None:
    content = _content(folder)
    if content is None:
        return None
    try:
        return RunId(**atomic_writes.parse_json(content))
    except atomic_writes.UNLIKE as error:
        file = posixpath.join(folder, run_directory.RUN_ID)
        raise ValueError(
            f"{file} is damaged ({error}): bring it back from a copy, such as the one in the run "
            "directory or next to its checkpoints."
        ) from error


def _content(folder: str) -> bytes | None:
    if "://" in folder and not folder.startswith("gs://"):  # a run directory may be in any bucket
        bucket = Folder(folder)
        return bucket.read(run_directory.RUN_ID) if bucket.exists(run_directory.RUN_ID) else None
    file = epath.Path(folder) / run_directory.RUN_ID
    return file.read_bytes() if file.exists() else None


def _write(folder: str, run_id: RunId) -> None:
    text = json.dumps(run_id._asdict())
    if "://" in folder:
        (epath.Path(folder) / run_directory.RUN_ID).write_text(text)
    else:
        atomic_writes.write_text(os.path.join(folder, run_directory.RUN_ID), text)
