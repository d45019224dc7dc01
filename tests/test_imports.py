"""Imports go in one direction without cycles, and only `tasks` imports TensorFlow."""

import ast
import graphlib
import re
import subprocess
import sys
import venv
from collections import Counter
from importlib import metadata

import pytest
from packaging.requirements import Requirement

from pretrax import cli
from pretrax.data.token_store_files import StoreWriter, seal
from tests import import_graph
from tests.import_graph import MODULES, imported, modules_without_tasks, parsed, statements
from tests.training import tiny
from tests.training.tiny import ROOT

GROUND = "constraints.py"  # the module below all packages
# From the bottom to the top. A package may import earlier packages, except those named here.
PACKAGES = (
    *("settings", "models", "objectives", "data", "corpora", "visualization", "inference"),
    *("training", "tasks", "preprocessing", "comparison", "explorer", "cli"),
)
MAY_NOT_IMPORT = {
    "models": {"objectives"},
    "objectives": {"settings", "models"},
    "data": {"models"},
    "visualization": {"models", "corpora"},
    "inference": {"visualization"},
    "training": {"visualization"},
    "comparison": {"preprocessing"},
    "explorer": {"preprocessing"},
}
MAY_IMPORT = {GROUND: set()} | {
    package: set(PACKAGES[:i]) - MAY_NOT_IMPORT.get(package, set())
    for i, package in enumerate(PACKAGES)
}
HEAVY = ("tensorflow", "seqio", "tensorflow_datasets", "tensorflow_text", "tfds")
TOKENIZERS = ("sentencepiece",)
FILES = [*MODULES.values()]
FOLDERS = sorted({file.parent for file in FILES} - {ROOT})


def files_imported(file) -> set:
    """Returns the files of this project that a file imports."""
    return import_graph.files_imported(file, MODULES)


def tops(file) -> set[str]:
    """Returns the packages of this project and of others that a file imports."""
    return {name.removeprefix("pretrax.").partition(".")[0] for name in imported(file)}


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_within_the_package_are_relative(package):
    """Editors and other tools can then follow them in a checkout of any name."""
    for file in sorted((ROOT / package).rglob("*.py")):
        for node in statements(parsed(file)):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module]
            assert not {name.partition(".")[0] for name in names} & {"pretrax", *PACKAGES}, file


@pytest.mark.parametrize("package", PACKAGES)
def test_caches_are_bounded(package):
    """`functools.cache` keeps all values, so functions with arguments must use `lru_cache`."""
    for file in sorted((ROOT / package).rglob("*.py")):
        if "functools.cache" not in file.read_text():
            continue
        without_arguments = {
            id(decorator)
            for node in ast.walk(parsed(file))
            if isinstance(node, ast.FunctionDef) and not ast.unparse(node.args)
            for decorator in node.decorator_list
        }
        for node in ast.walk(parsed(file)):
            if isinstance(node, ast.Attribute) and ast.unparse(node) == "functools.cache":
                assert id(node) in without_arguments, f"{file}:{node.lineno}"


@pytest.mark.slow
def test_outside_files_import_through_the_pretrax_package():
    """In a checkout, `import models` would work, too, but create a second copy of everything."""
    folders = ".", "benchmarks", "examples"
    outside = {file for folder in folders for file in ROOT.glob(f"{folder}/*.py")}
    for file in outside | {*ROOT.glob("tests/**/*.py")}:
        names = {name.partition(".")[0] for name in imported(file)}
        assert not names & set(PACKAGES), file


@pytest.mark.slow
def test_tests_import_no_other_tests():
    """Helpers that several tests share are in separate files without tests."""
    for file in ROOT.glob("tests/**/*.py"):
        names = {name for name in imported(file) if name.startswith("tests.")}
        assert not [name for name in names if ".test_" in name], file


# Private names of other projects: of Orbax, and a name that SeqIO's vocabularies must define.
PRIVATE_OF_OTHERS = {"_is_tf_installed", "_encode_tf"}
# Our private names that tests still replace. Make one replaceable, and remove it from this list.
STILL_PATCHED = {
    *("_load_with_retries", "_checkpointer", "_differences", "_load"),  # names of checkpoints
    *("_product", "_write_tensors"),
}


def patched(file) -> set[str]:
    """Returns the names that a file replaces with `monkeypatch.setattr` or `mock.patch.object`."""
    found = set()
    if not re.search(r"\.setattr|patch\.object|mock\.patch", file.read_text()):
        return found
    for node in ast.walk(parsed(file)):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        if ast.unparse(node.func).endswith((".setattr", "patch.object", "mock.patch")):
            names = [arg.value for arg in node.args[:2] if isinstance(arg, ast.Constant)]
            found |= {str(name).rpartition(".")[2] for name in names[:1]}
            found |= {part for part in ast.unparse(node.args[0]).split(".") if part[0] == "_"}
    return found


def test_tests_patch_no_private_name():
    """Names that tests must replace, such as a size or a platform, should be public."""
    private = {
        name
        for file in ROOT.glob("tests/**/*.py")
        for name in patched(file)
        if name.startswith("_") and not name.startswith("__")
    }
    assert private - PRIVATE_OF_OTHERS == STILL_PATCHED


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_in_one_direction(package):
    for file in sorted((ROOT / package).rglob("*.py")):
        assert tops(file) & set(PACKAGES) <= {package} | MAY_IMPORT[package], file
        if package == "cli":  # A command imports no other command.
            siblings = {f.stem for f in files_imported(file) if f.parent == file.parent}
            assert siblings <= {"__init__"}, file
        if package != "tasks":
            assert not tops(file) & set(HEAVY), file
        if package != "preprocessing":
            assert "datatrove" not in tops(file), file
        if package not in ("corpora", "tasks"):
            assert not tops(file) & set(TOKENIZERS), file


@pytest.mark.parametrize("folder", [ROOT, *FOLDERS], ids=lambda f: str(f.relative_to(ROOT)))
def test_no_import_cycle_within_a_folder(folder):
    def part_of(file):
        within = file.relative_to(folder).parts
        # A package re-exports names of its modules.
        return within[0] if within != ("__init__.py",) else None

    arrows = {}
    for file in (file for file in FILES if file.is_relative_to(folder)):
        imported_files = {f for f in files_imported(file) if f.is_relative_to(folder)}
        arrows.setdefault(part_of(file), set()).update(map(part_of, imported_files))
    arrows.pop(None, None)
    order = graphlib.TopologicalSorter({a: to - {a, None} for a, to in arrows.items()})
    order.prepare()  # It raises CycleError.


def test_file_and_public_class_names_are_unique():
    names = [file.name for file in FILES if file.name != "__init__.py"]
    classes = [
        node.name
        for file in FILES
        for node in parsed(file).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    for each in (names, classes):
        assert len(each) > 100 and [x for x, n in Counter(each).items() if n > 1] == []


def test_import_checks_cover_all_packages():
    assert {file.relative_to(ROOT).parts[0] for file in FILES} == {*PACKAGES, GROUND}
    assert len(FILES) > 250 and all((folder / "__init__.py").exists() for folder in FOLDERS)
    assert all(files_imported(ROOT / "cli" / f"{name}.py") for name in cli.SUBCOMMANDS)


@pytest.mark.slow
def test_only_tasks_loads_tensorflow_and_no_module_loads_torch_or_datatrove():
    program = (
        f"import sys, importlib\nfor name in {modules_without_tasks()}:\n"
        "    importlib.import_module(name)\n"
        f"print(sorted(set(sys.modules) & {set(HEAVY) | {'torch', 'pretrax.tasks'}}))\n"
        "import pretrax.cli.prepare\nprint('datatrove' in sys.modules)"
    )
    completed = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=tiny.environment(),
        capture_output=True,
        text=True,
    )
    assert completed.stdout == "[]\nFalse\n", completed.stdout + completed.stderr


def run_on_a_token_store(tmp_path):
    for split, seed in (("train", 0), ("heldout", 1)):
        with StoreWriter(tmp_path / "store", split, 0, tiny.IDS) as writer:
            for document in tiny.documents(600, seed):
                writer.add(document)
    seal(tmp_path / "store", {"train": 1, "heldout": 1})
    run = tiny.Run(tmp_path / "of_store", str(tmp_path / "store"))
    for old, new in (
        ("from tests.training import tiny", "from pretrax import corpora"),
        ("tiny.slow_token_store.path", "corpora.token_store.stores"),
        ("tiny.slow_token_store", "corpora.token_store"),
    ):
        run.config.write_text(run.config.read_text().replace(old, new))
    return run


def required_by(requirements) -> dict[str, metadata.Distribution]:
    """Returns the installed packages that pip would install for these requirements, by name."""
    found: dict[str, metadata.Distribution] = {}
    waiting = [(Requirement(text), "") for text in requirements]
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        package = metadata.distribution(requirement.name)
        if package.name not in found or requirement.extras:
            found[package.name] = package
            inner = [Requirement(text) for text in package.requires or ()]
            waiting += [(one, extra) for one in inner for extra in ("", *requirement.extras)]
    return found


@pytest.mark.slow
def test_token_store_run_trains_with_only_the_packages_for_training(tmp_path):
    """The environment has the packages that setup.py lists for training, and those they need."""
    environment = tmp_path / "environment"
    venv.create(environment, symlinks=True)
    (site,) = (environment / "lib").glob("python*/site-packages")
    (site / "pretrax").symlink_to(ROOT)  # as setup.py installs it
    for node in ast.parse((ROOT / "setup.py").read_text()).body:
        if isinstance(node, ast.Assign) and node.targets[0].id == "TRAINING":
            requirements = ast.literal_eval(node.value)
    for package in required_by(requirements).values():
        for name in {file.parts[0] for file in package.files} - {"..", "__pycache__"}:
            if not (site / name).exists():  # several packages share the folder google
                (site / name).symlink_to(package.locate_file(name))
    python = environment / "bin" / "python"
    for absent in (*HEAVY, "datatrove", "torch"):
        assert subprocess.run([python, "-c", f"import {absent}"], capture_output=True).returncode
    run = run_on_a_token_store(tmp_path)
    end = subprocess.run(
        [python, "train.py", *run.arguments(STEPS=4)],
        cwd=ROOT,
        env=tiny.environment(),
        capture_output=True,
        text=True,
    )
    assert end.returncode == 0, end.stderr
    assert [line["step"] for line in run.lines()] == [1, 2, 3, 4, 4]
    assert (run.dir / "loss.png").read_bytes().startswith(b"\x89PNG")
    (events,) = (run.dir / "tensorboard").iterdir()
    assert events.name.startswith("events.out.tfevents") and events.stat().st_size > 500
    assert (run.dir / "checkpoints" / "4").is_dir() and (run.dir / "config.gin").exists()
