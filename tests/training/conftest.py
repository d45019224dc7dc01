"""These tests start many programs, most of them alike: what is compiled is kept."""

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from tests.training import tiny

SETTINGS = {
    "jax_compilation_cache_dir": tiny.compilation_cache(),
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}


@pytest.fixture(autouse=True, scope="package")
def compiled_once():
    """Compiles nothing twice."""
    before = {name: jax.config.values[name] for name in SETTINGS}
    compilation_cache.reset_cache()  # else a directory given later is not looked at
    for name, value in SETTINGS.items():
        jax.config.update(name, value)
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
