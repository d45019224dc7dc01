"""A process of a comparison: `python -m pretrax.comparison.workers.worker PARENT CORES`.

Reads a pickled (function, arguments) from standard input, which its parent wrote, calls it, and
exits with what it returns. It keeps to its cores, given as 0,1, …, and ends when its parent does.
"""

import ctypes
import os
import pickle
import signal
import sys

from ...settings.command_terminal import in_terminal

_PR_SET_PDEATHSIG = 1  # of prctl(2)


def main() -> None:
    parent = int(sys.argv[1])
    cores = sys.argv[2]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which stops this
    _end_with(parent)
    if hasattr(os, "sched_setaffinity"):  # before JAX counts the cores
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    sys.path.append(os.getcwd())  # for a user's modules, as the verbs have it
    function, arguments = pickle.load(sys.stdin.buffer)  # noqa: S301  (its parent's own)
    with in_terminal():  # the log is not a terminal but has a terminal's encoding
        sys.exit(function(*arguments))


def _end_with(parent: int) -> None:
    """Has Linux kill this process when its parent ends; a run loses what it has not saved."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended already
        sys.exit(1)


if __name__ == "__main__":
    main()
