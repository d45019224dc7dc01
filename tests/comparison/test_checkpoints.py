"""Eval metrics at checkpoints of a run: how they are kept, measured, continued and reported."""

import json
import pathlib
import shutil

import pytest

from pretrax.comparison import trials
from pretrax.comparison.figures import LOWER, Figure
from pretrax.comparison.measured_checkpoints import measured_steps, with_checkpoints
from pretrax.comparison.report import wording
from pretrax.comparison.report.comparison_page import page
from pretrax.comparison.report.markdown_report import markdown
from pretrax.comparison.report.summary import summary_of
from pretrax.training.run_configuration import read_directory, read_run
from pretrax.training.saved.runs import open_saved_model, saved_steps
from tests.comparison import planted, small
from tests.refusals import assert_named
from tests.visualization import pages

# number of a run's checkpoints
ONE = "comparison.Comparison.variants = {'small': []}", "SEEDS = [0]"
TWICE = "comparison.Comparison.checkpoints = 2"
TRUSTED = ("tests.training.tiny",)


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    """The directory of a comparison of one run, which is measured at its end."""
    return compared(tmp_path_factory.mktemp("once"))


@pytest.fixture(scope="module")
def twice(tmp_path_factory):
    """The directory of the same run, which is also measured at half of its steps."""
    return compared(tmp_path_factory.mktemp("twice"), TWICE)


def compared(folder: pathlib.Path, *lines: str) -> pathlib.Path:
    with pytest.MonkeyPatch.context() as patch:
        small.run_trials_in_process(patch)
        assert small.compare_in_process(small.write(folder, *ONE, *lines)) == 0
    return folder / "compared"


@pytest.mark.slow
def test_earlier_checkpoints_do_not_change_the_final_figures(once, twice):
    (end,) = small.figures(once)
    half, same = small.figures(twice)
    assert same == end and (half["step"], same["step"]) == (3, 6)
    assert half["value"] != same["value"]


@pytest.mark.slow
def test_checkpoint_has_figures_of_its_parameters_and_its_own_cost(twice):
    half, end = small.results(twice)
    run = str(twice / half["run"])
    assert saved_steps(run, TRUSTED) == [3, 6]
    for one in (half, end):
        saved = open_saved_model(run, one["step"], fields=read_directory(run, TRUSTED))
        (figure,) = small.norm(SubjectOf(saved))
        assert one["value"] == figure.value
    logged = [json.loads(line) for line in (twice / half["run"] / "metrics.jsonl").open()]
    steps = [one for one in logged if one["step"] <= 3 and "text_tokens" in one]
    assert len(steps) == 3 and half["flops"] == end["flops"] / 2
    assert half["text_tokens"] == sum(one["text_tokens"] for one in steps)
    seconds = [one["text_tokens"] / one["tokens_per_second"] for one in steps]
    assert half["seconds"] == pytest.approx(sum(seconds))
    (run_line,) = (json.loads(line) for line in (twice / "runs.jsonl").open())
    assert (end["seconds"], end["text_tokens"]) == (run_line["seconds"], run_line["text_tokens"])


class SubjectOf:
    def __init__(self, saved):
        self.saved = saved


@pytest.fixture
def trained(twice, tmp_path, monkeypatch):
    """Returns the file of a copy whose two checkpoints another eval metric has to measure."""
    file = pathlib.Path(small.write(tmp_path, *ONE, TWICE, "small.norm.power = 4"))
    for name in ("base.gin", "data"):  # the name that its run has
        file.write_text(file.read_text().replace(f"{tmp_path}/{name}", f"{twice.parent}/{name}"))
    shutil.copytree(twice, tmp_path / "compared")
    small.run_trials_in_process(monkeypatch)
    monkeypatch.setattr(trials.trainer, "train", None)
    return str(file)


@pytest.mark.slow
def test_next_command_measures_only_what_a_kill_left_unmeasured(trained, monkeypatch):
    measure, asked = trials.kept_figures.measure, []

    def killed_at_the_second(eval_metric, subject):
        asked.append(subject.step)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return measure(eval_metric, subject)

    monkeypatch.setattr(trials.kept_figures, "measure", killed_at_the_second)
    assert small.compare_in_process(trained) == 130
    assert small.compare_in_process(trained) == 0
    assert asked == [6, 3, 3]  # The end comes first, since it is compared.
    found = small.results(pathlib.Path(trained).parent / "compared")
    assert [one["step"] for one in found] == [3, 6] and found[0]["value"] != found[1]["value"]
    assert small.compare_in_process(trained) == 0 and len(asked) == 3


@pytest.mark.slow
def test_rejection_at_an_earlier_checkpoint_names_its_step(trained, monkeypatch):
    refused = [3]

    def measure(eval_metric, subject):
        if subject.step in refused:
            raise ValueError("too early")
        return (Figure("norm", 1.0, "units", LOWER),)

    monkeypatch.setattr(trials.kept_figures, "measure", measure)
    runs = pathlib.Path(trained).parent / "compared/runs.jsonl"
    # A figure at both checkpoints belongs to the run.
    for power, figure in ((4, "norm at step 3"), (6, "norm")):
        assert small.compare_in_process(trained, f"--gin.small.norm.power={power}") == 0
        assert json.loads(runs.read_text())["refusals"] == {figure: "too early"}
        refused.append(6)


def test_more_checkpoints_than_steps_are_rejected_before_any_run(tmp_path, monkeypatch, capsys):
    started = small.run_trials_in_process(monkeypatch)
    file = small.write(tmp_path, *ONE, "comparison.Comparison.checkpoints = 7")
    assert small.compare_in_process(file) == 2 and not started
    assert_named(capsys.readouterr().err, "checkpoints = 7", 6)


def test_measured_checkpoints_do_not_make_saves_rarer():
    run = read_run(["runs/decoder.gin"], ["STEPS = 446"])
    assert with_checkpoints(run, 1) is run
    for before, saved in ((None, 112), (400, 112), (100, 56), (50, 38)):
        one = read_run(
            ["runs/decoder.gin"], ["STEPS = 446", f"training.Run.checkpoint_every = {before}"]
        )
        kept = with_checkpoints(one, 4)
        first, *_, last = measured_steps(446, 4, before)
        assert kept.checkpoint_every == saved and kept.keep_every == first and last == 446
        assert first % saved == 0 and 112 <= first <= 114


# --- reports --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run_results():
    """Runs of 30% take twice the seconds, and runs of 40% twice the FLOPs."""
    ends = planted.results(["15%", "30%", "40%"], effects={("40%", "bits_per_byte"): -0.5})
    runs = [
        run._replace(
            seconds=run.seconds * (1 + (run.variant == "30%")),
            flops_per_token=run.flops_per_token * (1 + (run.variant == "40%")),
        )
        for run in ends.runs
    ]
    return planted.over_training(ends._replace(runs=runs), 4)


def test_differences_use_only_the_final_checkpoints(run_results):
    ends = summary_of(run_results._replace(earlier=()))
    assert summary_of(run_results)._replace(curves={}) == ends and ends.curves == {}
    assert wording.CURVES_TITLE not in markdown(ends)


def test_curve_ends_with_the_compared_mean(run_results):
    summary = summary_of(run_results)
    assert [*summary.curves] == [column.name for column in summary.columns]
    for column in summary.columns:
        for variant, checkpoints in summary.curves[column.name].items():
            assert [c.cost.step for c in checkpoints] == [25, 50, 75, 100]
            assert checkpoints[-1].mean == pytest.approx(column.estimates[variant].mean)


def test_all_means_of_a_curve_use_the_same_seeds(run_results):
    """A checkpoint that a seed lacks is left out, and so is a seed without a figure at the end."""
    lacking = [
        one
        for one in run_results.earlier
        if (one.variant, one.seed, one.cost.step) != ("15%", 0, 50)
    ]
    ended = [one for one in run_results.measurements if (one.variant, one.seed) != ("30%", 1)]
    found = summary_of(run_results._replace(earlier=lacking, measurements=ended)).curves["classify"]
    steps = {variant: [c.cost.step for c in checkpoints] for variant, checkpoints in found.items()}
    assert steps == {"15%": [25, 75, 100], "30%": [25, 50, 75, 100], "40%": [25, 50, 75, 100]}
    counts = {
        variant: {len(c.values) for c in checkpoints} for variant, checkpoints in found.items()
    }
    assert counts == {"15%": {5}, "30%": {4}, "40%": {5}}


def test_best_variant_is_named_at_equal_tokens_flops_and_seconds(run_results):
    """The variant 40% is best at the end, but at half of its FLOPs it is behind 15%."""

    def flat(one):
        early = {"15%": 2.6, "30%": 2.5, "40%": 3.0}[one.variant]
        return one._replace(figure=one.figure._replace(value=early))

    summary = summary_of(run_results._replace(earlier=tuple(map(flat, run_results.earlier))))
    (line,) = (x for x in wording.best_at_equal_cost(summary) if x.startswith("bits_per_byte"))
    tokens, flops, seconds = line.removeprefix("bits_per_byte, best mean: ").split("; ")
    assert tokens == "40% at 410k text tokens" and flops == "15% at 7.78T FLOPs"
    assert seconds == "40% at 61.7 seconds."
    assert f"- {line}" in markdown(summary)


def test_no_best_is_named_if_a_curve_begins_beyond_the_others(run_results):
    late = [one for one in run_results.earlier if one.variant != "40%" or one.cost.step == 75]
    lines = wording.best_at_equal_cost(summary_of(run_results._replace(earlier=late)))
    assert len(lines) == 3 and not any("FLOPs" in line for line in lines)
    assert all("FLOPs" in line for line in wording.best_at_equal_cost(summary_of(run_results)))


@pytest.mark.slow
def test_curves_are_drawn_over_tokens_flops_and_seconds(run_results):
    summary = summary_of(run_results)
    text = page(summary)
    for line in wording.best_at_equal_cost(summary):
        assert line in text
    pages.assert_nothing_is_fetched_and_nothing_runs(text)
    pages.assert_elements_are_closed(text)
    assert text.count('type="radio"') == 3 and text.count(" checked>") == 1
    assert [text.count(f'<div class="over{k}">') for k in range(3)] == [3, 3, 3]
    for over in ("text tokens", "FLOPs", "seconds"):
        assert text.count(f">{over}</text>") == 3
