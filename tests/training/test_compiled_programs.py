"""Where compiled programs are kept: with the user, unless the environment names a folder."""

import platform

import jax
import pytest

from pretrax import train
from pretrax.training.compiled_programs import keep_compiled
from tests.training import tiny

FOLDER, SECONDS = "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs"


@pytest.fixture
def nothing_named():
    """JAX as it is where the environment says nothing; what is compiled goes where it went before."""
    before = {name: getattr(jax.config, name) for name in (FOLDER, SECONDS)}
    jax.config.update(FOLDER, None)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def test_a_folder_that_the_environment_names_is_left():
    named = jax.config.jax_compilation_cache_dir
    assert named  # by tests/conftest.py
    keep_compiled()
    assert jax.config.jax_compilation_cache_dir == named


def test_training_keeps_them_with_the_user(nothing_named, tmp_path, monkeypatch):
    """And not in a run directory, which may be somebody else's: they are code."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run, started = tiny.Run(tmp_path, "data"), []
    monkeypatch.setattr(train, "train", lambda *run, **settings: started.append(run))
    tiny.run_here(run.arguments())
    folder = tmp_path / "cache" / "pretrax" / "compiled" / platform.node()
    assert started and jax.config.jax_compilation_cache_dir == str(folder)
    assert getattr(jax.config, SECONDS) == 0
