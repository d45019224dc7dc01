"""Where compiled programs are kept: beside the run, unless the environment names a folder."""

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


def test_a_folder_that_the_environment_names_is_left(tmp_path):
    named = jax.config.jax_compilation_cache_dir
    assert named  # by tests/conftest.py
    keep_compiled(str(tmp_path))
    assert jax.config.jax_compilation_cache_dir == named


def test_a_run_keeps_them_in_its_directory(nothing_named, tmp_path, monkeypatch):
    run, started = tiny.Run(tmp_path, "data"), []
    monkeypatch.setattr(train, "train", lambda *run, **settings: started.append(run))
    tiny.run_here(run.arguments())
    assert started and jax.config.jax_compilation_cache_dir == str(
        run.dir / "compiled" / platform.node()
    )
    assert getattr(jax.config, SECONDS) == 0
