"""Files of a run directory are written whole or not at all."""

import os
import stat

import pytest

from pretrax.training.run_directory import read_json, write_bytes, write_json, write_text


def test_a_file_is_replaced_and_can_be_read_by_others(tmp_path):
    path = tmp_path / "new" / "folder" / "classes.json"
    write_json(path, ["no", "ja, \u00e4"])
    write_json(path, {"after": 1})
    assert read_json(path) == {"after": 1}
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert os.listdir(path.parent) == ["classes.json"]


def test_text_is_utf_8_with_its_line_ends(tmp_path):
    write_text(tmp_path / "a", "\u00e4\r\n\n")
    assert (tmp_path / "a").read_bytes() == b"\xc3\xa4\r\n\n"


def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "config.gin"
    write_text(path, "before")

    def killed(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        write_bytes(path, b"after")
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["config.gin"]


def test_a_file_in_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_text("a.txt", "a")
    assert (tmp_path / "a.txt").read_text() == "a"
