"""What JAX compiles, kept on disk: a second start of the same run reads it there."""

import os
import platform

import jax

FOLDER = "jax_compilation_cache_dir"


def kept_in() -> str | None:
    """Returns the folder in which this process keeps what is compiled, or None where it keeps nothing."""
    return jax.config.values[FOLDER]


def keep_compiled() -> None:
    """Has JAX keep what it compiles in `~/.cache/pretrax/compiled/HOST`, and look for it there.

    Where the environment names a folder, `JAX_COMPILATION_CACHE_DIR`, that is used. Programs are code:
    they are read from a folder of the user's own, and never from a run directory, which may be another
    one's. What is compiled for the processor of one host need not run on another, so each has a folder.

    It is a setting of the process: for programs rather than libraries, before anything is compiled.
    """
    if kept_in() is None:
        caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        folder = os.path.join(caches, "pretrax", "compiled", platform.node() or "here")
        jax.config.update(FOLDER, folder)
        # Small programs too: there are dozens, which take a fifth of a small run's second start.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
