"""Parts of a run's time sum to the whole in the metrics, the result and the closing message."""

import itertools

import pytest

from pretrax.training.reporting import monitor
from pretrax.training.reporting.metrics import read_metrics
from pretrax.training.reporting.wall_time import KINDS, WallTime
from pretrax.training.saved.result import read_result
from tests.training import tiny


def test_parts_sum_to_the_elapsed_time():
    clock = itertools.count(10.0)  # a second passes whenever the clock is read
    wall_time = WallTime(clock.__next__)
    with wall_time.measure("step"):
        with wall_time.measure("data"):
            pass
    with pytest.raises(OSError), wall_time.measure("saving"):
        raise OSError
    seconds = wall_time.seconds()
    assert seconds == dict.fromkeys(KINDS, 0.0) | {"step": 2, "data": 1, "saving": 1, "rest": 3}
    assert sum(seconds.values()) == next(clock) - 1 - 10


@pytest.mark.slow
def test_run_reports_the_parts_of_its_wall_time(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(monitor, "peak_flops", lambda: 1e6)  # as on a slower device
    run = tiny.Run(tmp_path, tiny.write_documents(tmp_path / "store"), STEPS=4)
    output = run.train_in_process(
        capsys, training__Run__checkpoint_every=2, training__Run__log_every=3
    )
    seconds = read_result(str(run.dir)).seconds
    assert list(seconds) == list(KINDS) and min(seconds.values()) > 0
    assert (
        f"Wall time {sum(seconds.values()):,.1f} s: compile {seconds['compile']:.1f}, data"
        in output
    )
    logged = [line for line in read_metrics(run.dir) if "loss" in line]
    assert [line["step"] for line in logged] == [2, 3, 4]
    for kind in ("compile", "data", "step"):  # none of these come after the last line
        assert sum(line[f"seconds/{kind}"] for line in logged) == pytest.approx(seconds[kind])
    assert logged[0]["seconds/saving"] == 0 < logged[1]["seconds/saving"]
    assert all(line["tokens_per_second"] > 0 for line in logged)
    assert logged[2]["mfu"] == pytest.approx(1e6 * logged[2]["tflops_per_second"])
    assert f"tokens/s  {logged[2]['mfu']:.1%} MFU" in output
