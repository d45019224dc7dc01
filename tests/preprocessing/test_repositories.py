"""Repositories as documents: which files are read, in which order, and which are not text."""

import pytest

from pretrax.data.reading import MalformedLine
from pretrax.preprocessing import sources
from pretrax.preprocessing.blocks import DroppedExamples
from pretrax.preprocessing.repositories import ordered, repositories_in
from tests.refusals import refuses


def write(folder, files):
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content if isinstance(content, bytes) else content.encode())


def read(source, tmp_path):
    block = source.block(DroppedExamples(str(tmp_path / "dropped"), "read"))
    return [
        document for rank in range(source.tasks) for document in block.run(None, rank, source.tasks)
    ]


@pytest.mark.parametrize(
    "texts, order",
    [
        ({"b.py": "", "a.py": ""}, ["a.py", "b.py"]),
        ({"a.py": "import b\nimport sys", "b.py": "import c.d", "c/d.py": ""}, "c/d.py b.py a.py"),
        (
            {"p/__init__.py": "from . import z", "p/z.py": "from p.y import f", "p/y.py": ""},
            "p/y.py p/z.py p/__init__.py",
        ),
        (
            {"p/q/a.py": "from ..b import f", "p/b.py": "", "p/q/b.py": ""},
            "p/b.py p/q/a.py p/q/b.py",
        ),
        ({"src/p/a.py": "from p import b", "src/p/b.py": ""}, "src/p/b.py src/p/a.py"),
        ({"a.py": "import b", "b.py": "import a"}, "b.py a.py"),
        ({"a.py": "import b", "b.py": "no python ("}, "b.py a.py"),
        ({"b.md": "import a", "a.md": ""}, "a.md b.md"),
    ],
)
def test_python_files_follow_their_imports(texts, order):
    assert ordered(texts) == (order.split() if isinstance(order, str) else order)


def test_long_import_chains_are_ordered():
    texts = {f"m{i:04}.py": f"import m{i + 1:04}" for i in range(3000)}
    assert ordered(texts) == sorted(texts, reverse=True)


def test_files_of_a_repository_form_one_document(tmp_path):
    write(
        tmp_path / "one",
        {"main.py": "import tool\n\n\n", "tool.py": "x = 1\n", "empty.py": " ", "notes.txt": "no"},
    )
    write(tmp_path / "two", {"src/a.py": "y = 2"})
    write(tmp_path / "three", {"read.me": "nothing to read"})
    source = sources.repositories(folders=str(tmp_path / "*"))
    first, second = read(source, tmp_path)
    assert first.text == "# one/tool.py\nx = 1\n\n# one/main.py\nimport tool\n"
    assert second.text == "# two/src/a.py\ny = 2\n"
    assert first.metadata == {"file": str(tmp_path / "one"), "repository": "one", "files": 2}
    assert source.about.startswith("2 repositories")


def test_symlinked_files_are_read_once(tmp_path):
    write(tmp_path / "one", {"src/a.py": "x = 1", "src/b.py": "y = 2"})
    (tmp_path / "one" / "src" / "again").symlink_to("..")
    (tmp_path / "one" / "c.py").symlink_to("src/a.py")
    (tmp_path / "one" / "nowhere.py").symlink_to("missing.py")
    (paths,) = repositories_in(str(tmp_path / "one"), "**/*.py").values()
    assert paths == ("src/a.py", "src/b.py")


def test_non_text_files_raise_or_are_skipped(tmp_path):
    write(tmp_path / "one", {"a.py": b"\xff\xfe", "b.py": "x = 1\n"})
    strict = sources.repositories(folders=str(tmp_path / "one"))
    with refuses(MalformedLine, "UTF-8", "sources.repositories.on_malformed"):
        read(strict, tmp_path)
    lenient = sources.repositories(folders=str(tmp_path / "one"), on_malformed="skip")
    (document,) = read(lenient, tmp_path)
    assert document.text == "# one/b.py\nx = 1\n"
    assert (tmp_path / "dropped").is_dir()


def test_changed_file_changes_version(tmp_path):
    write(tmp_path / "one", {"a.py": "x = 1\n"})
    before = sources.repositories(folders=str(tmp_path / "one")).version
    write(tmp_path / "one", {"a.py": "x = 12\n"})
    assert sources.repositories(folders=str(tmp_path / "one")).version != before


@pytest.mark.parametrize(
    "settings, error, values",
    [
        ({"folders": "nowhere/*"}, FileNotFoundError, ["'nowhere/*'"]),
        ({"files": "*.c"}, FileNotFoundError, ["'*.c'"]),
        ({"header": "{name}"}, ValueError, ["header", "'{name}'"]),
        (
            {"on_malformed": "stop"},
            ValueError,
            ["sources.repositories.on_malformed", "'stop'"],
        ),
    ],
)
def test_invalid_settings_raise(tmp_path, settings, error, values):
    write(tmp_path / "one", {"a.py": "x = 1\n"})
    with refuses(error, *values):
        sources.repositories(**{"folders": str(tmp_path / "one")} | settings)
