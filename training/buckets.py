"""A run directory in a bucket: a folder on this disk stands for it, and is copied there at saves.

    with on_disk(run) as local:      # run.run_dir is "gs://bucket/mine"
        push(local.run_dir)          # a folder under ~/.cache/pretrax/runs, which is copied back

Checkpoints are in the bucket alone, where Orbax writes them. All else is small, and written by many
who know files on a disk: configuration, vocabulary, metrics, TensorBoard, results.
"""

import contextlib
import dataclasses
import os
import shutil
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from ..settings.atomic_writes import locked, read_json, write_bytes, write_json
from ..settings.folders import Folder
from ..settings.gin_reader import plain_field
from ..settings.run_directory import (
    CHECKPOINTS,
    CONFIG,
    EVALUATION,
    TENSORBOARD,
    address_of,
    checkpoints,
    damaged_folder,
    local_mirror,
)
from .run import Run

_COPIED = ".bucket.json"  # size, time and checksum of what was copied, by name


def is_bucket(directory: str | os.PathLike) -> bool:
    """Returns whether a directory is the address of one.

    >>> is_bucket("gs://bucket/runs/mine"), is_bucket("runs/mine")
    (True, False)
    """
    return "://" in os.fspath(directory)


def folder_of(address: str) -> str:
    """Returns the folder on this disk that stands for a run in a bucket while it trains."""
    return local_mirror(address, "runs")


@contextlib.contextmanager
def on_disk(run: Run) -> Iterator[Run]:
    """Yields the run with a folder on this disk in place of a bucket; another run as it is.

    What the bucket has is copied to the folder first, and the folder to the bucket in the end.

    Raises ValueError for a run of several processes, for checkpoints where there can be none, for a
    bucket whose package is not installed, and where another process of this machine trains the run.
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
    where = checkpoints(address, run.checkpoint_dir)
    if where.rstrip("/") == address.rstrip("/"):
        raise ValueError(
            f"Got {where} as the checkpoint_dir of a run in a bucket and as its run_dir, expected "
            f"another: leave checkpoint_dir out, and checkpoints are in its folder {CHECKPOINTS}."
        )
    Folder(address)  # which says what package it lacks
    with locked(f"{folder_of(address)}.lock", f"{address} is trained on this machine"):
        local = fetch(address, run.checkpoint_dir)
        try:
            yield dataclasses.replace(run, run_dir=local)
        except BaseException:
            push_or_warn(local, warnings.warn)
            raise
        push(local)


def fetch(address: str, checkpoint_dir: str | None = None) -> str:
    """Copies the run in a bucket, without checkpoints, to the folder that stands for it.

    `checkpoint_dir` is the run's.

    For who holds the folder's lock. The bucket is right, but a file that it has as it was last
    copied may have changed here since, and stays. A folder is emptied first where the run, which
    the bucket had, is there no more. Returns the folder.
    """
    bucket = Folder(address)
    local = folder_of(address)
    kept = os.path.join(local, _COPIED)
    before = read_json(kept) if os.path.exists(kept) else {}
    names = _small_files(bucket, checkpoint_dir)
    if CONFIG in before and not names:
        shutil.rmtree(local)
    copied = {}
    for name in names:
        path = Path(local, name)
        content = bucket.read(name)
        if name in before and before[name][-1] == zlib.crc32(content) and path.exists():
            copied[name] = before[name]
        else:
            write_bytes(path, content)
            copied[name] = [*_state(path), zlib.crc32(content)]
    write_json(kept, copied)
    return local


def push(directory: str) -> None:
    """Copies what has changed in a folder of `folder_of` to its bucket; of others nothing.

    Raises OSError where the bucket does not take it, and where the record of what was copied is
    gone. What was not copied is, by the next push, also that of a later start.
    """
    address = address_of(directory)
    kept = os.path.join(directory, _COPIED)
    if directory != folder_of(address):
        return
    bucket = Folder(address)
    copied = read_json(kept)
    files = [path for path in Path(directory).rglob("*") if path.is_file()]
    files = [path for path in files if not path.name.startswith(".")]
    files.sort(key=lambda path: (path.name == CONFIG, path))  # a run is whole then
    try:
        for path in files:
            name = path.relative_to(directory).as_posix()
            now = _state(path)
            if copied.get(name, [])[:-1] != now:
                content = path.read_bytes()
                bucket.write(name, content)
                copied[name] = [*now, zlib.crc32(content)]
    except Exception as error:  # each kind of bucket raises its own
        raise OSError(
            f"{bucket.path} does not take what is new in {directory} ({error}): it is kept there, "
            "and copied by the next save, or the next start of the same command."
        ) from error
    finally:
        write_json(kept, copied)


def push_or_warn(directory: str, warn: Callable[[str], object]) -> None:
    """Does what `push` does, or says why it cannot: the next one catches up."""
    try:
        push(directory)
    except OSError as error:
        warn(str(error))


def on_this_disk(directory: str) -> str:
    """Returns a run's directory as it is, and of one in a bucket a copy to read.

    The copy is another folder than that of a training. It has what the bucket has, but no
    checkpoints, which are read where they are, and no TensorBoard. Its `EVALUATION` is what was
    written here, and is neither read from the bucket nor copied there.

    Raises ValueError where the bucket holds no run, or a config.gin that is no gin.
    """
    if not is_bucket(directory):
        return directory
    bucket = Folder(directory)
    local = local_mirror(directory, "read")
    if not bucket.exists(CONFIG):
        raise ValueError(f"{directory} is no run directory: it holds no {CONFIG}.")
    write_bytes(os.path.join(local, CONFIG), bucket.read(CONFIG))
    names = _small_files(bucket, plain_field(local, "checkpoint_dir"))
    names = [name for name in names if not name.startswith(_NOT_READ)]
    for path in [path for path in Path(local).rglob("[!.]*") if path.is_file()]:
        name = path.relative_to(local).as_posix()
        if name not in names and not name.startswith(_NOT_READ):
            path.unlink(missing_ok=True)  # another reader may have removed it
    for name in names:
        write_bytes(os.path.join(local, name), bucket.read(name))
    return local


_NOT_READ = (f"{EVALUATION}/", f"{TENSORBOARD}/")


def _small_files(bucket: Folder, checkpoint_dir: str | None) -> list[str]:
    """Returns the names of all files of a run but its checkpoints; none where there is no run."""
    if not bucket.exists(CONFIG):
        return []
    folders = [bucket.where(CHECKPOINTS), (checkpoint_dir or "").rstrip("/")]
    folders = [folder for folder in folders if folder.startswith(bucket.where(""))]
    large = tuple(f"{one}/" for folder in folders for one in (folder, damaged_folder(folder)))
    return [name for name in bucket.tree() if not bucket.where(name).startswith(large)]


def _state(path: Path) -> list[int]:
    found = path.stat()
    return [found.st_size, found.st_mtime_ns]
