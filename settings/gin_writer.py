"""Writes settings, such as those of a `Run`, as a gin file that `gin_reader` reads back."""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from ..constraints import import_name, name_of
from .partial import Call, Partial, as_partial, functions_in, parameters, plain


class GinText(NamedTuple):
    """The text of a gin file."""

    text: str
    unnamed: tuple[str, ...]  # settings that gin cannot express; the text has a comment instead


def gin_text(
    settings: Mapping[str, Any],
    function: Callable,
    macros: Mapping[str, str] = MappingProxyType({}),
) -> GinText:
    """Returns settings of a function or class as a gin file, without settings at their default.

        gin_text({"peak": 1e-3}, optimizers.warmup_constant).text

    Args:
      macros: setting -> name of the macro that holds its value, so that the command line can
        override it.

    A gin file names a function by its module, so it cannot name one that is defined within another
    function or in a notebook.
    """
    writer = _Writer(settings)
    selector = writer.selector(function)
    known = parameters(function) or {}
    values = []
    lines = []
    unnamed = []
    for name, value in settings.items():
        if name in known and value == known[name].default:
            continue
        try:
            text = writer.value(value, name)
        except _UnnamedError as error:
            unnamed.append(name)
            lines.append(f"# {selector}.{name} has no importable name: {one_line(str(error))}")
            continue
        if name in macros:
            values.append(f"{macros[name]} = {text}")
            text = f"%{macros[name]}"
        lines.append(f"{selector}.{name} = {text}")
    imports = sorted(writer.imports.values())
    head = ["from __gin__ import dynamic_registration"]
    blocks = [block for block in (head, imports, values, lines, *writer.settings) if block]
    return GinText("\n\n".join("\n".join(block) for block in blocks) + "\n", tuple(unnamed))


def one_line(text: str) -> str:
    r"""Returns text on one line, for a comment in a gin file.

    >>> one_line("a\nb")
    'a\\nb'
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


class _UnnamedError(Exception):
    """A value that gin cannot express."""


class _Writer:
    def __init__(self, fields: Mapping[str, Any]):
        self.imports: dict[str, str] = {}  # first name of a selector -> import statement
        self.settings: list[list[str]] = []  # a block of lines for each function
        self._selectors: list[tuple[Partial, str]] = []  # selectors of the functions so far
        everything = functions_in(fields)
        different = [
            partial for i, partial in enumerate(everything) if partial not in everything[:i]
        ]
        functions = [partial.function for partial in different]
        # Functions used with several settings are written under scopes.
        self._scoped = [f for i, f in enumerate(functions) if f in functions[:i]]

    def value(self, value: Any, path: str) -> str:
        """Returns a value in gin's syntax.

        Args:
          path: path of the value in the fields, for the name of a scope.

        Raises _UnnamedError for a value that gin cannot express.
        """
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, float) and not math.isfinite(value):
            raise _UnnamedError(repr(value))
        if isinstance(value, Mapping):
            items = [f"{k!r}: {self.value(v, f'{path}_{k}')}" for k, v in value.items()]
            return "{" + ", ".join(items) + "}"
        if isinstance(value, list | tuple):
            items = [self.value(v, f"{path}_{i}") for i, v in enumerate(value)]
            if isinstance(value, list):
                return f"[{', '.join(items)}]"
            return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
        if value is None or isinstance(value, bool | int | float | str):
            return repr(value)
        if callable(value):
            partial = as_partial(value)
            return f"@{self._reference(partial, path)}{'()' if isinstance(partial, Call) else ''}"
        raise _UnnamedError(repr(value))

    def _reference(self, partial: Partial, path: str) -> str:
        for other, selector in self._selectors:
            if plain(other) == plain(partial):
                return selector
        selector = self.selector(partial.function)
        if partial.function in self._scoped:
            scope = "".join(c if c.isascii() and c.isalnum() else "_" for c in path)
            taken = [written.partition("/")[0] for _, written in self._selectors]
            while scope in taken:
                scope += "_"
            selector = f"{scope}/{selector}"
        self._selectors.append((partial, selector))
        block: list[str] = []
        self.settings.append(block)  # before the blocks of the functions in these settings
        for name, value in partial.settings.items():
            block.append(f"{selector}.{name} = {self.value(value, f'{path}_{name}')}")
        return selector

    def selector(self, function: Callable) -> str:
        """Returns the name of a function in this file, and adds its import."""
        imported = import_name(function)
        if imported is None:
            raise _UnnamedError(name_of(function))
        module, name = imported
        parent, _, last = module.rpartition(".")
        statement = f"from {parent} import {last}" if parent else f"import {last}"
        if self.imports.setdefault(last, statement) == statement:
            return f"{last}.{name}"
        # Another module has the name already, so this module needs an alias.
        alias = module.replace(".", "_") if parent else f"own_{last}"
        self.imports[alias] = f"import {module} as {alias}"
        return f"{alias}.{name}"
