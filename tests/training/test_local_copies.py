"""A crashed run continues from the copies on its hosts' disks if all are intact and its own."""

import gc
import json
import pathlib
import shutil
import signal
import subprocess
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath
from jax.sharding import NamedSharding

from pretrax.settings import atomic_writes
from pretrax.settings.saved_states import has_copy
from pretrax.training.devices.mesh import make_mesh
from pretrax.training.saved import local_copies
from pretrax.training.saved.checkpoints import Checkpoints, MismatchError
from pretrax.training.saved.local_copies import LocalCopies, open_local_copies
from pretrax.training.state import State
from tests.refusals import exits, refuses
from tests.training import tiny
from tests.training.two_processes import places

# `train.py` that completes every save before the next step, and ends as by `kill -9` after the step
# KILLED. Each of several processes ends itself.
KILLED = """
import os, signal, sys
import pretrax.training.loop as loop
from pretrax.training.hooks import Hook
from pretrax.training.saved.checkpoints import Checkpoints
from pretrax.cli import train
save = Checkpoints.save
def save_and_wait(self, *arguments, **keywords):
    save(self, *arguments, **keywords)
    self.wait()
def kill(at):
    if at.step == int(os.environ["KILLED"]):
        os.kill(os.getpid(), signal.SIGKILL)
Checkpoints.save, loop.user_hooks = save_and_wait, lambda plan: [Hook(kill, 1)]
train.main(sys.argv[1:])
"""


POSITION = {"shard_00000.npz": bytes(range(100)), "spikes.json": b"{}"}


def state_of(step, rows=4):
    return State(jnp.int32(step), {"a": jnp.arange(2.0 * rows).reshape(rows, 2) + step}, {})


class HostWithCopies:
    """The checkpoints of a run and its local copies, which each method opens again."""

    def __init__(self, folder):
        self.where, self.local = str(folder / "run/checkpoints"), str(folder / "local")

    def start(self, *, steps=100, copy=(), save=(), remove_after=None, rows=4):
        """Restores the latest state, then saves checkpoints and copies.

        Returns the restored state, and the reason if a copy was not used.
        """
        with (
            Checkpoints(self.where) as checkpoints,
            open_local_copies(self.local, self.where, checkpoints) as copies,
        ):
            restored = copies.restore_latest(state_of(0, rows), steps)
            for step in save:
                checkpoints.save(state_of(step, rows), POSITION)
                checkpoints.wait()
            for step in copy:
                copies.save(state_of(step, rows), POSITION)
            if remove_after is not None:
                copies.remove_after(remove_after)
            copies.wait()
            return restored, copies.unused

    def start_without_copies(self):
        with (
            Checkpoints(self.where) as checkpoints,
            open_local_copies(None, self.where, checkpoints) as none,
        ):
            assert none is None

    def copies(self):
        (folder,) = pathlib.Path(self.local).glob("*/process_0")
        return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def host(tmp_path):
    """Returns a run with checkpoints of steps 2 and 4, and a copy of step 7."""
    host = HostWithCopies(tmp_path)
    assert host.start(save=(2, 4), copy=(5, 7)) == (None, "")
    assert host.copies() == ["7"]
    return host


def assert_is(restored, step, copied):
    assert (int(restored.state.step), restored.copied) == (step, copied)
    np.testing.assert_array_equal(restored.state.params["a"], state_of(step).params["a"])
    assert {name: restored.read(name) for name in POSITION} == POSITION
    with pytest.raises(FileNotFoundError):
        restored.read("absent")


@pytest.mark.slow
def test_local_copy_later_than_the_checkpoints_is_used(host):
    for _ in range(2):
        restored, unused = host.start()
        assert_is(restored, 7, True)
        assert unused == ""
    host.start(save=(8,))
    restored, unused = host.start()
    assert_is(restored, 8, False)
    assert unused == "" and host.copies() == []


@pytest.mark.slow
def test_run_does_not_continue_from_a_copy_of_the_last_step(host):
    restored, unused = host.start(steps=7)
    assert_is(restored, 4, False)
    assert unused == ""


@pytest.mark.slow
def test_copy_beyond_the_last_step_is_kept(host):
    """The same is true for a checkpoint: the run reports that it is past its last step."""
    assert_is(host.start(steps=6)[0], 7, True)
    assert_is(host.start()[0], 7, True)


@pytest.mark.slow
def test_later_copies_are_removed_after_a_rollback(host):
    host.start(remove_after=7)
    assert host.copies() == ["7"]
    host.start(remove_after=4)
    assert host.copies() == []


def mark_as_two_processes(file):
    atomic_writes.write_record(file, atomic_writes.read_json(file) | {"processes": 2})


@pytest.mark.sampled
@pytest.mark.parametrize(
    "name, damage, why",
    [
        ("state/**/d/*", tiny.truncate, "OUT_OF_RANGE: "),
        ("state/_METADATA", lambda file: file.unlink(), ""),
        ("data/shard_00000.npz", tiny.truncate, "checksum of shard_00000.npz does not agree"),
        ("data/checksums.json", tiny.truncate, ""),
        ("data/checksums.json", lambda file: file.unlink(), ""),
        ("data/checksums.json", mark_as_two_processes, "it is of a run of 2 processes"),
    ],
)
def test_damaged_or_foreign_copy_is_not_used(host, name, damage, why):
    (copy,) = pathlib.Path(host.local).glob("*/process_0/7")
    for file in copy.glob(name):
        damage(file)
    restored, unused = host.start(copy=(6,))
    assert unused.startswith(f"The local copy of step 7 is not used: {why}")
    assert_is(restored, 4, False)
    assert_is(host.start()[0], 6, True)


def change_array_checksums(file):
    metadata = atomic_writes.read_json(file)
    changed = {name: value + 1 for name, value in metadata["arrays"].items()}
    atomic_writes.write_record(file, metadata | {"arrays": changed})


@pytest.mark.sampled
@pytest.mark.parametrize(
    "name, damage",
    [("checksums.json", change_array_checksums), ("shard_00000.npz", tiny.truncate)],
)
def test_arrays_of_a_damaged_copy_are_freed_at_once(host, name, damage):
    """A device may be too small for these arrays and the arrays of the checkpoint."""
    (copy,) = pathlib.Path(host.local).glob("*/process_0/7")
    damage(copy / "data" / name)
    copied = np.array(state_of(7).params["a"])
    gc.collect()
    gc.disable()
    try:
        restored, _ = host.start()
        assert not any(np.array_equal(array, copied) for array in jax.live_arrays())
    finally:
        gc.enable()
    assert_is(restored, 4, False)


@pytest.mark.slow
def test_unreadable_copy_is_not_used(host, monkeypatch):
    monkeypatch.setattr("pretrax.training.saved.checkpoints.WAITS", (0,))

    def failing(self, step, target):
        raise PermissionError("it is closed")

    monkeypatch.setattr(LocalCopies, "_differences", failing)
    restored, unused = host.start()
    assert unused.endswith("cannot be read, in 2 attempts: it is closed.")  # and is removed
    assert_is(restored, 4, False)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [4, 5])
def test_restarted_run_uses_no_copy_of_an_earlier_run(host, rows):
    """The new run may have a checkpoint of the same step, or none, and may have other arrays."""
    assert has_copy(host.local, host.where)
    shutil.rmtree(host.where)
    assert not has_copy(host.local, host.where)
    restored, unused = host.start(rows=rows)
    assert restored is None and host.copies() == []
    assert unused == (
        "The local copy of step 7 is not used: it is of another run, or of another start of this "
        "run."
    )


def test_copy_from_before_a_start_without_copies_is_not_used(host):
    host.start_without_copies()
    restored, unused = host.start()
    assert_is(restored, 4, False)
    assert "of another start of this run" in unused


def test_removing_a_checkpoint_also_discards_later_copies(host):
    shutil.rmtree(f"{host.where}/4")
    restored, unused = host.start()
    assert_is(restored, 2, False)
    assert "the earlier checkpoint of step 4 no longer exists" in unused


def test_uncreatable_copy_folder_names_its_setting(host):
    host.local += "/7"
    pathlib.Path(host.local).write_text("a file")
    with refuses(OSError, f"training.Run.local_checkpoint_dir = '{host.local}'"):
        host.start()


@pytest.mark.slow
def test_unremovable_copy_names_its_setting(host, monkeypatch):
    def closed(self):
        raise OSError(30, "Read-only file system")

    host.start(save=(8,))
    monkeypatch.setattr(type(epath.Path(host.local)), "rmtree", closed)
    with refuses(OSError, "step 7", "--gin.training.Run.local_checkpoint_dir"):
        host.start()


def test_other_arrays_in_a_copy_are_a_mismatch_not_damage(tmp_path):
    host = HostWithCopies(tmp_path)
    host.start(copy=(3,))
    with refuses(MismatchError, "a:"):
        host.start(rows=5)
    assert_is(host.start()[0], 3, True)


@pytest.mark.slow
def test_runs_may_share_a_folder_for_copies(host, tmp_path):
    other = HostWithCopies(tmp_path / "other")
    other.local = host.local
    assert other.start(copy=(9,)) == (None, "")
    assert_is(host.start()[0], 7, True)
    assert_is(other.start()[0], 9, True)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny.write_documents(tmp_path_factory.mktemp("data") / "store")


class LocalRun(tiny.Run):
    """A run that makes a copy after each step, and a checkpoint after every fourth."""

    def __init__(self, folder, data, **values):
        self.local = folder / "local"
        of_run = {"local_checkpoint_dir": str(self.local), "local_checkpoint_minutes": 1e-9}
        of_run = {f"training.Run.{name}": value for name, value in of_run.items()}
        super().__init__(folder, data, **of_run, **values)

    def copies(self, process=0) -> list[int]:
        folders = self.local.glob(f"*/process_{process}/*")
        return sorted(int(path.name) for path in folders if path.name.isdecimal())

    def saved(self) -> list[int]:
        folders = self.dir.glob("checkpoints/*")
        return sorted(int(path.name) for path in folders if path.name.isdecimal())

    def output(self, capsys, **values) -> str:
        return " ".join(self.train_in_process(capsys, **values).split())


@pytest.mark.slow
def test_run_killed_and_resumed_from_a_copy_equals_uninterrupted(data, tmp_path, capsys):
    """The first kill is before any checkpoint."""
    whole, run = tiny.Run(tmp_path / "whole", data), LocalRun(tmp_path, data)
    tiny.train_in_process(whole.arguments())
    for step in (3, 7):
        env = {"KILLED": str(step)}
        process = run.start(devices=jax.device_count(), env=env, program=("-c", KILLED))
        out, err = process.communicate(timeout=120)
        assert process.returncode == -signal.SIGKILL, err
        assert run.copies() == [step]
        with exits(capsys, "seed", 0, 1):
            run.train_in_process(capsys, training__Run__seed=1)
        with exits(capsys, f"step {step}", "steps = 2", f"--steps={step}"):
            run.train_in_process(capsys, training__Run__steps=2)
    assert "Continuing from the local copy of step 3." in out
    output = run.output(capsys)
    assert "Continuing from the local copy of step 7." in output and "warning" not in output
    assert run.lines() == whole.lines()
    tiny.assert_same(tiny.saved_arrays(run.dir, 12), tiny.saved_arrays(whole.dir, 12))
    assert run.saved() == [4, 8, 12] and run.copies() == []


NO_SPACE = OSError(28, "No space left on device")


def full(path):
    return SimpleNamespace(free=100)


def cannot_save(self, state, position):
    raise NO_SPACE


def cannot_wait(self, errors=[NO_SPACE]):  # noqa: B006
    """Fails once, like a save that failed in the background."""
    if errors:
        raise errors.pop()
    Checkpoints.wait(self)


@pytest.mark.slow
def test_no_copy_is_written_without_disk_space(host, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", full)
    checkpoints = Checkpoints(host.where)
    with checkpoints, open_local_copies(host.local, host.where, checkpoints) as copies:
        large = state_of(9, rows=100)
        assert "0.00 GiB left" in copies.try_save(large, POSITION)
        assert copies.try_save(state_of(8), POSITION) == ""
    assert host.copies() == ["8"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "of, name, broken, why",
    [
        (shutil, "disk_usage", full, "the disk of process 0 has 0.00 GiB left"),
        (LocalCopies, "save", cannot_save, "No space left on device"),
        (LocalCopies, "wait", cannot_wait, "No space left on device"),
    ],
)
def test_full_copy_disk_does_not_affect_checkpoints(
    data, tmp_path, capsys, monkeypatch, of, name, broken, why
):
    run = LocalRun(tmp_path, data)
    monkeypatch.setattr(of, name, broken)
    output = run.output(capsys, STEPS=5)
    assert why in output and "Done." in output and run.saved() == [4, 5]


def test_required_disk_space_counts_each_held_shard_once():
    mesh = make_mesh(data=2, fsdp=4)
    x = jax.device_put(np.zeros((8, 3), np.float32), NamedSharding(mesh, jax.P("fsdp")))
    whole = jax.device_put(np.zeros(5, np.int32), NamedSharding(mesh, jax.P()))
    assert local_copies._bytes_of_parts({"x": x, "whole": whole}) == 8 * 3 * 4 + 5 * 4


def both(run, program=("train.py",), env=None) -> str:
    """Runs two processes of two devices each, which both have all parameters.

    Returns the output of both, after which `env` may have ended them by `kill -9`.
    """
    processes = [
        run.start(
            devices=2,
            env=place | (env or {}),
            program=program,
            training__Run__distributed=True,
            mesh__make_mesh__data=2,
            mesh__make_mesh__fsdp=2,
        )
        for place in places()
    ]
    output = " ".join(communicate(processes).split())
    assert [p.returncode for p in processes] == [-signal.SIGKILL if env else 0] * 2, output
    return output


def communicate(processes) -> str:
    """Returns the outputs and errors of processes that run together."""
    try:
        return "".join(text for p in processes for text in p.communicate(timeout=240))
    finally:
        for process in processes:
            process.kill()


@pytest.fixture(scope="module")
def killed_once(data, tmp_path_factory):
    run = LocalRun(tmp_path_factory.mktemp("killed") / "here", data)
    both(run, ("-c", KILLED), {"KILLED": "7"})
    assert run.saved() == [4] and run.copies(0) == run.copies(1) == [7]
    shutil.copytree(run.dir.parent, run.dir.parent.with_name("kept"))
    return run


@pytest.fixture
def killed(killed_once):
    """Returns two killed processes, with a checkpoint of step 4 and copies of step 7."""
    shutil.rmtree(killed_once.dir.parent)
    shutil.copytree(killed_once.dir.parent.with_name("kept"), killed_once.dir.parent)
    return killed_once


@pytest.mark.slow
def test_two_processes_resumed_from_copies_equal_uninterrupted_ones(killed, data, tmp_path):
    whole = tiny.Run(tmp_path, data)
    both(whole)
    output = both(killed)
    assert "Continuing from the local copy of step 7." in output and "warning" not in output
    assert killed.lines() == whole.lines()
    resumed, expected = (tiny.data_files(run.dir / "checkpoints/12") for run in (killed, whole))
    assert resumed == expected  # the data position and all checksums
    assert killed.copies(0) == killed.copies(1) == []


@pytest.mark.slow
def test_two_processes_use_copies_only_if_both_are_intact(tmp_path):
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.training.copies_of_two_processes", tmp_path],
            cwd=tiny.ROOT,
            env=tiny.environment(2, **place),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for place in places()
    ]
    output = communicate(processes)
    assert [p.returncode for p in processes] == [0, 0], output
    (printed,) = (line for line in output.splitlines() if line.startswith("{"))
    reasons = {
        "lost": "process 1 has none",
        "damaged": "another process cannot read it",
        "another checksum": "the copy of another process is damaged",
        "another run": "another process cannot read it",
        "another mesh": "it was made on a mesh with other parts of the arrays on this host",
    }
    assert json.loads(printed) == {"none": [7, True, ""]} | {
        harm: [4, False, f"The local copy of step 7 is not used: {why}."]
        for harm, why in reasons.items()
    }


@pytest.mark.slow
def test_one_process_continues_from_the_checkpoint_of_two(killed, capsys):
    output = killed.output(capsys)
    assert "copy of step 7 is not used: it is of a run of 2 processes." in output
    assert "Continuing from the checkpoint of step 4." in output
