"""Setting back the clock, during a run or between two starts, has no effect."""

import itertools
import time

import pytest

from pretrax.training.reporting.metrics import read_metrics
from tests.training import tiny

DAY = 86_400.0


@pytest.mark.slow
def test_setting_back_the_clock_does_not_change_a_run(tmp_path, monkeypatch, capsys):
    """Durations, due checkpoints, local copies and the resumed step do not depend on the clock."""
    data = tiny.write_documents(tmp_path / "store")
    by_clock = {"training__Run__checkpoint_minutes": 1e-9, "training__Run__log_every": 3}
    copies = {"training__Run__local_checkpoint_minutes": 1e-9}
    runs = [tiny.Run(tmp_path / name, data) for name in ("whole", "set_back")]
    for run in runs:
        here = copies | {"training__Run__local_checkpoint_dir": str(run.dir.parent / "local")}
        for start, steps in enumerate((7, 12)):
            if run is runs[1]:
                begin, ticks = 2e9 - 1000 * DAY * start, itertools.count()
                monkeypatch.setattr(time, "time", lambda b=begin, t=ticks: b - DAY * next(t))
            output = run.train_in_process(capsys, **by_clock, **here, STEPS=steps)
            monkeypatch.undo()
            assert not start or "Continuing from the checkpoint of step 7." in output
    whole, set_back = runs
    assert set_back.lines() == whole.lines()
    tiny.assert_same(tiny.saved_arrays(set_back.dir, 12), tiny.saved_arrays(whole.dir, 12))
    saved = [sorted(path.name for path in run.dir.glob("checkpoints/[0-9]*")) for run in runs]
    assert saved[0] == saved[1]
    figures = [part for line in read_metrics(set_back.dir) for part in line.items()]
    seconds = [value for name, value in figures if "second" in name]
    assert seconds and min(seconds) >= 0
