"""Imports of a user's own modules, which gin files, `pretrax check` and tasks of SeqIO name."""

import contextlib
import importlib
import importlib.util
import os
import sys
import zlib
from collections.abc import Iterator
from types import ModuleType

from .extras import words_of_absent


def import_module(name: str) -> ModuleType:
    """Returns the module of a dotted name, or that of a Python file, "my_tasks.py".

    Raises FileNotFoundError or ValueError where it or what it imports is not there, or it fails.
    """
    if name.endswith(".py"):
        return _import_file(name)
    with _mistakes_of(name):
        return importlib.import_module(name)


def _import_file(path: str) -> ModuleType:
    path = os.path.abspath(path)
    if not os.path.isfile(path):
        raise FileNotFoundError(f"There is no file {path}: expected a Python file of yours.")
    folder = os.path.dirname(path)
    if folder not in sys.path:
        sys.path.append(folder)  # so that the file can import its neighbors, as a script can
    name = _module_name(path)
    if name in sys.modules:  # SeqIO refuses to register a task twice
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # the path ends in .py
    sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        with _mistakes_of(path):
            spec.loader.exec_module(sys.modules[name])
    except BaseException:
        del sys.modules[name]
        raise
    return sys.modules[name]


def _module_name(path: str) -> str:
    """The name by which other modules import the file, so that it runs once for all of them.

    If that name belongs to another module, the file gets a name of its own.
    """
    name = os.path.splitext(os.path.basename(path))[0]
    if name in sys.modules:
        found = getattr(sys.modules[name], "__file__", None)
    else:
        spec = importlib.util.find_spec(name) if name.isidentifier() else None
        found = spec and spec.origin
    real = os.path.realpath(path)  # a folder may be given by a link
    if found and os.path.realpath(found) == real:
        return name
    return f"user_module_{zlib.crc32(real.encode()):08x}"


@contextlib.contextmanager
def _mistakes_of(module: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if absent := words_of_absent(error):
            raise ValueError(absent) from error
        if not error.name or not f"{module}.".startswith(f"{error.name}."):
            raise ValueError(f"{module} imports what is not there: {error}") from error
        raise ValueError(
            f"There is no module {module!r}. A module of your own is found in the folder that the "
            "command is started from."
        ) from error
    except Exception as error:  # of the module's own code
        raise ValueError(f"{module} cannot be imported: {type(error).__name__}: {error}") from error
