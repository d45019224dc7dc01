"""Copies of a run's newest state on each host's own disk, from which it goes on after a crash.

Each process writes what its devices hold, and its part of the data position, to a folder of its
own, `FOLDER/CHECKPOINTS/process_NUMBER/STEP`, where CHECKPOINTS is a digest of where the run's
checkpoints are. A copy holds the id that lies beside these, which is drawn anew whenever a start
goes on from anything but a copy: a run that begins anew, goes back or has done without copies never
meets those that were made before.

Of Orbax's own managers of local checkpoints one is experimental and the other needs a service on
each host; this is its `Checkpointer`, which writes to local folders where no host is the primary.
"""

import base64
import contextlib
import json
import logging
import secrets
import shutil
import zlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from ...settings import run_ids
from ...settings.run_directory import COPIES_ID, absolute
from ...settings.saved_states import copies_folder, copies_id
from ..state import State
from .checkpoints import (
    SOUND,
    Checkpoints,
    DamageError,
    Files,
    Keep,
    Loaded,
    Restored,
    first_line,
    saved_of,
    worst_of_processes,
)

GIB = 2**30
WAIT = 300  # seconds, in which a process that cannot write is waited for

logging.getLogger("absl").addFilter(  # it is as it should be
    lambda record: "disabled for `primary_host=None`" not in record.getMessage()
)


def opened(
    directory: str | None, where: str, checkpoints: Checkpoints
) -> "contextlib.AbstractContextManager[LocalCopies | None]":
    """Opens the copies in `Run.local_checkpoint_dir` of a run with these checkpoints, at `where`.

    None: it has none, and those that it had before are of no use any more.
    """
    if directory is not None:
        return LocalCopies(directory, where, checkpoints)
    if jax.process_index() == 0:
        (absolute(where) / COPIES_ID).unlink(missing_ok=True)
    return contextlib.nullcontext()


class LocalCopies(Checkpoints):
    """The copies that this process has of its run's newest state, of which the latest is kept.

    All processes call the methods together.
    """

    _shared = False
    _unread = ""  # it is removed

    def __init__(self, directory: str, where: str, checkpoints: Checkpoints):
        self._of = checkpoints
        self._where = where
        self._id = copies_id(where)
        self.unused = ""  # why `restore_latest` passed over a copy
        try:
            run_ids.claim_copies(where, copies_folder(directory, where))
            super().__init__(copies_folder(directory, where), Keep(latest=1))
        except OSError as error:
            raise OSError(
                f"Got training.Run.local_checkpoint_dir = {directory!r}, in which this host makes "
                f"no folder ({error}): give one on a disk that can be written."
            ) from error

    def restore_latest(self, target: State, steps: int) -> Restored | None:
        """Returns what `restore` does of the run's checkpoints, or a copy of a later step than
        theirs, where all processes have a sound one. All other copies are removed.

        None of the last step of a run, `steps`, which ends with a checkpoint. One beyond is kept
        for whoever takes back that the run was to end before it.
        """
        last = max(self._of.steps(), default=-1)
        later = [step for step in self.steps() if step > last and step != steps]
        steps_by_process = _gathered(later)
        known = set.union(*steps_by_process)
        shared = set.intersection(*steps_by_process)
        restored = None
        problem = ""
        if shared:
            loaded, problem = self._sound(max(shared), target)
            if loaded:
                state, files, _ = loaded
                damaged = tuple(self._of.set_aside_at_opening)
                restored = Restored(state, _exchanged(files), damaged, copied=True)
        elif known:
            lacking = [i for i, found in enumerate(steps_by_process) if max(known) not in found]
            problem = f"process {', '.join(map(str, lacking))} has none"
        if problem:
            self.unused = f"The local copy of step {max(shared or known)} is not used: {problem}."
        kept = max(shared) if restored else None
        if restored is None:
            restored = self._of.restore(target)
            self._draw_id()
        for step in self.steps():
            if step != kept:
                self._remove(step)
        self._checkpointer.reload()
        return restored

    def _remove(self, step: int) -> None:
        try:
            (self._root / str(step)).rmtree()
        except OSError as error:
            raise OSError(
                f"The local copy of step {step} in {self._root} cannot be removed ({error}): give "
                "another --gin.training.Run.local_checkpoint_dir, on a disk that can be written."
            ) from error

    def save_or_say(self, state: State, position: dict[str, bytes]) -> str:
        """Saves as `save` does; or returns why there is no copy, where a host has no room for one
        or, of a single process, it cannot be written.

        Of several processes who cannot write raises OSError, as do after minutes the others, which
        wait for it.
        """
        problem = self._lacking_room(state)
        return problem or self._or_say(lambda: self.save(state, position))

    def wait_or_say(self) -> str:
        """Waits until the running save is complete; returns why it failed, or raises, as above."""
        return self._or_say(self.wait)

    def _or_say(self, call: Callable[[], None]) -> str:
        try:
            call()
        except OSError as error:
            if jax.process_count() > 1:
                raise
            return str(error)
        return ""

    def _lacking_room(self, state: State) -> str:
        """Returns which process has no room for another copy, "" where all have; the same on all
        processes."""
        needed = _bytes_of_parts(saved_of(state))
        free = shutil.disk_usage(self._root).free
        mine = np.array([needed > free, needed, free], np.float64) / [1, GIB, GIB]
        for process, (lacks, needed, free) in enumerate(_of_processes(mine)):
            if lacks:
                return (
                    f"No local copy of step {int(state.step)}: the disk of process {process} has "
                    f"{free:.2f} GiB left, and a copy takes up to {needed:.2f}, beside the last."
                )
        return ""

    def _draw_id(self) -> None:
        drawn = np.frombuffer(secrets.token_bytes(8), np.uint8)
        if jax.process_count() > 1:
            drawn = multihost_utils.broadcast_one_to_all(drawn)
        self._id = bytes(drawn).hex()
        if jax.process_index() == 0:
            (absolute(self._where) / COPIES_ID).write_text(self._id)

    def _sound(self, step: int, target: State) -> tuple[Loaded | None, str]:
        try:
            loaded, problem = super()._sound(step, target)
        except OSError as error:  # on all processes
            return None, str(error).removesuffix(".")
        # They have compared the arrays with checksums of their own.
        if worst_of_processes(DamageError(problem) if problem else None) != SOUND:
            return None, problem or "that of another process is damaged"
        return loaded, ""

    def _differences(self, step: int, target: State) -> list[str]:
        about = self._described(step)
        if about["id"] != self._id:
            raise DamageError("it is of another run, or of another start of this one")
        if about["processes"] != jax.process_count():
            raise DamageError(f"it is of a run of {about['processes']} processes")
        # Who removes a checkpoint wants the run to go on from before it.
        if gone := set(about["after"]) - set(self._of.steps()):
            raise DamageError(f"the checkpoint of step {max(gone)} before it is gone")
        unlike = super()._differences(step, target)
        if not unlike and about["parts"] != _parts(saved_of(target)):
            raise DamageError("it was made on a mesh that has other parts of the arrays here")
        return unlike

    def _about(self, arrays) -> dict[str, Any]:
        own = {"id": self._id, "after": self._of.steps()[-1:], "parts": _parts(arrays)}
        return super()._about(arrays) | own

    @contextlib.contextmanager
    def _errors_in_words(self):
        try:
            yield
        except Exception as error:
            waited = " Or that of another host could not." if jax.process_count() > 1 else ""
            raise OSError(
                f"A local copy could not be saved in {self._root}: {first_line(error)}.{waited}"
            ) from error

    def _context(self, alone: bool = False) -> Any:
        context = super()._context()
        if jax.process_count() > 1:
            one = context.multiprocessing
            one.primary_host = None  # each writes all that it holds
            one.active_processes = {jax.process_index()} if alone else None
            one.barrier_sync_key_prefix = "local"
            context.array.saving.use_replica_parallel = False
            context.asynchronous.timeout_secs = WAIT
        return context


def _bytes_of_parts(arrays) -> int:
    """Returns the bytes of what this process writes: each part that its devices hold, once."""
    part_sizes = (
        {str(shard.index): shard.data.nbytes for shard in x.addressable_shards}
        for x in jax.tree.leaves(arrays)
    )
    return sum(sum(parts.values()) for parts in part_sizes)


def _parts(arrays) -> int:
    """Returns a checksum of which parts of the arrays this process's devices hold."""
    held = [x.sharding.addressable_devices_indices_map(x.shape) for x in jax.tree.leaves(arrays)]
    return zlib.crc32(str([sorted(map(str, parts.values())) for parts in held]).encode())


def _of_processes(mine: np.ndarray) -> np.ndarray:
    """Returns the array of each process, stacked, on all of them."""
    return mine[None] if jax.process_count() == 1 else multihost_utils.process_allgather(mine)


_MOST = 4  # steps of a process that are compared: two where it was killed between two copies


def _gathered(steps: list[int]) -> list[set[int]]:
    """Returns the latest of these steps, of each process."""
    mine = np.full(_MOST, -1, np.int32)
    mine[: len(steps)] = steps[-_MOST:]
    return [set(row.tolist()) - {-1} for row in _of_processes(mine)]


def _exchanged(files: Files) -> Callable[[str], bytes]:
    """Returns what gives the file of a name of any process, after all have sent each other theirs:
    whose devices get a part of the data may have changed since."""
    if jax.process_count() == 1:
        return files.read
    names = files.read_json(f"checksums_{jax.process_index()}.json")
    text = json.dumps({name: base64.b64encode(files.read(name)).decode() for name in names})
    mine = np.frombuffer(text.encode(), np.uint8)
    sizes = _of_processes(np.array(mine.size))
    padded = np.pad(mine, (0, int(sizes.max()) - mine.size))
    all_files: dict[str, str] = {}
    for row, size in zip(_of_processes(padded), sizes):
        all_files |= json.loads(bytes(row[:size]))

    def read(name: str) -> bytes:
        if name not in all_files:
            raise FileNotFoundError(name)
        return base64.b64decode(all_files[name])

    return read
