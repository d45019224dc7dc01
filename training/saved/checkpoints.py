"""Checkpoints: the state and the data position of a step, saved together by Orbax.

A save copies the state to the host and continues in the background. It includes a checksum of every
array, computed on the device, and of every file of the data position.

A checkpoint is damaged if a checksum differs after loading, or if a part is missing or cannot be
decoded. It is then reported and moved away, and the checkpoint before it is used. If reading fails
for another reason, such as unavailable storage or missing permissions, it is tried again, and the
checkpoint stays in place.
"""

import contextlib
import dataclasses
import json
import math
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self, TypeVar

import jax
import numpy as np
from etils import epath
from jax.experimental import multihost_utils
from orbax.checkpoint import v1 as ocp
from orbax.checkpoint.path import step as step_names

from ...settings import atomic_writes
from ...settings.run_directory import (
    absolute,
    damaged_folder,
    step_folder,
    steps_with_folders,
)
from ..run import Run
from ..state import State
from .checksums import by_path, checksums
from .damage import DamageError, first_line, shows_damage
from .quiet_orbax import hide_repeated_errors

T = TypeVar("T")

_METADATA_FILE = "checksums.json"  # among the files of the data position
_LOSS = "heldout_loss"  # key in the metadata
PROCESS_TIMEOUT = 300  # seconds that processes with separate folders wait for each other
_DIFFERS = "checksum of {} does not agree with what was saved"
WAITS = (1, 5, 20)  # seconds before each further attempt to read a checkpoint
# Advice about a checkpoint that cannot be read.
_UNREAD_ADVICE = (
    " It may be sound, so it was left as it is. Run the same command when it can be read; or move "
    "it away, and the run continues from the checkpoint before it."
)
_MAX_REMOVED = 20  # maximum number of consecutive checkpoints removed during reading


class Restored(NamedTuple):
    """A restored state and data position."""

    state: State
    read: Callable[[str], bytes]  # reads a file of the data position, see `Batches.restore`
    damaged: tuple[str, ...]  # a message for each damaged checkpoint that was skipped
    copied: bool = False  # whether it was restored from a local copy


class Keep(NamedTuple):
    """Which checkpoints are kept. A checkpoint is kept if any of these fields selects it."""

    latest: int = Run.keep_checkpoints  # number of latest checkpoints
    every: int | None = None  # keeps the checkpoints of steps that this number divides
    best: int | None = None  # number of checkpoints with the lowest held-out loss
    due: int | None = None  # keeps the latest checkpoint of a step that this number divides

    @classmethod
    def of(cls, run: Run) -> "Keep":
        due = run.checkpoint_every if run.rollback_sigmas is not None else None
        return cls(run.keep_checkpoints, run.keep_every, run.keep_best, due)

    def steps_to_keep(self, losses: Mapping[int, float | None]) -> set[int]:
        """Returns the steps to keep of those that are saved.

        >>> losses = {1: 3.0, 2: 1.0, 4: 5.0, 5: 4.0, 6: 2.0, 7: None}
        >>> sorted(Keep(latest=1, every=4, best=2).steps_to_keep(losses))
        [2, 4, 6, 7]

        Args:
          losses: step -> held-out loss of each saved checkpoint. None: it has no loss, so it is
            never among the best.
        """
        steps = sorted(losses)
        kept = {*steps[-self.latest :]}
        if self.every is not None:
            kept.update(step for step in steps if step % self.every == 0)
        if self.best is not None:
            scored = [(loss, -step) for step, loss in losses.items() if loss is not None]
            kept.update(-step for _, step in sorted(scored)[: self.best])
        if self.due is not None:
            kept.update([step for step in steps if step % self.due == 0][-1:])
        return kept


@dataclasses.dataclass(frozen=True)
class _Preservation:
    """Orbax's policy: keeps the checkpoints that `keep` selects, and all with an unknown loss."""

    keep: Keep
    losses: Mapping[int, float | None]  # step -> held-out loss
    unknown: frozenset[int]  # steps whose loss is damaged, which may be the best

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        losses = {checkpoint.step: self.losses.get(checkpoint.step) for checkpoint in checkpoints}
        kept = self.keep.steps_to_keep(losses) | self.unknown
        return [checkpoint.step in kept for checkpoint in checkpoints]


LATEST = Keep()


class MismatchError(ValueError):
    """The arrays of a checkpoint differ from the arrays of the configured run."""


@contextlib.contextmanager
def reading_errors(source: str, step: int):
    """Turns any error of reading a checkpoint into a ValueError that names the step."""
    try:
        yield
    except MismatchError:
        raise
    except Exception as error:
        problem = "cannot be read"
        advice = "try again when it can, or move it"
        if shows_damage(error):
            problem = "is damaged"
            advice = "delete or move it"
        raise ValueError(
            f"Checkpoint {step} of {source} {problem} ({first_line(error)}): {advice}, and the "
            "checkpoint before it is used."
        ) from error


def steps_in(folder: epath.Path) -> list[int]:
    """Returns the steps of the complete checkpoints in a folder."""
    if "://" in str(folder):  # in a bucket, an unfinished folder already has its final name
        return sorted(found.step for found in step_names.standard_name_format().find_all(folder))
    return steps_with_folders(folder)


def array_differences(saved: Mapping[str, object], wanted: Mapping[str, object]) -> list[str]:
    """Returns a line for each array whose description differs, parameters first.

    >>> array_differences({"params/a": (2, 3)}, {})
    ['params/a: the checkpoint has (2, 3), the run none']
    """
    lines = []
    for name in sorted(saved.keys() | wanted.keys(), key=lambda n: (n[:6] != "params", n)):
        was, now = (described.get(name, "none") for described in (saved, wanted))
        if was != now:
            lines.append(f"{name}: the checkpoint has {was}, the run {now}")
    return lines


class Checkpoints:
    """The checkpoints of one run, in `DIRECTORY/STEP`.

    Args:
      keep: which checkpoints to keep. None: the folder is only read, and it need not exist.
      per_process: whether each process has its own folder, instead of one for all processes.
    """

    def __init__(self, directory: str, keep: Keep | None = LATEST, per_process: bool = False):
        hide_repeated_errors()
        self._root = absolute(directory)
        self._per_process = per_process
        self._checkpointer: Any = None
        self._losses: dict[int, float | None] = {}  # step -> held-out loss, which `keep` reads
        if keep is not None:
            unknown = set()
            for step in steps_in(self._root) if keep.best is not None else ():
                try:
                    self._losses[step] = self._loss(step)
                except DamageError:
                    unknown.add(step)
            self._checkpointer = ocp.training.Checkpointer(
                self._root,
                context=self._context(),
                preservation_policy=_Preservation(keep, self._losses, frozenset(unknown)),
                cleanup_tmp_directories=True,
            )
        # The running save. Its thread lives until `wait` takes its result.
        self._saving: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def steps(self) -> list[int]:
        """Returns the steps of the checkpoints. If the folder is only read, it is listed again."""
        if self._checkpointer is not None:
            return sorted(checkpoint.step for checkpoint in self._checkpointer.checkpoints)
        return steps_in(self._root)

    def read_latest(self, read: Callable[[int], T]) -> T | None:
        """Returns the result of `read` for the latest step; None if there is no checkpoint.

        A run that is still training may save a newer checkpoint and remove this one. Then the newer
        checkpoint is read.

        Raises the errors of `read`, and ValueError if checkpoints keep being removed meanwhile.
        """
        for _ in range(_MAX_REMOVED):
            steps = self.steps()
            if not steps:
                return None
            try:
                return read(steps[-1])
            except (ValueError, OSError):
                if self.steps()[-1:] == steps[-1:]:  # otherwise it was removed during reading
                    raise
        raise ValueError(
            f"{_MAX_REMOVED} checkpoints in {self._root} were removed while they were read, by "
            "a run that trains there: give it a larger training.Run.keep_checkpoints."
        )

    def save(
        self,
        state: State,
        position: dict[str, bytes],
        *,
        heldout_loss: float | None = None,
        one_by_one: bool = False,
    ) -> None:
        """Saves a checkpoint in the background, after waiting for the previous save.

        Args:
          heldout_loss: the held-out loss at this step. A checkpoint without a loss, or with NaN, is
            never among the best.
          one_by_one: whether arrays are compressed one after another. This needs memory for the
            largest array instead of memory for all arrays.
        """
        step = int(state.step)
        loss = None if heldout_loss is None or math.isnan(heldout_loss) else float(heldout_loss)
        self.wait()
        if step in self.steps():
            return
        self._losses[step] = loss
        arrays = saved_of(state)
        process = jax.process_index()
        sums = {name: zlib.crc32(data) for name, data in position.items()}
        files = position | {f"checksums_{process}.json": json.dumps(sums).encode()}
        array_sums = checksums(arrays)  # computed by all processes together
        if process == 0 or self._per_process:
            shapes = {name: [str(x.dtype), x.shape] for name, x in by_path(arrays).items()}
            metadata = self._metadata(arrays) | {"arrays": array_sums, "shapes": shapes}
            metadata[_LOSS] = loss
            files[_METADATA_FILE] = json.dumps(atomic_writes.sealed(metadata)).encode()
        context = self._context()
        if one_by_one:  # Orbax requires a limit above the size of the largest array
            context.memory.write_concurrent_bytes = _largest_bytes(arrays) + 1
        with self._save_errors(), context:
            self._saving = self._checkpointer.save_checkpointables_async(
                step,
                {"state": arrays, "data": Files(files)},
                force=True,
            )

    def restore(self, target: State) -> Restored | None:
        """Restores the latest sound checkpoint; returns None if there is no checkpoint.

        Args:
          target: the dtypes, shapes and shardings of the state.

        Raises MismatchError if the arrays differ from those of `target`. Raises ValueError if all
        checkpoints are damaged. Raises OSError if, after several attempts, a checkpoint still
        cannot be read for another reason.
        """
        damaged: list[str] = []
        for step in reversed(self.steps()):
            try:
                loaded = self._load_if_sound(step, target)
            except DamageError as damage:
                damaged.append(self._set_aside(step, str(damage)))
                self._checkpointer.reload()
            else:
                return Restored(loaded.state, loaded.files.read, tuple(damaged))
        if damaged:
            raise ValueError(
                f"No checkpoint of this run can be read: {'; '.join(damaged)}. Start again in "
                "another run directory."
            )
        aside = self._damaged_folder()
        if steps := steps_with_folders(aside):
            raise ValueError(
                f"{self._root} has no checkpoint, but {aside} has damaged checkpoints of the steps "
                f"{', '.join(map(str, steps))}: move a sound checkpoint back, or start again in "
                "another run directory."
            )
        return None

    def _load_if_sound(self, step: int, target: State) -> "Loaded":
        """Loads a checkpoint and compares its arrays with their checksums.

        Raises the errors of `_load_with_retries`, and DamageError if the arrays or the step differ.
        """
        loaded = self._load_with_retries(step, target)
        _check_arrays(saved_of(loaded.state), loaded.checksums)
        if int(loaded.state.step) != step:
            raise DamageError(f"it holds step {int(loaded.state.step)}")
        return loaded

    def _load_with_retries(self, step: int, target: State) -> "Loaded":
        """Loads a checkpoint, with several attempts.

        All processes raise the same error: MismatchError if the arrays differ from those of
        `target`, DamageError if the checkpoint is damaged for one of them, and OSError if it cannot
        be read although it may be sound.
        """
        for wait in (*WAITS, None):
            loaded = None
            differences, failure = self._attempt(step, lambda: self._differences(step, target))
            worst = worst_of_processes(failure)
            # All processes must load the same number of times.
            if worst == SOUND and not differences:
                loaded, failure = self._attempt(step, lambda: self._load(step, target))
                worst = worst_of_processes(failure)
            problem = first_line(failure) if failure else "another process cannot read it"
            failure = None  # its traceback would keep the loaded arrays in memory
            if worst == SOUND and differences:
                raise MismatchError("\n".join(differences))
            if worst == SOUND and loaded:
                return loaded
            if worst == _DAMAGED:
                raise DamageError(problem)
            if wait is not None:
                time.sleep(wait)
        raise OSError(
            f"Checkpoint {step} in {self._root} cannot be read, in {1 + len(WAITS)} attempts: "
            f"{problem}.{self._unread_advice()}"
        )

    def _attempt(self, step: int, read: Callable[[], T]) -> tuple[T | None, Exception | None]:
        """Returns (the result of `read`, None), or (None, why the checkpoint cannot be read)."""
        try:
            return read(), None
        except Exception as error:  # storage and codecs raise many kinds of errors
            if "RESOURCE_EXHAUSTED" in str(error):  # memory is too small; the checkpoint is sound
                raise
            return None, self._reason(step, error)

    def _reason(self, step: int, error: Exception) -> Exception:
        """Returns why a checkpoint cannot be read.

        This is the error itself, or an error about a file that is missing or cannot be opened.
        Orbax treats a folder without permissions as missing, and does not explain why it cannot
        read a description.
        """
        folders = [step_folder(self._root, step)]
        try:
            for folder in folders:  # the loop appends subfolders
                for path in folder.iterdir():
                    if path.is_dir():
                        folders.append(path)
                    else:
                        with path.open("rb") as file:
                            file.read(1)
            # Orbax's error does not name this file if it is missing.
            (step_folder(self._root, step) / "state" / "_METADATA").stat()
        except Exception as unread:
            return error if shows_damage(unread) and shows_damage(error) else unread
        return error

    def is_saving(self) -> bool:
        return self._checkpointer.is_saving_in_progress()

    def remove_after(self, step: int) -> None:
        """Removes the checkpoints of later steps."""
        self.wait()
        for later in self.steps():
            if later > step:
                self._checkpointer.delete(later)

    def param_shapes(self, step: int) -> dict[str, tuple[int, ...]]:
        """Returns the shape of every parameter of a checkpoint, by name.

        Raises ValueError if its metadata is damaged, and OSError if it cannot be read.
        """
        return {
            name.removeprefix("params/"): tuple(x.shape)
            for name, x in self._arrays(step).items()
            if name.startswith("params/")
        }

    def load_params(self, step: int, target: Any) -> Any:
        """Returns parameters of a checkpoint.

        If the run keeps a moving average of the parameters, returns the average.

        Args:
          target: a tree of shapes and shardings. It may contain only some of the parameters.

        Raises ValueError if a checksum differs.
        """
        averaged = any(name.startswith("ema/") for name in self._arrays(step))
        part = "ema" if averaged else "params"
        files = Files({})
        context = ocp.Context()
        context.pytree.loading.partial_load = True
        # By default, all arrays are in memory twice: once compressed, once not.
        context.memory.read_concurrent_bytes = _largest_bytes(target) + 1
        with context:
            loaded = ocp.load_checkpointables(
                step_folder(self._root, step), {"state": {part: target}, "data": files}
            )["state"]
        metadata = _parse_metadata(files.read(_METADATA_FILE))
        _check_arrays(loaded, metadata["arrays"])
        return loaded[part]

    def wait(self) -> None:
        """Waits until the running save is complete. Raises OSError if it failed."""
        if self._checkpointer is None:  # the folder is only read
            return
        with self._save_errors():
            saving = self._saving
            self._saving = None
            if saving is not None:
                saving.result()
            self._checkpointer.wait()

    def close(self) -> None:
        if self._checkpointer is None:
            return
        try:
            self.wait()
        finally:
            with self._save_errors():
                self._checkpointer.close()

    @contextlib.contextmanager
    def _save_errors(self):
        """Turns any error of a save into an OSError. Background errors appear at the next call."""
        try:
            yield
        except Exception as error:
            steps = self.steps()
            resumes = "resumes from the last of them" if steps else "starts from the beginning"
            raise OSError(
                f"A checkpoint could not be saved in {self._root}: {first_line(error)}\n"
                f"Complete checkpoints: {steps or 'none'}. Free some space there, or set "
                f"checkpoint_dir, and run the same command again: it {resumes}."
            ) from error

    def _context(self, alone: bool = False) -> Any:
        """Returns the settings of Orbax.

        Args:
          alone: whether only this process makes the calls, if each process has its own folder.
        """
        context = ocp.Context()
        # If a folder cannot be created in the background, Orbax's other threads wait for it. The
        # program would then print its error and end only minutes later.
        context.asynchronous.create_directories_asynchronously = False
        if self._per_process and jax.process_count() > 1:
            multiprocessing = context.multiprocessing
            multiprocessing.primary_host = None  # each process writes everything that it holds
            multiprocessing.active_processes = {jax.process_index()} if alone else None
            multiprocessing.barrier_sync_key_prefix = "local"
            context.array.saving.use_replica_parallel = False
            context.asynchronous.timeout_secs = PROCESS_TIMEOUT
        return context

    def _metadata(self, arrays) -> dict[str, Any]:
        """Returns the metadata of a checkpoint that is saved now, without checksums and shapes."""
        return {"processes": jax.process_count()}

    def _load(self, step: int, target: State) -> "Loaded":
        """Loads a checkpoint and compares the files of the data position with their checksums."""
        files = Files({})
        with self._context(alone=True):
            loaded = self._checkpointer.load_checkpointables(
                step, {"state": saved_of(target), "data": files}
            )
        metadata = _parse_metadata(files.read(_METADATA_FILE))
        for process in [jax.process_index()] if self._per_process else range(metadata["processes"]):
            for name, value in files.read_json(f"checksums_{process}.json").items():
                if zlib.crc32(files.read(name)) != value:
                    raise DamageError(_DIFFERS.format(name))
        return Loaded(State(**loaded["state"]), files, metadata["arrays"])

    def _differences(self, step: int, target: State) -> list[str]:
        """Returns how the saved arrays differ from the target's in name, shape or dtype.

        Orbax would convert dtypes, and then the checksums would differ. Returns no differences if
        the metadata is damaged. Loading the arrays then raises an error that explains the
        damage.
        """
        try:
            saved = self._arrays(step)
        except DamageError:
            return []
        both = saved, by_path(saved_of(target))
        described = (
            {name: f"{x.dtype} {tuple(x.shape)}" for name, x in arrays.items()} for arrays in both
        )
        return array_differences(*described)

    def _arrays(self, step: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns the shape and dtype of every array of a checkpoint, by name.

        The metadata is in our own file. Orbax would return tensorstore's metadata, whose memory is
        never freed.
        """
        try:
            shapes = self._read_metadata(step)["shapes"]
            return {
                name: jax.ShapeDtypeStruct(tuple(x), dtype) for name, (dtype, x) in shapes.items()
            }
        except Exception as error:
            raise self._reason(step, error) from error

    def _read_metadata(self, step: int) -> Mapping[str, Any]:
        path = step_folder(self._root, step) / "data" / _METADATA_FILE
        return _parse_metadata(path.read_bytes())

    def _damaged_folder(self) -> epath.Path:
        return epath.Path(damaged_folder(str(self._root)))

    def _loss(self, step: int) -> float | None:
        """Returns the held-out loss of a checkpoint, or None if it has no loss.

        Raises DamageError if the checkpoint's metadata is damaged, and OSError if it cannot be read
        although it may be sound.
        """
        try:
            return self._read_metadata(step).get(_LOSS)
        except Exception as error:
            reason = self._reason(step, error)
            if shows_damage(reason):
                raise DamageError(first_line(reason)) from error
            raise OSError(
                f"Checkpoint {step} in {self._root} cannot be read: {first_line(reason)}."
                f"{self._unread_advice()}"
            ) from error

    def _unread_advice(self) -> str:
        return "" if self._per_process else _UNREAD_ADVICE

    def _set_aside(self, step: int, problem: str) -> str:
        """Moves a damaged checkpoint in the first process; returns a message in every process."""
        target = step_folder(self._damaged_folder(), step)
        if jax.process_index() == 0:
            target.parent.mkdir(parents=True, exist_ok=True)
            # In a bucket, a folder exists only if it has a file. A move needs an existing folder.
            (target.parent / "README.txt").write_text(f"Damaged checkpoints of {self._root}.\n")
            if target.exists():
                target.rmtree()
            step_folder(self._root, step).rename(target)
        multihost_utils.sync_global_devices(f"set aside {step}")
        return f"checkpoint {step} is damaged ({problem}), moved to {target}"


class Files:
    """Small files of a checkpoint; each process writes its own."""

    def __init__(self, files: dict[str, bytes]):
        self._files = files
        self._directory = None

    async def save(self, directory):
        files = dict(self._files)

        async def write():
            path = await directory.await_creation()
            for name, data in files.items():
                (path / name).write_bytes(data)

        return write()

    async def load(self, directory):
        self._directory = directory

        async def nothing():
            return None

        return nothing()

    def read(self, name: str) -> bytes:
        return (epath.Path(self._directory) / name).read_bytes()

    def read_json(self, name: str) -> Any:
        try:
            return atomic_writes.parse_json(self.read(name))
        except ValueError as error:
            raise DamageError(f"{name} is not JSON: {error}") from error


class Loaded(NamedTuple):
    """The contents of a checkpoint."""

    state: State
    files: Files
    checksums: Mapping[str, int]  # checksums of the saved arrays, by name


def _parse_metadata(content: bytes) -> Mapping[str, Any]:
    try:
        metadata = atomic_writes.unsealed(atomic_writes.parse_json(content))
    except (ValueError, TypeError) as error:
        raise DamageError(f"{_METADATA_FILE} is damaged: {error}") from error
    if absent := {"arrays", "processes", "shapes"} - metadata.keys():
        raise DamageError(f"{_METADATA_FILE} has no {min(absent)!r}")
    return metadata


def saved_of(state: State) -> dict[str, Any]:
    """Returns the parts of a state that a checkpoint holds, by name."""
    return {name: part for name, part in state._asdict().items() if part is not None}


def _check_arrays(arrays, saved: Mapping[str, int]) -> None:
    """Raises DamageError, in all processes, if an array differs from its checksum."""
    for name, value in checksums(arrays).items():
        if saved.get(name) != value:
            raise DamageError(_DIFFERS.format(name))


SOUND, _DAMAGED, _UNREAD = range(3)


def worst_of_processes(failure: Exception | None) -> int:
    """Returns the worst result of all processes: SOUND, damaged or unread.

    All processes must agree on it, or they would wait for each other forever.
    """
    result = SOUND if failure is None else _DAMAGED if shows_damage(failure) else _UNREAD
    if jax.process_count() == 1:
        return result
    return int(np.max(multihost_utils.process_allgather(np.array(result))))


def _largest_bytes(tree) -> int:
    return max(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))
