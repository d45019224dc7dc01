"""Imports of users' modules, which gin files, `pretrax check` and SeqIO tasks name."""

import contextlib
import importlib
import importlib.util
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from ..constraints import near
from .extras import missing_package_message


def import_module(name: str) -> ModuleType:
    """Imports a module by its dotted name or the path of its Python file, such as "my_tasks.py".

    Raises FileNotFoundError or ValueError if the module or one of its imports does not exist, or
    if the module's code fails.
    """
    if name.endswith(".py"):
        return _import_file(name)
    with _import_errors(name):
        return importlib.import_module(name)


def import_current_module(name: str, times: dict[str, float]) -> ModuleType:
    """Imports a module, again if a file of its folder has changed since the last call.

    The modules of its folder, which it may import, are then imported again too.

    Args:
      times: file -> time of its last change, as of the last call. It is updated.

    Raises FileNotFoundError or ValueError as `import_module`.
    """
    with _import_errors(name):
        spec = importlib.util.find_spec(name)
    folder = os.path.dirname(spec.origin) if spec and spec.origin else ""
    files = _files_in(folder)
    if any(times.setdefault(file, _changed(file)) != _changed(file) for file in files.values()):
        for other in files:
            del sys.modules[other]
        importlib.invalidate_caches()
    writes_bytecode = sys.dont_write_bytecode
    # If a file changed twice within a second, Python could run its outdated bytecode.
    sys.dont_write_bytecode = True
    try:
        return import_module(name)
    finally:
        sys.dont_write_bytecode = writes_bytecode
        times.update((file, _changed(file)) for file in _files_in(folder).values())


def function_of(module: ModuleType, name: str) -> Callable[..., Any]:
    """Returns the function of a user's module, which may be a class or another callable.

    Raises ValueError if the module has no such function.
    """
    function = getattr(module, name, None)
    if not callable(function):
        known = [each for each, value in vars(module).items() if callable(value)]
        raise ValueError(f"{module.__name__} has no function {name!r}{near(name, known)}")
    return function


def _files_in(folder: str) -> dict[str, str]:
    """Returns the files of imported modules of a user's folder, by the name of the module."""
    running = ("__main__", __name__.partition(".")[0])
    files = {name: getattr(module, "__file__", None) for name, module in [*sys.modules.items()]}
    return {
        name: file
        for name, file in files.items()
        if file and os.path.dirname(file) == folder and name.partition(".")[0] not in running
    }


def _changed(file: str) -> float:
    """Returns the time at which a file was changed; 0 if it does not exist."""
    return os.path.getmtime(file) if os.path.exists(file) else 0.0


def _import_file(path: str) -> ModuleType:
    path = os.path.abspath(path)
    if not os.path.isfile(path):
        raise FileNotFoundError(f"There is no file {path}: expected your own Python file.")
    folder = os.path.dirname(path)
    if folder not in sys.path:
        sys.path.append(folder)  # so that the file can import its neighbors, as a script can
    name = _module_name(path)
    if name in sys.modules:  # SeqIO raises an error if a task is registered twice
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # the path ends in .py
    sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        with _import_errors(path):
            spec.loader.exec_module(sys.modules[name])
    except BaseException:
        del sys.modules[name]
        raise
    return sys.modules[name]


def _module_name(path: str) -> str:
    """Returns the name under which other modules import the file, so that it runs only once.

    If another module has that name, the file gets a unique name.
    """
    name = os.path.splitext(os.path.basename(path))[0]
    if name in sys.modules:
        origin = getattr(sys.modules[name], "__file__", None)
    else:
        spec = importlib.util.find_spec(name) if name.isidentifier() else None
        origin = spec and spec.origin
    real = os.path.realpath(path)  # the path may lead through links
    if origin and os.path.realpath(origin) == real:
        return name
    return f"user_module_{zlib.crc32(real.encode()):08x}"


@contextlib.contextmanager
def _import_errors(module: str) -> Iterator[None]:
    """Turns any error of an import into a ValueError that names the module."""
    try:
        yield
    except ModuleNotFoundError as error:
        if message := missing_package_message(error):
            raise ValueError(message) from error
        if not error.name or not f"{module}.".startswith(f"{error.name}."):
            raise ValueError(f"{module} imports a missing module: {error}") from error
        if own := _own_module(module):
            raise ValueError(f"There is no module {module!r}: expected {own!r}.") from error
        here = [name.removesuffix(".py") for name in os.listdir() if name.endswith(".py")]
        raise ValueError(
            f"There is no module {module!r}{near(module, here)} Start the command in the folder of "
            "your module, or install the module."
        ) from error
    except Exception as error:  # the module's own code failed
        if own := _own_module(module):  # in a checkout, a folder of pretrax without its parent
            raise ValueError(f"Got the module {module!r}, expected {own!r}.") from error
        raise ValueError(f"{module} cannot be imported: {type(error).__name__}: {error}") from error


def _own_module(module: str) -> str | None:
    """Returns the full name of a module of pretrax that is named without `pretrax.`, or None.

    >>> _own_module("visualization"), _own_module("my_objectives")
    ('pretrax.visualization', None)
    """
    package = __name__.partition(".")[0]
    first = module.partition(".")[0]
    own = importlib.util.find_spec(f"{package}.{first}")
    found = importlib.util.find_spec(first)
    is_own = own and (found is None or _real_origin(found) == _real_origin(own))
    return f"{package}.{module}" if is_own else None


def _real_origin(spec: ModuleSpec) -> str:
    return os.path.realpath(spec.origin or "")  # the path may lead through links
