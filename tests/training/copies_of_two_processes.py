"""Restores from the local copies of two processes, after several kinds of harm to one copy.

    python -m tests.training.copies_of_two_processes FOLDER

Each of two processes runs this program. Together they save a checkpoint of step 4 and copies of
step 7. Then both restore the latest state once for each harm to the copy of process 1, and once on
another mesh. Process 0 prints for each of them the restored step, whether it was read from a copy,
and why a copy was not used.
"""

import contextlib
import json
import os
import shutil
import sys
from pathlib import Path

import jax
import numpy as np
from jax.experimental.multihost_utils import sync_global_devices
from jax.sharding import NamedSharding

from pretrax.settings import atomic_writes
from pretrax.training.devices.mesh import make_mesh
from pretrax.training.saved.checkpoints import Checkpoints
from pretrax.training.saved.local_copies import open_local_copies
from pretrax.training.state import State
from tests.training import tiny


def lose(copy: Path) -> None:
    shutil.rmtree(copy.parent)


def damage(copy: Path) -> None:
    for file in copy.glob("state/**/d/*"):
        tiny.truncate(file)


def change_a_checksum(copy: Path) -> None:
    """Changes a checksum so that it does not match the arrays, which can still be read."""
    file = copy / "data/checksums.json"
    about = atomic_writes.read_json(file)
    name = next(iter(about["arrays"]))
    atomic_writes.write_record(file, about | {"arrays": about["arrays"] | {name: 1}})


def mark_as_another_run(copy: Path) -> None:
    file = copy / "data/checksums.json"
    atomic_writes.write_record(file, atomic_writes.read_json(file) | {"id": "0" * 16})


HARMS = {
    "none": lambda copy: None,
    "lost": lose,
    "damaged": damage,
    "another checksum": change_a_checksum,
    "another run": mark_as_another_run,
    "another mesh": lambda copy: None,
}


def state_of(step: int, mesh) -> State:
    """Returns a state whose matrix is sharded over fsdp and replicated over data."""

    def placed(array, *axes):
        sharding = NamedSharding(mesh, jax.P(*axes))
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    matrix = np.arange(16.0, dtype=np.float32).reshape(8, 2) + step
    return State(placed(np.int32(step)), {"a": placed(matrix, "fsdp")}, {})


class Folder:
    """The checkpoints and copies of a run, which can be put back as they were saved."""

    def __init__(self, folder: Path, mesh):
        self.folder = folder
        self.live = folder / "live"
        position = {f"shard_0000{jax.process_index()}.npz": bytes([jax.process_index()])}
        with self._opened() as (checkpoints, copies):
            copies.restore_latest(state_of(0, mesh), steps=100)
            checkpoints.save(state_of(4, mesh), position)
            checkpoints.wait()
            copies.save(state_of(7, mesh), position)
            copies.wait()
        self._in_first(lambda: shutil.copytree(self.live, folder / "saved"))

    def restored_after(self, harm, mesh) -> tuple[int, bool, str]:
        def put_back_and_harm():
            shutil.rmtree(self.live)
            shutil.copytree(self.folder / "saved", self.live)
            (copy,) = self.live.glob("local/*/process_1/7")
            harm(copy)

        self._in_first(put_back_and_harm)
        with self._opened() as (_, copies):
            restored = copies.restore_latest(state_of(0, mesh), steps=100)
            step = int(restored.state.step)
            for name in ("shard_00000.npz", "shard_00001.npz"):  # a process reads files of both
                assert restored.read(name) == bytes([int(name[10])])
            got, expected = restored.state.params["a"], state_of(step, mesh).params["a"]
            for part, expected_part in zip(got.addressable_shards, expected.addressable_shards):
                np.testing.assert_array_equal(part.data, expected_part.data)
            assert copies.steps() == ([step] if restored.copied else [])
            return step, restored.copied, copies.unused

    @contextlib.contextmanager
    def _opened(self):
        where = str(self.live / "run/checkpoints")
        with (
            Checkpoints(where) as checkpoints,
            open_local_copies(str(self.live / "local"), where, checkpoints) as copies,
        ):
            yield checkpoints, copies

    def _in_first(self, call) -> None:
        sync_global_devices("before")
        if jax.process_index() == 0:
            call()
        sync_global_devices("after")


def main() -> None:
    jax.distributed.initialize(
        os.environ["JAX_COORDINATOR_ADDRESS"],
        int(os.environ["JAX_NUM_PROCESSES"]),
        int(os.environ["JAX_PROCESS_ID"]),
    )
    mesh = make_mesh(data=2, fsdp=2)  # each process has all parameters
    other_mesh = make_mesh(data=1, fsdp=4)
    folder = Folder(Path(sys.argv[1]), mesh)
    results = {
        name: folder.restored_after(harm, other_mesh if name == "another mesh" else mesh)
        for name, harm in HARMS.items()
    }
    if jax.process_index() == 0:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
