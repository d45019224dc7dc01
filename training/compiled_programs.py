"""What JAX compiles, kept on disk: a second start of the same run reads it there."""

import os
import platform

import jax

from pretrax.training import run_directory


def keep_compiled(directory: str) -> None:
    """Has JAX keep what it compiles in `DIRECTORY/compiled/HOST`, and look for it there.

    What is compiled for the processor of one host need not run on another, so each has a folder.
    Where the environment names one, `JAX_COMPILATION_CACHE_DIR`, that is used.

    It is a setting of the process: for programs rather than libraries, before anything is compiled.
    """
    if jax.config.jax_compilation_cache_dir is None:
        host = platform.node() or "here"
        folder = os.path.join(os.path.abspath(directory), run_directory.COMPILED, host)
        jax.config.update("jax_compilation_cache_dir", folder)
        # Small programs too: there are dozens, which take a fifth of a small run's second start.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
