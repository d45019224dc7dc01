"""What imports what: one way, no verb, and no TensorFlow outside `tasks`."""

import ast
import functools
import json
import subprocess
import sys
import venv

import pytest

from pretrax import verbs
from pretrax.training.token_store_files import StoreWriter, seal
from tests.training import tiny
from tests.training.tiny import ROOT

PACKAGES = (
    *("objectives", "models", "training", "inference"),
    *("showing", "tasks", "comparing", "preparing"),
)
VERBS = tuple(verbs.VERBS)
MAY_IMPORT = {
    "objectives": {"objectives"},
    "models": {"models"},
    "training": {"training", "objectives", "models"},
    "inference": {"inference", "objectives", "models"},
    "showing": {"showing", "objectives"},
    "tasks": {"tasks", "training", "inference", "objectives", "models"},
    "comparing": {"comparing", "showing", "tasks", "training", "inference", "objectives", "models"},
    "preparing": {"preparing", "showing", "tasks", "training", "objectives", "models"},
}
# `train.train` is what trains a run, for whoever compares some.
MAY_IMPORT_VERBS = {"comparing": {"train"}}
HEAVY = ("tensorflow", "seqio", "tensorflow_datasets", "tensorflow_text", "tfds", "sentencepiece")
FILES = [f for package in PACKAGES for f in sorted((ROOT / package).rglob("*.py"))]


@functools.cache
def parsed(file):
    return ast.parse(file.read_text(encoding="utf-8"))


@functools.cache
def imported(file) -> set[str]:
    """The modules that a file imports anywhere, inside functions too: top-level names, and those of
    this project by what follows `pretrax.`"""
    modules = []
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file}: imports here are absolute"
            modules += [f"{node.module}.{alias.name}" for alias in node.names]
    return {name.removeprefix("pretrax.").partition(".")[0] for name in modules}


def test_own_modules_are_imported_as_pretrax():
    """In a checkout `import models` would work too, and make every class and cache a second time."""
    for file in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(parsed(file)):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            assert not {name.partition(".")[0] for name in names} & {*PACKAGES, *VERBS}, file


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(ROOT)))
def test_imports_run_one_way(file):
    package = file.relative_to(ROOT).parts[0]
    assert imported(file) & set(PACKAGES) <= MAY_IMPORT[package]
    assert imported(file) & set(VERBS) <= MAY_IMPORT_VERBS.get(package, set())
    if package != "tasks":
        assert not imported(file) & set(HEAVY)


def test_verbs_import_no_verb():
    for verb in (ROOT / f"{name}.py" for name in VERBS):
        if verb.exists():
            # its own name, where it runs itself through an import so that gin sees one module
            assert imported(verb) & set(VERBS) <= {verb.stem}


def test_there_are_files_to_look_at():
    assert len(FILES) > 20 and all((ROOT / p / "__init__.py").exists() for p in PACKAGES)


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(ROOT)))
def test_datatrove_is_for_preparing_alone(file):
    assert file.parent == ROOT / "preparing" or "datatrove" not in imported(file)


def modules_without_tasks() -> list[str]:
    files = [
        f for f in FILES if f.relative_to(ROOT).parts[0] not in ("tasks", "comparing", "preparing")
    ]
    names = [".".join(f.relative_to(ROOT).with_suffix("").parts) for f in files]
    return [f"pretrax.{name.removesuffix('.__init__')}" for name in [*names, "train"]]


def test_nothing_but_tasks_loads_tensorflow_and_the_verb_prepare_no_datatrove():
    program = (
        f"import sys, importlib\nfor name in {modules_without_tasks()}:\n"
        "    importlib.import_module(name)\n"
        f"print(sorted(set(sys.modules) & {set(HEAVY) | {'pretrax.tasks'}}))\n"
        "import pretrax.prepare\nprint('datatrove' in sys.modules)"
    )
    said = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=tiny.environment(),
        capture_output=True,
        text=True,
    )
    assert said.stdout == "[]\nFalse\n", said.stdout + said.stderr


# `train.py` where none of these packages can be found, once with each list of arguments.
WITHOUT = f"""
import json, sys
class Without:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, *more):
        absent = name.partition(".")[0] in {(*HEAVY, "datatrove")!r} or name == "pretrax.tasks"
        return None if absent else self.finder.find_spec(name, *more)
sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
try:
    import tensorflow
except ModuleNotFoundError:
    from pretrax import train
    for arguments in json.loads(sys.argv[1]):
        train.main(arguments)
"""


def assert_trained(run):
    assert [line["step"] for line in run.lines()] == [1, 2, 3, 4, 4]
    assert (run.dir / "loss.png").read_bytes().startswith(b"\x89PNG")
    (events,) = (run.dir / "tensorboard").iterdir()
    assert events.name.startswith("events.out.tfevents") and events.stat().st_size > 500
    assert (run.dir / "checkpoints" / "4").is_dir() and (run.dir / "config.gin").exists()


def run_on_a_token_store(tmp_path):
    for split, seed in (("train", 0), ("heldout", 1)):
        with StoreWriter(tmp_path / "store", split, 0, tiny.IDS) as writer:
            for document in tiny.documents(600, seed):
                writer.add(document)
    seal(tmp_path / "store", {"train": 1, "heldout": 1})
    run = tiny.Run(tmp_path / "of_store", str(tmp_path / "store"))
    for old, new in (
        ("from tests.training import tiny", "from pretrax.training import store_mixtures"),
        ("tiny.slow_token_array.path", "store_mixtures.token_store.stores"),
        ("tiny.slow_token_array", "store_mixtures.token_store"),
    ):
        run.config.write_text(run.config.read_text().replace(old, new))
    return run


def test_token_arrays_and_stores_are_trained_on_without_tensorflow(tmp_path):
    """Nor with datatrove, which writes stores."""
    array = tiny.Run(tmp_path / "of_array", tiny.write_array(tmp_path / "data"))
    runs = [array, run_on_a_token_store(tmp_path)]
    said = subprocess.run(
        [sys.executable, "-c", WITHOUT, json.dumps([run.arguments(STEPS=4) for run in runs])],
        cwd=ROOT,
        env=tiny.environment(),
        capture_output=True,
        text=True,
    )
    assert said.returncode == 0 and said.stdout.count("Done.") == 2, said.stdout + said.stderr
    for run in runs:
        assert_trained(run)


@pytest.mark.slow
def test_a_token_array_is_trained_on_in_an_environment_without_tensorflow(tmp_path):
    """A real one, with what setup.py lists for training and no more."""
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    for node in ast.parse((ROOT / "setup.py").read_text()).body:
        if isinstance(node, ast.Assign) and node.targets[0].id == "TRAINING":
            packages = ast.literal_eval(node.value)
    subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
    found = subprocess.run([python, "-c", "import tensorflow"], capture_output=True)
    assert found.returncode != 0
    (site,) = (environment / "lib").glob("python*/site-packages")
    (site / "pretrax").symlink_to(ROOT)  # as setup.py says that it lies there
    run = tiny.Run(tmp_path, tiny.write_array(tmp_path / "data"))
    end = subprocess.run(
        [python, "train.py", *run.arguments(STEPS=4)],
        cwd=ROOT,
        env=tiny.environment(),
        capture_output=True,
        text=True,
    )
    assert end.returncode == 0, end.stderr
    assert_trained(run)
