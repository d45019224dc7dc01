"""Every name in the diagram of docs/concepts.md exists."""

import importlib
import pkgutil
import re

import pytest

from tests.training.tiny import ROOT

PACKAGES = ("corpora", "data", "objectives", "models")  # from the top to the bottom
FIGURE = re.search(r"```text\nform .*?```", (ROOT / "docs/concepts.md").read_text(), re.DOTALL)[0]
NAMES = re.findall(rf"(?:{'|'.join(PACKAGES)})(?:\.\w+)+", FIGURE)
FORMS = re.findall(r"^(\w+) .* ([\w.]+)$", FIGURE, re.MULTILINE)[1:]


@pytest.mark.parametrize("name", NAMES)
def test_names_in_diagram_exist(name):
    pkgutil.resolve_name(f"pretrax.{name}")  # It raises AttributeError or ImportError.


def test_forms_in_diagram_match_their_classes_and_modules():
    assert len(FORMS) == 1 + 8  # the file, and the forms of a document
    for form, name in FORMS:
        module, _, attribute = name.rpartition(".")
        if form[0].isupper():
            assert attribute == form
            defined = getattr(importlib.import_module(f"pretrax.{module}"), attribute)
            assert defined.__module__ == f"pretrax.{module}"


def test_packages_in_diagram_follow_import_order():
    order = [PACKAGES.index(name.partition(".")[0]) for _, name in FORMS[:-1]]
    assert order == sorted(order) and set(order) == set(range(len(PACKAGES)))
