"""The progress of a comparison, derived from the files of its runs."""

import io
from types import SimpleNamespace

from rich.console import Console

from pretrax.comparison.failures import write_failure
from pretrax.comparison.workers import progress
from tests.comparison import small


def test_time_left_follows_measured_durations(monkeypatch):
    """Runs that take 40 seconds to train and 60 to measure, which is not the assumed share."""
    clock, looks = SimpleNamespace(now=0.0), {}
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock.now)

    class Trial:
        def __init__(self, seed: int):
            self.name, self.start, self.facts = f"a, seed {seed}", 100.0 * seed, small.facts(40)
            self.run = SimpleNamespace(steps=40)

        @property
        def state(self):
            return self

        @property
        def last_step(self):
            return min(max(clock.now - self.start, 0), 40)

        @property
        def measured_share(self):
            looks[self.name] = looks.get(self.name, 0) + 1
            return sum(clock.now - self.start >= 50 + 10 * k for k in range(6)) / 6

    trials = [Trial(seed) for seed in range(3)]  # one run after another
    output = io.StringIO()
    with progress.ComparisonProgress(Console(file=output), trials, 0) as watch:
        for clock.now in range(0, 301, 5):
            for trial in trials:
                if clock.now == trial.start + 100:
                    watch.end(trial, failed=False)
                if clock.now == trial.start:
                    watch.start(trial)
            watch.refresh()
    left = [line for line in output.getvalue().splitlines() if line.startswith("1/3")]
    # After 120 seconds, 180 are left. With the assumed share of 30%, it would be 147.
    assert left == ["1/3 runs, 3 min left", "1/3 runs, 2 min left"]
    # All are read before the start, then a run is read every 5 of its 100 seconds and at its end.
    # Waiting runs are not read.
    assert looks == {"a, seed 0": 21, "a, seed 1": 22, "a, seed 2": 22}


def test_failed_and_resumed_runs_count_in_the_time_left(monkeypatch, tmp_path):
    """The resumed run had taken half of its steps. It takes another step every 30 seconds."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock.now)

    class Trial:
        def __init__(self, name: str):
            self.name, self.facts = name, small.facts(40)
            self.run = SimpleNamespace(steps=40, run_dir=str(tmp_path / name))
            self.measured_share = 0.0

        @property
        def state(self):
            return self

        @property
        def last_step(self):
            return 20 + clock.now // 30 if self.name == "resumed" else 0

    trials = [Trial(name) for name in ("resumed", "failed", "waiting", "last")]
    write_failure(trials[1].run.run_dir, "out of memory")
    output = io.StringIO()
    with progress.ComparisonProgress(Console(file=output), trials, complete=2) as watch:
        for trial in trials[:2]:
            watch.start(trial)
        watch.end(trials[1], failed=True)
        for clock.now in range(0, 61, 5):
            watch.refresh()
    # The share of training is 0.7. Of four runs, (0.7 * 22/40 + 1) / 4 = 0.346 is done, and
    # 0.7 * 20/40 / 4 = 0.088 was done at the start. The rest takes 60 * 0.654 / 0.259 = 152 s.
    started = ["resumed: started", "failed: started"]
    ended = ["failed failed: out of memory", "2/6 runs, 1 failed, 3 min left"]
    assert output.getvalue().splitlines() == started + ended
