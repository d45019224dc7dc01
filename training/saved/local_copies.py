"""Local copies of a run's newest state on each host's own disk, for resuming after a crash.

Each process writes the arrays of its devices, and its part of the data position, to its own folder
`FOLDER/CHECKPOINTS/process_NUMBER/STEP`. CHECKPOINTS is a digest of the path of the run's
checkpoints.

A copy has an id, which is also stored next to the run's checkpoints. Every start that does not
resume from a copy draws a new id, so that older copies become invalid.

This module uses Orbax's `Checkpointer` with `primary_host=None`, which writes to local folders.
Orbax's managers of local checkpoints are experimental or need a service on each host.
"""

import base64
import contextlib
import json
import secrets
import shutil
import zlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from ...settings import run_ids
from ...settings.run_directory import COPIES_ID, absolute, step_folder
from ...settings.saved_states import copies_folder, copies_id
from ...settings.system_errors import in_words
from ..state import State
from .checkpoints import (
    SOUND,
    Checkpoints,
    Files,
    Keep,
    Loaded,
    Restored,
    saved_of,
    worst_of_processes,
)
from .damage import DamageError, first_line
from .quiet_orbax import hide_primary_host_warnings

GIB = 2**30


def open_local_copies(
    directory: str | None, where: str, checkpoints: Checkpoints
) -> "contextlib.AbstractContextManager[LocalCopies | None]":
    """Opens the local copies of a run; yields None if it keeps no copies.

    If it keeps no copies, earlier copies of the run become invalid. `where` is the folder of its
    checkpoints.
    """
    if directory is not None:
        return LocalCopies(directory, where, checkpoints)
    if jax.process_index() == 0:
        (absolute(where) / COPIES_ID).unlink(missing_ok=True)
    return contextlib.nullcontext()


class LocalCopies(Checkpoints):
    """This process's copies of its run's newest state. Only the latest copy is kept.

    All processes must call the methods together.
    """

    def __init__(self, directory: str, where: str, checkpoints: Checkpoints):
        hide_primary_host_warnings()
        self._checkpoints = checkpoints
        self._where = where
        self._id = copies_id(where)
        self.unused = ""  # why `restore_latest` did not use a copy
        try:
            run_ids.claim_copies(where, copies_folder(directory, where))
            super().__init__(copies_folder(directory, where), Keep(latest=1), per_process=True)
        except OSError as error:
            raise OSError(
                f"Got training.Run.local_checkpoint_dir = {directory!r}, in which this host cannot "
                f"make a folder ({in_words(error).rstrip('.')}): give a folder on a disk that can "
                "be written."
            ) from error

    def restore_latest(self, target: State, steps: int) -> Restored | None:
        """Restores the latest copy if it is later than the run's checkpoints, or a checkpoint.

        A copy is used only if all processes have a sound copy of the same step. All other copies
        are removed. A copy of the run's last step is not used, since a run ends with a checkpoint.
        A copy of a step beyond the last step is used: the user may raise `steps` again.

        Returns None if there is neither a copy nor a checkpoint.
        """
        last = max(self._checkpoints.steps(), default=-1)
        later = [step for step in self.steps() if step > last and step != steps]
        steps_by_process = _gather_steps(later)
        saved_by_any = set.union(*steps_by_process)
        saved_by_all = set.intersection(*steps_by_process)
        restored = None
        problem = ""
        if saved_by_all:
            try:
                loaded = self._load_if_sound_everywhere(max(saved_by_all), target)
            except DamageError as damage:
                problem = str(damage)
            else:
                read = _exchange_files(loaded.files)
                restored = Restored(loaded.state, read, damaged=(), copied=True)
        elif saved_by_any:
            newest = max(saved_by_any)
            lacking = [i for i, saved in enumerate(steps_by_process) if newest not in saved]
            problem = f"process {', '.join(map(str, lacking))} has none"
        if problem:
            step = max(saved_by_all or saved_by_any)
            self.unused = f"The local copy of step {step} is not used: {problem}."
        kept = max(saved_by_all) if restored else None
        if restored is None:
            restored = self._checkpoints.restore(target)
            self._draw_id()
        for step in self.steps():
            if step != kept:
                self._remove(step)
        self._checkpointer.reload()
        return restored

    def _remove(self, step: int) -> None:
        try:
            step_folder(self._root, step).rmtree()
        except OSError as error:
            raise OSError(
                f"The local copy of step {step} in {self._root} cannot be removed "
                f"({in_words(error).rstrip('.')}): give another "
                "--gin.training.Run.local_checkpoint_dir, on a disk that can be written."
            ) from error

    def try_save(self, state: State, position: dict[str, bytes]) -> str:
        """Saves a copy in the background; returns why that is not possible, or "".

        There is no copy if a host's disk is too full. A single process also returns a message if
        the copy cannot be written. With several processes, the process that cannot write raises
        OSError. The others wait for it and raise OSError minutes later.
        """
        problem = self._lacking_room(state)
        return problem or self._try(lambda: self.save(state, position))

    def try_wait(self) -> str:
        """Waits until the running save is complete; returns why it failed, or "".

        With several processes, raises OSError if it failed.
        """
        return self._try(self.wait)

    def _try(self, call: Callable[[], None]) -> str:
        try:
            call()
        except OSError as error:
            if jax.process_count() > 1:
                raise
            return in_words(error)
        return ""

    def _lacking_room(self, state: State) -> str:
        """Returns a message about a process without room for another copy, or "" if all have room.

        All processes return the same.
        """
        needed = _bytes_of_parts(saved_of(state))
        free = shutil.disk_usage(self._root).free
        mine = np.array([needed > free, needed, free], np.float64) / [1, GIB, GIB]
        for process, (lacks, needed, free) in enumerate(_gather(mine)):
            if lacks:
                return (
                    f"No local copy of step {int(state.step)}: the disk of process {process} has "
                    f"{free:.2f} GiB left, but a copy takes up to {needed:.2f} GiB in addition to "
                    "the last copy."
                )
        return ""

    def _draw_id(self) -> None:
        drawn = np.frombuffer(secrets.token_bytes(8), np.uint8)
        if jax.process_count() > 1:
            drawn = multihost_utils.broadcast_one_to_all(drawn)
        self._id = bytes(drawn).hex()
        if jax.process_index() == 0:
            (absolute(self._where) / COPIES_ID).write_text(self._id)

    def _load_if_sound_everywhere(self, step: int, target: State) -> Loaded:
        """Loads a copy. Raises DamageError in all processes if a copy is not sound."""
        loaded = None
        damage = None
        try:
            loaded = self._load_if_sound(step, target)
        except DamageError as error:
            damage = error.with_traceback(None)  # it would keep the loaded arrays in memory
        except OSError as error:  # it is raised on all processes
            raise DamageError(in_words(error).removesuffix(".")) from error
        # Each process has its own checksums, so the results may differ.
        if worst_of_processes(damage) != SOUND or loaded is None:
            raise damage or DamageError("the copy of another process is damaged")
        return loaded

    def _differences(self, step: int, target: State) -> list[str]:
        metadata = self._read_metadata(step)
        if metadata["id"] != self._id:
            raise DamageError("it is of another run, or of another start of this run")
        if metadata["processes"] != jax.process_count():
            raise DamageError(f"it is of a run of {metadata['processes']} processes")
        # A user who removes a checkpoint wants the run to continue from an earlier step.
        if gone := set(metadata["after"]) - set(self._checkpoints.steps()):
            raise DamageError(f"the earlier checkpoint of step {max(gone)} no longer exists")
        differences = super()._differences(step, target)
        if not differences and metadata["parts"] != _parts(saved_of(target)):
            raise DamageError("it was made on a mesh with other parts of the arrays on this host")
        return differences

    def _metadata(self, arrays) -> dict[str, Any]:
        after = self._checkpoints.steps()[-1:]
        return super()._metadata(arrays) | {"id": self._id, "after": after, "parts": _parts(arrays)}

    @contextlib.contextmanager
    def _save_errors(self):
        try:
            yield
        except Exception as error:
            hint = " Or the copy of another host failed." if jax.process_count() > 1 else ""
            raise OSError(
                f"A local copy could not be saved in {self._root}: {first_line(error)}.{hint}"
            ) from error


def _bytes_of_parts(arrays) -> int:
    """Returns the number of bytes that this process writes: each part on its devices once."""
    part_sizes = (
        {str(shard.index): shard.data.nbytes for shard in x.addressable_shards}
        for x in jax.tree.leaves(arrays)
    )
    return sum(sum(parts.values()) for parts in part_sizes)


def _parts(arrays) -> int:
    """Returns a checksum of the index ranges of the arrays that this process's devices hold."""
    held = [x.sharding.addressable_devices_indices_map(x.shape) for x in jax.tree.leaves(arrays)]
    return zlib.crc32(str([sorted(map(str, parts.values())) for parts in held]).encode())


def _gather(mine: np.ndarray) -> np.ndarray:
    """Returns the arrays of all processes, stacked, on all processes."""
    return mine[None] if jax.process_count() == 1 else multihost_utils.process_allgather(mine)


_MAX_STEPS = 4  # number of steps to compare; a process that was killed between two copies has two


def _gather_steps(steps: list[int]) -> list[set[int]]:
    mine = np.full(_MAX_STEPS, -1, np.int32)
    mine[: len(steps)] = steps[-_MAX_STEPS:]
    return [set(row.tolist()) - {-1} for row in _gather(mine)]


def _exchange_files(files: Files) -> Callable[[str], bytes]:
    """Returns a function that reads a file of any process by its name.

    All processes send each other their files first, since another process may now read a shard of
    the data.
    """
    if jax.process_count() == 1:
        return files.read
    names = files.read_json(f"checksums_{jax.process_index()}.json")
    text = json.dumps({name: base64.b64encode(files.read(name)).decode() for name in names})
    mine = np.frombuffer(text.encode(), np.uint8)
    sizes = _gather(np.array(mine.size))
    padded = np.pad(mine, (0, int(sizes.max()) - mine.size))
    all_files: dict[str, str] = {}
    for row, size in zip(_gather(padded), sizes):
        all_files |= json.loads(bytes(row[:size]))

    def read(name: str) -> bytes:
        if name not in all_files:
            raise FileNotFoundError(name)
        return base64.b64decode(all_files[name])

    return read
