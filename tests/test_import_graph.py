"""`pytest --changed`: which test files depend on a changed file."""

import subprocess

import pytest

from tests import import_graph
from tests.refusals import refuses

FILES = {
    "data/__init__.py": "",
    "data/packing.py": "",
    "data/reading.py": "from .packing import pack",
    "models/__init__.py": "",
    "models/attention.py": "",
    "gin_configs/small.gin": "from pretrax.models import attention",
    "gin_configs/large.gin": 'include "gin_configs/small.gin"',
    "README.md": "",
    "tests/conftest.py": "",
    "tests/helper.py": "def load():\n    from pretrax.data.reading import read",
    "tests/data/conftest.py": "",
    "tests/data/test_reading.py": "from tests.helper import load",
    "tests/data/test_packing.py": "from pretrax.data import packing",
    "tests/test_models.py": "import pretrax.models.attention",
    "tests/test_runs.py": 'FILE = "large.gin"',
    "tests/test_gin.py": "files = ROOT.glob('*.gin')",
    "tests/test_docs.py": 'TEXT = "README.md"',
}
MODELS = {"test_models", "test_runs", "test_gin"}
ALL = {"test_reading", "test_packing", "test_docs"} | MODELS


@pytest.fixture
def project(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for command in (
        ["init", "--quiet"],
        ["add", "."],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", "first"],
    ):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    return tmp_path


@pytest.mark.parametrize(
    "changed, expected",
    [
        ("data/packing.py", {"test_reading", "test_packing"}),
        ("data/reading.py", {"test_reading"}),
        ("models/attention.py", MODELS),
        ("gin_configs/small.gin", {"test_runs", "test_gin"}),
        ("gin_configs/large.gin", {"test_runs", "test_gin"}),
        ("README.md", {"test_docs"}),
        ("tests/helper.py", {"test_reading"}),
        ("tests/test_runs.py", {"test_runs"}),
        ("tests/data/conftest.py", {"test_reading", "test_packing"}),
        ("tests/conftest.py", ALL),
    ],
)
def test_change_reaches_the_tests_that_depend_on_the_file(project, changed, expected):
    found = import_graph.tests_reached([changed], project)
    assert {file.stem for file in found} == expected


@pytest.mark.parametrize("changed", ["pyproject.toml", "data/words.txt"])
def test_unreferenced_file_reaches_every_test(project, changed):
    assert import_graph.tests_reached([changed], project) is None
    assert import_graph.tests_reached([changed, "data/packing.py"], project) is None


def test_new_edited_and_deleted_files_count_as_changes(project):
    assert import_graph.changed_files("HEAD", project) == set()
    (project / "data/packing.py").unlink()
    (project / "models/attention.py").write_text("edited = True")
    (project / "tests/test_new.py").write_text("")
    changed = import_graph.changed_files("HEAD", project)
    assert changed == {"data/packing.py", "models/attention.py", "tests/test_new.py"}
    found = import_graph.tests_reached(changed, project)
    assert {file.stem for file in found} == {"test_reading", "test_packing", "test_new"} | MODELS


def test_unknown_commit_is_rejected(project):
    with refuses(ValueError, "--changed=nonsense"):
        import_graph.changed_files("nonsense", project)


@pytest.mark.slow
def test_constraints_reach_most_tests_and_one_benchmark_reaches_few():
    everywhere = import_graph.tests_reached(["constraints.py"])
    one_program = import_graph.tests_reached(["benchmarks/corruption.py"])
    assert len(everywhere) > 100 > len(one_program) > 0
