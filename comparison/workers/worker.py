"""A process of a comparison: `python -m pretrax.comparison.workers.worker PARENT CORES`.

The process reads a pickled (function, arguments) from its parent on standard input, calls the
function and exits with the returned status. It uses only its cores, given as 0,1, …, and the same
share of a GPU's memory. It ends with its parent.
"""

import ctypes
import os
import pickle
import signal
import sys

from ...settings.command_terminal import in_terminal

_PR_SET_PDEATHSIG = 1  # an option of prctl(2)
_GPU_MEMORY = 0.75  # fraction that JAX reserves by default


def main() -> None:
    parent = int(sys.argv[1])
    cores = sys.argv[2]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent handles Ctrl-C.
    _end_with(parent)
    if hasattr(os, "sched_setaffinity"):  # Do this before JAX counts the cores.
        _use_share({int(core) for core in cores.split(",")})
    sys.path.append(os.getcwd())  # for a user's modules, as in the commands
    function, arguments = pickle.load(sys.stdin.buffer)  # noqa: S301  (written by the parent)
    with in_terminal():  # the log is not a terminal but has a terminal's encoding
        sys.exit(function(*arguments))


def _use_share(cores: set[int]) -> None:
    """Limits this process to some of its parent's cores, and to this share of a GPU's memory."""
    share = len(cores) / len(os.sched_getaffinity(0))
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", f"{_GPU_MEMORY * share:.3f}")
    os.sched_setaffinity(0, cores)


def _end_with(parent: int) -> None:
    """Asks Linux to kill this process when its parent ends. A run then loses unsaved steps."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # The parent has already ended.
        sys.exit(1)


if __name__ == "__main__":
    main()
