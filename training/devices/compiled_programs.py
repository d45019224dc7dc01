"""What JAX compiles, kept on disk: a second start of the same run reads it there."""

import contextlib
import os
import platform
from pathlib import Path

import jax

FOLDER = "jax_compilation_cache_dir"
ENABLED = "jax_enable_compilation_cache"
MAX_BYTES = 2 << 30  # of programs on disk; those of the quickstart take 9 MB


def kept_in() -> str | None:
    """Returns the folder in which this process keeps what is compiled, or None."""
    return jax.config.values[FOLDER] if jax.config.values[ENABLED] else None


def keep_compiled() -> None:
    """Has JAX keep what it compiles in `~/.cache/pretrax/compiled/HOST`, and look for it there.

    Where the environment names a folder, `JAX_COMPILATION_CACHE_DIR`, that is used. Programs are
    code: they are read from a folder of the user's own, and never from a run directory, which may
    be another one's. What is compiled for the processor of one host need not run on another, so
    each has a folder; where that cannot be written, nothing is kept.

    It is a setting of the process, before anything is compiled, and not for a run of several
    processes: JAX has the first one alone write, so that those of other hosts would find nothing in
    theirs, and on GPUs, where XLA divides the tuning of kernels among all processes of a program,
    might wait for the first, which does not compile it again.
    """
    if jax.config.values[FOLDER] is None and jax.config.values[ENABLED]:
        caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        folder = os.path.join(caches, "pretrax", "compiled", platform.node() or "here")
        with contextlib.suppress(OSError):
            os.makedirs(folder, exist_ok=True)
        if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
            return
        remove_beyond(MAX_BYTES, Path(folder))
        jax.config.update(FOLDER, folder)
        # Small programs too: there are dozens, which take a fifth of a small run's second start.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


def remove_beyond(most: int, folder: Path) -> None:
    """Removes the programs in a folder that were not read or written for longest, until the others
    take `most` bytes.

    JAX's own `jax_compilation_cache_max_size` is not used: whenever it adds a program, it reads a
    file beside every other one for the time of its use, and adds no more for ever where one is
    missing, as beside those that were kept without a bound, or that a killed process wrote.
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
