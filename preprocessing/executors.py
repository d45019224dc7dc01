"""What runs the tasks of a pipeline: processes of this machine, a Slurm cluster, or Ray.

    preprocessing.Preparation.executor = @executors.slurm
    executors.slurm.partition = "cpu"

Each is called as `(blocks, tasks, log, workers)` for one pass and returns what `run_tasks` runs: a
datatrove executor. A task that is complete has a file in LOG/completions, and is not run again.
"""

import contextlib
import copy
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import forkserver
from typing import Any

from datatrove.executor import LocalPipelineExecutor, RayPipelineExecutor, SlurmPipelineExecutor
from datatrove.executor.base import PipelineExecutor
from datatrove.pipeline.base import PipelineStep
from datatrove.utils.logging import logger

from ..settings.system_errors import name_file

_SAFE_PATH = "PYTHONSAFEPATH"  # has the effect of Python's option -P
_LOOK = 2.0  # seconds between two looks at the tasks of a cluster

Blocks = Sequence[PipelineStep]


def local(blocks: Blocks, tasks: int, log: str, workers: int | None) -> PipelineExecutor:
    """Processes of this machine."""
    return _Local(list(blocks), tasks, workers or cores(), log)


def this_process(blocks: Blocks, tasks: int, log: str, workers: int | None) -> PipelineExecutor:
    """This process, one task after another: for a debugger, and for figures of one core."""
    return _ThisProcess(list(blocks), tasks, 1, log)


def slurm(
    blocks: Blocks,
    tasks: int,
    log: str,
    workers: int | None,
    *,
    partition: str,
    time: str = "24:00:00",
    cpus_per_task: int = 1,
    gib_per_cpu: int = 2,
    command: str = "",
    sbatch_args: Mapping[str, Any] | None = None,
) -> PipelineExecutor:
    """Jobs of a Slurm cluster, which share OUT with the machine that this command waits on.

    Args:
      partition, time: of the jobs; `time` is their limit.
      command: that a job starts with, such as one that activates an environment; "": the one this
        command runs in.
      sbatch_args: others of sbatch, by name.
    """
    return SlurmPipelineExecutor(
        list(blocks),
        tasks,
        time,
        partition,
        cpus_per_task=cpus_per_task,
        mem_per_cpu_gb=gib_per_cpu,
        workers=workers or -1,  # as many as the cluster gives
        job_name="pretrax",
        env_command=command or f'export PATH="{os.path.dirname(sys.executable)}:$PATH"',
        sbatch_args=dict(sbatch_args or {}),
        logging_dir=log,
        slurm_logs_folder=os.path.join(log, "slurm"),
        qos="",  # one of `sbatch_args`, where a cluster has some
    )


def ray(
    blocks: Blocks,
    tasks: int,
    log: str,
    workers: int | None,
    *,
    cpus_per_task: int = 1,
    gib_per_cpu: int = 2,
) -> PipelineExecutor:
    """Tasks of a Ray cluster that is there (`pip install ray`), whose nodes share OUT."""
    return RayPipelineExecutor(
        list(blocks),
        tasks,
        workers or -1,
        cpus_per_task=cpus_per_task,
        mem_per_cpu_gb=gib_per_cpu,
        logging_dir=log,
    )


def run_tasks(executor: PipelineExecutor, advance: Callable[[int], None]) -> None:
    """Runs what is not complete of an executor's tasks, and waits for all.

    Calls `advance` with numbers of tasks as they are completed, first with that of those that were.
    Raises what a task raised on this machine, and ValueError for a worker that died, and for jobs
    that ended before their tasks.
    """
    waiting = executor.get_incomplete_ranks()
    advance(executor.world_size - len(waiting))
    if not waiting:
        return
    if isinstance(executor, _Local):
        executor.run_ranks(waiting, advance)
        return
    with _quiet():
        executor.run()
    while waiting:
        runs = _is_running(executor)  # first, so that what ends meanwhile counts as complete
        incomplete = executor.get_incomplete_ranks()
        advance(len(waiting) - len(incomplete))
        waiting = incomplete
        if waiting and not runs:
            raise ValueError(
                f"{len(waiting):,} of {executor.world_size:,} tasks have not come to their end, "
                f"and nothing runs them any more: see their logs in {executor.logging_dir.path}. "
                "The same command goes on."
            )
        if waiting:
            time.sleep(_LOOK)


def _is_running(executor: PipelineExecutor) -> bool:
    """Returns whether submitted jobs wait or run; Ray's `run` has waited for its own."""
    job = getattr(executor, "job_id", None)
    if job is None:
        return False
    queue = subprocess.run(["squeue", "--noheader", f"--jobs={job}"], capture_output=True)
    return queue.returncode == 0 and bool(queue.stdout.strip())


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hides what datatrove writes to stderr; the log of each task is in a file of its own."""
    nowhere = open(os.devnull, "w", encoding="utf-8")
    with nowhere, contextlib.redirect_stderr(nowhere):
        yield
    logger.remove()  # else it writes on to what is closed


def cores() -> int:
    """Returns the number of cores that this process may use."""
    known = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1


class _Local(LocalPipelineExecutor):
    """Runs tasks in processes that end when this one does, however it ends.

    datatrove's own goes on after its parent was killed, so that a second start would write the same
    files beside it, and waits without end for a worker that was killed.
    """

    def run_ranks(self, ranks: Sequence[int], advance: Callable[[int], None]) -> None:
        context = multiprocessing.get_context("forkserver")  # a fork of this process would copy JAX
        context.set_forkserver_preload([__name__])
        errors = os.path.join(self.logging_dir.path, "workers.log")
        _start_forkserver(errors)
        alive, held = context.Pipe(duplex=False)
        workers = min(self.workers, len(ranks))
        pool = ProcessPoolExecutor(workers, context, _begin_worker, (alive, errors))
        try:
            for future in as_completed([pool.submit(_run_rank, self, rank) for rank in ranks]):
                future.result()
                advance(1)
            pool.shutdown()
        except BrokenProcessPool:
            raise ValueError(
                "A worker process was ended from outside, as Linux does where memory is short: the "
                f"same command goes on; give it fewer --workers. What workers wrote: {errors}."
            ) from None
        finally:
            held.close()  # which ends workers in the middle of a task
            pool.shutdown(cancel_futures=True)


class _ThisProcess(_Local):
    def run_ranks(self, ranks: Sequence[int], advance: Callable[[int], None]) -> None:
        with _quiet():
            for rank in ranks:
                copy.deepcopy(self)._run_for_rank(rank)  # blocks count what they do
                advance(1)


def _start_forkserver(errors: str) -> None:
    """Starts the server process that workers are forked from, unless it is running.

    The server ignores Ctrl-C. What goes wrong before a worker begins is written to the file
    `errors`. By default, Python would let the server import from the current folder first, where a
    file `jax.py` would replace JAX.
    """
    os.makedirs(os.path.dirname(errors), exist_ok=True)
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    own = os.dup(2)
    try:
        with open(errors, "ab") as file, _safe_path():
            os.dup2(file.fileno(), 2)
            forkserver.ensure_running()
    except OSError as error:
        if "path too long" not in str(error):
            raise
        raise ValueError(
            f"Got TMPDIR={tempfile.gettempdir()}, expected a path of at most 70 bytes, since "
            "worker processes have sockets there: set TMPDIR=/tmp."
        ) from error
    finally:
        os.dup2(own, 2)
        os.close(own)
        signal.signal(signal.SIGINT, interrupt)


@contextlib.contextmanager
def _safe_path() -> Iterator[None]:
    """Keeps Python processes that start in this context from importing from the current folder.

    Workers are an exception, since they get the `sys.path` of this process later.
    """
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    try:
        yield
    finally:
        os.environ.pop(_SAFE_PATH)
        if before is not None:
            os.environ[_SAFE_PATH] = before


def _begin_worker(alive: Any, errors: str) -> None:
    """Ends a worker when the process that started it closes a pipe, or dies."""
    with open(errors, "ab") as file:  # the process it is forked from has that of the first pass
        os.dup2(file.fileno(), 2)
    # datatrove writes the log of each task to a separate file.
    sys.stderr = open(os.devnull, "w", encoding="utf-8")

    def watch() -> None:
        with contextlib.suppress(EOFError, OSError):
            alive.recv()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _run_rank(executor: PipelineExecutor, rank: int) -> None:
    try:
        executor._run_for_rank(rank)
    except Exception as error:
        name_file(error)
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # as of some clients of buckets, which would end the pool instead
            raise ValueError(f"Task {rank} raised {type(error).__name__}: {error}") from None
        raise
