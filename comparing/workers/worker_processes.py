"""Runs cells in processes: several at once, each on cores of its own, or as jobs of a cluster."""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from ...data import whole_files
from ..directory import FAILURE, LOG, failure_of, is_complete
from ..variants import Key
from .cells import Cell, train_and_measure

WAIT = 0.2  # seconds between two looks at the processes
GRACE = 120.0  # seconds in which a process that is asked to stop may save


class Process(Protocol):
    """A process that was started; `subprocess.Popen` is one."""

    def poll(self) -> int | None:
        """Returns its exit status; None while it runs."""

    def terminate(self) -> None:
        """Asks it to save and stop."""

    def kill(self) -> None:
        """Ends it."""


Start = Callable[[Cell, Sequence[int]], Process]  # (cell, cores) -> its process


def cores_of_workers(workers: int | None) -> list[list[int]]:
    """Returns the cores of each worker, of those that this process may use, as equal as can be.

    None: one worker a core. On two cores two small runs at a time, each on one, take 12% less of the
    processor for a step than one run on both, and none waits while another starts or is evaluated.

    Raises ValueError where there are more workers than cores.
    """
    known = hasattr(os, "sched_getaffinity")
    cores = sorted(os.sched_getaffinity(0)) if known else list(range(os.cpu_count() or 1))
    workers = workers or len(cores)
    if workers > len(cores):
        raise ValueError(
            f"--workers={workers} are more than the {len(cores)} cores that this process may use: give "
            f"{len(cores)} or fewer."
        )
    bounds = [len(cores) * k // workers for k in range(workers + 1)]
    return [cores[a:b] for a, b in zip(bounds, bounds[1:])]


def start_process(
    log: Path, cores: Sequence[int], function: Callable, *arguments
) -> subprocess.Popen:
    """Starts a process that calls a function on some cores, and appends what it prints to a file.

    An earlier failure beside that file is removed: the process may end before it comes to do so.
    """
    program = [sys.executable, "-P", "-m", "pretrax.comparing.workers.worker"]
    log.parent.mkdir(parents=True, exist_ok=True)
    (log.parent / FAILURE).unlink(missing_ok=True)
    with open(log, "ab") as output:
        process = subprocess.Popen(
            [*program, str(os.getpid()), ",".join(map(str, cores))],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
        )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin as pipe:  # it has died: see its log
        pickle.dump((function, arguments), pipe)
    return process


def start_cell(cell: Cell, cores: Sequence[int]) -> Process:
    """Starts the process of a cell on this machine."""
    log = Path(cell.run.run_dir) / LOG
    return start_process(log, cores, train_and_measure, cell)


def run_cells(
    cells: Mapping[Key, Cell],
    start: Start,
    shares: Sequence[Sequence[int]],
    watch: Callable[[Mapping[Key, Process], Mapping[Key, str]], None],
) -> dict[Key, str]:
    """Runs cells, as many at once as there are shares of cores. Returns {key: why it failed}.

    Args:
      cells: in the order in which they are started.
      start: `start_cell`, or that of a cluster.
      shares: the cores of each process at a time.
      watch: called with the processes that run and the failures so far, a few times a second.

    However it is left, as by Ctrl-C, no process is: each is asked to save and stop, and waited for.
    """
    waiting = list(cells)
    running: dict[Key, Process] = {}
    failed: dict[Key, str] = {}
    free = [list(share) for share in shares]
    taken: dict[Key, list[int]] = {}
    with _stopped_in_the_end(running):
        while waiting or running:
            while waiting and free:
                key = waiting.pop(0)
                taken[key] = free.pop(0)
                running[key] = start(cells[key], taken[key])
            for key, process in list(running.items()):
                status = process.poll()
                if status is not None:
                    del running[key]
                    free.append(taken.pop(key))
                    if not _is_complete(cells[key]):
                        failed[key] = _words(cells[key], status)
            watch(running, failed)
            if running:
                time.sleep(WAIT)
    return failed


def _is_complete(cell: Cell) -> bool:
    return is_complete(cell.run.run_dir, cell.run.steps, cell.yardsticks)


def _words(cell: Cell, status: int) -> str:
    """Returns why a cell failed, which `failure.txt` says from then on, also where a signal ended it."""
    run_dir = cell.run.run_dir
    if not (words := failure_of(run_dir)):
        words = f"its process ended with status {status}"
        if status < 0:
            name = signal.Signals(-status).name
            words = f"its process was ended by {name}"
            words += ", as Linux does where memory is short" * (name == "SIGKILL")
        whole_files.write_text(Path(run_dir) / FAILURE, words + "\n")
    return words


@contextlib.contextmanager
def _stopped_in_the_end(running: Mapping[Key, Process]) -> Iterator[None]:
    try:
        yield
    finally:
        for process in running.values():
            process.terminate()
        deadline = time.monotonic() + GRACE
        while any(process.poll() is None for process in running.values()):
            if time.monotonic() > deadline:
                for process in running.values():
                    process.kill()
            time.sleep(WAIT)


@contextlib.contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Has SIGTERM raise KeyboardInterrupt, as Ctrl-C does."""

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
