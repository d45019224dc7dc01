"""The start scripts of launch/, with stand-ins for gcloud, Slurm and the environment."""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib

import pytest
import yaml

from pretrax.settings.command_line import add_gin_arguments, parse_with_gin
from pretrax.settings.run_directory import check_place, checkpoints
from pretrax.training import Run
from pretrax.training.run_configuration import run_in
from tests.launchers import stand_in
from tests.refusals import refuses
from tests.training.tiny import ROOT

HAVING_ENVIRONMENTS = ("Dockerfile", "sky.sh", "tpu_vm.sh")
TRAIN = ["train", "--gin_file=runs/decoder.gin", "--files=data/my texts/*.txt"]


def run_script(folder, command: list[str], **settings: str) -> tuple[list[str], int]:
    """Runs a script with the stand-ins of a folder, and returns their log and its status."""
    notes = folder / "notes"
    notes.unlink(missing_ok=True)
    path = f"{folder}:{os.environ['PATH']}"
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PATH": path, "NOTES": str(notes), "FOLDER": str(folder), **settings},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=60,
    )
    return notes.read_text().splitlines() if notes.exists() else [], done.returncode


@pytest.mark.slow
def test_command_reaches_every_host_unchanged(tmp_path):
    stand_in(tmp_path, "gcloud", "")
    script = f"{ROOT}/launch/tpu_vm.sh"
    calls, status = run_script(tmp_path, [script, "start", "mine", "zone", "v5p-64", *TRAIN])
    assert status == 0 and "<create> <mine>" in calls[0] and "<--spot>" not in calls[0]
    assert "<scp>" in calls[1]
    (begins,) = (call for call in calls if "nohup" in call)
    assert "<--worker=all>" in begins
    typed = re.search(r"bin/pretrax (.*) >> ~", begins)
    assert typed
    words = subprocess.check_output(["bash", "-c", f"printf '%s\\n' {typed[1]}"], text=True)
    assert words.splitlines() == TRAIN


@pytest.mark.slow
def test_dry_run_calls_no_cloud_command(tmp_path):
    stand_in(tmp_path, "gcloud", "exit 1")
    start = [f"{ROOT}/launch/tpu_vm.sh", "keep", "mine", "zone", "v5p-64", *TRAIN]
    assert run_script(tmp_path, start, DRY_RUN="1") == ([], 0)


def test_no_machine_is_created_without_a_pretrax_to_send(tmp_path):
    """`keep` would create a machine and delete it again every minute."""
    stand_in(tmp_path, "gcloud", "")
    keep = [f"{ROOT}/launch/tpu_vm.sh", "keep", "mine", "zone", "v5p-64", *TRAIN]
    calls, status = run_script(tmp_path, keep, EVERY="0.1", PRETRAX=str(tmp_path))
    assert calls == [] and status == 1


@pytest.mark.slow
def test_preempted_spot_machine_is_recreated(tmp_path):
    """A failed query proves nothing. At the second query the machine is gone.

    At the third query the stand-in ends the script.
    """
    body = """case "$*" in
*describe*) echo >> "$FOLDER/looks"
    case $(wc -l < "$FOLDER/looks") in 1) echo "no network"; exit 1 ;; *) echo PREEMPTED ;; esac ;;
*create*) echo >> "$FOLDER/tries"
    case $(wc -l < "$FOLDER/tries") in 2) exit 1 ;; 3) kill "$PPID" ;; esac ;;
esac"""
    stand_in(tmp_path, "gcloud", body)
    keep = [f"{ROOT}/launch/tpu_vm.sh", "keep", "mine", "zone", "v5p-64", *TRAIN]
    calls, _ = run_script(tmp_path, keep, EVERY="0.1")
    did = [re.findall(r"<(create|scp|ssh|describe|delete)>", call) for call in calls]
    did = [one[0] for one in did if one]  # Commands of several lines have further lines.
    first = ["create", "scp", "ssh", "ssh", "describe", "describe", "delete"]
    assert did == [*first, "create", "delete", "create"]
    assert all("<--spot>" in call for call in calls if "<create>" in call)


def test_too_few_arguments_print_the_usage(tmp_path):
    for words in ([], ["start", "mine", "zone"], ["begin", "mine", "zone", "v5p-64"]):
        assert run_script(tmp_path, [f"{ROOT}/launch/tpu_vm.sh", *words]) == ([], 2)


def test_slurm_script_without_double_dashes_prints_the_usage(tmp_path):
    stand_in(tmp_path, "srun", "")
    for words in ([], ["--nodes=2", *TRAIN]):
        assert run_script(tmp_path, [f"{ROOT}/launch/slurm.sh", *words], SLURM_JOB_ID="") == ([], 2)


def test_slurm_job_runs_one_process_per_gpu(tmp_path):
    stand_in(tmp_path, "srun", "exit 3")
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/activate").write_text("")
    job = ["bash", "-c", f'cd "{tmp_path}" && exec "{ROOT}/launch/slurm.sh" "$@"', "job", *TRAIN]
    node = dict(SLURM_JOB_ID="1", SLURM_GPUS_ON_NODE="8", SLURM_CPUS_ON_NODE="96")
    ((call,), status) = run_script(tmp_path, job, **node)
    assert status == 3  # the status of the run
    asked = "".join(f" <{word}>" for word in ["pretrax", *TRAIN])
    assert "<--ntasks-per-node=8> <--cpus-per-task=12>" in call and asked in call
    assert call.endswith("<--gin.training.Run.distributed=True>")


def test_srun_commands_set_the_cpus_of_a_task():
    """By default, srun gives each process one CPU for JAX, its rows and its checkpoints."""
    docs = "\n".join(path.read_text() for path in ROOT.glob("docs/*.md"))
    (call,) = re.findall(r"^srun (?:.*\\\n)*.*", docs, re.MULTILINE)
    (words,) = re.findall(r"\(srun [^)]*\)", (ROOT / "launch/slurm.sh").read_text())
    assert "--cpus-per-task=" in call and "--cpus-per-task=" in words


def test_slurm_job_at_its_time_limit_saves_and_requeues(tmp_path):
    """The batch shell gets USR1, and scancel sends SIGTERM to the processes but not to srun."""
    stand_in(
        tmp_path,
        "srun",
        'touch "$FOLDER/began"; while [ ! -e "$FOLDER/told" ]; do sleep 0.05; done',
    )
    stand_in(tmp_path, "scancel", 'touch "$FOLDER/told"')
    stand_in(tmp_path, "scontrol", "")
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/activate").write_text("")
    script = f'cd "{tmp_path}" && exec "{ROOT}/launch/slurm.sh" "$@"'
    up = 'while [ ! -e "$FOLDER/began" ]; do sleep 0.05; done; kill -USR1 $$'
    job = ["bash", "-c", f"({up}) & {script}", "job", *TRAIN]
    calls, status = run_script(tmp_path, job, SLURM_JOB_ID="17")
    assert status == 0 and [call.split()[0] for call in calls] == ["srun", "scancel", "scontrol"]
    assert calls[1:] == ["scancel <--signal=TERM> <17>", "scontrol <requeue> <17>"]


@pytest.mark.slow
def test_skypilot_run_is_stored_in_the_bucket(tmp_path):
    """The whole run is there, since the disks of spot machines are lost."""
    copying = 'case $word in --workdir=*) cp "${word#--workdir=}"/*.sh "$FOLDER" ;; esac'
    stand_in(tmp_path, "sky", f'for word in "$@"; do {copying}; done')
    words = ["jobs", "launch", "--", "train", "--gin_file=runs/decoder.gin"]
    start = [f"{ROOT}/launch/sky.sh", *words, "--gin.mesh.make_mesh.data=-1"]
    for bucket in ("", "runs/mine"):
        assert run_script(tmp_path, start, BUCKET=bucket) == ([], 2)
    ((call,), status) = run_script(tmp_path, start, BUCKET="gs://bucket/run")
    assert status == 0 and call.startswith("sky <jobs> <launch> <--workdir=")
    typed = re.search(r"bin/pretrax (.*)", (tmp_path / "run.sh").read_text())
    assert typed
    command, *arguments = shlex.split(typed[1])
    _, given = parse_with_gin(made_for(command), arguments, Run)
    run = run_in(given.reader())
    assert checkpoints(run.run_dir, run.checkpoint_dir) == "gs://bucket/run/checkpoints"
    with refuses(ValueError, "s3://bucket/run", "gs://"):
        check_place("s3://bucket/run")
    setup = (tmp_path / "setup.sh").read_text()
    assert "gcsfs" in setup and "s3fs" not in setup  # Checkpoints need gcsfs.
    sky = yaml.safe_load((ROOT / "launch/sky.yaml").read_text())
    assert (sky["setup"], sky["run"]) == ("bash setup.sh", "bash run.sh")


def made_for(command: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(command)
    add_gin_arguments(parser)
    return parser


def test_launch_environments_agree_on_python_and_jax_versions():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    jax = re.search(r'COMPILE = \["jax==0\.(\d+)\.', (ROOT / "setup.py").read_text())[1]
    image, sky, tpu = ((ROOT / "launch" / name).read_text() for name in HAVING_ENVIRONMENTS)
    version = re.search(r"^FROM python:([\d.]+)-slim$", image, re.MULTILINE)[1]
    assert f"Programming Language :: Python :: {version}" in project["classifiers"]
    assert f"--python {version} " in sky and f"--python {version} " in tpu
    for text in (image, sky, tpu):
        assert re.findall(r"jax[^ ]*<0\.(\d+)", text) == [str(int(jax) + 1)]


@pytest.mark.parametrize(
    "accelerator, asked", [("", "<jax<0.11>"), ("cuda12", "<jax[cuda12]<0.11>")]
)
def test_image_installs_extras_and_jax_for_an_accelerator(accelerator, asked, tmp_path):
    stand_in(tmp_path, "pip", "")
    (command,) = re.findall(r"^RUN (.*)$", (ROOT / "launch/Dockerfile").read_text(), re.MULTILINE)
    settings = {"ACCELERATOR": accelerator, "EXTRAS": "[seqio]"}
    expected = f"pip <install> <--no-cache-dir> </opt/pretrax[seqio]> {asked}"
    assert run_script(tmp_path, ["sh", "-c", command], **settings) == ([expected], 0)


def only(tmp_path, *commands: str) -> str:
    """Makes a PATH with these commands, this Python, and the stand-ins of a folder."""
    (tmp_path / "python3").symlink_to(sys.executable)
    for name in commands:
        (tmp_path / name).symlink_to(shutil.which(name))
    return str(tmp_path)


def test_newest_python_is_found_by_pyenv_or_as_a_command(tmp_path):
    """Without a newer Python, nothing is checked, and a message says so."""
    tools = "bash", "dirname", "env", "grep", "mktemp", "rm", "sort", "tail"
    path, notes = only(tmp_path, *tools), tmp_path / "notes"
    old, new = tmp_path / "root/versions/3.8.18/bin", tmp_path / "root/versions/3.98.0/bin"
    stand_in(tmp_path, "pyenv", f'echo "{tmp_path}/root"')
    for folder in (old, new):
        folder.mkdir(parents=True)
    stand_in(old, "python3", "echo 3.8.18")
    stand_in(tmp_path, "python3.7", "echo not installed >&2; exit 127")
    stand_in(tmp_path, "python3.99", "echo 3.99.0a1")

    def newest() -> subprocess.CompletedProcess:
        notes.write_text("")
        env = {**os.environ, "PATH": path, "NOTES": str(notes), "TMPDIR": str(tmp_path)}
        return subprocess.run([ROOT / ".ci/newest"], env=env, capture_output=True, text=True)

    done = newest()
    assert done.returncode == 0, done.stderr
    assert re.match(r"newest: no Python is newer than 3\.\d+\.\d+, so nothing", done.stdout)
    for folder, name, version in (new, "python3", "3.98.0"), (tmp_path, "python3.100", "3.100.0"):
        stand_in(folder, name, f'if [ "$1" = -m ]; then exit 5; fi; echo {version}')
        assert newest().returncode == 5
        assert notes.read_text().splitlines()[-1].startswith(f"{name} <-m> <venv>")
