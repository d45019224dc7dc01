"""How far a comparison is, by what has been seen of its runs."""

import io
from types import SimpleNamespace

from rich.console import Console

from pretrax.comparing.variants import Key
from pretrax.comparing.workers import progress


def test_time_left_follows_how_long_runs_were_measured(monkeypatch):
    """Runs of 40 seconds that are measured for 60, which no guess knows."""
    clock = SimpleNamespace(now=0.0)
    keys = [Key("a", seed) for seed in range(3)]
    starts = {key: 100.0 * key.seed for key in keys}  # one after another
    of = {str(key.seed): key for key in keys}
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(
        progress, "last_step", lambda run: min(max(clock.now - starts[of[run]], 0), 40)
    )
    monkeypatch.setattr(
        progress,
        "read_measured",
        lambda run, steps, number: clock.now - starts[of[run]] >= 50 + 10 * number or None,
    )
    cells = {
        key: SimpleNamespace(
            run=SimpleNamespace(run_dir=str(key.seed), steps=40), yardsticks=range(6)
        )
        for key in keys
    }
    output = io.StringIO()
    with progress.ComparisonProgress(
        Console(file=output), cells, dict.fromkeys(keys, 1.0), 0
    ) as watch:
        for clock.now in range(0, 301, 5):
            done = [key for key in keys if starts[key] <= clock.now < starts[key] + 100]
            watch(dict.fromkeys(done), {})
    left = [line for line in output.getvalue().splitlines() if line.startswith("1/3")]
    # After 120 seconds 180 are left; the guess of 30% for measuring would have it at 147.
    assert left == ["1/3 runs, 3 min left", "1/3 runs, 2 min left"]
