"""Runs trials in parallel processes, each on its own cores, or as jobs of a cluster."""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from ..failures import FAILURE, LOG, STOPPED, failure_of, write_failure
from ..trials import Trial, train_and_measure
from .progress import ComparisonProgress

WAIT = 0.2  # seconds between two polls of the processes
GRACE = 120.0  # seconds that a terminated process has to save


class Process(Protocol):
    """A started process, such as a `subprocess.Popen`."""

    def poll(self) -> int | None: ...  # the exit status; None while the process runs
    def terminate(self) -> None: ...  # asks the process to save and stop
    def kill(self) -> None: ...  # ends the process at once


Start = Callable[[Trial, Sequence[int]], Process]  # (trial, cores) -> process of the trial


def cores_of_workers(workers: int | None) -> list[list[int]]:
    """Returns the cores of each worker, dividing this process's cores as equally as possible.

    None is one worker per core. On two cores, two small runs on one core each take 12% less
    processor time per step than one run on both. Raises ValueError for more workers than cores.
    """
    known = hasattr(os, "sched_getaffinity")
    cores = sorted(os.sched_getaffinity(0)) if known else list(range(os.cpu_count() or 1))
    workers = workers or len(cores)
    if workers > len(cores):
        raise ValueError(
            f"--workers={workers} is more than the {len(cores)} cores that this process may use: "
            f"give {len(cores)} or fewer."
        )
    bounds = [len(cores) * k // workers for k in range(workers + 1)]
    return [cores[a:b] for a, b in zip(bounds, bounds[1:])]


def start_process(
    log: Path, cores: Sequence[int], function: Callable, *arguments
) -> subprocess.Popen:
    """Starts a process that calls a function on some cores and appends its output to a log file.

    An earlier failure next to the log is removed.
    """
    program = [sys.executable, "-P", "-m", "pretrax.comparison.workers.worker"]
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
    # The pipe is broken if the process has died. Its log then has the reason.
    with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
        pickle.dump((function, arguments), pipe)
    return process


def start_trial(trial: Trial, cores: Sequence[int]) -> Process:
    return start_process(Path(trial.run.run_dir) / LOG, cores, train_and_measure, trial)


class Worker(NamedTuple):
    trial: Trial
    process: Process
    cores: Sequence[int]


def run_trials(
    trials: Sequence[Trial],
    start: Start,
    shares: Sequence[Sequence[int]],
    progress: ComparisonProgress,
) -> list[Trial]:
    """Runs trials in order, one per share of cores at a time, and returns the failed trials.

    If it is interrupted, for example by Ctrl-C, all processes save and stop.
    """
    waiting = list(trials)
    free = list(shares)
    workers: list[Worker] = []
    failed: list[Trial] = []
    try:
        while waiting or workers:
            while waiting and free:
                trial = waiting.pop(0)
                cores = free.pop(0)
                workers.append(Worker(trial, start(trial, cores), cores))
                progress.start(trial)
            for worker in workers[:]:
                status = worker.process.poll()
                if status is not None:
                    workers = [other for other in workers if other is not worker]
                    free.append(worker.cores)
                    has_failed = not worker.trial.state.is_complete
                    if has_failed:
                        note_failure(worker.trial, status)
                        failed.append(worker.trial)
                    progress.end(worker.trial, has_failed)
            progress.refresh()
            if workers:
                time.sleep(WAIT)
    finally:
        if workers:
            progress.stop()
        _stop([worker.process for worker in workers])
    return failed


def note_failure(trial: Trial, status: int) -> None:
    """Writes why a trial failed if its process could not."""
    if failure_of(trial.run.run_dir):
        return
    words = f"its process ended with status {status}: see its {LOG}"
    if status == 0:
        words = _lacking(trial)
    elif status == STOPPED:
        words = "its process was stopped by SIGTERM or its cluster before the end, and has saved"
    elif status < 0:
        name = signal.strsignal(-status) or f"signal {-status}"
        with contextlib.suppress(ValueError):  # real-time signals have no name
            name = signal.Signals(-status).name
        words = f"its process was ended by {name}"
        words += ", as Linux does if memory runs out" * (name == "SIGKILL")
    write_failure(trial.run.run_dir, words)


def _lacking(trial: Trial) -> str:
    """Returns what a trial lacks whose process ended without an error."""
    state = trial.state
    if not state.is_trained:
        return f"its process ended before its {trial.run.steps} steps were taken: see its {LOG}"
    return (
        f"its process ended without the figures of {', '.join(state.unmeasured)}: see its {LOG}. "
        "If the log says that they were measured, there are two possible causes. The file of an "
        "eval metric or of a synthetic task may have changed since this command began: start the "
        "command again to measure them again. Or a setting may have a different repr in each "
        "process, like an object without a __repr__: give it a __repr__"
    )


def _stop(processes: Sequence[Process]) -> None:
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + GRACE
    while any([process.poll() is None for process in processes]):
        if time.monotonic() > deadline:
            for process in processes:
                process.kill()
        time.sleep(WAIT)


@contextlib.contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Makes SIGTERM raise KeyboardInterrupt, as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
