"""The wheel: one top-level name, and the quickstart from an empty folder."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import jax
import pytest

from tests.training import tiny

LOG = "build.log"  # next to the wheel
WHERE = """
import pretrax.cli.train
print(pretrax.cli.train.__file__)
print(pretrax.train.__module__)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Builds a wheel from a copy of the tracked files, as a user's pip would."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    tracked = subprocess.check_output(["git", "ls-files", "-z"], cwd=tiny.ROOT, text=True)
    for name in filter(None, tracked.split("\0")):
        if (tiny.ROOT / name).is_file() and not name.startswith("tests/"):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((tiny.ROOT / name).read_bytes())
    build = [sys.executable, "-m", "pip", "wheel", "--verbose", "--no-deps", "-w", str(folder)]
    with open(folder / LOG, "w") as log:
        subprocess.run([*build, str(source)], check=True, stdout=log, stderr=log)
    (path,) = folder.glob("*.whl")
    return path


@pytest.mark.slow
def test_wheel_holds_one_package_with_the_gin_files(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"pretrax", f"pretrax-{wheel.name.split('-')[1]}.dist-info"}
    assert not {"pretrax/setup.py", "pretrax/train.py"} & set(names)
    assert not any(name.startswith(("pretrax/tests/", "pretrax/examples/")) for name in names)
    gin_files = {str(p.relative_to(tiny.ROOT)) for p in tiny.ROOT.glob("gin_configs/*/*.gin")}
    assert {"pretrax/py.typed", *(f"pretrax/{name}" for name in gin_files)} <= set(names)
    sources = {
        "__init__.py",
        "__init__.pyi",
        "__main__.py",
        "cli/train.py",
        "objectives/contract.py",
        "models/hugging_face/bert.py",
    }
    assert {f"pretrax/{name}" for name in sources} <= set(names)


@pytest.mark.slow
def test_setuptools_treats_gin_folders_as_packages(wheel):
    """setuptools warns of folders that are not packages, and may exclude them in the future."""
    log = (wheel.parent / LOG).read_text()
    assert "gin_configs/runs/quickstart.gin" in log and "would be ignored" not in log


@pytest.mark.slow
def test_wheel_runs_the_quickstart_from_an_empty_folder(wheel, tmp_path):
    """The separate environment shares this environment's dependencies, but not its checkout."""
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False, symlinks=True)
    paths = {"base": str(environment), "platbase": str(environment)}
    packages = Path(sysconfig.get_path("purelib", vars=paths))
    # A plain path, so that .pth files in that folder are not read. One of them finds this checkout.
    (packages / "dependencies.pth").write_text(f"{Path(jax.__file__).parent.parent}\n")
    python = environment / "bin" / "python"
    install = ["--python", python, "install", "--quiet", "--no-deps", "--force-reinstall", wheel]
    subprocess.run([sys.executable, "-m", "pip", *install], check=True)
    empty = tmp_path / "empty"
    empty.mkdir()
    steps = ["--gin.STEPS=2", "--gin.optimizers.warmup_cosine.warmup_steps=1"]
    small = ["--gin.training.Run.heldout_tokens=600", "--gin.training.Run.batch_size=4"]
    small += ["--gin.training.Run.sequence_lengths={'encoder': 128, 'decoder': 64}"]
    # One of the seven denoisers.
    small += ["--gin.training.Run.objective=@objectives.span_corruption"]
    small += [
        f"--gin.models.encoder_decoder.num_{stack}_layers=1" for stack in ("encoder", "decoder")
    ]
    small += ["--gin.models.encoder_decoder.scan_layers=False"]
    small += ["--gin.models.encoder_decoder.remat_policy='none'"]
    ended = subprocess.run(
        [environment / "bin" / "pretrax", "train", *steps, *small],
        cwd=empty,
        env=tiny.environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert "Done. runs/quickstart holds" in ended.stdout
    assert os.listdir(empty) == ["runs"]
    where = [python, "-c", WHERE]
    found = subprocess.check_output(where, cwd=empty, env=tiny.environment(), text=True)
    file, module = found.splitlines()
    assert file.startswith(str(environment)) and module == "pretrax.training.trainer"
