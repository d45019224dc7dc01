"""JAX's compilation cache on disk, which speeds up the next start of the same run."""

import contextlib
import os
import platform
from pathlib import Path

import jax

FOLDER = "jax_compilation_cache_dir"
ENABLED = "jax_enable_compilation_cache"
MAX_BYTES = 2 << 30  # largest size of all programs on disk; the quickstart's programs take 9 MB


def compilation_cache_dir() -> str | None:
    """Returns the folder of this process's compilation cache, or None if it has none."""
    return jax.config.values[FOLDER] if jax.config.values[ENABLED] else None


def enable_compilation_cache() -> None:
    """Enables JAX's compilation cache in `~/.cache/pretrax/compiled/HOST`.

    The environment variable `JAX_COMPILATION_CACHE_DIR` overrides the folder. Programs are code, so
    they are read only from the user's own folder. They are never read from a run directory, which
    may come from somebody else. A program for one host's processor may not run on another host, so
    each host has its own folder. If the folder cannot be written, there is no cache.

    Call this before anything is compiled, and not in a run of several processes. There, JAX lets
    only the first process write, so other hosts would find nothing in their folders. On GPUs, XLA
    divides the tuning of kernels among all processes of a program. The other processes might then
    wait for the first process, which reads the program from its cache.
    """
    if jax.config.values[FOLDER] is None and jax.config.values[ENABLED]:
        caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        folder = os.path.join(caches, "pretrax", "compiled", platform.node() or "here")
        with contextlib.suppress(OSError):
            os.makedirs(folder, exist_ok=True)
        if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
            return
        remove_least_recently_used(MAX_BYTES, Path(folder))
        jax.config.update(FOLDER, folder)
        # Small programs are cached too. Compiling them takes a fifth of a small run's second start.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


def remove_least_recently_used(most: int, folder: Path) -> None:
    """Removes the least recently used programs in a folder until the others take `most` bytes.

    JAX's own `jax_compilation_cache_max_size` is not used. When JAX adds a program, it reads the
    time of last use of every program from another file. If one such file is missing, JAX never adds
    a program again. This happens for programs that were kept without a limit, or that a killed
    process wrote.
    """
    programs = []
    for program in folder.glob("*-cache"):
        with contextlib.suppress(OSError):  # another process has removed it
            stat = program.stat()
            programs.append((max(stat.st_atime, stat.st_mtime), stat.st_size, program))
    total = 0
    for _, size, program in sorted(programs, reverse=True):
        total += size
        if total > most:
            with contextlib.suppress(OSError):
                program.unlink()
