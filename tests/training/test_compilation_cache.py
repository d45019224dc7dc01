"""Compiled programs are kept in the user's cache, unless the environment names a folder."""

import os
import platform

import jax
import pytest

from pretrax.cli import train
from pretrax.training.devices import compilation_cache
from pretrax.training.devices.compilation_cache import enable_compilation_cache
from tests.training import tiny

FOLDER, SECONDS = "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs"
ENABLED = "jax_enable_compilation_cache"


@pytest.fixture
def nothing_named():
    """Unsets JAX's cache folder during a test, as if the environment named none."""
    before = {name: getattr(jax.config, name) for name in (FOLDER, SECONDS, ENABLED)}
    jax.config.update(FOLDER, None)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def test_cache_folder_of_the_environment_is_kept():
    named = jax.config.jax_compilation_cache_dir
    assert named  # tests/conftest.py sets it
    enable_compilation_cache()
    assert jax.config.jax_compilation_cache_dir == named


def test_training_uses_the_compilation_cache_of_the_user(nothing_named, tmp_path, monkeypatch):
    """A run directory may be someone else's, and programs are code, so it does not hold them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run, started = tiny.Run(tmp_path, "data"), []
    monkeypatch.setattr(train, "train", lambda *run, **settings: started.append(run))
    tiny.train_in_process(run.arguments())
    folder = tmp_path / "cache" / "pretrax" / "compiled" / platform.node()
    assert started and jax.config.jax_compilation_cache_dir == str(folder)
    assert getattr(jax.config, SECONDS) == 0


def test_disabled_cache_reports_no_folder(nothing_named, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    jax.config.update(ENABLED, False)
    enable_compilation_cache()
    assert compilation_cache.compilation_cache_dir() is None and jax.config.values[FOLDER] is None
    jax.config.update(FOLDER, str(tmp_path))
    assert compilation_cache.compilation_cache_dir() is None


def test_unwritable_cache_reports_no_folder(nothing_named, tmp_path, monkeypatch):
    (tmp_path / "cache").write_text("in the way of a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    enable_compilation_cache()
    assert compilation_cache.compilation_cache_dir() is None and jax.config.values[FOLDER] is None
    (tmp_path / "cache").unlink()
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    enable_compilation_cache()
    assert compilation_cache.compilation_cache_dir() is None


def test_multi_process_run_uses_no_cache_unless_a_folder_is_named(
    nothing_named, tmp_path, monkeypatch
):
    """JAX would write only to the folder of the first process's host."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run, started = tiny.Run(tmp_path, "data"), []
    monkeypatch.setattr(train, "train", lambda *run, **settings: started.append(run))
    tiny.train_in_process(run.arguments(training__Run__distributed=True))
    assert started and jax.config.jax_compilation_cache_dir is None


def test_least_recently_used_programs_are_removed(nothing_named, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compilation_cache, "MAX_BYTES", 25)
    folder = tmp_path / "pretrax" / "compiled" / platform.node()
    folder.mkdir(parents=True)
    # Days since files were written and read. "b" is the oldest file, and was read last.
    for name, written, read in [("a", 2, 2), ("b", 1, 9), ("c", 3, 3), ("d", 4, 1)]:
        (folder / f"{name}-cache").write_bytes(b"0123456789")
        os.utime(folder / f"{name}-cache", (read * 86400, written * 86400))
    (folder / "notes.txt").write_text("of the user's own")
    enable_compilation_cache()
    assert sorted(p.name for p in folder.iterdir()) == ["b-cache", "d-cache", "notes.txt"]
