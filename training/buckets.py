"""Run directories in a bucket, mirrored to a local folder while a run trains.

    with mirrored(run) as local:      # run.run_dir is "gs://bucket/mine"
        push(local.run_dir)          # copies ~/.cache/pretrax/runs/… back to the bucket

Orbax writes checkpoints directly to the bucket. All other files are small, and are written to the
mirror, which is copied to the bucket at each save.
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
from ..settings.gin_reader import plain_fields
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

_COPIED = ".bucket.json"  # name -> size, time and checksum of each copied file


def is_bucket(directory: str | os.PathLike) -> bool:
    """Returns whether a directory is an address in a bucket.

    >>> is_bucket("gs://bucket/runs/mine"), is_bucket("runs/mine")
    (True, False)
    """
    return "://" in os.fspath(directory)


def folder_of(address: str) -> str:
    """Returns the folder on this disk that mirrors a run in a bucket while it trains."""
    return local_mirror(address, "runs")


@contextlib.contextmanager
def mirrored(run: Run) -> Iterator[Run]:
    """Yields the run with its run directory on this disk.

    For a run in a bucket, the bucket is copied to a local folder first. In the end the folder is
    copied back. Any other run is yielded unchanged.

    Raises ValueError for a run in a bucket with several processes or a wrong checkpoint_dir. Also
    raises ValueError if the bucket's package is not installed, or if another process on this
    machine trains the run.
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
            f"Got {where} as both the checkpoint_dir and the run_dir of a run in a bucket, "
            "expected two directories: leave checkpoint_dir out, and checkpoints are in the folder "
            f"{CHECKPOINTS} of run_dir."
        )
    Folder(address)  # raises an error if the bucket's package is not installed
    with locked(f"{folder_of(address)}.lock", f"{address} is trained on this machine"):
        local = fetch(address, run.checkpoint_dir)
        try:
            yield dataclasses.replace(run, run_dir=local)
        except BaseException:
            push_or_warn(local, warnings.warn)
            raise
        push(local)


def fetch(address: str, checkpoint_dir: str | None = None) -> str:
    """Copies a run from a bucket to its mirror, without checkpoints, and returns the mirror.

    The caller must hold the lock of the mirror. Files of the bucket that changed since the last
    copy replace local files. If the run was deleted from the bucket, the mirror is deleted first.
    """
    bucket = Folder(address)
    local = folder_of(address)
    record = os.path.join(local, _COPIED)
    before = read_json(record) if os.path.exists(record) else {}
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
    write_json(record, copied)
    return local


def push(directory: str) -> None:
    """Copies changed files of a mirror to its bucket. Any other folder is not copied.

    Raises OSError if the bucket rejects a file, or if the record of copied files is missing. The
    next push copies the remaining files, even after a restart.
    """
    address = address_of(directory)
    record = os.path.join(directory, _COPIED)
    if directory != folder_of(address):
        return
    bucket = Folder(address)
    copied = read_json(record)
    files = [path for path in Path(directory).rglob("*") if path.is_file()]
    files = [path for path in files if not path.name.startswith(".")]
    # config.gin goes last, so that a run in the bucket is complete when it has one.
    files.sort(key=lambda path: (path.name == CONFIG, path))
    try:
        for path in files:
            name = path.relative_to(directory).as_posix()
            now = _state(path)
            if copied.get(name, [])[:-1] != now:
                content = path.read_bytes()
                bucket.write(name, content)
                copied[name] = [*now, zlib.crc32(content)]
    except Exception as error:  # each kind of bucket raises its own errors
        raise OSError(
            f"The new files of {directory} could not be copied to {bucket.path} ({error}). The "
            "next save, or the next start of the same command, copies them."
        ) from error
    finally:
        write_json(record, copied)


def push_or_warn(directory: str, warn: Callable[[str], object]) -> None:
    """Calls `push` and turns its OSError into a warning, since the next push catches up."""
    try:
        push(directory)
    except OSError as error:
        warn(str(error))


def local_copy(directory: str) -> str:
    """Returns a folder on this disk from which to read a run.

    A local run directory is returned unchanged. A run in a bucket is copied to a separate folder,
    without TensorBoard files and checkpoints. Its folder `EVALUATION` is only local.

    Raises ValueError if the bucket does not hold a run, or if its config.gin is not valid gin.
    """
    if not is_bucket(directory):
        return directory
    bucket = Folder(directory)
    local = local_mirror(directory, "read")
    if not bucket.exists(CONFIG):
        raise ValueError(
            f"{directory} is not a run directory (it has no {CONFIG}): give the directory of a run."
        )
    write_bytes(os.path.join(local, CONFIG), bucket.read(CONFIG))
    names = _small_files(bucket, plain_fields(local).get("checkpoint_dir"))
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
    """Returns the names of all files of a run except its checkpoints; [] if there is no run."""
    if not bucket.exists(CONFIG):
        return []
    folders = [bucket.where(CHECKPOINTS), (checkpoint_dir or "").rstrip("/")]
    folders = [folder for folder in folders if folder.startswith(bucket.where(""))]
    large = tuple(f"{path}/" for folder in folders for path in (folder, damaged_folder(folder)))
    return [name for name in bucket.tree() if not bucket.where(name).startswith(large)]


def _state(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]
