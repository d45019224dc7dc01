"""`pretrax compare`: what it runs, continues, rejects and reports."""

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import submitit  # noqa: F401  (at first it closes all log handlers: within capsys, pytest's own stream)
from rich.console import Console

import pretrax
from pretrax.comparison import comparing, facts, failures, trials
from pretrax.comparison.collecting import results_of
from pretrax.comparison.eval_metrics import kept_figures
from pretrax.comparison.facts import read_facts
from pretrax.comparison.trials import Trial, trials_of
from pretrax.comparison.variants import read_comparison, runs_of_variants
from pretrax.comparison.workers import cluster, worker_processes
from pretrax.comparison.workers.progress import ComparisonProgress
from pretrax.settings import atomic_writes
from tests.comparison import small
from tests.refusals import assert_named, refuses
from tests.training.tiny import ROOT, environment


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a complete comparison, which also has its file."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        started = small.run_trials_in_process(patch)
        assert small.compare_in_process(small.write(folder)) == 0
    assert started == [f"runs/{v}/seed_{s}" for s in (0, 1) for v in ("small", "large_2")]
    return folder


@pytest.fixture
def copied_comparison(finished, tmp_path, monkeypatch):
    """Returns a copy of the comparison, in which nothing has to be trained.

    The result is its file and the list of the runs that are started.
    """
    file = small.write(tmp_path)
    for name in ("base.gin", "small.gin"):
        text = (finished / name).read_text()
        (tmp_path / name).write_text(text.replace(f"{finished}/compared", f"{tmp_path}/compared"))
    shutil.copytree(finished / "compared", tmp_path / "compared")
    return file, small.run_trials_in_process(monkeypatch)


@pytest.mark.slow
def test_results_have_a_line_per_figure_with_its_run(finished):
    lines = small.results(finished / "compared")
    assert [(one["variant"], one["seed"]) for one in lines] == [
        ("small", 0), ("small", 1), ("large/2", 0), ("large/2", 1)
    ]  # fmt: skip
    assert all((finished / "compared" / one["run"] / "config.gin").exists() for one in lines)
    assert len({one["value"] for one in lines}) == 4
    config = (finished / "compared/runs/large_2/seed_1/config.gin").read_text()
    assert "STEPS = 6" in config and "training.Run.seed = 1" in config and "peak = 0.01" in config


@pytest.mark.slow
def test_complete_comparison_starts_no_run(copied_comparison, capsys):
    file, started = copied_comparison
    before = (pathlib.Path(file).parent / "compared/results.jsonl").read_bytes()
    assert small.compare_in_process(file) == 0 and not started
    assert (pathlib.Path(file).parent / "compared/results.jsonl").read_bytes() == before
    output = capsys.readouterr().out
    assert "Does a larger step help?" in output and "These costs are all equal." in output
    assert "To continue: add seeds" in " ".join(output.split())


@pytest.mark.slow
def test_added_variant_runs_only_what_is_missing(copied_comparison):
    file, started = copied_comparison
    lines = (
        "comparison.Comparison.variants = {'small': [], 'large/2': ['PEAK = 1e-2'], 'third': []}\n"
    )
    small.append(file, lines)
    assert small.compare_in_process(file, "--gin.SEEDS=[1]") == 0
    assert started == ["runs/third/seed_1"]
    found = small.results(pathlib.Path(file).parent / "compared")
    value_of = {one["variant"]: one["value"] for one in found}
    assert (
        list(value_of) == ["small", "large/2", "third"] and value_of["third"] == value_of["small"]
    )


@pytest.mark.slow
def test_compare_in_python_returns_the_stored_figures(copied_comparison, tmp_path, capsys):
    """`pretrax.compare` trains nothing again, and returns the figures."""
    file, started = copied_comparison
    compared = pretrax.compare(file)
    assert started == [] and compared.directory == f"{tmp_path}/compared"
    lines = small.results(tmp_path / "compared")
    keys = "variant", "seed", "name", "value"
    assert [[one[key] for key in keys] for one in compared.records] == [
        [line[key] for key in keys] for line in lines
    ]
    question = "Does a larger step help?"
    assert question in capsys.readouterr().out  # the report is printed, too
    assert question in repr(compared) and question in compared._repr_markdown_()


@pytest.mark.slow
def test_comparison_value_is_accepted_without_bindings(copied_comparison):
    file, started = copied_comparison
    comparison = read_comparison(file)
    assert pretrax.compare(comparison).summary.columns and started == []
    with refuses(ValueError, "SEEDS"):
        pretrax.compare(comparison, ["SEEDS = [0]"])


@pytest.mark.slow
def test_new_eval_metric_is_measured_without_training(copied_comparison, monkeypatch, capsys):
    file, started = copied_comparison
    monkeypatch.setattr(trials.trainer, "train", None)
    more = "comparison.Comparison.eval_metrics = [@small.norm, @a/small.norm, @small.refusing]"
    small.append(file, f"{more}\na/small.norm.power = 4\n")
    assert small.compare_in_process(file) == 0 and len(started) == 4
    found = small.results(pathlib.Path(file).parent / "compared")
    assert [one["name"] for one in found] == ["norm", "norm (power=4)"] * 4
    output = " ".join(capsys.readouterr().out.split())
    assert "small could not be measured by refusing: no such model can be measured" in output
    report = (pathlib.Path(file).parent / "compared/report.md").read_text()
    assert "- small could not be measured by refusing\n" in report  # runs.jsonl has the reason


@pytest.mark.slow
def test_rejected_measurement_is_tried_again(copied_comparison, monkeypatch, capsys):
    file, started = copied_comparison
    monkeypatch.setattr(trials.trainer, "train", None)
    small.append(file, "comparison.Comparison.eval_metrics = [@small.norm, @small.counted_files]\n")
    assert small.compare_in_process(file, "--gin.SEEDS=[0]") == 0 and len(started) == 2
    assert "could not be measured by counted_files: no files yet" in capsys.readouterr().out
    monkeypatch.setattr(small, "FILES", ["now"])
    assert small.compare_in_process(file, "--gin.SEEDS=[0]") == 0 and len(started) == 4
    found = small.results(pathlib.Path(file).parent / "compared")
    assert [one["name"] for one in found] == ["norm", "counted_files"] * 2
    assert "not measured" not in (pathlib.Path(file).parent / "compared/report.md").read_text()
    assert small.compare_in_process(file, "--gin.SEEDS=[0]") == 0 and len(started) == 4


@pytest.mark.slow
def test_broken_eval_metric_is_named_and_others_are_measured(
    copied_comparison, monkeypatch, capsys
):
    file, started = copied_comparison
    monkeypatch.setattr(trials.trainer, "train", None)
    both = "--gin.comparison.Comparison.eval_metrics=[@small.broken, @small.layers]"
    assert small.compare_in_process(file, "--gin.SEEDS=[0]", both) == 1 and len(started) == 2
    output = " ".join(capsys.readouterr().out.split())
    assert "Failed: small, seed 0: The eval metric broken: KeyError: 'a slip'" in output
    directory = pathlib.Path(file).parent / "compared"
    units = ("layers (layers)", "layers (blocks)")
    names = [name for unit in units for name in (unit, f"{unit}/part")]
    assert [one["name"] for one in small.results(directory)] == names
    # Without it, the runs have not failed and no work is left.
    without = "--gin.comparison.Comparison.eval_metrics=[@small.layers]"
    assert small.compare_in_process(file, "--gin.SEEDS=[0]", without) == 0 and len(started) == 2
    assert "slip" not in (directory / "report.md").read_text()


@pytest.mark.slow
def test_single_seed_gives_a_warning(copied_comparison, capsys):
    file, _ = copied_comparison
    assert small.compare_in_process(file, "--gin.SEEDS=[0]") == 0
    assert "One seed gives no intervals" in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_pilot_uses_finished_runs_and_writes_no_results(copied_comparison, capsys):
    file, started = copied_comparison
    directory = pathlib.Path(file).parent / "compared"
    (directory / "comparison.json").unlink()
    assert small.compare_in_process(file, "--power", "--gin.SEEDS=[5, 0, 1]") == 0 and not started
    output = " ".join(capsys.readouterr().out.split())
    assert "The pilot: seeds 0, 1" in output and "found by 3 seeds" in output
    assert "norm large/2 against small" in output and "training loss" in output
    assert not (directory / "comparison.json").exists()
    small.append(file, "comparison.Comparison.looks = [2]\nSEEDS = [0, 1, 2]\n")
    assert small.compare_in_process(file) == 2 and not started
    assert_named(capsys.readouterr().err, directory, "2, 3")
    with open(file) as lines:
        kept = [line for line in lines if "looks" not in line and "1, 2]" not in line]
    pathlib.Path(file).write_text("".join(kept))
    assert small.compare_in_process(file, "--power", "--smallest_effect", "norm=1e-9") == 0
    assert "norm smallest effect" in " ".join(capsys.readouterr().out.split())
    for wrong, expected in (("nrm=1", "norm"), ("norm", "FIGURE=SIZE")):
        assert small.compare_in_process(file, "--power", f"--smallest_effect={wrong}") == 2
        assert_named(capsys.readouterr().err, wrong.split("=")[0], expected)
    assert small.compare_in_process(file, "--smallest_effect=norm=1") == 2  # Nothing would read it.
    assert_named(
        capsys.readouterr().err, "--smallest_effect", "--power", "comparison.Comparison.looks"
    )
    assert small.compare_in_process(file, "--power", "--gin.SEEDS=[0]") == 2 and not started
    assert_named(capsys.readouterr().err, "--power", 2, "seeds [0]")


@pytest.mark.slow
def test_comparison_ends_at_the_deciding_look(copied_comparison, capsys):
    file, started = copied_comparison
    small.append(file, "SEEDS = [0, 1, 2]\ncomparison.Comparison.looks = [2]\n")
    assert small.compare_in_process(file, "--smallest_effect=norm=1e9") == 2 and not started
    directory = pathlib.Path(file).parent / "compared"
    assert_named(capsys.readouterr().err, directory, "looks")
    (directory / "comparison.json").unlink()
    assert small.compare_in_process(file, "--smallest_effect=norm=1e9") == 0 and not started
    output = " ".join(capsys.readouterr().out.split())
    assert "Ended early with 2 of 3 seeds, at look 1 of 2: each difference" in output
    assert len(small.results(directory)) == 4
    again = read_comparison(str(directory / "comparison.gin"), trusted=["tests"])
    assert again.smallest_effects == {"norm": 1e9} and again.planned_looks == (2, 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "line, was, now",
    [
        (
            "budgets.text_tokens.number = 3000",
            "text_tokens(number=1,500)",
            "text_tokens(number=3,000)",
        ),
        (
            "comparison.Comparison.variants = {'small': [], 'large/2': ['PEAK = 2e-2']}",
            "optimizers.warmup_constant.peak = 0.01",
            "optimizers.warmup_constant.peak = 0.02",
        ),
        ("comparison.Comparison.checkpoints = 3", 1, 3),
    ],
)
def test_changed_variants_are_rejected_by_name(copied_comparison, line, was, now, capsys):
    file, started = copied_comparison
    small.append(file, line + "\n")
    assert small.compare_in_process(file) == 2 and not started
    assert_named(capsys.readouterr().err, "variant", was, now)


def test_too_many_workers_are_rejected_before_anything_is_written(tmp_path, capsys):
    file = small.write(tmp_path)
    assert small.compare_in_process(file, "--workers=4096") == 2
    assert_named(capsys.readouterr().err, "--workers=4096")
    assert not (tmp_path / "compared").exists()


@pytest.mark.slow
def test_second_command_in_a_locked_directory_is_rejected(copied_comparison, capsys):
    file, started = copied_comparison
    lock = pathlib.Path(file).parent / "compared" / ".lock"
    with atomic_writes.locked(lock, "it"):
        assert small.compare_in_process(file) == 2
    assert_named(capsys.readouterr().err, lock.parent, "process")
    assert not started


@pytest.mark.slow
def test_unfinished_run_has_no_cost_and_no_figures(copied_comparison):
    file, _ = copied_comparison
    result = pathlib.Path(file).parent / "compared/runs/small/seed_0/result.json"
    atomic_writes.write_record(result, atomic_writes.read_json(result) | {"finished": False})
    comparison = read_comparison(file, trusted=["tests"])
    facts_of = {v: read_facts(comparison.directory, v) for v in comparison.variants}
    found = results_of(comparison, trials_of(comparison, facts_of))
    seeds = [(run.variant, run.seed) for run in found.runs]
    assert seeds == [("small", 1), ("large/2", 0), ("large/2", 1)] and len(found.measurements) == 3


@pytest.mark.slow
def test_trial_state_reads_each_file_once(copied_comparison):
    """Data that was read before stays unchanged, although the files are gone."""
    comparison = read_comparison(copied_comparison[0], trusted=["tests"])
    facts_of = {v: read_facts(comparison.directory, v) for v in comparison.variants}
    trial, *_ = trials_of(comparison, facts_of)
    state = trial.state
    assert state.is_complete and state.last_step == trial.run.steps
    names = set(state.evaluation_metrics)
    folder = pathlib.Path(trial.run.run_dir)
    for file in ("metrics.jsonl", "result.json", "evaluation/eval_metrics.jsonl"):
        (folder / file).unlink()
    assert state.is_complete and state.last_step == trial.run.steps
    assert not state.unmeasured and not state.refusals and set(state.evaluation_metrics) == names
    now = trial.state
    assert not now.is_trained and now.last_step == 0 and now.unmeasured == ["norm"]


@pytest.mark.slow
def test_failing_variant_does_not_stop_the_others(copied_comparison, capsys):
    file, started = copied_comparison
    with open(file, "a") as out:
        out.write(
            "comparison.Comparison.variants = "
            "{'worse': ['PEAK = 1e30'], 'small': [], 'third': ['PEAK = 3e-3']}\n"
        )
    assert small.compare_in_process(file, "--gin.SEEDS=[0]") == 1
    assert started == ["runs/worse/seed_0", "runs/third/seed_0"]
    output = " ".join(capsys.readouterr().out.split())
    assert "Failed: worse, seed 0: Diverged: At step" in output and "no longer finite" in output
    assert "runs/worse/seed_0/compare.log" in output and "runs the failed parts again" in output
    assert len(small.results(pathlib.Path(file).parent / "compared")) == 2
    found = (pathlib.Path(file).parent / "compared/runs.jsonl").read_text().splitlines()
    assert [one["error"][:9] for one in map(json.loads, found) if one["error"]] == ["Diverged:"]


@pytest.mark.slow
def test_several_budgets_set_the_steps_and_are_fitted_as_one_law(tmp_path, monkeypatch, capsys):
    lines = ["a/budgets.text_tokens.number = 600", "b/budgets.text_tokens.number = 1200"]
    both = (
        "comparison.Comparison.budget = {'a': @a/budgets.text_tokens, 'b': @b/budgets.text_tokens}"
    )
    file = small.write(tmp_path, both, *lines)
    comparison = read_comparison(file, ["SEEDS = [0]"], trusted=["tests"])
    small.run_trials_in_process(monkeypatch)
    monkeypatch.setattr(trials, "train_and_measure", lambda trial: failures.FAILED)
    assert small.compare_in_process(file, "--gin.SEEDS=[0]") == 1
    steps = {
        v: read_facts(str(tmp_path / "compared"), v).steps for v in runs_of_variants(comparison)
    }
    assert steps == {"small, a": 3, "small, b": 5, "large/2, a": 3, "large/2, b": 5}
    output = " ".join(capsys.readouterr().out.split())
    assert "in nats per target" in output and "variants differ in" not in output
    assert "One seed" not in output  # The law is fitted to all runs at once.


EQUAL = """
comparison.Comparison.variants = {
    "wide": [
        "models.decoder.mlp_dim = %EQUAL_PARAMETERS",
        "models.decoder.emb_dim = 12",
        "models.decoder.num_layers = 2",
    ],
    "small": ["models.decoder.num_layers = 2"],
    "flat": ["models.decoder.mlp_dim = %EQUAL_FLOPS", "models.decoder.num_layers = 1"],
}
comparison.Comparison.reference = "small"
"""


@pytest.mark.slow
def test_solved_sizes_are_kept_and_their_remaining_difference_reported(
    tmp_path, monkeypatch, capsys
):
    file = small.write(tmp_path, *EQUAL.splitlines())
    small.run_trials_in_process(monkeypatch)
    monkeypatch.setattr(trials.trainer, "train", lambda *_: SimpleNamespace(finished=False))
    assert small.compare_in_process(file, "--gin.SEEDS=[0]") == 1
    facts_of = {v: read_facts(str(tmp_path / "compared"), v) for v in ("wide", "small", "flat")}
    left = abs(facts_of["wide"].parameters - facts_of["small"].parameters)
    # Half of the cost of one more unit in two layers of three matrices.
    assert left <= 2 * 3 * 12 / 2
    assert facts_of["flat"].flops_per_step == pytest.approx(
        facts_of["small"].flops_per_step, rel=0.02
    )
    output = " ".join(capsys.readouterr().out.split())
    for variant in ("wide", "flat"):
        assert f"{variant} has {facts_of[variant].solved}, which leaves " in output
        number = facts_of[variant].solved.split()[-1]
        assert f"models.decoder.mlp_dim = {number}\n" in facts_of[variant].settings
    assert small.compare_in_process(file, "--gin.SEEDS=[0]") == 1  # The solved size is unchanged.
    small.append(
        file, EQUAL.replace('reference = "small"', 'reference = "other"').replace("small", "other")
    )
    assert small.compare_in_process(file, "--gin.SEEDS=[0]") == 2
    assert_named(capsys.readouterr().err, "'small'", "'other'")


def test_variant_that_cannot_be_planned_is_rejected_before_any_run(tmp_path, monkeypatch, capsys):
    file, started = small.write(tmp_path), small.run_trials_in_process(monkeypatch)
    small.append(file, "comparison.Comparison.variants = {'x': ['training.Run.batch_size = 3']}\n")
    assert small.compare_in_process(file) == 2 and not started
    assert_named(capsys.readouterr().err, "'x'", "batch_size", 3)
    assert read_facts(str(tmp_path / "compared"), "x") is None
    monkeypatch.setattr(facts, "plan_run", None)  # an error in the code that plans
    assert small.compare_in_process(file, "--gin.SEEDS=[0]") == 2 and not started
    assert_named(capsys.readouterr().err, "'x'", "TypeError")


# --- processes ------------------------------------------------------------------------------------


def test_workers_share_the_cores():
    cores = sorted(os.sched_getaffinity(0))
    assert worker_processes.cores_of_workers(1) == [cores]
    assert worker_processes.cores_of_workers(None) == [[core] for core in cores]
    assert sum(worker_processes.cores_of_workers(len(cores)), []) == cores


def trial_of(folder: pathlib.Path) -> Trial:
    run = SimpleNamespace(run_dir=str(folder))
    return Trial(str(folder.parent), "a", 0, run, small.facts(6), ())


def test_failure_of_an_earlier_process_is_not_reported_again(tmp_path):
    log, (cores, *_) = tmp_path / "compare.log", worker_processes.cores_of_workers(None)
    (tmp_path / "failure.txt").write_text("no longer finite")
    process = worker_processes.start_process(log, cores, os._exit, 3)
    assert process.wait() == 3
    worker_processes.note_failure(trial_of(tmp_path), 3)
    expected = "its process ended with status 3: see its compare.log"
    assert failures.failure_of(str(tmp_path)) == expected
    worker_processes.note_failure(trial_of(tmp_path), -35)  # a real-time signal, which has no name
    assert failures.failure_of(str(tmp_path)) == expected


def test_worker_share_of_gpu_memory_equals_its_share_of_the_cores(tmp_path, monkeypatch):
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)
    log, shares = tmp_path / "compare.log", worker_processes.cores_of_workers(None)
    code = "import os; print(os.environ['XLA_PYTHON_CLIENT_MEM_FRACTION'])"
    assert worker_processes.start_process(log, shares[0], exec, code).wait() == 0
    assert float(log.read_text()) == pytest.approx(0.75 / len(shares), abs=0.001)


def test_parallel_workers_on_a_tpu_are_rejected():
    trials_on_tpu = [SimpleNamespace(facts=small.facts(6)._replace(platform="tpu"))] * 4
    with refuses(ValueError, "--workers=2"):
        comparing.cores_of_runs(comparing.Machines(workers=2), trials_on_tpu)
    for workers in (None, 1):
        machines = comparing.Machines(workers=workers)
        assert len(comparing.cores_of_runs(machines, trials_on_tpu)) == 1


EVAL_METRIC = """
from pretrax.comparison.figures import LOWER, Figure


def written(subject):
    return [Figure("written", 1.0, "units", LOWER)]
"""


@pytest.fixture
def written(copied_comparison, tmp_path, monkeypatch):
    """Returns the file of a comparison and the file of its eval metric, which may change."""
    file, _ = copied_comparison
    name = f"{tmp_path.name}_eval_metrics".replace("-", "_")
    code = tmp_path / f"{name}.py"
    code.write_text(EVAL_METRIC)
    monkeypatch.syspath_prepend(tmp_path)
    small.append(file, f"import {name}\ncomparison.Comparison.eval_metrics = [@{name}.written]\n")
    return file, code


@pytest.mark.slow
def test_figures_of_code_that_changed_meanwhile_are_measured_again(written, monkeypatch, capsys):
    """Runs that were measured by other code than the command's own code are reported."""
    file, code = written
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(code.parent), *sys.path]))
    started = []

    def start_trial(trial, cores):
        code.write_text(EVAL_METRIC.replace("1.0", "22.0"))
        started.append(trial.variant)
        return worker_processes.start_trial(trial, cores)

    monkeypatch.setattr(comparing, "start_trial", start_trial)
    assert small.compare_in_process(file, "--workers=1", "--gin.SEEDS=[0]") == 1
    output = " ".join(capsys.readouterr().out.split())
    assert started == ["small", "large/2"] and output.count("without the figures of written") >= 2
    kept_figures.module_checksum.cache_clear()  # as in the process of another command
    monkeypatch.setattr(comparing, "start_trial", None)  # Everything has been measured.
    assert small.compare_in_process(file, "--workers=1", "--gin.SEEDS=[0]") == 0


@pytest.mark.slow
def test_failure_note_names_the_missing_steps_or_figures(copied_comparison, monkeypatch):
    comparison = read_comparison(copied_comparison[0], trusted=["tests"])
    facts_of = {v: read_facts(comparison.directory, v) for v in comparison.variants}
    trial, *_ = trials_of(comparison, facts_of)

    def noted(trial, status=0) -> str:
        worker_processes.note_failure(trial, status)
        folder = pathlib.Path(trial.run.run_dir)
        output = failures.failure_of(str(folder))
        (folder / "failure.txt").unlink()
        return output

    longer = trial._replace(run=dataclasses.replace(trial.run, steps=99))
    assert noted(longer) == "its process ended before its 99 steps were taken: see its compare.log"
    output = noted(trial._replace(eval_metrics=(small.norm, small.layers)))
    assert output.startswith("its process ended without the figures of layers: see its compare.log")
    assert noted(trial, failures.STOPPED).startswith("its process was stopped by SIGTERM")


# `pretrax compare`, which prints whether it took the devices that its runs need.
PROGRAM = """
import sys
from pretrax import cli
try:
    cli.run("compare", sys.argv[1:])
finally:
    from jax._src import xla_bridge
    print("devices taken:", xla_bridge.backends_are_initialized())
"""


def start(file: str, *arguments: str) -> subprocess.Popen:
    """Starts `pretrax compare` in its own process group."""
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, file, *arguments],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.fixture(scope="module")
def undisturbed(finished) -> list[dict]:
    """Returns the results of the first seed from runs that were never killed."""
    return [one for one in small.figures(finished / "compared") if one["seed"] == 0]


def trains(file: str) -> bool:
    """Returns whether a run has begun to train."""
    runs = pathlib.Path(file).parent / "compared/runs"
    return any(path.stat().st_size for path in runs.glob("*/*/metrics.jsonl"))


def kill_when(file: str, reached, workers: int = 2) -> None:
    """Kills a comparison with all of its processes when a moment is reached."""
    process = start(file, "--gin.SEEDS=[0]", f"--workers={workers}")
    while process.poll() is None and not reached():
        time.sleep(0.01)
    with contextlib.suppress(ProcessLookupError):  # A fast machine may have finished.
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.slow
def test_comparison_killed_between_checkpoints_equals_uninterrupted(
    undisturbed, tmp_path, monkeypatch
):
    """It is killed when the first variant is complete and the second is half trained."""
    file = small.write(tmp_path, "comparison.Comparison.checkpoints = 2")
    runs = tmp_path / "compared/runs"
    kill_when(file, lambda: any(runs.glob("large_2/*/checkpoints/3")), workers=1)
    assert list(runs.glob("small/*/evaluation/eval_metrics.jsonl"))
    assert not list(runs.glob("large_2/*/evaluation/eval_metrics.jsonl"))
    started = small.run_trials_in_process(monkeypatch)
    assert small.compare_in_process(file, "--gin.SEEDS=[0]") == 0
    assert started == ["runs/large_2/seed_0"]
    found = small.figures(tmp_path / "compared")
    assert [one["step"] for one in found] == [3, 6, 3, 6]
    assert [one for one in found if one["step"] == 6] == undisturbed


@pytest.mark.storm
def test_comparison_killed_at_twenty_moments_equals_uninterrupted(undisturbed, tmp_path):
    file = small.write(tmp_path)
    for moment in range(20):
        ends = time.monotonic() + 1 + 0.7 * moment
        kill_when(file, lambda ends=ends: time.monotonic() > ends)
    process = start(file, "--gin.SEEDS=[0]", "--workers=2")
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    assert small.figures(tmp_path / "compared") == undisturbed


@pytest.mark.slow
def test_sigterm_makes_worker_processes_save_and_end(tmp_path):
    file = small.write(tmp_path, "budgets.text_tokens.number = 300_000")
    process = start(file, "--gin.SEEDS=[0]", "--workers=1")
    while process.poll() is None and not trains(file):
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert 0 < output.find("Stopping.") < output.find("from its last checkpoint")
    assert "devices taken: False" in output  # Planning does not take them either.
    logs = [path.read_text() for path in (tmp_path / "compared/runs").glob("*/*/compare.log")]
    assert any("Stopped at step" in log for log in logs)
    assert any((tmp_path / "compared/runs").glob("*/*/checkpoints/*"))


@pytest.mark.slow
def test_cluster_job_reports_failures_and_rejections(copied_comparison):
    """Jobs run by submitit's executor of processes on this machine."""
    file, _ = copied_comparison
    comparison = read_comparison(file, ["small.norm.power = 4"])
    trusted = ("tests.training.tiny", "tests.comparison.small")
    trial, *_ = trials_of(comparison, {"small": small.facts(6)}, trusted)
    trial = trial._replace(eval_metrics=(small.refusing, len))
    start = cluster.starter(comparison.directory, cluster.JobOptions(minutes=5), cluster="local")
    failed = worker_processes.run_trials(
        [trial], start, [[0]], ComparisonProgress(Console(quiet=True), [trial], 0)
    )
    assert failed == [trial] and "has no len" in failures.failure_of(trial.run.run_dir)
    assert trial.state.refusals == {"refusing": "no such model can be measured"}


@pytest.fixture
def submitted(tmp_path, monkeypatch):
    """Returns a cluster whose jobs begin by hand.

    The result is a start that is killed right after submitting, a normal start, a function by job
    number that begins the job, and the trials that jobs have trained.
    """
    calls, trained = {}, []

    class Job:
        def __init__(self, folder, job_id):
            self.job_id, self.done = job_id, lambda: False

    class Executor:
        def __init__(self, *_, **__):
            self.update_parameters = lambda **_: None

        def submit(self, call):
            number = str(len(calls))
            environment = type("JobEnvironment", (), {"job_id": number})

            def begin():
                monkeypatch.setattr("submitit.JobEnvironment", environment)
                return call()

            calls[number] = begin
            return Job(None, number)

    monkeypatch.setattr("submitit.AutoExecutor", Executor)
    monkeypatch.setattr("submitit.LocalJob", Job)
    monkeypatch.setattr(cluster, "train_and_measure", lambda trial: trained.append(trial) or 0)
    trial = trial_of(tmp_path / "run")
    start = cluster.starter(str(tmp_path), cluster.JobOptions(), cluster="local")

    def killed_before_the_number_is_known():
        write = cluster.write_job
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cluster, "write_job", lambda *a: a[2] or write(*a))
            start(trial, [])

    return killed_before_the_number_is_known, lambda: start(trial, []), calls, trained


def test_job_of_a_killed_command_is_found_by_the_next_command(submitted):
    killed, start, calls, trained = submitted
    killed()
    assert calls["0"]() == 0 and len(trained) == 1
    start()
    assert list(calls) == ["0"]  # The later command continues to watch this job.


def test_superseded_job_does_not_train(submitted):
    killed, start, calls, trained = submitted
    killed()
    start()
    assert list(calls) == ["0", "1"]
    assert calls["0"]() == failures.STOPPED and not trained
    assert calls["1"]() == 0 and len(trained) == 1


@pytest.mark.parametrize("package", ["there", "absent"])
def test_missing_slurm_is_reported_before_planning(package, tmp_path, capsys, monkeypatch):
    file = small.write(tmp_path)
    needed = ["Slurm"]
    if package == "absent":
        monkeypatch.setitem(sys.modules, "submitit", None)
        needed = ["submitit", ".[slurm]"]
    # number of jobs at a time, which take no cores of this machine
    workers = str(1 + (os.cpu_count() or 1))
    assert small.compare_in_process(file, "--slurm", f"--workers={workers}") == 2
    assert_named(capsys.readouterr().err, "--slurm", *needed)
    assert not (tmp_path / "compared").exists()


def test_budget_in_seconds_is_rejected_for_a_cluster(tmp_path, capsys):
    file = small.write(tmp_path, "comparison.Comparison.budget = @budgets.seconds")
    small.append(file, "budgets.seconds.number = 60\n")
    assert small.compare_in_process(file, "--slurm") == 2
    assert_named(capsys.readouterr().err, "--slurm", "budgets.seconds", "budgets.model_flops")
    assert not (tmp_path / "compared").exists()
