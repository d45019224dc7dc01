"""Weights & Biases: the package itself (offline) if it is installed, and a stand-in for it."""

import dataclasses
import sys
import time
import types

import pytest

from pretrax import objectives
from pretrax.settings.partial import Partial
from pretrax.training.reporting.metrics import MetricsWriter, read_metrics
from pretrax.training.reporting.trackers import make_trackers, weights_and_biases
from pretrax.training.trainer import train
from tests.refusals import refuses
from tests.training import tiny


@pytest.fixture
def run(tmp_path):
    made = tiny.run_of(tiny.decoder(), objectives.causal_lm(tiny.IDS), {"decoder": 32})
    tracker = Partial(weights_and_biases, project="trials")
    return dataclasses.replace(made, run_dir=str(tmp_path), trackers=[tracker])


def write(run, step, warned):
    writer = MetricsWriter(run.run_dir, step - 1, warned.append, make_trackers(run))
    writer.write(step, {"loss": float(step), "seconds/data": 0.5})
    writer.write_text(step, "passages", "a <b>\n")
    writer.close()


@pytest.mark.slow
def test_metrics_are_written_by_the_wandb_package(run, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path / "elsewhere"))
    (tmp_path / "elsewhere").mkdir()
    warned = []
    write(run, 1, warned)
    (kept,) = tmp_path.glob("elsewhere/wandb/offline-run-*/*.wandb")
    # A separate process writes the file, possibly a moment later.
    names, deadline = (b"loss", b"seconds/data", b"batch_size"), time.monotonic() + 20
    while not all(name in kept.read_bytes() for name in names) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not warned and all(name in kept.read_bytes() for name in names)
    (page,) = kept.parent.glob("files/media/html/passages_1_*.html")
    assert page.read_text() == "<pre>a &lt;b&gt;\n</pre>"


@pytest.fixture
def calls(monkeypatch):
    """Returns the calls of a stand-in for the package, which does not accept step 2."""
    found = []

    class Error(Exception):
        pass

    class Run:
        def log(self, values, step):
            if step == 2:
                raise (ConnectionResetError if "loss" in values else Error)("its service has ended")
            found.append((step, values))

        def finish(self, exit_code):
            found.append(f"finish {exit_code}")

    def init(**settings):
        found.append(settings)
        return Run()

    stand_in = types.SimpleNamespace(
        init=init,
        Error=Error,
        Settings=dict,
        Html=lambda text, inject: text,
        __spec__=types.SimpleNamespace(origin="here"),
    )
    monkeypatch.setitem(sys.modules, "wandb", stand_in)
    return found


def test_resumed_run_continues_the_same_wandb_run(run, calls, tmp_path):
    warned = []
    for step in (1, 2, 3):
        write(run, step, warned)
    begun = [call for call in calls if isinstance(call, dict)]
    assert len({call["id"] for call in begun}) == 1 and begun[0]["resume"] == "allow"
    assert begun[0]["project"] == "trials" and begun[0]["name"] == tmp_path.name
    assert begun[0]["config"]["sequence_lengths['decoder']"] == 32
    logged = [call for call in calls if isinstance(call, tuple)]
    assert logged[0] == (1, {"loss": 1.0, "seconds/data": 0.5})
    assert [step for step, _ in logged] == [1, 1, 3, 3] and calls.count("finish 0") == 3
    assert logged[3] == (3, {"passages": "<pre>a &lt;b&gt;\n</pre>"})
    assert len(warned) == 1 and "Weights & Biases: its service has ended" in warned[0]
    assert [entry["step"] for entry in read_metrics(tmp_path)] == [1, 2, 3]


def test_failed_run_is_marked_as_failed_in_wandb(run, calls):
    with pytest.raises(FloatingPointError):
        with MetricsWriter(run.run_dir, trackers=make_trackers(run)):
            raise FloatingPointError("the loss is no longer finite")
    assert calls[-1] == "finish 1"


def test_missing_wandb_account_is_explained(run, calls, monkeypatch):
    def reject(**settings):
        raise sys.modules["wandb"].Error("api_key not configured")

    monkeypatch.setattr(sys.modules["wandb"], "init", reject)
    for _ in range(2):  # the first run has not started it
        with refuses(ValueError, "api_key", "WANDB_MODE"):
            MetricsWriter(run.run_dir, trackers=make_trackers(run))


def test_resumed_run_continues_if_wandb_is_unavailable(run, calls, monkeypatch, tmp_path):
    """The network may be down when a run is started again at night."""

    def reject(**settings):
        raise sys.modules["wandb"].Error("connection refused")

    warned: list[str] = []
    write(run, 1, warned)
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["wandb"], "init", reject)
        write(run, 2, warned)
    write(run, 3, warned)
    (words,) = warned
    assert "cannot be written: Weights & Biases: connection refused" in words
    assert [entry["step"] for entry in read_metrics(tmp_path)] == [1, 2, 3]
    first, last = [call for call in calls if isinstance(call, dict)]
    assert first["id"] == last["id"]


def test_tracked_run_without_wandb_is_planned_but_not_trained(run, monkeypatch, tmp_path):
    """`pretrax evaluate`, for example, plans the run on another machine."""
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert tiny.planned(run).run is run
    with refuses(ValueError, "trials"):
        train(run)
    assert not list(tmp_path.iterdir())
