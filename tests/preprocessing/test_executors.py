"""Executors: jobs of a cluster, with a stand-in for Slurm, and tasks that fail."""

import json
import os
import stat
import subprocess
import sys

import pytest
from datatrove.pipeline.base import PipelineStep

from pretrax.preprocessing import executors
from tests.preprocessing import planted
from tests.refusals import refuses
from tests.training.tiny import ROOT, environment

SBATCH = """#!/bin/bash
# Runs the tasks of an array one after another; a job that depends on another merges figures.
script="${@: -1}"
[[ "$*" == *--dependency* ]] && exit 0
grep -q merge_stats "$script" && { echo "Submitted batch job 8"; exit 0; }
last=$(grep -oP "array=0-\\K[0-9]+" "$script")
cp "$script" "$script.kept"
for task in $(seq 0 "$last"); do
  SLURM_ARRAY_TASK_ID=$task SLURM_NODELIST=here bash "$script.kept" >>"$JOBS" 2>&1
done
echo "Submitted batch job 7"
"""
LAUNCH = f"""#!/bin/bash
exec {sys.executable} -m datatrove.tools.launch_pickled_pipeline "$@"
"""


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Stand-ins for Slurm's programs. A job has finished as soon as it is submitted."""
    programs = {
        "sbatch": SBATCH,
        "srun": '#!/bin/bash\nshift 3\nexec "$@"\n',
        "scontrol": "#!/bin/bash\necho here\n",
        "squeue": "#!/bin/bash\nexit 0\n",
        "launch_pickled_pipeline": LAUNCH,
    }
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("JOBS", str(tmp_path / "jobs.log"))
    return tmp_path


@pytest.mark.slow
def test_slurm_matches_local_executor(cluster):
    planted.write_texts(cluster / "raw.jsonl", ["One text.", "Another text.", "One text."])
    local_report = planted.run_steps(
        cluster, "preprocessing.Preparation.steps = [@duplicates.exact_duplicates]"
    )
    (cluster / "out").rename(cluster / "here")
    slurm_report = planted.run_steps(
        cluster,
        "preprocessing.Preparation.steps = [@duplicates.exact_duplicates]\n"
        "preprocessing.Preparation.executor = @executors.slurm\n"
        "executors.slurm.partition = 'cpu'\n"
        f"executors.slurm.command = 'export PATH={cluster}/bin:$PATH'",
    )
    assert json.dumps(slurm_report) == json.dumps(local_report), (cluster / "jobs.log").read_text()


class Fails(PipelineStep):
    type, name = "Test", "fails"

    def run(self, data=None, rank=0, world_size=1):
        if rank == 1:
            raise ValueError("Task 1 cannot be done.")
        yield from ()


class RaisesUnpicklableError(PipelineStep):
    type, name = "Test", "fails"

    def run(self, data=None, rank=0, world_size=1):
        raise UnpicklableError("No", "bucket")


class UnpicklableError(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} {two}")


class Dies(PipelineStep):
    type, name = "Test", "dies"

    def run(self, data=None, rank=0, world_size=1):
        os.write(2, b"Out of memory.")
        os._exit(1)


@pytest.mark.slow
def test_job_ending_before_its_tasks_raises(cluster, tmp_path):
    log = str(tmp_path / "log")
    path = f"export PATH={cluster}/bin:$PATH"  # otherwise the job's environment would set PATH
    executor = executors.slurm([Fails()], 2, log, None, partition="cpu", command=path)
    with refuses(ValueError, "1", "2"):
        executors.run_tasks(executor, lambda tasks: None)


@pytest.mark.slow
def test_failed_tasks_and_dead_workers_raise(tmp_path):
    def run(block, name):
        done = []
        executor = executors.local([block()], 2, str(tmp_path / name), 2)
        executors.run_tasks(executor, done.append)

    with refuses(ValueError, "Task 1"):
        run(Fails, "fails")
    with refuses(ValueError, "UnpicklableError", "No", "bucket"):
        run(RaisesUnpicklableError, "unpicklable")
    with refuses(ValueError, "--workers"):
        run(Dies, "dies")
    assert "Out of memory." in (tmp_path / "dies" / "workers.log").read_text()


@pytest.mark.slow
def test_too_long_tmpdir_is_reported(tmp_path):
    planted.write_raw(tmp_path / "raw.jsonl")
    long_path = tmp_path / ("d" * 60) / ("d" * 60)
    long_path.mkdir(parents=True)
    ended = subprocess.run(
        planted.command(*planted.arguments(str(tmp_path / "raw.jsonl"), tmp_path / "out")),
        cwd=ROOT,
        env=environment(TMPDIR=str(long_path)),
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 2 and "Traceback" not in ended.stderr
    assert f"TMPDIR={long_path}" in ended.stderr and "TMPDIR=/tmp" in ended.stderr


MODULES = ("jax", "numpy", "json", "threading", "multiprocessing", "datatrove", "loguru")
START = """
from pretrax.preprocessing import executors
if __name__ == "__main__":
    executors.run_tasks(executors.local([], 2, "log", 2), lambda tasks: None)
"""


@pytest.mark.slow
def test_workers_do_not_import_from_current_folder(tmp_path):
    current_folder = tmp_path / "here"
    current_folder.mkdir()
    for name in MODULES:
        (current_folder / f"{name}.py").write_text(
            f"open('{name}.imported', 'w')\nraise SystemExit(1)\n"
        )
    (tmp_path / "start.py").write_text(START)  # in another folder, like the command
    program = [sys.executable, str(tmp_path / "start.py")]
    subprocess.run(program, cwd=current_folder, check=True, timeout=100)
    assert not [*current_folder.glob("*.imported")] and [
        *(current_folder / "log").glob("completions/*")
    ]
