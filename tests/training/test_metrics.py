"""Metrics on disk: a resumed run keeps them, and training continues if they cannot be written."""

import struct
import threading
import time

import pytest
from tensorboard.compat.proto.event_pb2 import Event, SessionLog

from pretrax.training.reporting import tensorboard
from pretrax.training.reporting.metrics import MetricsWriter, read_metrics, set_aside


def losses(run_dir) -> list[float]:
    return [entry["loss"] for entry in read_metrics(run_dir)]


def events(run_dir) -> bytes:
    files = sorted((run_dir / "tensorboard").iterdir())
    return b"".join(file.read_bytes() for file in files)


def test_metrics_of_restarted_runs_are_all_kept(tmp_path):
    """The second start takes only a few steps, as on a machine that is taken away soon."""
    assert set_aside(tmp_path) == 0
    for last in (30, 10):
        with MetricsWriter(tmp_path) as metrics:
            metrics.write(last, {"loss": 1.0})
        assert set_aside(tmp_path) == last and read_metrics(tmp_path) == []
    kept = {path.name: path.read_text() for path in tmp_path.glob("metrics*")}
    assert sorted(kept) == ["metrics.until_10.jsonl", "metrics.until_30.jsonl"]
    assert '"step": 30' in kept["metrics.until_30.jsonl"]


def test_metrics_after_the_resumed_step_are_removed(tmp_path):
    writer = MetricsWriter(tmp_path)
    for step in (1, 2, 3):
        writer.write(step, {"loss": float(step)})
    writer.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "lo')  # a line that a kill cut off
    writer = MetricsWriter(tmp_path, step=2)
    writer.write(3, {"loss": 30.0})
    writer.close()
    assert losses(tmp_path) == [1.0, 2.0, 30.0]


@pytest.mark.parametrize("now", [0.0, 999_999_999.0, 2e9])
def test_metrics_after_a_rollback_are_replaced(tmp_path, monkeypatch, now):
    """TensorBoard reads files by name. A session-start event hides points from its step on.

    TensorBoard's reader in Python ignores the first such event, so a new run needs one too.
    """
    monkeypatch.setattr(time, "time", lambda: now)
    writer = MetricsWriter(tmp_path)
    for step in (1, 2, 3):
        writer.write(step, {"loss": float(step)})
    writer.rewind(1)
    writer.write(2, {"loss": 20.0})
    writer.close()
    assert losses(tmp_path) == [1.0, 20.0]
    data, found = events(tmp_path), []
    while data:  # a record: its length, a checksum, an event, a checksum
        (size,) = struct.unpack("<Q", data[:8])
        found.append(Event.FromString(data[12 : 12 + size]))
        data = data[16 + size :]
    points = [(e.step, *[v.simple_value for v in e.summary.value]) for e in found if e.step]
    assert points == [(1,), (1, 1.0), (2, 2.0), (3, 3.0), (2,), (2, 20.0)]
    starts = [e.step for e in found if e.session_log.status == SessionLog.START]
    assert starts == [1, 2]


@pytest.mark.parametrize(
    "damage", [b'{"step": 2, \xff}', b"5", b'"step"', b"{}", b"[" * 100_000, b""]
)
def test_damaged_metrics_line_is_skipped_with_a_warning(tmp_path, damage):
    lines = b'{"step": 1, "loss": 1.0}', damage, b'{"step": 3, "loss": 3.0}'
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join([*lines, b""]))
    assert losses(tmp_path) == [1.0, 3.0]
    warned = []
    MetricsWriter(tmp_path, 3, warned.append).close()
    assert len(warned) == 1 and "metrics.jsonl, line 2 cannot be read" in warned[0]
    assert losses(tmp_path) == [1.0, 3.0]


def test_training_continues_if_metrics_cannot_be_written(tmp_path, monkeypatch):
    """The disk is full, for example. The metrics are written once there is room again."""
    threads, warned, file = threading.active_count(), [], tmp_path / "metrics.jsonl"
    writer = MetricsWriter(tmp_path, warn=warned.append)
    writer.write(1, {"loss": 1.0})

    def full(self, data):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(tensorboard.RecordWriter, "write", full)
        file.rename(tmp_path / "so far")
        file.symlink_to("/dev/full")
        for step in range(2, 50):  # more than a queue would hold
            writer.write(step, {"loss": float(step)})
        writer.write_text(50, "text", "a")
        writer.flush()
    assert len(warned) == 1 and "No space left on device" in warned[0]
    file.unlink()
    (tmp_path / "so far").rename(file)
    writer.write(50, {"later": 50.0, "loss": 50.0})
    writer.close()
    assert losses(tmp_path) == [float(step) for step in range(1, 51)]
    assert b"later" in events(tmp_path) and threading.active_count() == threads


def test_flush_writes_all_metrics(tmp_path):
    writer = MetricsWriter(tmp_path)
    writer.write(1, {"loss": 1.0})
    writer.flush()
    assert b"loss" in events(tmp_path) and losses(tmp_path) == [1.0]
    writer.close()
    writer = MetricsWriter(tmp_path, step=1)
    writer.write(2, {"loss": 2.0})
    writer.close()
    assert len(list((tmp_path / "tensorboard").iterdir())) == 2


def test_setting_back_the_clock_keeps_event_files_in_order(tmp_path, monkeypatch):
    """TensorBoard sorts files by name, so the file of a later start must come last."""
    for now in (2e9, 1e9, 1e9, 2e9):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        before = [path.name for path in (tmp_path / "tensorboard").glob("*")]
        with MetricsWriter(str(tmp_path), len(before)) as writer:
            writer.write(len(before) + 1, {"loss": 1.0})
        after = sorted(path.name for path in (tmp_path / "tensorboard").iterdir())
        assert after[:-1] == sorted(before) and len(after) == len(before) + 1
