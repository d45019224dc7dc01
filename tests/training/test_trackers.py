"""Trackers that a run names, including one in a user's file."""

import dataclasses

import pytest

from pretrax import objectives
from pretrax.settings.partial import Partial
from pretrax.training.reporting.metrics import MetricsWriter
from pretrax.training.reporting.trackers import make_trackers, weights_and_biases
from pretrax.training.run_configuration import read_directory, read_run
from pretrax.training.run_file import write_run
from pretrax.training.trainer import train
from tests.refusals import refuses
from tests.training import tiny


@pytest.fixture
def run(tmp_path):
    made = tiny.run_of(tiny.decoder(), objectives.causal_lm(tiny.IDS), {"decoder": 32})
    return dataclasses.replace(made, run_dir=str(tmp_path / "run"))


@pytest.mark.parametrize(
    "trackers, names",
    [
        ([Partial(weights_and_biases, project="")], ("project", "''")),
        ([Partial(weights_and_biases, project=3)], ("project", "3")),
        ([Partial(weights_and_biases)], ("project",)),
        ([lambda run: len], ("Tracker", "len")),
        (3, ("training.Run.trackers", "3")),
    ],
)
def test_invalid_trackers_are_rejected_before_anything_is_written(run, tmp_path, trackers, names):
    with refuses(ValueError, *names):
        train(dataclasses.replace(run, trackers=trackers))
    assert not list(tmp_path.iterdir())


MODULE = """
from pretrax.training.reporting.trackers import Tracker

class Lines(Tracker):
    def __init__(self, run, *, name):
        self._file = f"{run.run_dir}/{name}"

    def start(self, step):
        self._say("start", step)

    def write(self, step, values):
        self._say("write", step, values["loss"])

    def close(self, failed):
        self._say("close", failed)

    def _say(self, *words):
        with open(self._file, "a") as file:
            print(*words, file=file)
"""
GIN = """
from __gin__ import dynamic_registration
import trackers_of_mine
from pretrax import training
include "runs/decoder.gin"
training.Run.trackers = [@trackers_of_mine.Lines]
trackers_of_mine.Lines.name = "said"
RUN_DIR = "unused"
"""


def test_user_tracker_is_called_and_needs_trust(run, tmp_path, monkeypatch):
    (tmp_path / "trackers_of_mine.py").write_text(MODULE)
    (tmp_path / "mine.gin").write_text(GIN)
    monkeypatch.syspath_prepend(tmp_path)
    named = read_run([str(tmp_path / "mine.gin")]).trackers
    run = dataclasses.replace(run, trackers=named)
    (tmp_path / "run").mkdir()
    with MetricsWriter(run.run_dir, 2, trackers=make_trackers(run)) as writer:
        writer.write(3, {"loss": 1.0})
    assert (tmp_path / "run" / "said").read_text() == "start 2\nwrite 3 1.0\nclose False\n"
    write_run(run)
    with refuses(ValueError, "--trust=trackers_of_mine"):
        read_directory(run.run_dir)
    assert read_directory(run.run_dir, ["trackers_of_mine"])["trackers"] == named
