"""Programs of docs/, which tests import as modules."""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"


@contextlib.contextmanager
def program(name: str) -> Iterator[ModuleType]:
    """Yields a program of docs/ as a module, and forgets it and its helper modules afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DOCS))
        yield importlib.import_module(name)
        for module in (name, "tables", "relative_flops", "objective_figures"):
            sys.modules.pop(module, None)
