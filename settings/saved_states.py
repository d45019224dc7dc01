"""Finds the saved state from which a run would continue.

A saved state is a checkpoint, or a copy of the newest state on this host's own disk.
"""

import contextlib
import hashlib

import jax

from . import run_directory, run_ids
from .gin_reader import plain_fields


def has_checkpoint(run_dir: str) -> bool:
    """Returns whether the run last started in a directory has saved a checkpoint or a local copy.

    Raises ValueError if the directory's config.gin cannot be read.
    """
    if not run_directory.is_run(run_dir):
        return False
    fields = plain_fields(run_dir)
    elsewhere = fields.get("checkpoint_dir")
    where = run_directory.checkpoints(run_dir, elsewhere)
    if elsewhere is not None and not run_ids.owns(run_dir, where):
        return False
    if run_directory.steps_with_folders(run_directory.absolute(where)):
        return True
    local = fields.get("local_checkpoint_dir")
    return local is not None and has_copy(local, where)


def has_copy(directory: str, where: str) -> bool:
    """Returns whether this process has a copy of the run whose checkpoints are at `where`."""
    if not (own := copies_id(where)):
        return False
    copies = run_directory.absolute(copies_folder(directory, where)).glob("*/data/checksums.json")
    return any(own.encode() in copy.read_bytes() for copy in copies)


def copies_folder(directory: str, where: str) -> str:
    """Returns the folder of this process's copies, for a run whose checkpoints are at `where`."""
    digest = hashlib.sha256(str(run_directory.absolute(where)).encode()).hexdigest()[:16]
    return str(run_directory.absolute(directory) / digest / f"process_{jax.process_index()}")


def copies_id(where: str) -> str:
    """Returns the id of a run's local copies, which is next to its checkpoints; "" without one."""
    with contextlib.suppress(FileNotFoundError):
        return (run_directory.absolute(where) / run_directory.COPIES_ID).read_text()
    return ""
