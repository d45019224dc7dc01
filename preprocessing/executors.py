"""Executors, which run the tasks of a pipeline: on this machine, a Slurm cluster or Ray.

    preprocessing.Preparation.executor = @executors.slurm
    executors.slurm.partition = "cpu"

An executor is called as `(blocks, tasks, log, workers)` for one pass. It returns a datatrove
executor for `run_tasks`. A complete task has a file in LOG/completions, and is not run again.
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
_POLL_SECONDS = 2.0  # interval at which the tasks of a cluster are checked

Blocks = Sequence[PipelineStep]


def local(blocks: Blocks, tasks: int, log: str, workers: int | None) -> PipelineExecutor:
    """Runs tasks in processes of this machine."""
    return _Local(list(blocks), tasks, workers or cores(), log)


def this_process(blocks: Blocks, tasks: int, log: str, workers: int | None) -> PipelineExecutor:
    """Runs one task after another in this process, for a debugger or to measure a single core."""
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
    """Runs tasks as jobs of a Slurm cluster, whose nodes must share OUT with this machine.

    Args:
      workers: maximum number of concurrent jobs. None: no limit.
      partition: partition of the jobs.
      time: time limit of the jobs.
      cpus_per_task: number of CPUs of a task.
      gib_per_cpu: memory of a CPU in GiB.
      command: command at the start of a job, for example to activate an environment. By default
        the environment of this process is used.
      sbatch_args: additional arguments of sbatch, by name.
    """
    return SlurmPipelineExecutor(
        list(blocks),
        tasks,
        time,
        partition,
        cpus_per_task=cpus_per_task,
        mem_per_cpu_gb=gib_per_cpu,
        workers=workers or -1,  # no limit
        job_name="pretrax",
        env_command=command or f'export PATH="{os.path.dirname(sys.executable)}:$PATH"',
        sbatch_args=dict(sbatch_args or {}),
        logging_dir=log,
        slurm_logs_folder=os.path.join(log, "slurm"),
        qos="",  # set it in `sbatch_args` if the cluster needs it
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
    """Runs tasks on a running Ray cluster (`pip install ray`), whose nodes must share OUT."""
    return RayPipelineExecutor(
        list(blocks),
        tasks,
        workers or -1,
        cpus_per_task=cpus_per_task,
        mem_per_cpu_gb=gib_per_cpu,
        logging_dir=log,
    )


def run_tasks(executor: PipelineExecutor, advance: Callable[[int], None]) -> None:
    """Runs the tasks of an executor that are not complete yet, and waits for all of them.

    Calls `advance` first with the number of complete tasks, and then with the number of newly
    completed tasks.

    Raises the error of a task on this machine, and ValueError for a worker that died or for jobs
    that ended before their tasks were complete.
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
        runs = _is_running(executor)  # before the tasks, so tasks that end now count as complete
        incomplete = executor.get_incomplete_ranks()
        advance(len(waiting) - len(incomplete))
        waiting = incomplete
        if waiting and not runs:
            raise ValueError(
                f"{len(waiting):,} of {executor.world_size:,} tasks did not finish and are not "
                f"running any more: see their logs in {executor.logging_dir.path}. The same "
                "command continues them."
            )
        if waiting:
            time.sleep(_POLL_SECONDS)


def _is_running(executor: PipelineExecutor) -> bool:
    """Returns whether submitted jobs wait or run. Ray's `run` waits for its tasks itself."""
    job = getattr(executor, "job_id", None)
    if job is None:
        return False
    queue = subprocess.run(["squeue", "--noheader", f"--jobs={job}"], capture_output=True)
    return queue.returncode == 0 and bool(queue.stdout.strip())


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hides what datatrove writes to stderr. The log of each task is in a separate file."""
    nowhere = open(os.devnull, "w", encoding="utf-8")
    with nowhere, contextlib.redirect_stderr(nowhere):
        yield
    logger.remove()  # it would write to the closed file otherwise


def cores() -> int:
    """Returns the number of cores that this process may use."""
    has_affinity = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1


class _Local(LocalPipelineExecutor):
    """Runs tasks in worker processes that end when this process ends for any reason.

    datatrove's executor continues after its parent was killed, so that a second start would write
    the same files at the same time, and waits forever for a killed worker.
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
                "A worker process was killed, probably because memory ran out: run the same "
                "command again with fewer --workers to continue. Output of the workers: "
                f"{errors}."
            ) from None
        finally:
            held.close()  # ends workers in the middle of a task
            pool.shutdown(cancel_futures=True)


class _ThisProcess(_Local):
    def run_ranks(self, ranks: Sequence[int], advance: Callable[[int], None]) -> None:
        with _quiet():
            for rank in ranks:
                copy.deepcopy(self)._run_for_rank(rank)  # blocks count what they do
                advance(1)


def _start_forkserver(errors: str) -> None:
    """Starts the server process that workers are forked from, unless it is running.

    The server ignores Ctrl-C. Errors before a worker begins are written to the file `errors`. The
    server does not import from the current folder, where a file `jax.py` would replace JAX.
    """
    os.makedirs(os.path.dirname(errors), exist_ok=True)
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    stderr = os.dup(2)
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
        os.dup2(stderr, 2)
        os.close(stderr)
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
    """Ends a worker when its parent closes a pipe or dies."""
    with open(errors, "ab") as file:  # stderr of its parent is the file of the first pass
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
        except Exception:  # errors of bucket clients, for example, would break the pool
            raise ValueError(f"Task {rank} raised {type(error).__name__}: {error}") from None
        raise
