"""Traces contain the requested steps, and always end."""

import gzip
import json

import jax
import jax.numpy as jnp
import pytest

from pretrax.training.reporting.profiling import Profiler, Steps, check_steps, read_steps
from pretrax.training.reporting.wall_time import WallTime
from tests.refusals import assert_named, refuses
from tests.training import tiny


def traced(folder):
    """Returns the numbers of the steps in the only trace of a folder."""
    (path,) = folder.glob("**/*.trace.json.gz")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return {int(e["args"]["step_num"]) for e in events if "step_num" in e.get("args", {})}


def test_trace_has_only_the_requested_steps(tmp_path):
    double = jax.jit(lambda x: 2 * x)
    x = double(jnp.ones(3))
    with Profiler(Steps(2, 3), str(tmp_path), WallTime(), print) as profiler:
        for step in range(1, 6):
            profiler.before(step)
            with jax.profiler.StepTraceAnnotation("step", step_num=step):
                x = double(x)
            profiler.after(step, x)
    assert traced(tmp_path) == {2, 3}


def test_trace_ends_if_training_fails(tmp_path):
    for _ in range(2):  # starting a second trace would be an error
        with (
            pytest.raises(FloatingPointError),
            Profiler(Steps(1, 9), str(tmp_path), WallTime(), print) as profiler,
        ):
            profiler.before(1)
            raise FloatingPointError


@pytest.mark.slow
def test_run_writes_its_trace_to_the_tensorboard_folder(tmp_path, capsys):
    run = tiny.Run(tmp_path, tiny.write_documents(tmp_path / "store"), STEPS=2)
    tiny.train_in_process([*run.arguments(), "--profile=2:2"])
    assert traced(run.dir / "tensorboard" / "plugins" / "profile") == {2}
    tiny.train_in_process([*run.arguments(), "--profile=2:2"])
    output = " ".join(capsys.readouterr().out.split())
    assert "warning: --profile=2:2 has no effect, since all 2 steps are taken: raise" in output


def test_writing_a_trace_does_not_count_as_step_time(monkeypatch, tmp_path):
    now = [0.0]

    def write():
        now[0] += 30

    monkeypatch.setattr(jax.profiler, "start_trace", lambda folder: None)
    monkeypatch.setattr(jax.profiler, "stop_trace", write)
    wall_time = WallTime(lambda: now[0])
    with Profiler(Steps(1, 1), str(tmp_path), wall_time, print) as profiler:
        profiler.before(1)
        with wall_time.measure("step"):
            now[0] += 2
            profiler.after(1, ())
    seconds = wall_time.seconds()
    assert (seconds["step"], seconds["rest"]) == (2, 30)


@pytest.mark.slow
def test_run_continues_if_the_trace_cannot_be_written(monkeypatch, tmp_path, capsys):
    """JAX raises if a file is in the way of the folder. Its own trace would keep running."""

    def fail():
        raise jax.errors.JaxRuntimeError("FAILED_PRECONDITION: tensorboard is not a directory")

    monkeypatch.setattr(jax.profiler, "start_trace", lambda folder: None)
    monkeypatch.setattr(jax.profiler, "stop_trace", fail)
    run = tiny.Run(tmp_path, tiny.write_documents(tmp_path / "store"), STEPS=2)
    tiny.train_in_process([*run.arguments(), "--profile=1:2"])
    assert_named(capsys.readouterr().out, "warning", "trace", "FAILED_PRECONDITION")
    assert (run.dir / "result.json").exists()


@pytest.mark.parametrize("text", ["", "10", "3:2", "0:2", "a:b", "1:2:3", "-1:2"])
def test_invalid_step_ranges_are_rejected(text):
    with refuses(ValueError, f"--profile={text!r}"):
        read_steps(text)


def test_profiled_steps_outside_of_the_run_are_rejected():
    check_steps(Steps(3, 4), 2, 4)
    for steps in (Steps(2, 3), Steps(3, 5)):
        with refuses(ValueError, "3", "4"):
            check_steps(steps, 2, 4)
    with refuses(ValueError, "--profile=1:2"):
        check_steps(Steps(1, 2), 4, 4)
