"""Positive controls of a kept comparison, as `pretrax compare NAME --power` shows them."""

import re
from pathlib import Path

import pytest

from pretrax.comparison import results
from pretrax.comparison.eval_metrics import EVAL_METRICS
from pretrax.comparison.pilot_tables import about_control
from pretrax.comparison.report.positive_controls import controls_of
from tests.comparison import planted


def write_control(directory, effects):
    """Writes a comparison in which "full" is the better model."""
    of_worse_model = {("an eighth", name): effect for name, effect in effects.items()}
    planted_results = planted.results(
        ["full", "an eighth"], effects=of_worse_model, reference="full"
    )
    results.write(directory, planted_results)


def test_control_is_passed_if_the_better_model_wins(tmp_path):
    # The figures are a share (higher is better), bits (lower is better), and a wrong sign.
    write_control(tmp_path, {"minimal_pairs": -0.2, "bits_per_byte": 0.5, "classify": 0.4})
    (pairs,) = controls_of("minimal_pairs", tmp_path)
    (bits,) = controls_of("bits_per_byte (pseudo bits per byte)", tmp_path)
    (wrong,) = controls_of("classify", tmp_path)
    assert pairs.passed and 0 < pairs.gain.low < 0.2 < pairs.gain.high < 0.3
    assert bits.passed and 0 < bits.gain.low < 0.5 < bits.gain.high < 0.7
    assert not wrong.passed and wrong.gain.high < 0
    assert controls_of("tag", tmp_path) == [] == controls_of("classify", tmp_path / "none")
    shown = about_control(pairs)
    assert "minimal_pairs" in shown and f"{pairs.gain.seeds} seeds" in shown


def test_control_is_failed_by_equal_models(tmp_path):
    write_control(tmp_path, {})
    assert not any(controls_of(name, tmp_path)[0].passed for name in planted.EVAL_METRICS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "begins, passed", [("these eval metrics pass: ", True), ("These do not: ", False)]
)
def test_documentation_names_the_eval_metrics_that_pass(begins, passed):
    text = " ".join(Path("docs/eval_metrics.md").read_text().split())
    named = re.findall(r"`(\w+)`", text.partition(begins)[2].partition(". ")[0])
    kept = [(name, control) for name in EVAL_METRICS for control in controls_of(name)]
    assert named == sorted({name for name, control in kept if control.passed == passed})
