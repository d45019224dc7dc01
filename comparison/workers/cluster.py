"""Runs trials as jobs of a Slurm cluster, by submitit (the extra `slurm`).

The directory must be on a disk that all machines share. A job that meets its time limit is queued
again, and resumes from its last checkpoint. Source: https://github.com/facebookincubator/submitit
"""

import contextlib
import dataclasses
import os
import pickle
import shlex
import sys
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...settings import atomic_writes
from ...settings.partial import as_partial
from ...settings.extras import install_command
from ..budgets import seconds
from ..trials import Trial, train_and_measure
from ..comparison import Comparison, trained_variants
from ..failures import LOG, STOPPED, failure_of, write_failure

# A job starts Python with -P, so that a file `jax.py` in the current folder does not replace JAX.
_PYTHON = f"{shlex.quote(sys.executable)} -P"
JOBS = "jobs"  # a folder of a comparison's directory, for submitit's files
JOB = "job.json"  # in a run's folder: the ticket of the job that trains it, and the job's number


class JobOptions(NamedTuple):
    """What a job needs of the cluster."""

    partition: str | None = None  # None: the cluster's own choice
    minutes: int = 240
    cpus: int = 4
    gpus: int = 0


def check_budgets(comparison: Comparison) -> None:
    """Raises ValueError for a budget of this machine's time, which is none of a cluster's."""
    for one in trained_variants(comparison).values():
        if as_partial(one.budget).function is seconds:
            raise ValueError(
                "budgets.seconds times a few steps on this machine, and --slurm trains on others: "
                "give budgets.model_flops or budgets.text_tokens, or compare without --slurm."
            )


def starter(directory: str, options: JobOptions, cluster: str = "slurm") -> Callable:
    """Returns (trial, cores) -> its job, or that which an earlier command submitted.

    Args:
      cluster: "slurm"; "local" runs jobs as processes here, as tests do.

    Raises ValueError without submitit, or without a cluster.
    """
    try:
        import submitit
    except ImportError:
        raise ValueError(f"--slurm needs submitit: {install_command('slurm')}") from None
    folder = Path(directory).absolute() / JOBS / "%j"
    try:
        executor = submitit.AutoExecutor(
            folder,
            cluster=cluster,
            slurm_python=_PYTHON,
            local_python=_PYTHON,
        )
    except RuntimeError as error:
        raise ValueError(f"--slurm finds no Slurm on this machine ({error}).") from error
    needs = {
        "name": f"compare-{Path(directory).name}",
        "timeout_min": options.minutes,
        "cpus_per_task": options.cpus,
        "gpus_per_node": options.gpus,
        "slurm_partition": options.partition,
    }
    executor.update_parameters(**{name: need for name, need in needs.items() if need})
    kinds = {"slurm": submitit.SlurmJob, "local": submitit.LocalJob}

    def start(trial: Trial, cores: Sequence[int]) -> "_Job":
        del cores  # the cluster gives them
        _, number = _read_job(trial)
        if number is not None:
            job = kinds[cluster](folder, number)
            if not job.done():
                return _Job(job, trial.run.run_dir)
        ticket = uuid.uuid4().hex
        _write_job(trial, ticket, None)  # a job of an earlier ticket, not begun yet, will not train
        job = executor.submit(_Call(pickle.dumps(trial), ticket))
        _write_job(trial, ticket, job.job_id)
        return _Job(job, trial.run.run_dir)

    return start


def _read_job(trial: Trial) -> tuple[str | None, str | None]:
    """Returns the ticket of a run's job, and the job's number: None where it is not known."""
    path = Path(trial.run.run_dir) / JOB
    if not path.exists():
        return None, None
    return atomic_writes.read_record(path, lambda record: (record["ticket"], record["number"]))


def _write_job(trial: Trial, ticket: str, number: str | None) -> None:
    atomic_writes.write_json(Path(trial.run.run_dir) / JOB, {"ticket": ticket, "number": number})


@dataclasses.dataclass(frozen=True)
class _Call:
    """What a job calls; submitit calls it again when its time was over.

    Its ticket is written down before the job is submitted: a command that is killed before it
    writes the job's number leaves a job that nobody knows. Such a job makes itself known when it
    begins, and does not train once a later command has given the run to another job.
    """

    pickled: bytes  # the trial; unpickling it needs the import path of a worker
    ticket: str

    def __call__(self) -> int:
        from submitit import JobEnvironment

        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())  # for a user's modules, as in local workers
        trial = pickle.loads(self.pickled)  # noqa: S301  (the command's own)
        ticket = self.ticket
        latest, _ = _read_job(trial)
        if latest != ticket:
            print(f"A later command has given {trial.run.run_dir} to another job.", flush=True)
            return STOPPED
        _write_job(trial, ticket, JobEnvironment().job_id)
        log = Path(trial.run.run_dir) / LOG
        print(f"It prints to {log}", flush=True)
        with open(log, "a", encoding="utf-8") as file:
            with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
                return train_and_measure(trial)

    def checkpoint(self) -> Any:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class _Job:
    """A job as a `Process`; one that is terminated is left for the same command to find again."""

    def __init__(self, job: Any, run_dir: str):
        self._job = job
        self._run_dir = run_dir
        self._left = False

    def poll(self) -> int | None:
        if self._left:
            return 0
        if not self._job.done():
            return None
        error = self._job.exception()
        if error is None:
            return int(self._job.result())
        if not failure_of(self._run_dir):
            write_failure(self._run_dir, f"its job failed: {error}")
        return 1

    def terminate(self) -> None:
        self._left = True

    def kill(self) -> None:
        self._job.cancel()
