"""A run directory in a bucket: a folder on this disk stands for it, and is copied there at saves.

    with on_disk(run) as local:      # run.run_dir is "gs://bucket/mine"
        push(local.run_dir)          # a folder under ~/.cache/pretrax/runs, which is copied back

Checkpoints are in the bucket alone, where Orbax writes them. All else is small, and written by many
who know files on a disk: configuration, vocabulary, metrics, TensorBoard, results.
"""

import contextlib
import dataclasses
import os
import posixpath
import shutil
from collections.abc import Iterator
from pathlib import Path

from ..data.folders import Folder
from ..data.whole_files import locked, read_json, write_bytes, write_json
from .run_directory import CHECKPOINTS, CONFIG
from .settings.run import Run

_COPIED = (
    ".bucket.json"  # in such a folder: its address, and what was copied: size and time by name
)


def is_bucket(directory: str | os.PathLike) -> bool:
    """Returns whether a directory is the address of one.

    >>> is_bucket("gs://bucket/runs/mine"), is_bucket("runs/mine")
    (True, False)
    """
    return "://" in os.fspath(directory)


def folder_of(address: str) -> str:
    """Returns the folder on this disk that stands for a run directory in a bucket."""
    scheme, _, path = address.partition("://")
    return os.path.join(os.path.expanduser("~/.cache/pretrax/runs"), scheme, *path.split("/"))


@contextlib.contextmanager
def on_disk(run: Run) -> Iterator[Run]:
    """Yields the run with a folder on this disk in place of a bucket; another run as it is.

    What the bucket has is copied to the folder first, and the folder to the bucket in the end.

    Raises ValueError for a run of several processes, for a bucket whose package is not installed,
    and where another process of this machine trains the run.
    """
    address = run.run_dir
    if not is_bucket(address):
        yield run
        return
    if run.distributed:
        raise ValueError(
            f"A run of several processes cannot have its run_dir in a bucket, got {address}: give "
            "a directory on disk, and the bucket as training.Run.checkpoint_dir (--checkpoint_dir "
            "in the C4 runs)."
        )
    Folder(address)  # which says what package it lacks
    with locked(f"{folder_of(address)}.lock", f"{address} is trained on this machine"):
        local = fetch(address)
        checkpoints = run.checkpoint_dir or posixpath.join(address, CHECKPOINTS)
        try:
            yield dataclasses.replace(run, run_dir=local, checkpoint_dir=checkpoints)
        finally:
            push(local)


def fetch(address: str) -> str:
    """Copies a run directory in a bucket, without checkpoints, to this disk; returns the folder.

    The bucket is right: a folder of which it has no run is emptied first.
    """
    bucket, local = Folder(address), folder_of(address)
    names = [name for name in bucket.tree() if not name.startswith(f"{CHECKPOINTS}/")]
    if CONFIG not in names:
        shutil.rmtree(local, ignore_errors=True)
    copied = {}
    for name in names:
        write_bytes(os.path.join(local, name), bucket.read(name))
        copied[name] = _state(Path(local, name))
    write_json(os.path.join(local, _COPIED), {"address": address, "copied": copied})
    return local


def push(directory: str) -> None:
    """Copies what has changed in a folder that stands for one in a bucket; of others nothing."""
    if not os.path.exists(kept := os.path.join(directory, _COPIED)):
        return
    record = read_json(kept)
    bucket, copied = Folder(record["address"]), record["copied"]
    files = [path for path in Path(directory).rglob("*") if path.is_file()]
    for path in sorted(files, key=lambda path: (path.name == CONFIG, path)):  # a run is whole then
        name = path.relative_to(directory).as_posix()
        if not path.name.startswith(".") and copied.get(name) != (now := _state(path)):
            bucket.write(name, path.read_bytes())
            copied[name] = now
    write_json(kept, record)


def on_this_disk(directory: str) -> str:
    """Returns a run's directory as it is, and of one in a bucket the folder that it is copied to.

    Raises ValueError where the bucket holds no run.
    """
    if not is_bucket(directory):
        return directory
    local = fetch(directory)
    if not os.path.isfile(os.path.join(local, CONFIG)):
        raise ValueError(f"{directory} is no run directory: it holds no {CONFIG}.")
    return local


def _state(path: Path) -> list[int]:
    found = path.stat()
    return [found.st_size, found.st_mtime_ns]
