"""Runs cells as jobs of a Slurm cluster, by submitit (`pip install -e '.[slurm]'`).

The directory must be on a disk that all machines share. A job that meets its time limit is queued
again, and goes on from its last checkpoint. Source: https://github.com/facebookincubator/submitit
"""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from pretrax.comparing.cells import Cell, train_and_measure
from pretrax.comparing.directory import FAILURE, LOG, compiled_folder, failure_of
from pretrax.training import run_directory

JOBS = "jobs"  # a folder of a comparison's directory, for submitit's files
JOB = "job.json"  # in a run's folder: the number of the job that trains it


class JobOptions(NamedTuple):
    """What a job asks of the cluster."""

    partition: str | None = None  # None: the cluster's own choice
    minutes: int = 240
    cpus: int = 4
    gpus: int = 0


def starter(directory: str, options: JobOptions, cluster: str = "slurm") -> Callable:
    """Returns (cell, cores) -> its job, which goes on watching one that an earlier command submitted.

    Args:
      cluster: "slurm"; "local" runs jobs as processes here, as tests do.

    Raises ValueError without submitit, or without a cluster.
    """
    try:
        import submitit
    except ImportError:
        raise ValueError("--slurm needs submitit: pip install -e '.[slurm]'") from None
    folder = Path(directory).absolute() / JOBS / "%j"
    try:
        executor = submitit.AutoExecutor(folder, cluster=cluster)
    except RuntimeError as error:
        raise ValueError(f"--slurm finds no Slurm on this machine ({error}).") from error
    more = {"slurm_partition": options.partition} if options.partition else {}
    executor.update_parameters(
        name=f"compare-{Path(directory).name}",
        timeout_min=options.minutes,
        cpus_per_task=options.cpus,
        **({"gpus_per_node": options.gpus} if options.gpus else {}),
        **more,
    )
    kinds = {"slurm": submitit.SlurmJob, "local": submitit.LocalJob}

    def start(cell: Cell, cores: Sequence[int]) -> "_Job":
        del cores  # the cluster gives them
        record = Path(cell.run.run_dir) / JOB
        if record.exists():
            job = kinds[cluster](folder, run_directory.read_json(record))
            if not job.done():
                return _Job(job, cell.run.run_dir)
        job = executor.submit(_Call(cell))
        run_directory.write_json(record, job.job_id)
        return _Job(job, cell.run.run_dir)

    return start


class _Call:
    """What a job calls; submitit calls it again when its time was over."""

    def __init__(self, cell: Cell):
        self._cell = cell

    def __call__(self) -> int:
        cell = self._cell
        jax.config.update("jax_compilation_cache_dir", compiled_folder(cell.directory))
        log = Path(cell.run.run_dir) / LOG
        print(f"It prints to {log}", flush=True)
        with (
            open(log, "a") as file,
            contextlib.redirect_stdout(file),
            contextlib.redirect_stderr(file),
        ):
            return train_and_measure(cell)

    def checkpoint(self) -> Any:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class _Job:
    """A job as a `processes.Process`; one that is asked to stop is left to the cluster instead, where
    the same command finds it again."""

    def __init__(self, job: Any, run_dir: str):
        self._job, self._run_dir, self._left = job, run_dir, False

    def poll(self) -> int | None:
        if self._left:
            return 0
        if not self._job.done():
            return None
        error = self._job.exception()
        if error is None:
            return int(self._job.result())
        if not failure_of(self._run_dir):
            run_directory.write_text(Path(self._run_dir) / FAILURE, f"its job failed: {error}\n")
        return 1

    def terminate(self) -> None:
        self._left = True

    def kill(self) -> None:
        self._job.cancel()
