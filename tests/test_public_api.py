"""The public names of pretrax: what they are, and what importing them loads."""

import ast
import importlib
import inspect
import subprocess
import sys

import pytest

import pretrax
from pretrax import objectives
from pretrax.cli import SUBCOMMANDS
from tests.training.tiny import ROOT, environment

PAGE = "docs/public_api.md"


def printed(program: str) -> str:
    """What a program prints in a process of its own."""
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment(), capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def stub() -> dict[str, str]:
    """{public name: its module} as type checkers read them."""
    found = {}
    for node in ast.parse((ROOT / "__init__.pyi").read_text()).body:
        assert isinstance(node, ast.ImportFrom) and node.level == 1
        for alias in node.names:
            assert alias.asname == alias.name  # otherwise the name is private for type checkers
            found[alias.name] = f"pretrax.{node.module}"
    return found


def test_exported_names_match_the_type_stub():
    assert pretrax.__all__ == sorted(stub()) and set(stub()) <= set(dir(pretrax))
    for name, module in stub().items():
        value = getattr(pretrax, name)
        assert value is getattr(importlib.import_module(module), name)
        assert value.__module__ == module, "import a name from where it is defined"


def test_every_exported_name_is_documented():
    page = (ROOT / PAGE).read_text()
    for name in pretrax.__all__:
        assert f"`pretrax.{name}`" in page, name
        assert inspect.getdoc(getattr(pretrax, name)), name


@pytest.mark.slow
def test_exported_subcommand_names_are_functions():
    """Files of the checkout, such as train.py, do not hide them."""
    program = "import pretrax; print(*(type(getattr(pretrax, name)).__name__ for name in {!r}))"
    subcommands = sorted(SUBCOMMANDS.keys() & set(pretrax.__all__))
    assert subcommands == ["compare", "show", "train"]
    assert printed(program.format(subcommands)) == "function function function"


@pytest.mark.slow
def test_importing_pretrax_loads_neither_jax_nor_numpy():
    program = (
        "import sys, pretrax\n"
        "loaded = lambda *names: sorted(set(names) & set(sys.modules))\n"
        "print(loaded('jax', 'numpy'))\n"
        "from pretrax import objectives\n"
        "print(loaded('flax', 'optax', 'gin', 'rich', 'tokenizers'))\n"
        "print(pretrax.TokenIds is objectives.TokenIds, hasattr(pretrax, 'Absent'))"
    )
    assert printed(program).splitlines() == ["[]", "[]", "True False"]
    assert pretrax.Objective is objectives.Objective
