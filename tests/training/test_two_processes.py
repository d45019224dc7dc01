"""Two real processes that communicate over sockets give the same result as one process."""

import re
import shutil
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from pretrax import cli
from pretrax.training.batches import Batches
from tests.refusals import assert_named, exits
from tests.training import tiny
from tests.training.two_processes import finish_both, places, start_both

# `train.py` that stores its rows: one file for each block on each of its devices.
KEEPING_ROWS = """
import os, sys, jax, numpy as np
import pretrax.training.batches as b
from pretrax.cli import train
read = b.Batches.__next__
def keep(self):
    step, rows = self.step, read(self)
    for i, x in enumerate(jax.tree.leaves(rows)):
        for shard in x.addressable_shards:
            start = shard.index[0].indices(x.shape[0])[0]
            np.save(f"{os.environ['ROWS']}/{step}-{i}-{start}.npy", shard.data)
    return rows
b.Batches.__next__ = keep
train.main(sys.argv[1:])
"""

# `train.py` whose second process cannot read the checkpoint of step 8: at first storage fails, and
# then the checkpoint is damaged.
UNREADABLE_BY_ONE = """
import os, sys, jax
import pretrax.training.saved.checkpoints as c
from pretrax.cli import train
from pretrax.training.saved.damage import DamageError
ERRORS = [OSError("503"), DamageError("a checksum")]
load = c.Checkpoints._load
def load_or_not(self, step, target):
    loaded = load(self, step, target)
    if jax.process_index() == 1 and step == 8 and ERRORS:
        raise ERRORS.pop(0)
    return loaded
c.Checkpoints._load, c.WAITS = load_or_not, (0,)
train.main(sys.argv[1:])
assert not ERRORS or os.environ["JAX_PROCESS_ID"] == "0"
"""

# A process that joins the other process of a run and waits. It is given the run's folder.
JOINED = """
import os, sys, time
from pretrax.training import processes
from pretrax.training.run import Run
run = Run(
    run_dir=sys.argv[1], corpus=Run, objective=Run, model=Run, optimizer=Run, steps=1,
    sequence_lengths={}, batch_size=1, seed=int(os.getenv("SEED", "0")),
)
with processes.without_shutdown(), processes.ends_together():
    processes.join_processes(run)
    print("joined", flush=True)
    time.sleep(100)
"""

# Two joined processes. The second is sent SIGTERM before either has taken a step, and the first
# decides.
STOPPED_BEFORE_THE_FIRST_STEP = JOINED.replace("import os", "import os, signal").replace(
    "    time.sleep(100)",
    """
    if os.environ["JAX_PROCESS_ID"] == "1":
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(5)  # in which both hear of it
    print([processes.must_stop_together() for _ in range(2)])
    number = int(os.environ["JAX_PROCESS_ID"])
    print([processes.broadcast_from_first(i == number) for i in range(2)])
""",
)

# `train.py` whose second process lacks the data.
MISSING_ON_ONE = """
import os, sys
import pretrax.data.store_mixtures as mixtures
from pretrax.cli import train
open_store = mixtures.open_store
if os.environ["JAX_PROCESS_ID"] == "1":
    mixtures.open_store = lambda path: open_store(path.replace("store", "stork"))
train.main(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny.write_documents(tmp_path_factory.mktemp("data") / "store")


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """Runs twelve steps in this process, and returns the run and the arrays of rows at each step.

    The run uses two devices, like the runs of two processes, so their results are bit-identical.
    """
    run = tiny.Run(tmp_path_factory.mktemp("whole"), data)
    rows = []
    read = Batches.__next__

    def keep(self):
        found = read(self)
        rows.append(jax.device_get(jax.tree.leaves(found)))
        return found

    with pytest.MonkeyPatch.context() as patch:
        tiny.on_devices(patch, 2)
        patch.setattr(Batches, "__next__", keep)
        tiny.train_in_process(run.arguments(mesh__make_mesh__fsdp=2))
    return run, rows


def assert_same_run(run, whole):
    """Compares two finished runs, except for the data that each process read for its own shards."""
    lines, expected = (
        [
            {name: x for name, x in line.items() if name != "data/store/epochs"}
            for line in one.lines()
            if "loss" in line or line["step"] == 12
        ]
        for one in (run, whole)
    )
    assert lines == expected
    tiny.assert_same(tiny.saved_arrays(run.dir, 12), tiny.saved_arrays(whole.dir, 12))


def losses(run):
    return [line["loss"] for line in run.lines() if "loss" in line]


@pytest.mark.slow
def test_two_killed_processes_resume_bit_for_bit(whole, data, tmp_path, monkeypatch, capsys):
    """Resumed as two processes or as one process with the same number of devices, the run ends with
    the arrays and metrics of an uninterrupted process, apart from the epochs of its own shards."""
    whole, rows = whole
    killed = tiny.Run(tmp_path / "killed", data)
    (tmp_path / "rows").mkdir()
    env = {"ROWS": str(tmp_path / "rows"), "WAIT": "0.02"}
    shown = {"tiny__slow_token_store__shown": True}
    processes = start_both(killed, program=("-c", KEEPING_ROWS), env=env, **shown)
    while not (killed.dir / "checkpoints/4").exists() or len(killed.lines()) < 6:
        assert [p.poll() for p in processes] == [None, None]
        time.sleep(0.02)
    for process in processes:
        process.kill()
        process.communicate()

    # Each process read the rows of its own device.
    blocks = [path for path in (tmp_path / "rows").iterdir() if int(path.stem.split("-")[0]) < 4]
    assert len(blocks) == 4 * 3 * 2  # steps, leaves of a row, devices
    for block in blocks:
        step, leaf, start = (int(x) for x in block.stem.split("-"))
        actual, reference = np.load(block), rows[step][leaf]
        assert len(actual) == len(reference) // 2
        np.testing.assert_array_equal(actual, reference[start : start + len(actual)])
    # Each process saved the position of its shards, and all bytes are the same as for one process.
    for file in (whole.dir / "checkpoints/4/data").glob("*.npz"):
        assert (killed.dir / "checkpoints/4/data" / file.name).read_bytes() == file.read_bytes()

    # One process with one device has other shards.
    small = tiny.Run(tmp_path / "small", data)
    alone = tiny.Run(tmp_path / "alone", data)
    for run in (small, alone):
        shutil.copytree(killed.dir, run.dir)
    small.train_in_process(capsys, **shown)
    assert losses(small) == pytest.approx(losses(whole), rel=1e-4)

    output = finish_both(killed, **shown)
    assert "Continuing from the checkpoint of step" in output
    assert "mesh {'data': 1, 'fsdp': 2, 'expert': 1, 'context': 1, 'tensor': 1}" in output
    assert "Filling in held-out passages" in output and "Done." in output
    assert_same_run(killed, whole)

    tiny.on_devices(monkeypatch, 2)
    output = alone.train_in_process(capsys, mesh__make_mesh__fsdp=2, **shown)
    assert "Continuing from the checkpoint of step" in output
    assert_same_run(alone, whole)


@pytest.mark.slow
def test_two_processes_agree_on_a_checkpoint_that_one_of_them_cannot_read(whole, data, tmp_path):
    """Both read it again if storage fails for one, and both skip it if one finds it damaged."""
    whole, _ = whole
    run = tiny.Run(tmp_path, data)
    shutil.copytree(whole.dir, run.dir)
    shutil.rmtree(run.dir / "checkpoints/12")
    (run.dir / "result.json").unlink()
    output = " ".join(finish_both(run, program=("-c", UNREADABLE_BY_ONE)).split())
    assert "warning: checkpoint 8 is damaged" in output and "503" not in output
    assert "Continuing from the checkpoint of step 4." in output
    assert_same_run(run, whole)


@pytest.mark.slow
def test_sigterm_to_one_process_stops_both(data, tmp_path):
    run = tiny.Run(tmp_path, data)
    processes = start_both(
        run, env={"WAIT": "0.02"}, STEPS=1000, training__Run__checkpoint_every=1000
    )
    while not (run.dir / "metrics.jsonl").exists() or len(run.lines()) < 3:
        assert [p.poll() for p in processes] == [None, None]
        time.sleep(0.1)
    processes[1].send_signal(signal.SIGTERM)
    (output, err), (_, err_1) = (p.communicate(timeout=120) for p in processes)
    assert [p.returncode for p in processes] == [0, 0], err + err_1
    assert "Stopped at step" in output
    step = run.lines()[-1]["step"]
    assert (run.dir / "checkpoints" / str(step)).is_dir()


@pytest.mark.slow
def test_distributed_run_without_a_coordinator_names_the_variables(data, tmp_path):
    process = tiny.Run(tmp_path, data).start(training__Run__distributed=True)
    _, err = process.communicate(timeout=60)
    words = "Set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES, JAX_PROCESS_ID on every host"
    assert process.returncode == 2 and words in err and "Traceback" not in err


@pytest.mark.parametrize(
    "env, named",
    [
        ({"JAX_COORDINATOR_ADDRESS": "localhost:1"}, "'JAX_NUM_PROCESSES'"),
        (places()[0] | {"JAX_COORDINATOR_ADDRESS": "localhost"}, "HOST:PORT"),
    ],
    ids=["some", "no port"],
)
def test_incomplete_distributed_settings_are_named(data, tmp_path, monkeypatch, capsys, env, named):
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with exits(capsys, named):
        tiny.Run(tmp_path, data).train_in_process(capsys, training__Run__distributed=True)


def start_joined(run_dir, program=JOINED, **env) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", program, run_dir],
        cwd=tiny.ROOT,
        env=tiny.environment(**env),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_processes_with_different_settings_are_rejected(tmp_path):
    """One model would train with two learning rates, or the processes would hang."""
    both = [start_joined(tmp_path, **place, SEED=seed) for place, seed in zip(places(), "05")]
    errs = [p.communicate(timeout=60)[1] for p in both]
    assert [p.returncode for p in both] == [1, 1]
    assert_named(errs[0], "process 1", 2)
    assert "  process 1: training.Run.seed = 5\n" in errs[1] and "  process 0:" not in errs[1]


@pytest.mark.slow
def test_process_times_out_if_the_others_do_not_start(tmp_path):
    hurried = JOINED.replace(
        "run =", "processes._REPORT_EVERY, processes._START_TIMEOUT = 1, 2\nrun ="
    )
    one = start_joined(tmp_path, hurried, **places()[0])
    _, err = one.communicate(timeout=60)
    assert one.returncode == 2
    assert_named(err, "localhost", "error", "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES")
    assert "stack trace" not in err


@pytest.mark.slow
def test_sigterm_before_the_first_step_stops_both_after_it(tmp_path):
    """A resumed run may get the signal while it compiles, and its first step has any number."""
    both = [start_joined(tmp_path, STOPPED_BEFORE_THE_FIRST_STEP, **place) for place in places()]
    output = [process.communicate(timeout=240)[0].splitlines()[-2:] for process in both]
    assert [stops for stops, _ in output] == ["[True, False]"] * 2
    assert [decisions for _, decisions in output] == ["[True, False]"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_surviving_process_names_the_one_that_died(tmp_path, victim):
    for name in ("4", "8", "12.orbax-checkpoint-tmp"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    both = [start_joined(tmp_path, **place) for place in places()]
    died, other = both[victim], both[1 - victim]
    assert [p.stdout.readline() for p in both] == ["joined\n"] * 2
    time.sleep(0.5)  # until they are connected
    died.send_signal(signal.SIGSTOP)
    time.sleep(1)
    assert other.poll() is None  # a pause does not count as a death
    died.kill()
    _, err = other.communicate(timeout=15)
    died.communicate()
    assert other.returncode == 1
    assert_named(err, "error", f"process {victim}", 2, "step 8")
    assert "stack trace" not in err


@pytest.mark.slow
def test_failure_of_one_process_is_reported_by_both(data, tmp_path):
    run = tiny.Run(tmp_path, data)
    both = start_both(run, program=("-c", MISSING_ON_ONE))
    errs = [p.communicate(timeout=100)[1] for p in both]
    assert [p.returncode for p in both] == [1, 2]
    assert_named(errs[0], "error", "process 1", 2, "stork", "beginning")
    assert re.search(r"error: .*stork", errs[1]) and "process" not in errs[1]


@pytest.mark.parametrize("variable", ["JAX_NUM_PROCESSES", "SLURM_STEP_NUM_TASKS"])
@pytest.mark.parametrize("command, arguments", [("predict", ["text"]), ("evaluate", ["--heldout"])])
def test_single_process_commands_reject_several_processes(
    command, arguments, variable, monkeypatch, capsys
):
    monkeypatch.setenv(variable, "2")
    with exits(capsys, f"`pretrax {command}`", f"{variable}=2"):
        cli.run(command, ["--run=nowhere", *arguments])
