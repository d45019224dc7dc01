"""The files of a comparison are read back as they were written, in a fixed order."""

import json
import math
import re

import pytest

from pretrax.comparison import results
from pretrax.comparison.collecting import (
    cost_at,
    learning_curves,
    run_flops_per_token,
    tokens_by_step,
)
from pretrax.comparison.eval_metrics import kept_figures
from pretrax.comparison.facts import VariantFacts, read_facts, write_facts
from pretrax.comparison.figures import HIGHER, Figure
from pretrax.comparison.results import Measurement, TrainedRun, TrainingCost
from pretrax.settings import atomic_writes
from tests.comparison import planted, small
from tests.refusals import refuses


def contents(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_written_results_are_read_back(tmp_path):
    made = planted.results(["15%", "40%"], reference="15%")
    results.write(tmp_path, made)
    assert results.read(tmp_path) == made


def test_tuning_trials_including_diverged_ones_are_stored(tmp_path):
    made = planted.tuned(planted.results(["15%", "40%"]))
    results.write(tmp_path, made)
    read = results.read(tmp_path)
    assert read.setup == made.setup and len(read.tuning_trials) == len(made.tuning_trials) == 10
    losses = [(one.loss, other.loss) for one, other in zip(read.tuning_trials, made.tuning_trials)]
    assert all(one == other or math.isnan(one) and math.isnan(other) for one, other in losses)
    assert sum(math.isnan(one) for one, _ in losses) == 1
    (tmp_path / "tuning.jsonl").write_text('{"variant": "15%"}\n')
    with refuses(ValueError, "tuning.jsonl", "1"):
        results.read(tmp_path)


def test_earlier_checkpoints_are_stored_in_addition_to_final_figures(tmp_path):
    ends = planted.results(["15%", "40%"], seeds=(0, 1))
    made = planted.over_training(ends, 3)
    results.write(tmp_path, made)
    read = results.read(tmp_path)
    assert read.measurements == made.measurements == ends.measurements
    assert sorted(map(repr, read.earlier)) == sorted(map(repr, made.earlier))
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [one["step"] for one in lines[:27]] == [33] * 9 + [67] * 9 + [100] * 9
    assert lines[26]["text_tokens"] == 409_600 and lines[26]["seconds"] == 61.5
    lines[0]["flops"] = None
    del lines[0]["crc32"]
    results.write_lines(tmp_path / "results.jsonl", [lines[0]])
    with refuses(ValueError, "results.jsonl", "1"):
        results.read(tmp_path)


def test_files_do_not_depend_on_the_order_of_finished_runs(tmp_path):
    made = planted.results(["15%", "40%"], seeds=(0, 1, 10))
    results.write(tmp_path / "a", made)
    shuffled = made._replace(runs=made.runs[::-1])
    # The figures of a run keep their order.
    by_run = sorted(made.measurements, key=lambda m: -m.seed)
    results.write(tmp_path / "b", shuffled._replace(measurements=by_run))
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    seeds = [json.loads(x)["seed"] for x in (tmp_path / "a/runs.jsonl").read_text().splitlines()]
    assert seeds == [0, 1, 10, 0, 1, 10]


def test_figure_that_is_not_finite_is_stored_as_null(tmp_path):
    made = planted.results(["a"], seeds=[0])
    figure = Figure("classify", math.inf, "share", HIGHER)
    results.write(tmp_path, made._replace(measurements=[Measurement("a", 0, "runs/a", figure)]))
    line = json.loads((tmp_path / "results.jsonl").read_text())
    assert line["value"] is None
    assert math.isnan(results.read(tmp_path).measurements[0].figure.value)


def test_setup_with_malformed_variants_names_its_file(tmp_path):
    results.write(tmp_path, planted.results(["a", "b"]))
    kept = atomic_writes.read_json(tmp_path / "comparison.json")
    atomic_writes.write_record(tmp_path / "comparison.json", kept | {"variants": 3})
    with refuses(ValueError, "comparison.json"):
        results.read(tmp_path)


@pytest.mark.parametrize("content", ["[]", "3", '{"steps": 6}', '{"steps": null}'])
def test_malformed_facts_name_their_file(tmp_path, content):
    write_facts(str(tmp_path), "a", VariantFacts("", "", 6, 1500, 10, 99, "cpu"))
    file = tmp_path / "runs/a/facts.json"
    if "null" in content:
        content = json.dumps(atomic_writes.sealed(atomic_writes.read_json(file) | {"steps": None}))
    file.write_text(content)
    with refuses(ValueError, "runs/a/facts.json"):
        read_facts(str(tmp_path), "a")


@pytest.mark.parametrize(
    "content", ["3", "{", '{"figures": []}', '{"refusal": "", "figures": [{"name": "x"}]}']
)
def test_malformed_figures_name_their_file(tmp_path, content):
    (tmp_path / "evaluation").mkdir()
    (tmp_path / "evaluation/eval_metrics.jsonl").write_text(content)
    with refuses(ValueError, "eval_metrics.jsonl", "1"):
        kept_figures.KeptFigures(str(tmp_path)).read([3], [])


@pytest.mark.parametrize("name", ["comparison.json", "runs.jsonl", "results.jsonl"])
@pytest.mark.parametrize(
    "content", [None, b"[]", b"null", b'{"variant": "a"}\n', b'{"variant', b'{"variant": "\xff"}']
)
def test_missing_and_damaged_files_are_named(tmp_path, name, content):
    results.write(tmp_path, planted.results(["a", "b"]))
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content)
    with refuses(ValueError, name):
        results.read(tmp_path)


@pytest.mark.parametrize("name", ["comparison.json", "runs.jsonl", "results.jsonl", "tuning.jsonl"])
def test_changed_digit_of_a_record_is_detected(tmp_path, name):
    made = planted.results(["15%", "40%"])
    results.write(
        tmp_path, made._replace(tuning_trials=[results.TuningTrial("15%", 1, 0, 5, steps=11)])
    )
    text = (tmp_path / name).read_text()
    for digit in sorted(set(re.findall(r"\d", text))):
        (tmp_path / name).write_text(text.replace(digit, str((int(digit) + 1) % 10), 1))
        with refuses(ValueError, name):
            results.read(tmp_path)


def test_runs_of_unknown_variants_are_rejected(tmp_path):
    made = planted.results(["a", "b"])
    asked = made.setup._replace(variants={"a": []})
    results.write(tmp_path, planted.results(["a"]))
    lines = tmp_path / results.RESULTS
    first, *others = results.read_lines(lines, dict)
    results.write_lines(lines, [first | {"variant": "b"}, *others])
    with refuses(ValueError, "results.jsonl", "b", "a"):
        results.read(tmp_path)
    with refuses(ValueError, "b", "a"):
        results.write(tmp_path, made._replace(setup=asked))


def test_learning_curves_count_all_text_up_to_a_step():
    lines = [
        {"step": 10, "loss": 5.0, "text_tokens": 100.0},
        {"step": 10, "heldout/all/tokens": 5.5, "heldout/all/hits": 0.5},
        {"step": 30, "loss": 4.0, "text_tokens": 50.0},
        {"step": 30, "heldout/all/tokens": 4.5, "heldout/all/hits": 0.6, "heldout/all/once": 1.0},
        {"step": 30, "heldout/all/tokens": math.nan},
    ]
    assert learning_curves(lines, {"heldout/all/hits"}) == {
        "loss": ((1000.0, 5.0), (2000.0, 4.0)),
        "heldout/all/tokens": ((1000.0, 5.5), (2000.0, 4.5)),
        "metric/all/hits": ((1000.0, 0.5), (2000.0, 0.6)),
    }


def test_cost_at_a_step_follows_the_logged_metrics():
    run = TrainedRun("a", 0, "runs/a", flops_per_token=6.0, text_tokens=2000, steps=30)
    entries = [
        {"step": 10, "text_tokens": 100.0, "tokens_per_second": 50.0},
        {"step": 10, "heldout/all/tokens": 5.5},
        {"step": 20, "text_tokens": 60.0, "tokens_per_second": 200.0},
        {"step": 30, "text_tokens": 40.0, "tokens_per_second": 1.0},
    ]
    assert cost_at(run, entries, 20) == TrainingCost(
        20, 1600, 12_000 * 20 / 30, 1000 / 50 + 600 / 200
    )
    assert cost_at(run, entries, 25).text_tokens == 1800  # a step between two logged steps


def test_seeds_with_different_text_lengths_take_the_same_flops():
    """The FLOPs of a step depend on its slots, not on how many of them have text."""
    facts = small.facts(30)._replace(flops_per_step=400, text_tokens=3000)
    for tokens in (50.0, 100.0):
        logged = tokens_by_step([{"step": 30, "text_tokens": tokens}])
        assert run_flops_per_token(facts, logged) * logged[30] == pytest.approx(400 * 30)
    failed = tokens_by_step([{"step": 10, "text_tokens": 100.0}])
    assert run_flops_per_token(facts, failed) * failed[10] == pytest.approx(400 * 10)
    assert run_flops_per_token(facts, {0.0: 0.0}) == facts.flops_per_token == 4.0


def test_long_learning_curves_are_stored_as_means():
    lines = [{"step": k, "loss": float(k), "text_tokens": 10.0} for k in range(1, 6001)]
    (points,) = learning_curves(lines).values()
    assert len(points) == 60 and points[0] == (505.0, 50.5) and points[-1] == (59505.0, 5950.5)
