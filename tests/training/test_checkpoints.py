"""Checkpoints are exact on any mesh.

Damage in any file is found and reported, and an earlier checkpoint is restored.
"""

import functools
import json
import logging
import math
import os
import pathlib
import shutil
import sys
import threading
import types

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pretrax.settings import atomic_writes
from pretrax.settings.user_errors import causes
from pretrax.training.saved import checkpoints, quiet_orbax
from pretrax.training.saved.checkpoints import Checkpoints, Keep, MismatchError
from pretrax.training.saved.checksums import checksums
from pretrax.training.saved.damage import DamageError, shows_damage
from pretrax.training.state import State, new_state
from tests.refusals import refuses
from tests.training import object_store, tiny

POSITION = {f"shard_{i:05d}.npz": bytes(range(i, 200)) for i in range(2)}


class OneMatrix:
    """The smallest model that is sharded over fsdp and tensor."""

    def __init__(self, rows=16):
        self.rows = rows

    def init(self, key, batch):
        matrix = jax.random.normal(key, (self.rows, 8))
        names = ("embed", "mlp")
        return {"matrix": nn.LogicallyPartitioned(matrix, names), "vector": jnp.zeros(3)}


def abstract_state_of(shape=(2, 2, 2), optimizer=None, **settings):
    mesh = tiny.mesh_of(*shape)
    return tiny.abstract_state_of(OneMatrix(**settings), optimizer, mesh), mesh


@functools.cache
def states():
    """Returns the states at steps 1, 2 and 3."""
    one, mesh = abstract_state_of()
    made = [new_state(one, seed, mesh) for seed in (1, 2, 3)]
    return [
        state._replace(step=jax.device_put(np.int32(i), state.step.sharding))
        for i, state in enumerate(made, start=1)
    ]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Returns a run directory with checkpoints 1, 2 and 3."""
    run_dir = tmp_path_factory.mktemp("saved")
    checkpoints = Checkpoints(f"{run_dir}/checkpoints")
    for state in states():
        checkpoints.save(state, POSITION, heldout_loss=1.5)
    checkpoints.close()
    return run_dir


@pytest.fixture
def run_dir(saved, tmp_path):
    return pathlib.Path(shutil.copytree(saved, tmp_path / "run"))


def restore(run_dir, one=None):
    checkpoints = Checkpoints(f"{run_dir}/checkpoints")
    try:
        return checkpoints.restore((one or abstract_state_of()[0]).shapes)
    finally:
        checkpoints.close()


def assert_is(restored, step):
    jax.tree.map(np.testing.assert_array_equal, restored.state, states()[step - 1])
    for name, data in POSITION.items():
        assert restored.read(name) == data


def test_restore_without_checkpoints_returns_none(tmp_path):
    assert restore(tmp_path) is None


@pytest.mark.parametrize("shape", [(2, 2, 2), (8, 1, 1), (1, 4, 2), (1, 1, 1)])
def test_state_is_restored_exactly_on_any_mesh(run_dir, shape):
    one, _ = abstract_state_of(shape)
    restored = restore(run_dir, one)
    assert_is(restored, 3)
    assert restored.damaged == ()
    same = jax.tree.map(lambda x, s: x.sharding == s.sharding, restored.state, one.shapes)
    assert all(jax.tree.leaves(same))


KINDS = {"matrix": "wide", "vector": "narrow"}


@pytest.mark.sampled
@pytest.mark.parametrize(
    "optimizer",
    [
        optax.contrib.muon(1e-3),
        optax.masked(optax.adam(1e-3), {"matrix": True, "vector": False}),
        optax.partition(
            {"wide": optax.adam(1e-3), "narrow": optax.sgd(1e-3)},
            lambda params: jax.tree_util.tree_map_with_path(lambda p, _: KINDS[p[-1].key], params),
        ),
        optax.MultiSteps(optax.adafactor(1e-3, min_dim_size_to_factor=4), 2),
        optax.adamw(1e-3, mu_dtype=jnp.bfloat16),
    ],
    ids=["muon", "masked", "partition", "multi_steps", "bfloat16"],
)
def test_optimizer_state_is_sharded_and_restored_exactly(tmp_path, optimizer):
    """The state may have arrays for only some parameters, and may depend on their paths."""
    one, mesh = abstract_state_of(optimizer=optimizer)
    state = new_state(one, 1, mesh)

    @jax.jit
    def step(state):
        ones = jax.tree.map(jnp.ones_like, state.params)
        updates, opt_state = optimizer.update(ones, state.opt_state, state.params)
        return state._replace(
            params=optax.apply_updates(state.params, updates), opt_state=opt_state
        )

    state = step(step(state))._replace(step=jax.device_put(np.int32(2), state.step.sharding))
    checkpoints = Checkpoints(f"{tmp_path}/checkpoints")
    checkpoints.save(state, POSITION)
    checkpoints.close()
    restored = restore(tmp_path, one)
    jax.tree.map(np.testing.assert_array_equal, restored.state, state)
    spread = one.shapes.params["matrix"].sharding
    like_matrix = [x for x in jax.tree.leaves(one.shapes) if x.shape == (16, 8)]
    assert len(like_matrix) > 1 and all(x.sharding == spread for x in like_matrix)


def empty(file):
    file.write_bytes(b"")


def flip(file):
    data = bytearray(file.read_bytes())
    for i in range(len(data) // 2, min(len(data) // 2 + 4, len(data))):
        data[i] ^= 0x55
    file.write_bytes(bytes(data))


FILES = [  # globs, since array files are named by their content
    "_CHECKPOINT_METADATA",
    "data/checksums.json",
    "data/checksums_0.json",
    "data/shard_00001.npz",
    "state/_METADATA",
    "state/manifest.ocdbt",
    "state/d/*",
    "state/ocdbt.process_0/d/*",
    "state/ocdbt.process_0/manifest.ocdbt",
]


@pytest.mark.sampled
@pytest.mark.parametrize("damage", [tiny.truncate, flip, pathlib.Path.unlink])
@pytest.mark.parametrize("name", FILES)
def test_damaged_file_is_detected_or_harmless(run_dir, name, damage):
    """The restored state is from this checkpoint, or from the previous one with a message."""
    files = [f for f in (run_dir / "checkpoints" / "3").glob(name) if f.stat().st_size]
    assert files
    for file in files:
        damage(file)
    restored = restore(run_dir)
    if restored.damaged:
        assert_is(restored, 2)
        (message,) = restored.damaged
        assert message.startswith("checkpoint 3 is damaged (")
        assert message.endswith(f"moved to {run_dir / 'damaged_checkpoints' / '3'}")
        assert (run_dir / "damaged_checkpoints" / "3").is_dir()
        assert not (run_dir / "checkpoints" / "3").exists()
    else:
        assert_is(restored, int(restored.state.step))
    if name.startswith("data/"):
        assert restored.damaged
        if not (name == "data/checksums.json" and damage is flip):  # or the array in the message
            assert name.removeprefix("data/") in restored.damaged[0]


@pytest.mark.parametrize("at", [12, 15, 20])
def test_flipped_bit_in_a_compression_header_is_damage(run_dir, monkeypatch, at):
    """Tensorstore gives no status for some of these errors."""
    monkeypatch.setattr(checkpoints, "WAITS", ())
    file = run_dir / "checkpoints/3/state/manifest.ocdbt"
    content = bytearray(file.read_bytes())
    content[at] ^= 1 << 5
    file.write_bytes(content)
    restored = restore(run_dir)
    assert_is(restored, 2)
    assert "checkpoint 3 is damaged" in restored.damaged[0]


def test_checksum_depends_on_the_position_of_each_value(run_dir):
    """A plain sum would not change if two values were exchanged."""
    state = states()[0]
    matrix = np.array(state.params["matrix"])
    before = checksums(state)
    matrix[[0, 5]] = matrix[[5, 0]]
    swapped = state._replace(params=state.params | {"matrix": jnp.asarray(matrix)})
    after = checksums(swapped)
    assert {name for name in before if before[name] != after[name]} == {"params/matrix"}


def test_readable_arrays_with_a_wrong_checksum_are_damage(run_dir):
    """Tensorstore has checksums, but ours also detect whole files from another save."""
    file = run_dir / "checkpoints/3/data/checksums.json"
    about = atomic_writes.read_json(file)
    about["arrays"]["params/matrix"] ^= 1
    atomic_writes.write_record(file, about)
    restored = restore(run_dir)
    assert_is(restored, 2)
    assert "checksum of params/matrix does not agree" in restored.damaged[0]


CHANGES = {
    "a changed array": ({"arrays": {}}, "is damaged"),
    "another shape": ({"shapes": {"params/matrix": ["float32", [16, 9]]}}, "is damaged"),
    "another loss": ({"heldout_loss": 7}, "is damaged"),
    "no record": (None, "is damaged"),
    "no arrays": ("arrays", "has no 'arrays'"),
    "no processes": ("processes", "has no 'processes'"),
    "no shapes": ("shapes", "has no 'shapes'"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_or_incomplete_description_is_damage(run_dir, change):
    """The damage is not reported as a mismatch between the run and its checkpoint."""
    changed, why = CHANGES[change]
    file = run_dir / "checkpoints/3/data/checksums.json"
    about = json.loads(file.read_text())
    if isinstance(changed, str):
        about = atomic_writes.read_json(file)
        del about[changed]
        atomic_writes.write_record(file, about)
    else:
        file.write_text(json.dumps([] if changed is None else about | changed))
    restored = restore(run_dir)
    assert_is(restored, 2)
    assert f"checkpoint 3 is damaged (checksums.json {why}" in restored.damaged[0]


def test_unreadable_loss_raises_and_a_missing_loss_does_not(run_dir):
    """If it were ignored, the best checkpoint could be deleted while its disk does not answer."""
    path = run_dir / "checkpoints/2/data/checksums.json"
    path.unlink()
    path.symlink_to(path)
    with refuses(OSError, "Checkpoint 2", path):
        Checkpoints(f"{run_dir}/checkpoints", Keep(best=1))
    path.unlink()
    with Checkpoints(f"{run_dir}/checkpoints", Keep(best=1)) as opened:  # it is missing: damage
        assert opened.steps() == [1, 2, 3]


def test_checkpoint_with_a_damaged_loss_is_kept(run_dir):
    (run_dir / "checkpoints/2/data/checksums.json").write_text("{")
    last = states()[-1]
    later = last._replace(step=jax.device_put(np.int32(4), last.step.sharding))
    with Checkpoints(f"{run_dir}/checkpoints", Keep(latest=1, best=1)) as opened:
        opened.save(later, POSITION, heldout_loss=2.0)
        opened.wait()
        assert opened.steps() == [2, 3, 4]  # 3 is the latest of equal losses


def test_circular_causes_of_an_error_are_visited_once():
    """Orbax raises such an error if a checkpoint is removed while it is opened."""
    first, second = ValueError("not a checkpoint"), FileNotFoundError("_METADATA")
    first.__cause__, second.__context__ = second, first
    assert list(causes(first)) == [first, second]
    assert shows_damage(first) and shows_damage(second)
    second.__context__ = second
    assert shows_damage(first)


def test_checkpoint_removed_while_it_is_read_is_skipped(run_dir):
    """A run that keeps only one checkpoint removes it. A reader then takes the next one."""
    with Checkpoints(f"{run_dir}/checkpoints", keep=None) as reader:

        def read(step):
            if step == 3:
                (run_dir / "checkpoints/3").rename(run_dir / "checkpoints/4")
                raise FileNotFoundError(f"checkpoints/{step}")
            return step

        assert reader.read_latest(read) == 4
        (run_dir / "checkpoints/4").rename(run_dir / "checkpoints/3")

        def removed(step):
            (run_dir / f"checkpoints/{step}").rename(run_dir / f"checkpoints/{step + 1}")
            raise FileNotFoundError(str(step))

        with refuses(ValueError, "training.Run.keep_checkpoints"):
            reader.read_latest(removed)
        with pytest.raises(MismatchError):  # the checkpoint still exists
            reader.read_latest(raise_mismatch)


def raise_mismatch(step):
    raise MismatchError("other arrays")


def test_two_damaged_checkpoints_are_skipped(run_dir):
    for file in (run_dir / "checkpoints").glob("[23]/state/**/d/*"):
        flip(file)
    restored = restore(run_dir)
    assert_is(restored, 1)
    assert [m[:12] for m in restored.damaged] == ["checkpoint 3", "checkpoint 2"]


def test_error_names_all_damaged_checkpoints(run_dir):
    for file in (run_dir / "checkpoints").glob("*/data/shard_00000.npz"):
        empty(file)
    with refuses(ValueError, "3", "2", "1"):
        restore(run_dir)
    with refuses(ValueError, "damaged_checkpoints"):
        restore(run_dir)  # None would mean a start at step 0
    shutil.rmtree(run_dir / "damaged_checkpoints")
    assert restore(run_dir) is None


def test_damaged_checkpoints_in_a_bucket_are_moved(monkeypatch):
    def find_damage(*_):
        raise DamageError("a wrong checksum")

    bucket = object_store.emptied(monkeypatch)
    monkeypatch.setattr(Checkpoints, "_load_with_retries", find_damage)
    for step in (2, 3):
        # an error of Orbax
        bucket.pipe_file(f"/bucket/run/checkpoints/{step}/commit_success.txt", b"")
        bucket.pipe_file(f"/bucket/run/checkpoints/{step}/data/checksums.json", b"{}")
    with refuses(ValueError, "3", "2"):
        restore("gs://bucket/run")
    assert bucket.find("/bucket/run/checkpoints") == []
    assert len(bucket.find("/bucket/run/damaged_checkpoints/3")) == 2
    with refuses(ValueError, "damaged_checkpoints", "2", "3"):
        restore("gs://bucket/run")


PASSING = [
    PermissionError(13, "Permission denied"),
    ConnectionResetError("by peer"),
    OSError("503 Service Unavailable"),
    ValueError("UNAVAILABLE: Error reading manifest.ocdbt"),
    KeyError("UNKNOWN: Input/output error [os_error_code='5']"),
    RuntimeError("what no storage has said before"),
    AttributeError("module 'jax' has no attribute 'core'"),  # as in another version of a library
    TypeError("unexpected keyword argument"),
    ValueError("FAILED_PRECONDITION: expected another version"),
    ValueError("UNKNOWN: Input/output error"),
]


@pytest.mark.parametrize("error", PASSING, ids=repr)
def test_error_that_may_pass_is_not_damage(error):
    assert not shows_damage(error)


def test_temporarily_unreadable_checkpoint_is_retried_and_never_moved(run_dir, monkeypatch):
    load, failures, waited = Checkpoints._load, [], []

    def failing(self, step, target):
        if len(failures) < times:
            failures.append(step)
            raise PASSING[0]
        return load(self, step, target)

    monkeypatch.setattr(Checkpoints, "_load", failing)
    monkeypatch.setattr(checkpoints.time, "sleep", waited.append)
    times = 2
    restored = restore(run_dir)
    assert_is(restored, 3)
    assert restored.damaged == () and waited == [1, 5] and failures == [3, 3]
    times = 100
    with refuses(OSError, "3", "4"):
        restore(run_dir)
    assert failures == [3] * 6 and sorted(os.listdir(run_dir)) == ["checkpoints"]
    assert sorted(os.listdir(run_dir / "checkpoints")) == ["1", "2", "3"]


@pytest.mark.parametrize("name", ["state", "state/manifest.ocdbt", "data/checksums.json"])
def test_checkpoint_that_cannot_be_opened_is_not_moved(run_dir, monkeypatch, name):
    """Orbax ignores folders that it cannot open. Even root cannot open a link to itself."""
    path = run_dir / "checkpoints/3" / name
    path.rename(run_dir / "elsewhere")
    path.symlink_to(path)
    monkeypatch.setattr(checkpoints, "WAITS", ())
    with refuses(OSError, "1 attempts", path):
        restore(run_dir)
    assert not (run_dir / "damaged_checkpoints").exists() and path.is_symlink()


def test_read_error_names_the_checkpoint_and_the_cause():
    with refuses(ValueError, "3", "runs/a", "503"):
        with checkpoints.reading_errors("runs/a", 3):
            raise OSError("503")


def test_remains_of_a_killed_save_are_ignored(run_dir):
    root = run_dir / "checkpoints"
    (root / "3").rename(root / "4.orbax-checkpoint-tmp")
    assert_is(restore(run_dir), 2)


@pytest.mark.parametrize(
    "name, now, settings",
    [
        ("params/matrix", "float32 (32, 8)", {"rows": 32}),
        # if it were loaded as another dtype, no checksum would agree
        ("mu/matrix", "bfloat16 (16, 8)", {"optimizer": optax.adam(0.1, mu_dtype=jnp.bfloat16)}),
    ],
)
def test_other_arrays_are_a_mismatch_not_damage(run_dir, name, now, settings):
    other, _ = abstract_state_of(**settings)
    with refuses(MismatchError, name, "float32 (16, 8)", now):
        restore(run_dir, other)
    assert not (run_dir / "damaged_checkpoints").exists()
    assert_is(restore(run_dir), 3)


def test_latest_checkpoints_are_kept_and_no_step_is_saved_twice(tmp_path):
    checkpoints = Checkpoints(f"{tmp_path}/checkpoints", Keep(latest=2))
    for state in (*states(), states()[2]):
        checkpoints.save(state, POSITION)
    checkpoints.wait()
    assert checkpoints.steps() == [2, 3]
    checkpoints.close()


@pytest.mark.slow
def test_interval_and_best_checkpoints_are_kept(tmp_path):
    """This also holds after a restart, which reads the losses.

    A checkpoint without a loss, or with NaN, is never among the best.
    """
    losses = {1: 3.0, 2: 1.0, 3: math.nan, 4: 5.0, 5: 4.0, 6: 2.0, 7: None}
    for start in (1, 4):
        checkpoints = Checkpoints(f"{tmp_path}/checkpoints", Keep(latest=1, every=4, best=2))
        for step in range(start, start + 4):
            state = State(jnp.int32(step), {"a": jnp.ones(2)}, {})
            checkpoints.save(state, POSITION, heldout_loss=losses[step])
        checkpoints.wait()
        kept = checkpoints.steps()
        checkpoints.close()
    assert kept == [2, 4, 6, 7]


@pytest.mark.slow
def test_latest_due_checkpoint_is_kept_and_later_ones_can_be_removed(tmp_path):
    checkpoints, kept = Checkpoints(f"{tmp_path}/checkpoints", Keep(latest=1, due=4)), []
    for step in (3, 4, 5, 7, 8, 9):
        checkpoints.save(State(jnp.int32(step), {"a": jnp.ones(2)}, {}), POSITION)
        checkpoints.wait()
        kept.append(checkpoints.steps())
    assert kept == [[3], [4], [4, 5], [4, 7], [8], [8, 9]]
    checkpoints.remove_after(8)
    assert checkpoints.steps() == [8]
    checkpoints.close()
    assert [folder.name for folder in (tmp_path / "checkpoints").iterdir()] == ["8"]


@pytest.mark.slow
def test_checkpoints_store_the_heldout_loss(tmp_path):
    run = tiny.Run(tmp_path, tiny.write_documents(tmp_path / "store"), STEPS=3)
    each_step = {f"training__Run__{name}_every": 1 for name in ("checkpoint", "evaluate")}
    kept = {"training__Run__keep_checkpoints": 1, "training__Run__keep_best": 1}
    tiny.train_in_process(
        run.arguments(**each_step, **kept, PEAK=3.0)
    )  # the loss rises with every step
    losses = {
        line["step"]: np.mean([line[f"heldout/{name}/tokens"] for name in ("span", "prefix")])
        for line in run.lines()
        if "heldout/span/tokens" in line
    }
    best = min(losses, key=losses.get)
    assert best < 3 and sorted(int(p.name) for p in run.dir.glob("checkpoints/[0-9]*")) == [best, 3]
    described = atomic_writes.read_json(run.dir / f"checkpoints/{best}/data/checksums.json")
    assert described["heldout_loss"] == pytest.approx(losses[best])


@pytest.mark.slow
def test_timed_checkpoints_are_saved_at_multiples_of_log_every(tmp_path):
    run = tiny.Run(tmp_path, tiny.write_documents(tmp_path / "store"), STEPS=7)
    settings = {"training__Run__checkpoint_every": 100, "training__Run__log_every": 3}
    tiny.train_in_process(run.arguments(**settings, training__Run__checkpoint_minutes=1e-9))
    assert sorted(int(path.name) for path in run.dir.glob("checkpoints/[0-9]*")) == [3, 6, 7]
    tiny.train_in_process(
        run.arguments(**settings, training__Run__checkpoint_minutes=1e3, STEPS=10)
    )
    assert sorted(int(path.name) for path in run.dir.glob("checkpoints/[0-9]*")) == [3, 6, 7, 10]


def test_failed_folder_creation_leaves_no_waiting_thread(tmp_path, monkeypatch):
    make = os.mkdir

    def full(path, *arguments, **named):
        if "state" in str(path):
            raise OSError(28, "No space left on device", str(path))
        make(path, *arguments, **named)

    monkeypatch.setattr(os, "mkdir", full)
    with refuses(OSError, tmp_path / "a", "space"):
        with Checkpoints(str(tmp_path / "a")) as opened_folder:
            opened_folder.save(State(jnp.int32(0), {"a": jnp.ones((300, 400))}, {}), {})
    waiting = [one for one in threading.enumerate() if "orbax" in type(one).__module__]
    assert not waiting  # otherwise Python would wait for them when it exits


def test_full_disk_error_names_the_saved_steps(tmp_path, monkeypatch):
    checkpoints = Checkpoints(str(tmp_path / "checkpoints"))

    def no_room():
        raise ValueError("RESOURCE_EXHAUSTED: No space left on device")

    monkeypatch.setattr(checkpoints._checkpointer, "wait", no_room)
    folder = tmp_path / "checkpoints"
    with refuses(OSError, folder, "RESOURCE_EXHAUSTED", "none", "checkpoint_dir", "beginning"):
        checkpoints.wait()
    monkeypatch.setattr(checkpoints, "steps", lambda: [4, 8])
    with refuses(OSError, "4", "8"):
        checkpoints.wait()


@pytest.mark.parametrize(
    "file, error, is_shown",
    [
        ("/packages/orbax/serialization.py", "Event loop is closed", False),
        ("/packages/orbax/serialization.py", "another error", True),
        ("/home/user/mine.py", "Event loop is closed", True),
    ],
)
def test_leftover_coroutine_of_a_failed_orbax_save_is_not_printed(file, error, is_shown, capsys):
    """Python deletes a coroutine of Orbax that had not ended when its event loop was closed."""
    text = (
        "async def write():\n    try:\n        await hang()\n"
        f"    finally:\n        raise RuntimeError({error!r})\n"
    )
    names = {"hang": hang}
    exec(compile(text, file, "exec"), names)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "unraisablehook", quiet_orbax._without_closed_loops(shown_error))
        coroutine = names["write"]()
        coroutine.send(None)
        del coroutine
    assert (error in capsys.readouterr().out) == is_shown


@types.coroutine
def hang():
    yield


def shown_error(unraisable):
    print(unraisable.exc_value)


def test_leftover_task_of_a_failed_orbax_save_is_not_logged():
    quiet_orbax.hide_repeated_errors()

    def is_logged(file):
        words = f"Task exception was never retrieved\nfuture: <Task coro=<write() at {file}:1>>"
        return logging.getLogger("asyncio").filter(logging.makeLogRecord({"msg": words}))

    assert is_logged("/home/user/mine.py") and not is_logged("/packages/orbax/serialization.py")
