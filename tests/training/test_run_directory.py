"""Files of a run directory are written completely or not at all."""

import os
import stat
import subprocess
import sys

import pytest

from pretrax.settings.atomic_writes import (
    locked,
    read_json,
    whole_folder,
    write_bytes,
    write_json,
    write_record,
    write_text,
)
from pretrax.settings.run_directory import check_place, load_classes
from pretrax.training.saved.result import Result, read_result, write_result
from tests.refusals import refuses


def test_written_file_is_replaced_and_world_readable(tmp_path):
    path = tmp_path / "new" / "folder" / "classes.json"
    write_json(path, ["no", "ja, \u00e4"])
    write_json(path, {"after": 1})
    assert read_json(path) == {"after": 1}
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert os.listdir(path.parent) == ["classes.json"]


def test_text_is_written_as_utf8_with_its_line_endings(tmp_path):
    write_text(tmp_path / "a", "\u00e4\r\n\n")
    assert (tmp_path / "a").read_bytes() == b"\xc3\xa4\r\n\n"


def test_failed_write_leaves_the_file_unchanged(tmp_path, monkeypatch):
    path = tmp_path / "config.gin"
    write_text(path, "before")

    def killed(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        write_bytes(path, b"after")
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["config.gin"]


def test_error_of_the_temporary_file_names_the_file(tmp_path):
    path = tmp_path / ("a" * 255)  # the name of the temporary file is longer
    with pytest.raises(OSError) as too_long:
        write_bytes(path, b"")
    assert too_long.value.filename == str(path)


def test_full_disk_error_names_the_file(tmp_path):
    resource = pytest.importorskip("resource")
    _, most = before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, most))  # simulates a full disk
        with pytest.raises(OSError) as full:
            write_bytes(tmp_path / "a.json", bytes(2 << 20))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert full.value.filename == str(tmp_path / "a.json") and not os.listdir(tmp_path)


def test_lock_is_held_by_one_process(tmp_path):
    path = tmp_path / "folder" / ".lock"
    with locked(path, "`train`"):
        with refuses(ValueError, "`train`"):
            with locked(path, "`train`"):
                pass
    holding = (
        f"import fcntl, time; file = open({str(path)!r}, 'a'); fcntl.flock(file, fcntl.LOCK_EX)"
    )
    program = f"{holding}; print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        with refuses(ValueError, "`train`"), locked(path, "`train`"):
            pass
        process.kill()
        process.wait()
    with locked(path, "`train`"):
        assert path.read_bytes() == b""
    assert not path.exists()
    path.write_text("an answer")
    with locked(path, "`write`"):
        pass
    assert path.read_text() == "an answer"


@pytest.mark.parametrize(
    "content", [b'["a", "b"', b'{"a": \xff}', b"[" * 100_000, b'{"a":' * 100_000]
)
def test_damaged_class_file_is_named(tmp_path, content):
    (tmp_path / "classes.json").write_bytes(content)
    with refuses(ValueError, "classes.json"):
        load_classes(tmp_path)
    (tmp_path / "classes.json").write_text("5")
    with refuses(ValueError, "classes.json", "5"):
        load_classes(tmp_path)


def test_malformed_result_names_its_file(tmp_path):
    write_result(Result(str(tmp_path), 8, True, (), {}, {}))
    file = tmp_path / "result.json"
    record = read_json(file)
    record["rcores"] = record.pop("scores")
    write_record(file, record)
    with refuses(ValueError, "result.json", "scores"):
        read_result(str(tmp_path))


def test_folder_is_written_completely_or_not_at_all(tmp_path):
    (tmp_path / "a.partial").mkdir()
    (tmp_path / "a.partial" / "of_a_killed_process").write_text("")
    with pytest.raises(KeyboardInterrupt), whole_folder(tmp_path / "a") as folder:
        write_text(f"{folder}/half", "")
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())
    for name in ("one", "another"):  # the second file next to the first
        with whole_folder(tmp_path / "a") as folder:
            write_text(f"{folder}/{name}", name)
    assert sorted(os.listdir(tmp_path / "a")) == ["another", "one"]
    assert os.listdir(tmp_path) == ["a"]


def test_folder_is_written_by_one_process(tmp_path):
    with whole_folder(tmp_path / "a") as folder:
        write_text(f"{folder}/one", "one")
        with refuses(ValueError, tmp_path / "a"):
            with whole_folder(tmp_path / "a"):
                pass
    assert os.listdir(tmp_path) == ["a"] and os.listdir(tmp_path / "a") == ["one"]


def test_local_checkpoint_path_with_a_backslash_is_rejected(tmp_path, monkeypatch):
    with refuses(ValueError, f"{tmp_path}/a\\b", "backslash"):
        check_place(f"{tmp_path}/a\\b")
    check_place("gs://bucket/a\\b")
    (tmp_path / "a\\b").mkdir()
    monkeypatch.chdir(tmp_path / "a\\b")
    with refuses(ValueError, f"{tmp_path}/a\\b", "backslash"):
        check_place("runs/mine")


def test_file_is_written_in_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_text("a.txt", "a")
    assert (tmp_path / "a.txt").read_text() == "a"
