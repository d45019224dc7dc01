"""pretrax: pre-training objectives in JAX, declared once and run anywhere.

The public names are listed in `__init__.pyi`, from which type checkers read them too. A name is
imported on its first use, so `import pretrax` loads neither JAX nor NumPy.
"""

import importlib
import re
from pathlib import Path

_LISTED = re.compile(r"^from (\S+) import (\w+) as \2$", re.MULTILINE)
_STUB = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
_MODULES = {name: module for module, name in _LISTED.findall(_STUB)}  # name -> its module

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
