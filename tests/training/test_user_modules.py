"""Imports of a user's files."""

import os
import sys

import pytest

from pretrax.settings.user_errors import place_of
from pretrax.settings.user_modules import import_current_module, import_module
from tests.refusals import refuses


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Returns a folder that Python does not search yet. Tests' imports from it are forgotten."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_user_file_imports_its_neighbors_once(folder):
    (folder / "neighbor_of_tasks.py").write_text("runs = []\nruns.append(1)\n")
    (folder / "own_tasks.py").write_text(
        "import neighbor_of_tasks\nruns = neighbor_of_tasks.runs\n"
    )
    first = import_module(str(folder / "neighbor_of_tasks.py"))
    assert import_module(str(folder / "own_tasks.py")).runs is first.runs
    assert import_module(str(folder / "own_tasks.py")).runs == [1]


@pytest.mark.parametrize("name", ["json", "chess", "my-tasks"])
def test_user_file_never_replaces_another_module(folder, name):
    """`json` is already imported; no installed module is called `chess`."""
    for i in range(2):
        (folder / str(i)).mkdir()
        (folder / str(i) / f"{name}.py").write_text(f"number = {i}\n")
    found = [import_module(str(folder / str(i) / f"{name}.py")) for i in range(2)]
    assert [module.number for module in found] == [0, 1]
    assert hasattr(sys.modules["json"], "loads")


def test_user_file_does_not_shadow_an_unloaded_standard_module(folder):
    name = next(
        n for n in ("xdrlib", "sndhdr", "nntplib", "wave", "turtle") if n not in sys.modules
    )
    (folder / f"{name}.py").write_text("mine = True\n")
    assert import_module(str(folder / f"{name}.py")).mine
    assert name not in sys.modules


def test_user_file_given_by_a_link_runs_once(folder):
    (folder / "real").mkdir()
    (folder / "link").symlink_to(folder / "real")
    (folder / "real/runs_of_links.py").write_text("runs = []\n")
    for name in ("linked_once", "linked-once"):
        count = f"import runs_of_links\nruns_of_links.runs.append({name!r})\n"
        (folder / f"real/{name}.py").write_text(count)
        for given in ("real", "link"):
            import_module(str(folder / given / f"{name}.py"))
    assert sys.modules["runs_of_links"].runs == ["linked_once", "linked-once"]


def test_misspelled_module_is_rejected_with_the_file_of_the_folder(tmp_path, monkeypatch):
    (tmp_path / "my_objectives.py").touch()
    monkeypatch.chdir(tmp_path)
    with refuses(ValueError, "my_objective", "'my_objectives'"):
        import_module("my_objective")


def test_module_is_reimported_if_it_or_its_neighbor_changes(folder):
    sys.path.append(str(folder))
    times: dict[str, float] = {}
    moments = iter(range(1, 100))

    def write(name: str, code: str) -> None:
        (folder / f"{name}.py").write_text(code)
        moment = next(moments)
        os.utime(folder / f"{name}.py", (moment, moment))

    def value() -> int:
        return import_current_module("explored_main", times).value

    write("explored_inner", "number = 1\n")
    write("explored_helper", "from explored_inner import number\n")
    write("explored_main", "from explored_helper import number\nvalue = 10 * number\n")
    assert value() == 10
    first = sys.modules["explored_main"]
    assert value() == 10 and sys.modules["explored_main"] is first
    write("explored_inner", "number = 2\n")
    assert value() == 20
    write("explored_helper", "from explored_inner import number\n\nnumber.missing\n")
    with refuses(ValueError, "explored_main", "missing") as caught:
        value()
    assert place_of(caught.value.__cause__).startswith(f"{folder / 'explored_helper.py'}:3")
    write("explored_helper", "from explored_inner import absent\n")
    with refuses(ValueError, "absent"):
        value()
    write("explored_inner", "absent = 3\n")  # only the neighbor that was imported changes
    write("explored_main", "from explored_helper import absent\nvalue = absent\n")
    assert value() == 3
