"""Scaling laws of comparisons: planted laws are found, reported and used for planning."""

import functools
import re

import numpy as np
import pytest

from pretrax.cli import plan
from pretrax.comparison import report, results
from pretrax.comparison.report import wording
from pretrax.comparison.report.summary import summary_of
from pretrax.comparison.scaling import laws_of_comparisons
from pretrax.comparison.scaling.scaling_law import Work
from tests.comparison import planted
from tests.refusals import assert_named, exits, refuses
from tests.visualization import pages


@pytest.fixture(autouse=True, scope="module")
def few_resamples():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            laws_of_comparisons, "fit", functools.partial(laws_of_comparisons.fit, resamples=60)
        )
        yield


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scaling")
    results.write(folder, planted.scaling())
    return folder


@pytest.fixture(scope="module")
def law(directory):
    return laws_of_comparisons.law_of_directory(directory)


@pytest.mark.slow
def test_planted_law_lies_within_its_intervals(law):
    assert law.figure == "loss_under/causal_lm" and len(law.points) == 24
    for true, low, high in zip(planted.LAW, law.fit.low, law.fit.high):
        assert low < true < high
    assert 0.002 < law.error < 0.006  # the noise was 0.004
    best = planted.LAW.optimum(1e13, Work(5.0, 1.0))
    low, high = law.fit.interval_of_optimum(1e13, law.work)
    assert low.parameters < best.parameters < high.parameters
    assert law.work == pytest.approx((5.0, 1.0))


@pytest.mark.slow
def test_flops_per_token_are_fitted_to_each_size():
    """Small models take fewer FLOPs per parameter, so the work is fitted to each size."""
    runs = [r._replace(flops_per_token=2.5 * r.parameters**1.05) for r in planted.scaling().runs]
    (law,) = laws_of_comparisons.laws_of(planted.scaling()._replace(runs=runs))
    for run in runs:
        assert law.work.flops_per_token(run.parameters) == pytest.approx(run.flops_per_token)
    for flops in (1e11, 1e14):
        best = law.fit.law.optimum(flops, law.work)
        sizes = best.parameters * np.linspace(0.5, 2, 3001)
        losses = law.fit.law.loss(sizes, flops / law.work.flops_per_token(sizes))
        assert sizes[np.argmin(losses)] == pytest.approx(best.parameters, rel=1e-3)
        assert law.work.flops_per_token(best.parameters) * best.tokens == pytest.approx(flops)


@pytest.mark.slow
def test_report_shows_the_law_and_claims_no_differences(directory, law):
    report.write(directory)
    text, short = (directory / "report.html").read_text(), (directory / "report.md").read_text()
    output = f"over 24 runs is {100 * law.error:.2g}%"
    assert output in text and output in short and "is better than" not in text
    assert f"| alpha | {law.fit.law.alpha:.3g} |" in short and "Equal:" not in short
    chart = pages.charts_of(text)[0]
    assert {f"var(--v{k})" for k in range(4)} <= pages.colors_of(chart)
    assert "mathdefault" not in text and "1.39M parameters" in text
    pages.assert_elements_are_closed(text)
    pages.assert_nothing_is_fetched_and_nothing_runs(text)


def test_incomplete_comparison_has_no_law():
    found = planted.scaling(seeds=[0])
    found = found._replace(runs=found.runs[:4], measurements=found.measurements[:8])
    (line,) = wording.findings(summary_of(found))
    assert line.startswith("loss_under/causal_lm: no law. Got 4 runs of 2 sizes and 3 numbers")
    (line,) = wording.findings(summary_of(found._replace(measurements=[])))
    assert line.startswith("No run has a loss in nats per target yet")


@pytest.mark.parametrize(
    "made, named",
    [
        (None, "comparison.json"),
        (planted.results(["a", "b"]), "'masking_rate'"),
        (planted.scaling()._replace(measurements=[]), "loss"),
    ],
)
def test_results_without_a_law_are_rejected_by_plan(made, named, tmp_path, capsys):
    if made is not None:
        results.write(tmp_path, made)
    with refuses(SystemExit, 2):
        plan.main(["--flops=1e13", f"--law={tmp_path}"])
    assert_named(capsys.readouterr().err, tmp_path, named)


@pytest.mark.slow
def test_rising_losses_give_no_law():
    rising = [
        m._replace(figure=m.figure._replace(value=20 - m.figure.value))
        for m in planted.scaling().measurements
    ]
    (law,) = laws_of_comparisons.laws_of(planted.scaling()._replace(measurements=rising))
    assert law.fit is None and "do not fall with parameters and tokens" in law.why_not_fitted


@pytest.mark.slow
def test_plan_uses_the_law_and_warns_far_from_its_runs(directory, law, monkeypatch, capsys):
    monkeypatch.setattr(plan, "law_of_directory", lambda name: {str(directory): law}[name])
    best = law.fit.law.optimum(1e14, law.work)
    plan.main(["--flops=1e14", f"--law={directory}"])
    output = " ".join(capsys.readouterr().out.split())
    assert f"{best.parameters / 1e3:.0f}k" in output and "parameters, 95%" in output
    assert "5 N^1 FLOPs per token of N parameters; 16 bytes" in output
    assert "24 runs of 86.4k to 1.39M parameters on 251k to 2.25M tokens" in output
    (far,) = re.findall(r"(\S+) FLOPs are (\S+) orders of magnitude away", output)
    assert far == ("1e+15", "1.8")  # the column of ten times the budget
    for budget, orders in (("1e17", ["2.8", "3.8", "4.8"]), ("1e9", ["3.0", "2.0", "1.0"])):
        plan.main([f"--flops={budget}", f"--law={directory}"])
        output = " ".join(capsys.readouterr().out.split())
        assert re.findall(r"are (\S+) orders of magnitude away from the nearest", output) == orders
    plan.main(["--parameters=1e6", "--tokens=1e6", f"--law={directory}"])
    assert f"{law.fit.law.loss(1e6, 1e6):.2f}" in capsys.readouterr().out
    with exits(capsys, "--law"):
        plan.main(["--gin_file=runs/decoder.gin", f"--law={directory}"])
