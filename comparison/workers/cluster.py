"""Runs trials as jobs of a Slurm cluster, by submitit (the extra `slurm`).

All machines must share the directory. A job that reaches its time limit is queued again and resumes
from its last checkpoint. Source: https://github.com/facebookincubator/submitit
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
from ...settings.extras import install_command
from ...settings.partial import as_partial
from ..budgets import seconds
from ..comparison import Comparison, trained_variants
from ..failures import LOG, STOPPED, failure_of, write_failure
from ..trials import Trial, train_and_measure

# With -P, a file `jax.py` in the current folder does not replace JAX.
_PYTHON = f"{shlex.quote(sys.executable)} -P"
JOBS = "jobs"  # folder of a comparison's directory for submitit's files
JOB = "job.json"  # file of a run directory with the ticket and the number of the run's job


class JobOptions(NamedTuple):
    """The resources that a job requests from the cluster."""

    partition: str | None = None  # None for the default partition
    minutes: int = 240  # time limit
    cpus: int = 4
    gpus: int = 0


def check_budgets(comparison: Comparison) -> None:
    """Raises ValueError for a budget in seconds, which are measured on this machine."""
    for variant in trained_variants(comparison).values():
        if as_partial(variant.budget).function is seconds:
            raise ValueError(
                "budgets.seconds times a few steps on this machine, but --slurm trains on other "
                "machines: give budgets.model_flops or budgets.text_tokens, or compare without "
                "--slurm."
            )


def starter(directory: str, options: JobOptions, cluster: str = "slurm") -> Callable:
    """Returns a function (trial, cores) -> job of the trial.

    It returns an earlier command's unfinished job, if there is one. The cluster "local" runs jobs
    as processes of this machine, for tests.

    Raises ValueError if submitit is not installed, or if there is no Slurm on this machine.
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
        raise ValueError(
            f"--slurm found no Slurm on this machine ({error}): run the command on a machine of "
            "the cluster, or leave --slurm out."
        ) from error
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
        del cores  # The cluster assigns the cores.
        _, number = read_job(trial)
        if number is not None:
            job = kinds[cluster](folder, number)
            if not job.done():
                return _Job(job, trial.run.run_dir)
        ticket = uuid.uuid4().hex
        # Jobs of earlier tickets that have not begun will not train.
        write_job(trial, ticket, None)
        job = executor.submit(_Call(pickle.dumps(trial), ticket))
        write_job(trial, ticket, job.job_id)
        return _Job(job, trial.run.run_dir)

    return start


def read_job(trial: Trial) -> tuple[str | None, str | None]:
    """Returns the ticket and the number of a run's job, each None if it is not known."""
    path = Path(trial.run.run_dir) / JOB
    if not path.exists():
        return None, None
    return atomic_writes.read_record(path, lambda record: (record["ticket"], record["number"]))


def write_job(trial: Trial, ticket: str, number: str | None) -> None:
    atomic_writes.write_json(Path(trial.run.run_dir) / JOB, {"ticket": ticket, "number": number})


@dataclasses.dataclass(frozen=True)
class _Call:
    """The function that a job calls, again after a time limit.

    The job's ticket is written to the run directory before the job is submitted. When the job
    begins, it writes its number, in case the command was killed before doing so. It does not train
    if a later command has given the run to another job.
    """

    pickled: bytes  # the pickled trial, which can only be unpickled with a worker's import path
    ticket: str

    def __call__(self) -> int:
        from submitit import JobEnvironment

        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())  # for a user's modules, as in local workers
        trial = pickle.loads(self.pickled)  # noqa: S301  (the command's own)
        ticket = self.ticket
        latest, _ = read_job(trial)
        if latest != ticket:
            print(f"A later command has given {trial.run.run_dir} to another job.", flush=True)
            return STOPPED
        write_job(trial, ticket, JobEnvironment().job_id)
        log = Path(trial.run.run_dir) / LOG
        print(f"It prints to {log}", flush=True)
        with open(log, "a", encoding="utf-8") as file:
            with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
                return train_and_measure(trial)

    def checkpoint(self) -> Any:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class _Job:
    """A job as a `Process`. Terminating it leaves the job running, for the next command to find."""

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
