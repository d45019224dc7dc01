"""The README's examples run as they are written."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path("README.md").read_text()
FEW_STEPS = ["--gin.STEPS=2", "--gin.training.Run.heldout_tokens=600"]
SMALL = ["--gin.training.Run.batch_size=4", "--gin.optimizers.warmup_cosine.warmup_steps=1"]


def write_example(name: str, directory: Path) -> Path:
    """Writes the README's block that opens with the comment `# name`."""
    blocks = re.findall(r"^```\w*\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    (block,) = [b for b in blocks if b.startswith(f"# {name}\n")]
    path = directory / name
    path.write_text(block)
    return path


def train(directory: Path, *arguments: str) -> str:
    flags = "--xla_backend_optimization_level=0"
    finished = subprocess.run(
        [sys.executable, "train.py", *arguments, *FEW_STEPS, *SMALL]
        + [f"--gin.RUN_DIR='{directory}/run'"],
        env=os.environ | {"PYTHONPATH": str(directory), "XLA_FLAGS": flags},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    assert "Done." in finished.stdout
    return finished.stdout


def test_an_objective_in_a_file_of_ones_own(tmp_path):
    write_example("my_objectives.py", tmp_path)
    run = write_example("my_run.gin", tmp_path)
    train(tmp_path, f"--gin_file={run}")


def test_the_objectives_alone(tmp_path):
    path = write_example("my_loop.py", tmp_path)
    said = (
        "\nprint({name: x.shape for name, x in batch.items()})"
        "\nimport sys; assert not {'gin', 'tensorflow', 'flax'} & sys.modules.keys()"
    )
    finished = subprocess.run(
        [sys.executable, "-c", path.read_text() + said], capture_output=True, text=True, timeout=300
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    assert "'inputs': (8, 513)" in finished.stdout, finished.stdout


def test_a_task_in_a_file_of_ones_own(tmp_path):
    tasks = write_example("my_tasks.py", tmp_path)
    for name, lines in (("train.txt", 400), ("heldout.txt", 40)):
        text = "".join(f"Line {i} says that {i} and {i} are {2 * i}.\n" for i in range(lines))
        (tmp_path / name).write_text(text)
        tasks.write_text(tasks.read_text().replace(f'"{name}"', f'"{tmp_path / name}"'))
    output = train(
        tmp_path,
        "--gin_file=gin_configs/runs/own_task.gin",
        # One denoiser in place of seven, and rows of one shape.
        "--gin_file=gin_configs/objectives/span_corruption.gin",
        "--gin.training.Run.sequence_lengths={'encoder': 64, 'decoder': 64}",
        f"--gin.MODULE='{tasks}'",
        "--gin.MIXTURE_OR_TASK_NAME='my_text'",
    )
    assert "my_text" in output


def test_objectives_as_seqio_tasks(tmp_path):
    tasks, objectives = (
        write_example(name, tmp_path) for name in ("my_tasks.py", "my_objective_tasks.py")
    )
    (tmp_path / "train.txt").write_text("Some lines of text.\n" * 100)
    tasks.write_text(tasks.read_text().replace('"train.txt"', f'"{tmp_path / "train.txt"}"'))
    lengths = '{"inputs": 64, "targets": 32}'
    program = (
        "import seqio, my_objective_tasks\n"
        f'spans = seqio.get_mixture_or_task("my_spans").get_dataset({lengths}, "train")\n'
        'masks = seqio.get_mixture_or_task("my_masks").get_dataset({"inputs": 64}, "train")\n'
        "print(sorted(next(iter(spans))), sorted(next(iter(masks))))"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.getcwd()])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    assert finished.stdout.startswith(
        "['inputs', 'targets'] ['inputs', 'inputs_segments', 'labels'"
    )
    assert objectives.exists()


def test_a_model_in_a_file_of_ones_own(tmp_path):
    write_example("my_models.py", tmp_path)
    run = write_example("my_model_run.gin", tmp_path)
    train(tmp_path, f"--gin_file={run}")


@pytest.mark.parametrize("path", re.findall(r"gin_configs/\w+/\w+\.gin", README))
def test_gin_files_that_the_readme_names_exist(path):
    assert Path(path).is_file()
