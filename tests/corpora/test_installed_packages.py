"""Installed packages as text: which files are read, and which are held out."""

import ast
from importlib.metadata import distribution

import numpy as np
import pytest

from pretrax.corpora import installed_packages
from pretrax.corpora.installed import _SHORTEST
from pretrax.corpora.python_library.python_sources import docstrings, without_docstrings
from pretrax.corpora.vocabularies import utf8_bytes
from tests.refusals import refuses

LONG = "# " + "x" * _SHORTEST + "\n"
CODE = f'"""Means."""\n{LONG}def mean(values):\n    """The mean."""\n    return sum(values)\n'
GUIDE = "A guide to means. " * 20


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Makes a folder of packages as pip installs them."""

    def installed(name, files, version="1.0"):
        record = []
        for file, text in files.items():
            path = tmp_path / "site" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            record.append(f"{file},,\n")
        about = tmp_path / "site" / f"{name}-{version}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        (about / "RECORD").write_text("".join([*record, f"{about.name}/METADATA,,\n"]))

    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    installed("means", {"means/a.py": CODE, "means/guide.md": GUIDE, "means/tests/b.py": CODE * 2})
    installed("third", {"third/a.py": LONG * 3, "third/b.py": "'Third.'\n" + LONG})
    installed("other", {"other/a.py": LONG * 2, "other/copy.py": CODE, "other/short.py": "x = 1\n"})
    return installed


def texts(tmp_path, split="train", **settings):
    settings = {"packages": ["means"], "heldout": ["other"]} | settings
    corpus = installed_packages(str(tmp_path / "run"), vocabulary=utf8_bytes, **settings)
    if split == "heldout":
        pieces = corpus.heldout(10**6)
    else:
        stream = corpus.open_shard(0, 1)
        pieces = [stream.next_document() for _ in range(4)]
    return {corpus.codec.decode(np.asarray(piece.tokens).tolist()) for piece in pieces}, corpus


def test_sources_and_docs_are_read_without_tests_and_metadata(tmp_path, site):
    found, corpus = texts(tmp_path, heldout=["third"])
    assert found == {CODE, GUIDE}
    assert "means 1.0, third 1.0" in corpus.summary


def test_duplicate_files_are_read_once_and_excluded_if_held_out(tmp_path, site):
    """A copy of a held-out file is not training text."""
    assert texts(tmp_path, "heldout")[0] == {LONG * 2, CODE}
    assert texts(tmp_path)[0] == {GUIDE}


@pytest.mark.parametrize(
    "text, expected",
    [("prose", {"Means.\n\nThe mean.", GUIDE}), ("code", {without_docstrings(CODE)})],
)
def test_text_setting_selects_prose_or_code(tmp_path, site, text, expected):
    assert texts(tmp_path, packages=["means"], heldout=["third"], text=text)[0] == expected


def test_sources_are_split_into_docstrings_and_code():
    assert docstrings(CODE) == "Means.\n\nThe mean."
    code = without_docstrings(CODE)
    assert "mean." not in code and "Means" not in code
    assert code == f"{LONG}def mean(values):\n    return sum(values)\n"
    assert docstrings("x = (") == without_docstrings("x = (") == ""


@pytest.mark.slow
def test_source_without_docstrings_still_parses():
    source = (
        "# first\n'Doc.'; import os\n\nclass Wrong(ValueError):\n    'Raised.'\n\n"
        "def f(): 'Doc.'; return '''a\n   \nb'''\n"
    )
    assert without_docstrings(source) == (
        "# first\nimport os\n\nclass Wrong(ValueError): ...\n\ndef f(): return '''a\n   \nb'''\n"
    )
    files = [file for file in distribution("rich").files if file.suffix == ".py"]
    assert len(files) > 50
    for file in files:
        left = without_docstrings(file.read_text("utf-8"))
        assert docstrings(left) == ""
        ast.parse(left)


def test_invalid_package_settings_are_rejected(tmp_path, site):
    for settings, values in (
        ({"packages": ["absent"]}, ["absent"]),
        ({"heldout": ["Means"]}, ["heldout", "packages", "means"]),
        ({"heldout": ["empty"]}, ["empty", "'all'"]),
    ):
        if settings.get("heldout") == ["empty"]:
            site("empty", {"empty/a.py": "x = 1\n"})
        with refuses(ValueError, *values):
            texts(tmp_path, **settings)
