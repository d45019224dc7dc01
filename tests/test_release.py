"""Several files agree on the facts of a release."""

import re
import tomllib

import yaml

from tests.training.tiny import ROOT


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_version_is_the_same_in_all_files():
    version = project()["version"]
    newest = re.search(r"^## (\S+),", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest and newest[1] == version
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version


def test_python_classifiers_begin_at_the_required_version():
    named = re.findall(r"Python :: (3\.\d+)", " ".join(project()["classifiers"]))
    assert project()["requires-python"] == f">={named[0]}"
    assert named == [f"3.{int(named[0][2:]) + i}" for i in range(len(named))]
