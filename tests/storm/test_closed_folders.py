"""If a folder cannot be written, a command names the folder and keeps its contents.

`root` ignores file modes. The folder is therefore on a disk that is mounted read-only, or its path
is taken by a file.
"""

import contextlib
import pathlib
from collections.abc import Iterator

import pytest

from tests import conversion
from tests.comparison import small
from tests.preprocessing import planted
from tests.storm.commands import assert_explained, run_here
from tests.storm.disks import mounted
from tests.training import tiny

pytestmark = pytest.mark.storm


@contextlib.contextmanager
def occupied_path(path: pathlib.Path) -> Iterator[pathlib.Path]:
    path.write_text("no folder")
    yield path
    assert path.read_text() == "no folder"


@contextlib.contextmanager
def read_only(path: pathlib.Path) -> Iterator[pathlib.Path]:
    with mounted(path, "ro"):
        yield path


def train(tmp_path, out, monkeypatch):
    run = tiny.Run(tmp_path / "run", tiny.write_documents(tmp_path / "store"), STEPS=2)
    run.values["RUN_DIR"] = str(out)
    return run_here("train", *run.arguments())


def prepare(tmp_path, out, monkeypatch):
    planted.write_raw(tmp_path / "raw.jsonl")
    this_process = "--gin.preprocessing.Preparation.executor=@executors.this_process"
    return run_here("prepare", *planted.arguments(str(tmp_path / "raw.jsonl"), out, this_process))


def compare(tmp_path, out, monkeypatch):
    small.run_trials_in_process(monkeypatch)
    return run_here("compare", small.write(tmp_path / "own"), f"--gin.DIRECTORY={str(out)!r}")


def convert(tmp_path, out, monkeypatch):
    source, _ = conversion.written(tmp_path / "hf", conversion.llama())
    return run_here("convert", f"--from=hf:{source}", f"--to={out}")


@pytest.mark.parametrize("close", [occupied_path, read_only])
@pytest.mark.parametrize("command", [train, prepare, compare, convert])
def test_unwritable_folder_is_named(command, close, tmp_path, monkeypatch):
    tiny.on_one_device(monkeypatch)
    with close(tmp_path / "closed") as closed:
        assert_explained(command(tmp_path, closed / "out", monkeypatch), str(closed))
