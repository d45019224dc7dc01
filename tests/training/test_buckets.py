"""A run directory in a bucket (here in memory): its files are copied to the bucket and back."""

import dataclasses
import io
import json
import os
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from pretrax.objectives import causal_lm
from pretrax.settings import run_directory
from pretrax.settings.saved_states import has_checkpoint
from pretrax.training import buckets, planning
from pretrax.training.run_file import write_run
from pretrax.training.saved.runs import saved_steps
from pretrax.training.trainer import train
from tests.refusals import assert_named, refuses, warns
from tests.training import object_store, tiny

ADDRESS = "gs://bucket/runs/mine"


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    """Returns an empty bucket, and sets a separate home for the folders that stand for it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    return object_store.emptied(monkeypatch)


@pytest.fixture
def run(tmp_path):
    objective = causal_lm(tiny.IDS)
    run = tiny.run_of(tiny.decoder(), objective, {"decoder": 32}, steps=4)
    where = str(tmp_path / "checkpoints")  # Orbax does not write arrays in memory
    return dataclasses.replace(run, run_dir=ADDRESS, checkpoint_dir=where)


def test_only_changed_files_are_pushed(bucket, run):
    with buckets.mirrored(run) as mirror:
        assert mirror.run_dir == buckets.folder_of(ADDRESS) and "pretrax/runs/gs" in mirror.run_dir
        run_directory.add_evaluation(mirror.run_dir, {"step": 1})
        (Path(mirror.run_dir) / run_directory.CONFIG).write_text("RUN_DIR = 1")
        buckets.push(mirror.run_dir)
        assert "/bucket/runs/mine/evaluation/metrics.jsonl" in bucket.find("/bucket")
        bucket.pipe_file("/bucket/runs/mine/config.gin", b"KEPT = 1")
        run_directory.add_evaluation(mirror.run_dir, {"step": 2})
    assert steps_in(bucket) == [1, 2]
    # it has not changed on this machine
    assert bucket.cat_file("/bucket/runs/mine/config.gin") == b"KEPT = 1"
    assert len(bucket.find("/bucket")) == 2  # neither the lock nor copied files


def test_another_machine_fetches_the_bucket_without_checkpoints(bucket, run, tmp_path, monkeypatch):
    bucket.pipe_file("/bucket/runs/mine/config.gin", b"RUN_DIR = 1")
    for folder in ("checkpoints", "damaged_checkpoints"):
        bucket.pipe_file(f"/bucket/runs/mine/{folder}/4/state", b"large")
    monkeypatch.setenv("HOME", str(tmp_path / "other"))
    folder = Path(buckets.local_copy(ADDRESS))
    assert (folder / "config.gin").read_text() == "RUN_DIR = 1"
    assert os.listdir(folder) == ["config.gin"]
    assert not list(Path(buckets.fetch(ADDRESS)).glob("*checkpoints"))
    bucket.rm("/bucket", recursive=True)  # a fresh start
    with refuses(ValueError, "/bucket/runs/mine"):
        buckets.local_copy(ADDRESS)


def test_local_copy_follows_the_bucket_and_keeps_evaluations(bucket):
    for name in ("config.gin", "classes.json", "tensorboard/events", "evaluation/metrics.jsonl"):
        bucket.pipe_file(f"/bucket/runs/mine/{name}", b"OLD = 1")
    folder = Path(buckets.local_copy(ADDRESS))
    assert not (folder / "tensorboard").exists()
    run_directory.add_evaluation(folder, {"step": 1})
    bucket.rm_file("/bucket/runs/mine/classes.json")
    bucket.pipe_file("/bucket/runs/mine/config.gin", b"NEW = 1")
    assert buckets.local_copy(ADDRESS + "/") == str(folder)
    assert (folder / "config.gin").read_text() == "NEW = 1"
    assert not (folder / "classes.json").exists()
    assert (folder / "evaluation/metrics.jsonl").read_text() == '{"step": 1}\n'
    buckets.push(str(folder))
    assert bucket.cat_file("/bucket/runs/mine/evaluation/metrics.jsonl") == b"OLD = 1"


def test_reading_a_run_keeps_the_files_of_its_training(bucket, run):
    with buckets.mirrored(run) as mirror:
        (Path(mirror.run_dir) / "config.gin").write_text("RUN_DIR = 1")
        for step in (10, 20, 30):
            run_directory.add_evaluation(mirror.run_dir, {"step": step})
            if step == 10:
                buckets.push(mirror.run_dir)
            assert buckets.local_copy(ADDRESS) != mirror.run_dir
    assert steps_in(bucket) == [10, 20, 30]


def test_parent_address_leaves_the_runs_below_it_unchanged(bucket, run):
    with buckets.mirrored(run) as mirror:
        (Path(mirror.run_dir) / "config.gin").write_text("RUN_DIR = 1")
        run_directory.add_evaluation(mirror.run_dir, {"step": 10})
        buckets.push(mirror.run_dir)
        above = ADDRESS.removesuffix("/mine")
        with refuses(ValueError, above, "config.gin"):
            buckets.local_copy(above)
        with buckets.mirrored(dataclasses.replace(run, run_dir=above)) as other:
            assert sorted(os.listdir(other.run_dir)) == [".bucket.json"]
        run_directory.add_evaluation(mirror.run_dir, {"step": 20})
    assert steps_in(bucket) == [10, 20]


def test_missing_record_of_copied_files_raises(bucket, run):
    with refuses(FileNotFoundError, "bucket.json"):
        with buckets.mirrored(run) as mirror:
            os.unlink(os.path.join(mirror.run_dir, ".bucket.json"))


def test_unpushed_files_are_kept_if_the_bucket_is_unchanged(bucket, run, monkeypatch):
    def start(step):
        with buckets.mirrored(run) as mirror:
            (Path(mirror.run_dir) / "config.gin").write_text("RUN_DIR = 1")
            run_directory.add_evaluation(mirror.run_dir, {"step": step})

    start(10)
    with monkeypatch.context() as patch:
        patch.setattr(buckets, "push", lambda directory: None)
        start(20)  # as if it had been killed
    start(30)
    assert steps_in(bucket) == [10, 20, 30]
    file = "/bucket/runs/mine/evaluation/metrics.jsonl"
    with monkeypatch.context() as patch:
        patch.setattr(buckets, "push", lambda directory: None)
        start(40)
    bucket.pipe_file(file, b'{"step": 35}\n')  # another machine continues
    start(50)
    assert steps_in(bucket) == [35, 50]
    bucket.rm("/bucket", recursive=True)  # a fresh start
    start(60)
    assert steps_in(bucket) == [60]


def test_unavailable_bucket_gives_a_warning_and_hides_no_error(bucket, run, monkeypatch):
    def fail(*_):
        raise ConnectionError("503")

    write, messages = buckets.Folder.write, []
    with buckets.mirrored(run) as mirror:
        (Path(mirror.run_dir) / "config.gin").write_text("RUN_DIR = 1")
        run_directory.add_evaluation(mirror.run_dir, {"step": 10})
        monkeypatch.setattr(buckets.Folder, "write", fail)
        buckets.push_or_warn(mirror.run_dir, messages.append)
        monkeypatch.setattr(buckets.Folder, "write", write)
    (message,) = messages
    assert_named(message, ADDRESS, 503)
    assert steps_in(bucket) == [10]
    with refuses(OSError, ADDRESS, 503):
        with buckets.mirrored(run) as mirror:
            run_directory.add_evaluation(mirror.run_dir, {"step": 20})
            monkeypatch.setattr(buckets.Folder, "write", fail)
    with pytest.raises(FloatingPointError), warns(UserWarning, ADDRESS, 503):
        with buckets.mirrored(run):
            raise FloatingPointError("a spike")


def test_interrupted_push_is_recognized(bucket, run, monkeypatch):
    """This machine would take its own lines for another machine's and drop later lines."""
    write = buckets.Folder.write

    def fail_at_config(folder, name, content):
        if name == run_directory.CONFIG:
            raise ConnectionError("503")
        write(folder, name, content)

    with buckets.mirrored(run) as mirror:
        (Path(mirror.run_dir) / "config.gin").write_text("RUN_DIR = 1")
    with pytest.warns(UserWarning), pytest.raises(KeyboardInterrupt):
        with buckets.mirrored(run) as mirror:
            (Path(mirror.run_dir) / "config.gin").write_text("RUN_DIR = 22")
            run_directory.add_evaluation(mirror.run_dir, {"step": 10})
            monkeypatch.setattr(buckets.Folder, "write", fail_at_config)
            buckets.push_or_warn(mirror.run_dir, lambda _: None)
            run_directory.add_evaluation(mirror.run_dir, {"step": 20})
            monkeypatch.setattr(buckets.Folder, "write", lambda *_: 1 / 0)
            raise KeyboardInterrupt
    monkeypatch.setattr(buckets.Folder, "write", write)
    with buckets.mirrored(run):
        pass
    assert steps_in(bucket) == [10, 20]


def steps_in(bucket):
    lines = bucket.cat_file("/bucket/runs/mine/evaluation/metrics.jsonl").splitlines()
    return [json.loads(line)["step"] for line in lines]


def test_checkpoints_follow_the_bucket_even_if_the_run_is_moved(bucket, run, tmp_path):
    with buckets.mirrored(dataclasses.replace(run, checkpoint_dir=None)) as mirror:
        assert run_directory.checkpoints(mirror.run_dir) == f"{ADDRESS}/checkpoints"
        write_run(mirror)
    save(bucket, 3)
    moved = "gs://other/mine"
    bucket.copy("/bucket/runs/mine", "/other/mine", recursive=True)
    save(bucket, 5)
    assert saved_steps(buckets.local_copy(ADDRESS)) == [3, 5]
    assert saved_steps(buckets.local_copy(moved)) == [3]
    with buckets.mirrored(dataclasses.replace(run, run_dir=moved, checkpoint_dir=None)) as mirror:
        assert saved_steps(mirror.run_dir) == [3] and has_checkpoint(mirror.run_dir)
    bucket.get("/other/mine", str(tmp_path / "mine"), recursive=True)
    shutil.copytree(mirror.run_dir, tmp_path / "copied")
    for name in ("mine", "copied"):
        assert run_directory.checkpoints(str(tmp_path / name)) == f"{tmp_path}/{name}/checkpoints"


def test_checkpoint_directory_within_the_run_is_not_copied(bucket, run):
    run = dataclasses.replace(run, checkpoint_dir=f"{ADDRESS}/kept/states/")
    with buckets.mirrored(run) as mirror:
        write_run(mirror)
    for folder in ("states", "damaged_states", "states_of_mine"):
        bucket.pipe_file(f"/bucket/runs/mine/kept/{folder}/4/state", b"large")
    for folder in (buckets.fetch(ADDRESS, run.checkpoint_dir), buckets.local_copy(ADDRESS)):
        assert os.listdir(f"{folder}/kept") == ["states_of_mine"]
    bucket.pipe_file("/bucket/runs/mine/config.gin", b"NEW = [1")
    with refuses(ValueError, "config.gin"):
        buckets.local_copy(ADDRESS)


def save(bucket, step):
    """Writes the file by which Orbax recognizes a complete checkpoint."""
    bucket.pipe_file(f"/bucket/runs/mine/checkpoints/{step}/commit_success.txt", b"")


def test_settings_that_buckets_do_not_support_are_rejected(bucket, run, tmp_path):
    with refuses(ValueError, "run_dir"):
        with buckets.mirrored(dataclasses.replace(run, distributed=True)):
            pass
    for where in ("s3://bucket/mine", "gcs://bucket/mine"):
        with refuses(ValueError, f"{where}/checkpoints", "gs://", "checkpoint_dir=FOLDER"):
            with buckets.mirrored(dataclasses.replace(run, run_dir=where, checkpoint_dir=None)):
                pass
    with refuses(ValueError, "checkpoint_dir", "run_dir"):
        with buckets.mirrored(dataclasses.replace(run, checkpoint_dir=f"{ADDRESS}/")):
            pass
    elsewhere = dataclasses.replace(run, run_dir=str(tmp_path), checkpoint_dir="s3://bucket/mine")
    with refuses(ValueError, "/bucket/mine"):
        planning.plan_run(elsewhere)
    with buckets.mirrored(run):
        with refuses(ValueError, ADDRESS):
            with buckets.mirrored(run):
                pass
    with refuses(ValueError, "run_dir"):
        tiny.planned(run)


@pytest.mark.slow
def test_run_in_a_bucket_is_trained_and_found_from_another_machine(
    bucket, run, tmp_path, monkeypatch
):
    tiny.on_one_device(monkeypatch)
    quiet = Console(file=io.StringIO())
    assert train(run, quiet).finished
    kept = {path.removeprefix("/bucket/runs/mine/") for path in bucket.find("/bucket/runs/mine")}
    assert {"config.gin", "metrics.jsonl", "result.json"} <= kept
    assert any(name.startswith("tensorboard/") for name in kept)
    monkeypatch.setenv("HOME", str(tmp_path / "other"))
    assert train(run, quiet).finished and "This run is finished" in quiet.file.getvalue()
