"""A user's own modules and gin files reach the hosts that the scripts of launch/ start.

The stand-ins for gcloud, sky and sbatch run the given commands with a folder of each host as the
home directory. Modules are therefore searched where the command runs.
"""

import json
import os
import re
import subprocess
import sys
import time
import zipfile

import pytest

from tests.launchers import stand_in
from tests.training.tiny import ROOT

COMMAND = (
    "train",
    "--gin_file=my_run.gin",
    "--module=['tasks/my_tasks.py', 'my_mixture']",
    "--files=data/my texts/*.txt",
    """--gin.note=it's "quoted" $HOME""",
)
# A stand-in for `pretrax` that imports the given modules from its working directory.
IMPORTS_MODULES = """
import ast, importlib, json, os, runpy, sys
sys.path.append(os.getcwd())
for word in sys.argv[1:]:
    name, _, value = word.partition("=")
    if name == "--gin_file":
        open(value).close()
    if name == "--module":
        for module in ast.literal_eval(value):
            runpy.run_path(module) if module.endswith(".py") else importlib.import_module(module)
print(json.dumps([os.getcwd(), sys.argv[1:]]), flush=True)
"""


@pytest.fixture
def project(tmp_path):
    """A folder with modules that import each other, gin files that include others, and data."""
    folder = tmp_path / "my project"
    files = {
        "my_run.gin": 'include "configs/mine.gin"\ninclude "runs/own_task.gin"\n',
        "configs/mine.gin": '# include "none.gin"\ninclude "steps.gin"\n',
        "configs/steps.gin": "STEPS = 2\n",
        "tasks/my_tasks.py": "import helpers\n\nhelpers.register()\n",
        "helpers.py": "def register():\n    pass\n",
        "my_mixture.py": "import helpers\n",
        "data/my texts/a.txt": "A text.\n",
        ".env": "SECRET=1\n",
        ".git_not/config": "",
        "runs/mine/config.gin": "",
        "runs/mine/run_id": "",
        "environment/pyvenv.cfg": "",
        "environment/lib/module.py": "",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    with open(folder / "data/large.txt", "wb") as file:
        file.truncate(11 << 20)
    return folder


@pytest.fixture
def clouds(tmp_path):
    """A folder of stand-ins for clouds of two hosts, with the homes `host0` and `host1`."""
    folder = tmp_path / "clouds"
    for host in ("host0", "host1"):
        (folder / host).mkdir(parents=True)
    (folder / "command.py").write_text(IMPORTS_MODULES)
    stand_in(folder, "pretrax", f'exec "{sys.executable}" "{folder}/command.py" "$@"')
    stand_in(
        folder,
        "uv",
        f"""[ "$1" = pip ] || exit 0
ls -d pretrax* > /dev/null || exit 1
mkdir -p ~/environment/bin; cp "{folder}/pretrax" ~/environment/bin/""",
    )
    stand_in(folder, "curl", f"echo \"mkdir -p ~/.local/bin; cp '{folder}/uv' ~/.local/bin/uv\"")
    each = f'for home in "{folder}"/host?; do'
    stand_in(
        folder,
        "gcloud",
        f"""verb=$4
for word in "$@"; do case $word in --command=*) command=${{word#--command=}} ;; esac; done
case $verb in
scp) {each} cp "$5" "$home/"; done ;;
ssh) {each} (cd "$home" && HOME=$home bash -c "$command"); done ;;
esac""",
    )
    stand_in(
        folder,
        "sky",
        f"""for word in "$@"; do
case $word in --workdir=*) workdir=${{word#--workdir=}} ;; esac
done
{each} export HOME=$home; cp -r "$workdir" ~/sky_workdir; cd ~/sky_workdir
bash setup.sh && bash run.sh > ~/pretrax.log; done""",
    )
    # Like sbatch, it runs a copy of the script in a folder without pack.py.
    stand_in(
        folder,
        "sbatch",
        f"""while [[ $1 == --* ]]; do shift; done
mkdir -p "{folder}/spool"; cp "$1" "{folder}/spool/slurm_script"; shift
SLURM_JOB_ID=1 SLURM_GPUS_ON_NODE=2 SLURM_CPUS_ON_NODE=4 "{folder}/spool/slurm_script" "$@" """,
    )
    stand_in(
        folder,
        "srun",
        f"""while [[ $1 == --* ]]; do shift; done
{each} "$@" > "$home/pretrax.log"; done""",
    )
    return folder


def launched(script: str, *words: str, at, clouds, **settings: str) -> subprocess.CompletedProcess:
    path = f"{clouds}:{os.environ['PATH']}"
    notes = str(clouds / "notes")
    return subprocess.run(
        [str(ROOT / "launch" / script), *words],
        cwd=at,
        env={**os.environ, "PATH": path, "NOTES": notes, **settings},
        capture_output=True,
        text=True,
        timeout=60,
    )


def executed_commands(clouds) -> list[tuple[str, list[str]]]:
    """Returns the folder and the arguments of the command on each host after it has run."""
    logs = [clouds / host / "pretrax.log" for host in ("host0", "host1")]
    end = time.monotonic() + 20
    while not all(log.exists() and log.read_text().endswith("\n") for log in logs):
        assert time.monotonic() < end, [log.exists() and log.read_text() for log in logs]
        time.sleep(0.05)
    return [tuple(json.loads(log.read_text())) for log in logs]


SCRIPTS = {
    "tpu_vm.sh": ("start", "mine", "zone", "v5p-64"),
    "sky.sh": ("launch", "--cloud", "gcp", "--"),
    "slurm.sh": ("--nodes=2", "--"),
}
ONE_OF_CLOUDS = ["tpu_vm.sh", pytest.param("sky.sh", marks=pytest.mark.slow)]
ONE_OF_SCRIPTS = [*ONE_OF_CLOUDS, pytest.param("slurm.sh", marks=pytest.mark.slow)]
ADDED = {
    "tpu_vm.sh": [],
    "sky.sh": ["--run_dir=gs://bucket/run"],
    "slurm.sh": ["--gin.training.Run.distributed=True"],
}


@pytest.fixture
def launch(project, clouds):
    """Starts a script with a command of pretrax, which must succeed, and returns the output."""

    def start(script: str, *command: str, at=project, succeeds=True, **settings: str) -> str:
        words = (*SCRIPTS[script], *command)
        settings = {"BUCKET": "gs://bucket/run", **settings}
        done = launched(script, *words, at=at, clouds=clouds, **settings)
        assert (done.returncode == 0) == succeeds and "Traceback" not in done.stderr, done.stderr
        return done.stderr

    return start


@pytest.fixture
def launch_rejected(launch, clouds):
    """Returns the output of a script that must reject a command without calling the cloud."""

    def start(script: str, *command: str, **settings: str) -> str:
        output = launch(script, *command, succeeds=False, **settings)
        assert not (clouds / "notes").exists()
        return output

    return start


@pytest.mark.sampled
@pytest.mark.parametrize("script", SCRIPTS)
def test_user_modules_are_found_on_every_host(script, project, clouds, launch):
    (project / ".venv/bin").mkdir(parents=True)
    (project / ".venv/bin/activate").write_text("")
    launch(script, *COMMAND, EXTRAS="[seqio]")
    shared = script == "slurm.sh"
    homes = [clouds / "host0", clouds / "host1"]
    folders = [str(project if shared else home / "project") for home in homes]
    assert executed_commands(clouds) == [(folder, [*COMMAND, *ADDED[script]]) for folder in folders]
    installs = [line for line in (clouds / "notes").read_text().splitlines() if "<pip>" in line]
    assert len(installs) == (0 if shared else 2)
    assert all("<./pretrax[seqio]>" in line and "<gcsfs>" in line for line in installs)
    if not shared:
        sent = {str(p.relative_to(homes[1] / "project")) for p in (homes[1] / "project").rglob("*")}
        assert {"helpers.py", "configs/steps.gin", "data/my texts/a.txt"} <= sent
        assert not sent & {".env", "runs/mine", "environment", "data/large.txt"}
        assert (homes[1] / "pretrax/gin_configs/runs/own_task.gin").is_file()
        assert not (homes[1] / "pretrax/tests").exists()


@pytest.mark.sampled
@pytest.mark.parametrize("script", SCRIPTS)
def test_dry_run_lists_sent_files_installs_and_commands(script, project, clouds, launch):
    shown = launch(script, *COMMAND, "--store=data/large.txt", EXTRAS="seqio", DRY_RUN="1")
    assert not (clouds / "notes").exists()
    assert "tasks/my_tasks.py" in shown and "configs/steps.gin" in shown
    assert "pretrax[seqio]" in shown and "--gin_file=my_run.gin" in shown
    if script == "slurm.sh":
        assert str(project) in shown and "+ srun" in shown
        return
    assert "helpers.py" in shown and "cd ~/project" in shown
    assert "runs/mine (a run directory)" in shown and "data/large.txt (11.0 MB" in shown
    assert "environment (a Python environment)" in shown and ".env" not in shown
    assert "names data/large.txt" in shown and "names data/my texts" not in shown


MISSING = [
    ("--module=none.py", "none.py"),
    ("--gin_file=none.gin", "none.gin"),
    ("--module=['tasks/my_tasks.py', 'none.py']", "none.py"),
    ("--gin_bindings=MODULE = 'none.py'", "none.py"),
    ("--gin_file=bad.gin", "absent.gin"),
    ("--module=absent_module", "absent_module"),
]


# All scripts call the same program, so one script is enough for most rejections.
@pytest.mark.parametrize(
    "script, word, named",
    [
        *(("tpu_vm.sh", *case) for case in MISSING),
        pytest.param("sky.sh", *MISSING[0], marks=pytest.mark.slow),
        pytest.param("slurm.sh", *MISSING[0], marks=pytest.mark.slow),
    ],
)
def test_missing_file_is_rejected_before_any_cloud_call(
    script, word, named, project, launch_rejected
):
    (project / "bad.gin").write_text('include "absent.gin"\n')
    assert named in launch_rejected(script, *COMMAND, word)


@pytest.mark.parametrize("script", ONE_OF_SCRIPTS)
@pytest.mark.parametrize("words", [["trian", "--gin_file=my_run.gin"], ["--gin_file=my_run.gin"]])
def test_unknown_subcommand_is_rejected(script, words, launch_rejected):
    output = launch_rejected(script, *words)
    assert "evaluate" in output and "train" in output


@pytest.mark.slow
@pytest.mark.parametrize("script", ONE_OF_CLOUDS)
def test_modules_and_extras_that_hosts_lack_are_rejected(
    script, project, tmp_path, launch_rejected
):
    (tmp_path / "outside.py").write_text("")
    inside = project / "helpers.py"
    for word, named in [
        ("--module=../outside.py", "../outside.py"),
        (f"--module={inside}", str(inside)),
        ("--module=no_such_module", "no_such_module"),
    ]:
        assert named in launch_rejected(script, "train", word)
    assert "'sequio'" in launch_rejected(script, *COMMAND, EXTRAS="[sequio]")


@pytest.mark.parametrize("script", ONE_OF_CLOUDS)
@pytest.mark.parametrize(
    "words",
    [
        ("--gin_file={folder}/my_run.gin",),
        ("--gin_search_paths={folder}/configs", "--gin_file=mine.gin"),
        ("--gin_file=includes.gin",),
    ],
)
def test_absolute_paths_of_gin_files_are_rejected(script, words, project, launch_rejected):
    (project / "includes.gin").write_text(f'include "{project}/my_run.gin"\n')
    words = [word.format(folder=project) for word in words]
    assert str(project) in launch_rejected(script, "train", *words)


@pytest.mark.slow
@pytest.mark.parametrize("script", ONE_OF_SCRIPTS)
def test_python_file_names_in_other_settings_need_not_exist(script, project, launch):
    """Only settings of modules must name existing files."""
    (project / "code.gin").write_text(
        "FILES = 'data/**/*.py'\nMODULE = 'helpers.py'  # or 'none.py'\n"
    )
    words = (
        "--files=data/**/*.py,more/*.py",
        "--heldout_files=gs://my-bucket/code/*.py",
        "--prompt=How do I run main.py",
        "--gin_file=code.gin",
    )
    assert "helpers.py" in launch(script, "train", *words, DRY_RUN="1")


@pytest.mark.slow
def test_uncommitted_files_are_sent_and_ignored_ones_only_if_named(project, clouds, launch):
    (project / ".gitignore").write_text("runs/\nsecret.py\nmy_mixture.py\n*.pem\n")
    (project / "secret.py").write_text("")
    (project / "key.pem").write_text("")
    subprocess.run(["git", "init", "-q", "."], cwd=project, check=True)
    launch("tpu_vm.sh", *COMMAND)
    executed_commands(clouds)
    sent = {p.name for p in (clouds / "host0/project").rglob("*")}
    assert {"helpers.py", "my_mixture.py"} <= sent and not sent & {"secret.py", "key.pem", "runs"}


@pytest.mark.slow
def test_ignored_imports_of_a_named_module_are_sent(project, launch):
    (project / ".gitignore").write_text("ignored_*\n")
    (project / "ignored_helpers").mkdir()
    (project / "ignored_helpers/__init__.py").write_text("from . import deeper\n")
    (project / "ignored_helpers/deeper.py").write_text("import not_here_at_all\n")
    (project / "ignored_other.py").write_text("")
    (project / "imports.py").write_text("import json\nfrom ignored_helpers.deeper import x\n")
    subprocess.run(["git", "init", "-q", "."], cwd=project, check=True)
    output = launch("tpu_vm.sh", "train", "--module=imports.py", DRY_RUN="1")
    assert "ignored_helpers/__init__.py" in output
    assert "ignored_helpers/deeper.py" in output
    assert "ignored_other.py" not in output


@pytest.mark.slow
def test_folder_of_ignored_files_is_sent_only_if_the_folder_is_ignored(project, launch):
    for name, pattern in [("within", "*"), ("outer", "inner/")]:
        (project / name / "inner").mkdir(parents=True)
        (project / name / "inner/secret.txt").write_text("")
        (project / name / ".gitignore").write_text(pattern)
        subprocess.run(["git", "init", "-q", "."], cwd=project / name, check=True)
    sent = {}
    for folder in ("within", "outer/inner"):
        output = launch("tpu_vm.sh", "train", at=project / folder, DRY_RUN="1")
        sent[folder] = "secret.txt" in output
    assert sent == {"within": False, "outer/inner": True}


def test_unreadable_git_repository_is_rejected(project, launch_rejected):
    """Git then cannot report the files that it ignores, such as keys."""
    (project / ".git").mkdir()
    output = launch_rejected("tpu_vm.sh", *COMMAND)
    assert str(project) in output and "git" in output


@pytest.mark.slow
def test_file_name_that_is_not_utf8_is_sent(project, clouds, launch):
    name = os.fsdecode(b"caf\xe9.txt")
    (project / name).write_text("")
    subprocess.run(["git", "init", "-q", "."], cwd=project, check=True)
    launch("tpu_vm.sh", *COMMAND)
    executed_commands(clouds)
    assert (clouds / "host0/project" / name).exists()


@pytest.mark.slow
def test_unsent_data_is_reported_for_a_folder_with_special_characters(project, launch):
    folder = project.rename(project.parent / "mine [1]")
    output = launch("tpu_vm.sh", *COMMAND, "--store=data/large.txt", at=folder, DRY_RUN="1")
    assert "names data/large.txt" in output


@pytest.mark.slow
def test_wheel_is_sent_instead_of_a_checkout(project, clouds, tmp_path, launch):
    wheel = tmp_path / "pretrax-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("pretrax-0.1.0.dist-info/METADATA", "Name: pretrax\nProvides-Extra: seqio\n")
        file.writestr("pretrax/gin_configs/runs/own_task.gin", "")
        file.writestr("pretrax/cli/train.py", "")
    launch("tpu_vm.sh", *COMMAND, PRETRAX=str(wheel), EXTRAS="[seqio]")
    executed_commands(clouds)
    assert f"<./{wheel.name}[seqio]>" in (clouds / "notes").read_text()
    assert "PRETRAX" in launch("tpu_vm.sh", *COMMAND, PRETRAX=str(project), succeeds=False)


@pytest.mark.slow
def test_home_directories_and_large_projects_are_rejected(project, launch_rejected):
    link = project.parent / "link"
    link.symlink_to(project)
    for home in (project, link, project / "data"):
        assert str(project) in launch_rejected("tpu_vm.sh", *COMMAND, HOME=str(home))
    for i in range(11):
        with open(project / f"{i}.bin", "wb") as file:
            file.truncate(10 << 20)
    output = launch_rejected("tpu_vm.sh", *COMMAND)
    assert "110.0 MB" in output and "0.bin" in output


def test_slurm_script_rejects_an_environment_without_the_extras(tmp_path, launch_rejected):
    """A separate environment has a pretrax with an extra that is not installed."""
    site = tmp_path / "site"
    (site / "pretrax-9.dist-info").mkdir(parents=True)
    (site / "pretrax").mkdir()
    (site / "pretrax/__init__.py").write_text("")
    (site / "pretrax-9.dist-info/METADATA").write_text(
        "Name: pretrax\nVersion: 9\nProvides-Extra: seqio\n"
        'Requires-Dist: no-such-package>=1; extra == "seqio"\n'
    )
    output = launch_rejected("slurm.sh", "train", PYTHONPATH=str(site), EXTRAS="[seqio]")
    assert "no-such-package" in output


def test_image_runs_in_the_mounted_folder_with_all_extras():
    """All installations have the same extras, unless extras are given."""
    image = (ROOT / "launch/Dockerfile").read_text()
    docs = (ROOT / "docs/accelerators.md").read_text()
    mounted = re.findall(r'docker run .*-v "\$PWD:(\S+)"', image + docs)
    assert len(mounted) == 3 and set(mounted) == set(re.findall("^WORKDIR (.*)$", image, re.M))
    assert 'ARG EXTRAS="[all]"' in image
    for script in ("tpu_vm.sh", "sky.sh"):
        assert "${EXTRAS-[all]}" in (ROOT / "launch" / script).read_text()


# One layer, one objective and one shape of rows compile in a fraction of the quickstart's time.
QUICK_RUN = """
from __gin__ import dynamic_registration
from pretrax import models
from pretrax import training

include "runs/own_task.gin"
include "objectives/span_corruption.gin"

STEPS = 2
training.Run.batch_size = 8
training.Run.sequence_lengths = {"encoder": 64, "decoder": 64}
models.encoder_decoder.num_encoder_layers = 1
models.encoder_decoder.num_decoder_layers = 1
models.encoder_decoder.scan_layers = False
models.encoder_decoder.remat_policy = "none"
"""


@pytest.mark.slow
def test_user_seqio_task_trains_on_a_tpu_vm(project, clouds, launch):
    """The sent copy of pretrax trains on the sent task from its own folder."""
    pytest.importorskip("seqio")
    (project / "tasks/my_tasks.py").write_text(
        "import helpers\nimport seqio\n\n"
        "seqio.TaskRegistry.add(\n"
        '    "sent_text",\n'
        '    source=seqio.TextLineDataSource({"train": "a.txt", "validation": "a.txt"}),\n'
        "    preprocessors=[helpers.as_targets, seqio.preprocessors.tokenize],\n"
        "    output_features=\n"
        '        {"targets": seqio.Feature(seqio.ByteVocabulary(), add_eos=False)},\n'
        ")\n"
    )
    (project / "helpers.py").write_text(
        'def as_targets(lines):\n    return lines.map(lambda line: {"targets": line})\n'
    )
    (project / "a.txt").write_text("Some words of a text.\n" * 400)
    (project / "my_run.gin").write_text(QUICK_RUN)
    (clouds / "command.py").write_text(
        "import os, runpy, sys\n"
        "os.makedirs('../package', exist_ok=True)\n"
        "os.path.exists('../package/pretrax') or os.symlink('../pretrax', '../package/pretrax')\n"
        "sys.path.insert(0, os.path.abspath('../package'))\n"
        "runpy.run_module('pretrax', run_name='__main__', alter_sys=True)\n"
    )
    words = ("train", "--gin_file=my_run.gin", "--module=tasks/my_tasks.py")
    (clouds / "host1").rmdir()  # One host is enough.
    launch("tpu_vm.sh", *words, "--mixture_or_task_name=sent_text", PYTHONPATH="", XLA_FLAGS="")
    result = clouds / "host0/project/runs/own_task/result.json"
    log = clouds / "host0/pretrax.log"
    end = time.monotonic() + 240
    while not result.exists():
        assert time.monotonic() < end and "error:" not in log.read_text(), log.read_text()
        time.sleep(0.5)
