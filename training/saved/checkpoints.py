"""Checkpoints: the state and the data position of one step, saved together by Orbax.

A save copies the state to the host and continues in the background. It includes a checksum of every
array, computed on the device, and of every file of the data position. A checkpoint whose checksums
differ after loading, or that lacks a part or has one that cannot be decoded, is damaged: it is
reported and moved away, and the one before it is used. What cannot be read for another reason, such
as a storage that does not answer or forbids it, or a library that has changed, is tried again, and
then stays where it is.
"""

import contextlib
import dataclasses
import json
import logging
import math
import re
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from jax.experimental import multihost_utils
from orbax.checkpoint import v1 as ocp
from orbax.checkpoint.path import step as step_names

from ...settings import atomic_writes
from ...settings.run_directory import absolute, damaged_folder
from ...settings.system_errors import failure_of
from ..run import Run
from ..state import State

One = TypeVar("One")
Own = TypeVar("Own", bound="Checkpoints")

_LOSS = "heldout_loss"  # in the description of a checkpoint
_ABOUT = "checksums.json"  # the description of a checkpoint, among the files of the data position


class Restored(NamedTuple):
    state: State
    read: Callable[[str], bytes]  # the data position, see `Batches.restore`
    damaged: tuple[str, ...]  # a message for each damaged checkpoint that was skipped
    copied: bool = False  # whether it is of a local copy


# Orbax logs, with tracebacks, the errors of its threads that it raises as well.
logging.getLogger("absl").addFilter(
    lambda record: "orbax" not in record.pathname or record.levelno < logging.ERROR
)


def _without_closed_loops(show: Callable[[Any], None]) -> Callable[[Any], None]:
    """Returns a `sys.unraisablehook` that hides errors of tensorstore threads after a failed save.

    Orbax has closed the event loop to which these threads return their results.
    """

    def show_others(unraisable: Any) -> None:
        if unraisable.object or str(unraisable.exc_value) != "Event loop is closed":
            show(unraisable)

    return show_others


sys.unraisablehook = _without_closed_loops(sys.unraisablehook)


class Keep(NamedTuple):
    """Which checkpoints are kept: each that is one of these."""

    latest: int = Run.keep_checkpoints  # so many
    every: int | None = None  # those of steps that it divides
    best: int | None = None  # so many with the lowest held-out loss
    due: int | None = None  # the latest of those of steps that it divides

    @classmethod
    def of(cls, run: Run) -> "Keep":
        due = run.checkpoint_every if run.rollback_sigmas is not None else None
        return cls(run.keep_checkpoints, run.keep_every, run.keep_best, due)

    def policy(self) -> Any:
        policies = ocp.training.preservation_policies

        def best(n: int) -> Any:  # the last ones of an order, in which the lowest loss is last
            by_loss = dict(get_metric_fn=lambda metrics: metrics[_LOSS], reverse=True)
            return policies.BestN(n=n, keep_checkpoints_without_metrics=False, **by_loss)

        kinds = {
            "latest": policies.LatestN,
            "every": policies.EveryNSteps,
            "best": best,
            "due": _LatestDue,
        }
        chosen = [kinds[name](n) for name, n in self._asdict().items() if n is not None]
        return policies.AnyPreservationPolicy(chosen)


@dataclasses.dataclass(frozen=True)
class _LatestDue:
    """Keeps the latest checkpoint of a multiple of so many steps, as a policy of Orbax."""

    every: int

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        due = [one.step for one in checkpoints if one.step % self.every == 0]
        return [one.step == max(due, default=None) for one in checkpoints]


LATEST = Keep()


class MismatchError(ValueError):
    """A checkpoint's arrays differ from those of the configured run."""


WAITS = (1, 5, 20)  # seconds before a checkpoint that cannot be read is tried again

_REMOVED_AT_MOST = 20  # checkpoints removed in a row while they are read

_ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
# What tensorstore says of what it cannot decode, or does not find; and where the system fails.
_OF_DAMAGE = re.compile("(DATA_LOSS|NOT_FOUND|OUT_OF_RANGE): |FAILED_PRECONDITION: .*ZSTD_")
_OF_STORAGE = re.compile(
    "UNAVAILABLE|DEADLINE_EXCEEDED|PERMISSION_DENIED|UNAUTHENTICATED|ABORTED"
    "|os_error_code='(?!(2|20|21)')"
)


class DamageError(ValueError):
    """What was read is not what was saved."""


def shows_damage(error: BaseException | None) -> bool:
    """Returns whether an error in reading, or one that it came from, shows that what was read is
    damaged: it is not there, cannot be decoded, or has another checksum. Other errors may be of the
    storage, the network, the right to read, or of another version of a library.

    >>> [shows_damage(e) for e in (FileNotFoundError(), ValueError("DATA_LOSS: CRC-32C"))]
    [True, True]
    >>> shows_damage(ValueError("FAILED_PRECONDITION: ZSTD_decompressStream() failed"))
    True
    >>> [shows_damage(e) for e in (PermissionError(), ValueError("UNAVAILABLE: 503"))]
    [False, False]
    >>> [shows_damage(e) for e in (AttributeError("no such name"), TypeError("an argument"))]
    [False, False]
    """
    found = False
    for one in causes(error):
        is_system_error = isinstance(one, OSError) and not isinstance(one, _ABSENT)
        if is_system_error or _OF_STORAGE.search(str(one)):
            return False
        undecoded = isinstance(one, (DamageError, json.JSONDecodeError, UnicodeDecodeError))
        found |= undecoded or isinstance(one, _ABSENT) or bool(_OF_DAMAGE.match(str(one)))
    return found


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error and its causes, each once. Orbax raises errors whose causes form a cycle."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


@contextlib.contextmanager
def damage_in_words(source: str, step: int):
    """Raises ValueError, with the step, for any error in reading a checkpoint."""
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
            f"Checkpoint {step} of {source} {problem} ({first_line(error)}): {advice}, and the one "
            "before is used."
        ) from error


def steps_in(folder: epath.Path) -> list[int]:
    """Returns the steps of the complete checkpoints in a folder."""
    if "://" in str(folder):  # in a bucket, an unfinished folder already has its final name
        return sorted(found.step for found in step_names.standard_name_format().find_all(folder))
    try:
        names = [path.name for path in folder.iterdir()]
    except _ABSENT:
        return []
    return sorted(int(name) for name in names if name.isdecimal())


def differences(saved: Mapping[str, object], wanted: Mapping[str, object]) -> list[str]:
    """Returns how descriptions of arrays by name differ, a line each, parameters first.

    >>> differences({"params/a": (2, 3)}, {})
    ['params/a: the checkpoint has (2, 3), the run none']
    """
    lines = []
    for name in sorted(saved.keys() | wanted.keys(), key=lambda n: (n[:6] != "params", n)):
        was, now = (described.get(name, "none") for described in (saved, wanted))
        if was != now:
            lines.append(f"{name}: the checkpoint has {was}, the run {now}")
    return lines


class Checkpoints:
    """The checkpoints of one run, `DIRECTORY/STEP`, of which those of `keep` are kept.

    With `keep` None they are read-only: another run's, which may have no such directory.
    """

    _shared = True  # by all processes, which write one folder
    _unread = (  # what becomes of one that cannot be read
        " It may be sound, and was left as it is. Run the same command when it can be read; or "
        "move it away, and the run continues from the one before."
    )

    def __init__(self, directory: str, keep: Keep | None = LATEST):
        self._root = absolute(directory)
        self._checkpointer: Any = None
        self.set_aside_at_opening: list[str] = []  # a message for each checkpoint
        if keep is not None:
            if self._shared:
                self._set_aside_without_loss()
            self._checkpointer = ocp.training.Checkpointer(
                self._root,
                context=self._context(),
                preservation_policy=keep.policy(),
                cleanup_tmp_directories=True,
            )
        # Of a save that may be running: its thread lasts until somebody asks for the result.
        self._saving: Any = None

    def __enter__(self: Own) -> Own:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def steps(self) -> list[int]:
        """Returns the steps of the checkpoints. A reader looks for them again at each call."""
        if self._checkpointer is not None:
            return sorted(one.step for one in self._checkpointer.checkpoints)
        return steps_in(self._root)

    def read_latest(self, read: Callable[[int], One]) -> One | None:
        """Returns what `read` makes of the latest step; None if there is no checkpoint.

        A run that is still training may save a newer checkpoint and remove this one. Then the newer
        checkpoint is read.

        Raises what `read` raises, and ValueError if checkpoints keep being removed during reading.
        """
        for _ in range(_REMOVED_AT_MOST):
            steps = self.steps()
            if not steps:
                return None
            try:
                return read(steps[-1])
            except (ValueError, OSError):
                if self.steps()[-1:] == steps[-1:]:  # otherwise it was removed during reading
                    raise
        raise ValueError(
            f"{_REMOVED_AT_MOST} checkpoints in {self._root} were removed while they were read, by "
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
        """Saves in the background, after waiting for a save that is still running.

        One without a held-out loss, or with NaN, is never among the best. Compressing all arrays at
        once takes as much memory again; `one_by_one` takes as much as the largest array.
        """
        step = int(state.step)
        ranked = None if heldout_loss is None or math.isnan(heldout_loss) else float(heldout_loss)
        self.wait()
        if step in self.steps():
            return
        arrays = saved_of(state)
        process = jax.process_index()
        sums = {name: zlib.crc32(data) for name, data in position.items()}
        files = position | {f"checksums_{process}.json": json.dumps(sums).encode()}
        array_sums = _checksums(arrays)  # computed by all processes together
        if process == 0 or not self._shared:
            shapes = {name: [str(x.dtype), x.shape] for name, x in _by_path(arrays).items()}
            about = self._about(arrays) | {"arrays": array_sums, "shapes": shapes}
            about[_LOSS] = ranked
            files[_ABOUT] = json.dumps(atomic_writes.sealed(about)).encode()
        context = self._context()
        if one_by_one:  # Orbax requires a limit above the largest
            context.memory.write_concurrent_bytes = _largest_bytes(arrays) + 1
        with self._errors_in_words(), context:
            self._saving = self._checkpointer.save_checkpointables_async(
                step,
                {"state": arrays, "data": Files(files)},
                force=True,
                metrics=None if ranked is None else {_LOSS: ranked},
            )

    def restore(self, target: State) -> Restored | None:
        """Returns the latest sound checkpoint with the dtypes, shapes and shardings of `target`.

        None when there is no checkpoint. Raises MismatchError when the arrays are not those of
        `target`, ValueError when all checkpoints are damaged, now or before, and OSError when one
        cannot be read for another reason, after some attempts.
        """
        damaged = self.set_aside_at_opening
        self.set_aside_at_opening = []
        for step in reversed(self.steps()):
            loaded, problem = self._sound(step, target)
            if loaded:
                state, files, _ = loaded
                return Restored(state, files.read, tuple(damaged))
            damaged.append(self._set_aside(step, problem))
            self._checkpointer.reload()
        if damaged:
            raise ValueError(
                f"No checkpoint of this run can be read: {'; '.join(damaged)}. Start anew in "
                "another run directory."
            )
        aside = self._aside()
        if steps := sorted(path.name for path in aside.glob("[0-9]*")):
            raise ValueError(
                f"{self._root} has no checkpoint, but {aside} has those of the steps "
                f"{', '.join(steps)}, which were found damaged: move back one that is sound, or "
                "start anew in another run directory."
            )
        return None

    def _sound(self, step: int, target: State) -> "tuple[Loaded | None, str]":
        """Returns what `_attempts` does, where its arrays are what was saved; else None and why."""
        loaded, problem = self._attempts(step, target)
        if loaded:
            state, _, sums = loaded
            problem = _differing_array(saved_of(state), sums)
            if not problem and int(state.step) != step:
                problem = f"it holds step {int(state.step)}"
        return None if problem else loaded, problem

    def _attempts(self, step: int, target: State) -> "tuple[Loaded | None, str]":
        """Returns what `_load` does, or None and how the checkpoint is damaged, the same on all
        processes. Raises MismatchError and OSError as `restore` does."""
        for wait in (*WAITS, None):
            loaded = None
            unlike, failure = self._tried(step, lambda: self._differences(step, target))
            worst = worst_of_processes(failure)
            if worst == SOUND and not unlike:  # Orbax counts loads, of which all do as many
                loaded, failure = self._tried(step, lambda: self._load(step, target))
                worst = worst_of_processes(failure)
            problem = first_line(failure) if failure else "another process cannot read it"
            if worst == SOUND and unlike:
                raise MismatchError("\n".join(unlike))
            if worst == SOUND:
                return loaded, ""
            if worst == _DAMAGED:
                return None, problem
            if wait is not None:
                time.sleep(wait)
        raise OSError(
            f"Checkpoint {step} in {self._root} cannot be read, in {1 + len(WAITS)} attempts: "
            f"{problem}.{self._unread}"
        )

    def _tried(self, step: int, read: Callable[[], One]) -> tuple[One | None, Exception | None]:
        """Returns what a reading of a checkpoint gives, or None and why it cannot be read."""
        try:
            return read(), None
        except Exception as error:  # storage and codecs raise many kinds of errors
            if "RESOURCE_EXHAUSTED" in str(error):  # too little memory: it is sound
                raise
            return None, self._reason(step, error)

    def _reason(self, step: int, error: Exception) -> Exception:
        """Returns why a checkpoint cannot be read: this error, or that a file is absent or closed.

        Orbax takes a folder that is closed for none, and does not say why it reads no description.
        """
        folders = [self._root / str(step)]
        try:
            for folder in folders:  # which grow
                for path in folder.iterdir():
                    if path.is_dir():
                        folders.append(path)
                    else:
                        with path.open("rb") as file:
                            file.read(1)
            (self._root / str(step) / "state" / "_METADATA").stat()  # Orbax names no absent file
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

        Raises ValueError where its description is damaged, OSError where it cannot be read.
        """
        return {
            name.removeprefix("params/"): tuple(x.shape)
            for name, x in self._arrays(step).items()
            if name.startswith("params/")
        }

    def load_params(self, step: int, target) -> Any:
        """Returns the parameters in `target`, a tree of shapes and shardings, which may name a few;
        of a run with an average of them, that.

        Raises ValueError where a checksum differs.
        """
        averaged = any(name.startswith("ema/") for name in self._arrays(step))
        kept = "ema" if averaged else "params"
        files = Files({})
        context = ocp.Context()
        context.pytree.loading.partial_load = True
        # As for `one_by_one`: by default all arrays are in memory twice, compressed too.
        context.memory.read_concurrent_bytes = _largest_bytes(target) + 1
        with context:
            loaded = ocp.load_checkpointables(
                self._root / str(step), {"state": {kept: target}, "data": files}
            )["state"]
        if problem := _differing_array(loaded, _about_of(files.read(_ABOUT))["arrays"]):
            raise DamageError(problem)
        return loaded[kept]

    def wait(self) -> None:
        """Waits until the running save is complete; raises OSError when it failed."""
        if self._checkpointer is None:  # opened to read, where no folder is
            return
        with self._errors_in_words():
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
            with self._errors_in_words():
                self._checkpointer.close()

    @contextlib.contextmanager
    def _errors_in_words(self):
        """Raises OSError for an error in the background, which surfaces at the next call."""
        try:
            yield
        except Exception as error:
            steps = self.steps()
            resumes = "resumes from the last of them" if steps else "starts anew"
            raise OSError(
                f"A checkpoint could not be saved in {self._root}: {first_line(error)}\n"
                f"Complete ones: {steps or 'none'}. Free some space there, or set "
                f"checkpoint_dir, and run the same command again: it {resumes}."
            ) from error

    def _context(self, alone: bool = False) -> Any:
        """Returns the settings of Orbax; `alone`: for what this process does without the others."""
        context = ocp.Context()
        # If a folder cannot be created in the background, Orbax's other threads wait for it. The
        # program would then print its error and end only minutes later.
        context.asynchronous.create_directories_asynchronously = False
        return context

    def _about(self, arrays) -> dict[str, Any]:
        """Returns what a checkpoint of these arrays, saved now, says of itself beside checksums."""
        return {"processes": jax.process_count()}

    def _load(self, step: int, target: State) -> "Loaded":
        """Returns the state, the data position, after checking the checksums of its files, and the
        checksums of the arrays, by name."""
        files = Files({})
        with self._context(alone=True):
            loaded = self._checkpointer.load_checkpointables(
                step, {"state": saved_of(target), "data": files}
            )
        about = _about_of(files.read(_ABOUT))
        for process in range(about["processes"]) if self._shared else [jax.process_index()]:
            for name, value in files.read_json(f"checksums_{process}.json").items():
                if zlib.crc32(files.read(name)) != value:
                    raise DamageError(_DIFFERS.format(name))
        return State(**loaded["state"]), files, about["arrays"]

    def _differences(self, step: int, target: State) -> list[str]:
        """Returns how the saved arrays differ from the target's, in dtype too: Orbax would convert
        them, and their checksums would differ.

        Returns no differences if the description is damaged. Loading the arrays then raises an
        error that explains the damage.
        """
        try:
            saved = self._arrays(step)
        except DamageError:
            return []
        both = saved, _by_path(saved_of(target))
        described = ({k: f"{x.dtype} {tuple(x.shape)}" for k, x in some.items()} for some in both)
        return differences(*described)

    def _arrays(self, step: int) -> dict[str, Any]:
        """Returns a description of every array of a checkpoint, with shape and dtype, by name.

        It is read from our own file. Orbax would return tensorstore's descriptions, whose memory is
        never freed.
        """
        try:
            shapes = self._described(step)["shapes"]
            return {name: _Described(*shape) for name, shape in shapes.items()}
        except Exception as error:
            raise self._reason(step, error) from error

    def _described(self, step: int) -> Mapping[str, Any]:
        return _about_of((self._root / str(step) / "data" / _ABOUT).read_bytes())

    def _aside(self) -> epath.Path:
        return epath.Path(damaged_folder(str(self._root)))

    def _set_aside_without_loss(self) -> None:
        """Sets aside the checkpoints with a damaged held-out loss.

        Orbax reads the losses when it opens a folder, and its error does not name the checkpoint.
        """
        if jax.process_index() == 0:
            for step in steps_in(self._root):
                if problem := self._loss_problem(step):
                    self.set_aside_at_opening.append(self._move_aside(step, problem))
        multihost_utils.sync_global_devices(f"losses in {self._root}")

    def _loss_problem(self, step: int) -> str:
        """Returns how the file of a checkpoint's held-out loss is damaged, or ""."""
        file = self._root / str(step) / "metrics" / "metrics"
        saved: Any = None
        try:
            saved = float(atomic_writes.parse_json(file.read_text())[_LOSS])
        except _ABSENT:
            pass
        except (ValueError, TypeError, LookupError) as error:
            return f"{file} cannot be decoded: {first_line(error)}"
        except OSError as error:
            raise OSError(
                f"Checkpoint {step} in {self._root} cannot be read: {first_line(error)}."
                f"{self._unread}"
            ) from error
        try:
            expected = self._described(step).get(_LOSS, saved)
        except (ValueError, OSError):  # `restore` explains what is wrong with the description
            return ""
        return "" if saved == expected else f"{file} holds {saved}, expected {expected}"

    def _set_aside(self, step: int, problem: str) -> str:
        message = self._move_aside(step, problem)
        multihost_utils.sync_global_devices(f"set aside {step}")
        return message

    def _move_aside(self, step: int, problem: str) -> str:
        """Moves a damaged checkpoint in the first process; returns a message in every process."""
        target = self._aside() / str(step)
        if jax.process_index() == 0:
            target.parent.mkdir(parents=True, exist_ok=True)
            # In a bucket a folder is there when a file is, and nothing is moved to one that is not.
            (target.parent / "README.txt").write_text(f"Damaged checkpoints of {self._root}.\n")
            if target.exists():
                target.rmtree()
            (self._root / str(step)).rename(target)
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


Loaded = tuple[State, Files, Mapping[str, int]]


class _Described(NamedTuple):
    dtype: str
    shape: Sequence[int]


def _about_of(content: bytes) -> Mapping[str, Any]:
    """Returns the description of a checkpoint. Raises DamageError if it is damaged."""
    try:
        about = atomic_writes.unsealed(atomic_writes.parse_json(content))
    except (ValueError, TypeError) as error:
        raise DamageError(f"{_ABOUT} is damaged: {error}") from error
    if absent := {"arrays", "processes", "shapes"} - about.keys():
        raise DamageError(f"{_ABOUT} has no {min(absent)!r}")
    return about


_DIFFERS = "checksum of {} does not agree with what was saved"


def saved_of(state: State) -> dict[str, Any]:
    """Returns what a checkpoint holds of a state: every part that it has."""
    return {name: part for name, part in state._asdict().items() if part is not None}


def _differing_array(arrays, saved: Mapping[str, int]) -> str:
    """Returns which loaded array differs from its checksum, or ""; the same on every process."""
    wrong = [name for name, value in _checksums(arrays).items() if saved.get(name) != value]
    return _DIFFERS.format(wrong[0]) if wrong else ""


def first_line(error: BaseException) -> str:
    if "due to incompatible handler" in str(error) and error.__cause__ is not None:
        error = error.__cause__  # of which Orbax says nothing, and supposes that
    if failure := failure_of(error):
        return failure.reason
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:300]


SOUND, _DAMAGED, _UNREAD = range(3)


def worst_of_processes(failure: Exception | None) -> int:
    """Returns the worst of how processes could read a checkpoint: all must agree, or they would
    wait for ever."""
    mine = SOUND if failure is None else _DAMAGED if shows_damage(failure) else _UNREAD
    if jax.process_count() == 1:
        return mine
    return int(np.max(multihost_utils.process_allgather(np.array(mine))))


def _by_path(tree) -> dict[str, Any]:
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree.leaves_with_path(tree)
        if hasattr(leaf, "shape")
    }


def _largest_bytes(tree) -> int:
    return max(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _checksums(tree) -> dict[str, int]:
    """Returns a 32-bit checksum of every array, by name, computed on its devices.

    One array after another, since on a CPU the sum takes a copy of the array.
    """
    return {name: int(_sum_of(x)) for name, x in _by_path(tree).items()}


FEW = 2**16  # values, which NumPy sums: to compile a program for each shape would take longer


def _sum_of(x):
    is_distributed = isinstance(x, jax.Array) and not x.is_fully_addressable
    if x.size > FEW or is_distributed:
        return jax.device_get(_sum_bits(x))
    x = np.asarray(x)
    return _weighted_sum(x.view(_UNSIGNED[x.dtype.itemsize]).astype(np.uint32), np)


_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32}


@jax.jit
def _sum_bits(x):
    x = x.astype(jnp.uint8) if x.dtype == bool else x  # whose bits JAX does not give
    words = jax.lax.bitcast_convert_type(x, _UNSIGNED[x.dtype.itemsize])
    return _weighted_sum(words.astype(jnp.uint32), jnp)


def _weighted_sum(words, numpy):
    # An odd weight for each index, so that two swapped values change the sum; integers, so that
    # the order does not matter, however the array is sharded.
    weight = numpy.uint32(1)
    for axis, size in enumerate(words.shape):
        index = numpy.arange(size, dtype=numpy.uint32)
        index = index.reshape([-1 if axis == other else 1 for other in range(words.ndim)])
        weight = weight + index * numpy.uint32(2 * (0x9E3779B1 >> axis) & 0xFFFFFFFE)
    return numpy.sum(words * weight, dtype=numpy.uint32)
