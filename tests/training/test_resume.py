"""A run that was stopped in any way continues bit for bit as if it had not been stopped.

Runs that are killed are separate processes with the same number of devices as this process. All
other runs are in this process.
"""

import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import time

import jax
import numpy as np
import pytest

from pretrax.training.batches import Batches
from pretrax.training.reporting.metrics import read_metrics
from pretrax.training.resuming import check_resumable
from pretrax.training.run_configuration import read_directory, run_of_directory
from pretrax.training.saved.checkpoints import Checkpoints
from tests.refusals import assert_named, exits
from tests.training import tiny

SLOW = {"WAIT": "0.02"}  # seconds per document; a step takes seven or eight documents

# `train.py` whose save of step 8 never finishes.
STALLED = """
import asyncio, sys
import pretrax.training.saved.checkpoints as c
from pretrax.cli import train
write = c.Files.save
async def save(self, directory):
    writing = await write(self, directory)
    async def stall():
        await writing
        if b"8.orb" in str(await directory.await_creation()).encode():
            await asyncio.sleep(600)
    return stall()
c.Files.save = save
train.main(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny.write_documents(tmp_path_factory.mktemp("data") / "store")


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    """Returns an uninterrupted run. Tests change copies of it."""
    run = tiny.Run(tmp_path_factory.mktemp("whole"), data)
    tiny.train_in_process(run.arguments())
    assert [line["step"] for line in run.lines() if "loss" in line] == list(range(1, 13))
    return run


@pytest.fixture(scope="module")
def uninterrupted(finished):
    """Returns the lines and final arrays of the uninterrupted run."""
    return finished.lines(), tiny.saved_arrays(finished.dir, 12)


@pytest.fixture
def copied(finished, data, tmp_path):
    """Returns a copy of the finished run."""
    run = tiny.Run(tmp_path, data)
    shutil.copytree(finished.dir, run.dir)
    return run


@pytest.fixture
def half(copied):
    """Returns the copy as a kill before the last checkpoint would have left it."""
    shutil.rmtree(copied.dir / "checkpoints" / "12")
    (copied.dir / "result.json").unlink()
    return copied


def assert_equals_whole(run, uninterrupted, evaluations=(12,)):
    lines, arrays = uninterrupted
    got = [line for line in run.lines() if "loss" in line or line["step"] in evaluations]
    assert got == lines
    tiny.assert_same(tiny.saved_arrays(run.dir, 12), arrays)


def start(run, **settings):
    return run.start(devices=jax.device_count(), env=SLOW, **settings)


def wait_for(process, is_reached, seconds=120):
    end = time.monotonic() + seconds
    while not is_reached():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.01)


def kill(process):
    process.send_signal(signal.SIGKILL)
    output, _ = process.communicate()
    assert process.returncode == -signal.SIGKILL
    return output


def reached(run, step):
    with contextlib.suppress(OSError):
        return any(line["step"] >= step for line in run.lines())
    return False


def test_run_that_lost_its_last_steps_equals_the_uninterrupted_run(half, uninterrupted, capsys):
    assert "Continuing from the checkpoint of step 8." in half.train_in_process(capsys)
    assert_equals_whole(half, uninterrupted)


@pytest.mark.slow
def test_run_killed_twice_equals_the_uninterrupted_run(data, uninterrupted, tmp_path, capsys):
    """The kills are before the first checkpoint, and after a checkpoint during the next save."""
    run = tiny.Run(tmp_path, data)
    saved = run.dir / "checkpoints"

    process = start(run)
    wait_for(process, lambda: reached(run, 2))
    kill(process)
    assert not list(saved.glob("[0-9]*"))

    process = start(run, program=("-c", STALLED))
    wait_for(process, lambda: list(saved.glob("8.*tmp*/data*/shard_00000.npz")))
    output = " ".join(kill(process).split())
    assert "metrics.jsonl went to step" in output and "starts from the beginning" in output
    (kept,) = run.dir.glob("metrics.until_*.jsonl")
    last = json.loads(kept.read_text().splitlines()[-1])["step"]
    assert last >= 2 and kept.name == f"metrics.until_{last}.jsonl"
    assert reached(run, 6) and (saved / "4").exists()
    assert not (saved / "8").exists() and list(saved.glob("8.*tmp*"))

    assert "Continuing from the checkpoint of step 4." in run.train_in_process(capsys)
    assert_equals_whole(run, uninterrupted)


@pytest.mark.slow
def test_sigterm_saves_a_checkpoint_and_the_run_resumes(
    data, uninterrupted, tmp_path, capsys, monkeypatch
):
    run, read = tiny.Run(tmp_path, data), Batches.__next__

    def stop(batches):
        if batches.step == 7:  # rows are read ahead, so the run takes the fifth step or a later one
            os.kill(os.getpid(), signal.SIGTERM)
        return read(batches)

    with monkeypatch.context() as patch:
        patch.setattr(Batches, "__next__", stop)
        out = run.train_in_process(capsys)
    step = run.lines()[-1]["step"]
    assert f"Stopped at step {step} of 12" in out
    assert 5 <= step < 12 and (run.dir / "checkpoints" / str(step)).is_dir()
    assert f"Continuing from the checkpoint of step {step}." in run.train_in_process(capsys)
    assert_equals_whole(run, uninterrupted)


@pytest.mark.slow
def test_stop_within_a_logging_interval_changes_no_metric(data, tmp_path, monkeypatch):
    """Means and durations of an interval cover the steps before and after the stop."""
    tiny.on_one_device(monkeypatch)
    intervals = dict(training__Run__log_every=5, training__Run__checkpoint_every=100)
    uninterrupted, stopped = (tiny.Run(tmp_path / name, data) for name in ("whole", "stopped"))
    tiny.train_in_process(uninterrupted.arguments(**intervals))
    stop = ("--gin.training.Run.hooks=[@tiny.asks_to_stop]", "--gin.tiny.asks_to_stop.after=6")
    tiny.train_in_process([*stopped.arguments(**intervals), *stop])
    saved = json.loads((stopped.dir / "checkpoints/7/data/unreported.json").read_bytes())
    assert [line["step"] for line in stopped.lines()] == [5]
    tiny.train_in_process(stopped.arguments(**intervals))
    assert [line["step"] for line in uninterrupted.lines() if "loss" in line] == [5, 10, 12]
    assert stopped.lines() == uninterrupted.lines()
    (line,) = (line for line in read_metrics(stopped.dir) if line["step"] == 10)
    assert 0 < saved["seconds"]["step"] < line["seconds/step"]


@pytest.mark.slow
def test_sigterm_while_the_last_checkpoint_is_saved_waits_for_it(data, tmp_path, monkeypatch):
    """By default, SIGTERM would end the process and lose the steps since the last checkpoint."""
    run, wait, asked = tiny.Run(tmp_path, data), Checkpoints.wait, []

    def stop_and_wait(checkpoints):
        if checkpoints._saving is not None and checkpoints.steps()[-1:] == [2]:
            asked.append(signal.getsignal(signal.SIGTERM))
            if asked[-1] is not signal.SIG_DFL:
                os.kill(os.getpid(), signal.SIGTERM)
        wait(checkpoints)

    monkeypatch.setattr(Checkpoints, "wait", stop_and_wait)
    tiny.train_in_process(run.arguments(STEPS=2))
    assert asked and signal.SIG_DFL not in asked
    assert (run.dir / "result.json").exists()


def flip_bytes(file):
    file.write_bytes(bytes(byte ^ 0xFF for byte in file.read_bytes()))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, damage",
    [("data/shard_00002.npz", lambda f: f.write_bytes(b"")), ("state/ocdbt.*/d/*", flip_bytes)],
    ids=["empty_position", "flipped_arrays"],
)
def test_damaged_latest_checkpoint_falls_back_to_the_previous_one(
    half, uninterrupted, capsys, name, damage
):
    for file in (half.dir / "checkpoints" / "8").glob(name):
        damage(file)
    output = half.train_in_process(capsys)
    assert "warning: checkpoint 8 is damaged" in " ".join(output.split())
    assert "Continuing from the checkpoint of step 4." in output
    assert (half.dir / "damaged_checkpoints" / "8").is_dir()
    assert_equals_whole(half, uninterrupted)


@pytest.mark.slow
def test_checkpoint_ends_a_logging_interval(half, uninterrupted, capsys):
    """A line is a mean since the previous line.

    A line that began before a stop would lose its start.
    """
    half.train_in_process(capsys, training__Run__log_every=5, training__Run__checkpoint_every=3)
    each = {line["step"]: line["loss"] for line in uninterrupted[0] if "loss" in line}
    got = {line["step"]: line["loss"] for line in half.lines() if "loss" in line}
    assert list(got) == [*range(1, 9), 9, 10, 12]
    assert got[9] == each[9] and got[10] == each[10]
    assert got[12] == pytest.approx((each[11] + each[12]) / 2, rel=1e-6)


@pytest.mark.slow
def test_run_resumes_on_another_mesh(half, uninterrupted, capsys):
    mesh = {f"mesh__make_mesh__{axis}": 2 for axis in ("data", "fsdp", "tensor")}
    output = half.train_in_process(capsys, STEPS=10, **mesh)
    assert "mesh {'data': 2, 'fsdp': 2, 'expert': 1, 'context': 1, 'tensor': 2}" in output
    assert "mesh.fsdp: was 1, is 2" in output and "steps: was 12, is 10" in output
    found, expected = (
        {line["step"]: line for line in lines if "loss" in line}
        for lines in (half.lines(), uninterrupted[0])
    )
    for step in range(1, 11):
        assert found[step] == pytest.approx(expected[step], rel=1e-4)


@pytest.mark.slow
def test_finished_run_is_reported_and_unchanged(copied, capsys):
    before = copied.lines()
    output = copied.train_in_process(capsys)
    assert "This run is finished: 12 of 12 steps" in output
    assert "--steps=24" in output and "another directory" in output
    assert copied.lines() == before
    shorter = copied.train_in_process(capsys, STEPS=6)
    assert "This run is finished: it took 12 steps" in shorter and "--steps=6" in shorter


@pytest.mark.slow
def test_run_resumes_with_changed_rate_and_shards_and_reports_them(half, capsys):
    output = half.train_in_process(capsys, STEPS=9, PEAK=1e-3, training__Run__data_shards=2)
    assert (
        "optimizer.learning_rate.peak: was 0.003, is 0.001" in output
        and "Continuing from" in output
    )
    assert "data_shards: was 4, is 2" in output and "Done" in output
    shards = sorted(path.name for path in (half.dir / "checkpoints").glob("9/data/shard_*"))
    assert shards == ["shard_00000.npz", "shard_00001.npz"]


@pytest.mark.parametrize(
    "changed, expected",
    [
        # `model.attention` may change.
        ({"models__decoder__attention_scale": 0.5}, ["model.attention_scale", 0.5]),
        ({"objectives__span_corruption__noise_density": 0.5}, ["noise_density", 0.15, 0.5]),
        ({"training__Run__batch_size": 16}, ["batch_size", 8, 16]),
        ({"training__Run__seed": 1}, ["seed", 0, 1]),
        ({"training__Run__initial_run": "/absent"}, ["initial_run", None, "'/absent'"]),
        ({"DATA": "/absent"}, ["corpus.path", "'/absent'"]),
    ],
    ids=lambda x: ",".join(x) if isinstance(x, dict) else None,
)
def test_changed_run_is_rejected_and_its_checkpoints_kept(half, capsys, changed, expected):
    before = (half.dir / "config.gin").read_text()
    with pytest.raises(SystemExit) as end:
        half.train_in_process(capsys, STEPS=20, **changed)
    assert end.value.code == 2
    output = capsys.readouterr().err
    assert_named(output, half.dir, "--run_dir=runs/NAME", *expected)
    assert "steps:" not in output
    assert (half.dir / "config.gin").read_text() == before
    assert {p.name for p in (half.dir / "checkpoints").iterdir()} >= {"4", "8"}


def test_run_without_a_checkpoint_may_be_changed(half):
    shutil.rmtree(half.dir / "checkpoints")
    fields = read_directory(str(half.dir), {"tests.training.tiny"})
    run = run_of_directory(str(half.dir), fields)
    assert "seed: was 0, is 1" in check_resumable(dataclasses.replace(run, seed=1))


@pytest.mark.slow
def test_changed_model_code_names_the_mismatched_arrays(half, capsys):
    """The configuration does not show such a change."""
    config = half.dir / "config.gin"
    config.write_text(tiny.unsealed_config(config).replace("emb_dim = 16", "emb_dim = 32"))
    with exits(capsys, half.dir, "params/"):
        half.train_in_process(capsys, models__decoder__emb_dim=32)
    assert not (half.dir / "damaged_checkpoints").exists()


@pytest.mark.slow
def test_changed_store_under_the_same_name_is_rejected(half, data, tmp_path, capsys):
    shutil.move(data, tmp_path / "kept")
    try:
        tiny.write_store(data, tiny.documents(200, seed=5), tiny.IDS)
        with pytest.raises(SystemExit):
            half.train_in_process(capsys)
    finally:
        shutil.rmtree(data)
        shutil.move(tmp_path / "kept", data)
    assert_named(capsys.readouterr().err, "position", "seed")


def assert_all_saved_is_finite(run):
    for checkpoint in (run.dir / "checkpoints").glob("[0-9]*"):
        for name, array in tiny.saved_arrays(run.dir, int(checkpoint.name)).items():
            assert np.isfinite(array).all(), (checkpoint, name)


@pytest.mark.slow
def test_nonfinite_loss_stops_the_run(half, capsys):
    with pytest.raises(SystemExit) as end:
        half.train_in_process(capsys, PEAK=1e12, training__Run__checkpoint_every=1)
    assert end.value.code == 2
    output = capsys.readouterr().err
    assert_named(output, "loss", "clip_norm")
    assert len(re.findall(r"step \d+", output)) >= 2  # including the step of the last checkpoint
    assert_all_saved_is_finite(half)


@pytest.mark.slow
def test_nonfinite_loss_before_any_checkpoint_stops_the_run(data, tmp_path, capsys):
    with exits(capsys, "loss", "checkpoint", "clip_norm"):
        tiny.Run(tmp_path, data).train_in_process(capsys, PEAK=float("1e30"))


@pytest.mark.slow
def test_nonfinite_parameters_are_not_saved_and_the_run_resumes(half, uninterrupted, capsys):
    """A single step destroys them. Its loss is computed before the step and is still finite."""
    with exits(capsys, "step 9", "parameter_norm"):
        half.train_in_process(capsys, PEAK=1e39, training__Run__checkpoint_every=1)
    assert_all_saved_is_finite(half)
    assert "Continuing from the checkpoint of step 8." in half.train_in_process(capsys)
    assert_equals_whole(half, uninterrupted)
