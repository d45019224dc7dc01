"""The command, the gin lines and the Python call that show what a page shows."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ..constraints import import_name
from ..settings.command_line import as_option
from ..settings.partial import Call, Partial, as_partial
from ..training.run_choices import part_named
from ..visualization.pieces import ranges_of


class Commands(NamedTuple):
    """Three ways to get the same picture, or to train the same objective."""

    shell: str
    train: str
    gin: str
    python: str


def commands(
    objective: str,
    build: Callable,
    values: Mapping[str, Any],
    *,
    run: str,
    text: str,
    options: Mapping[str, Any],
    hidden: str = "",
) -> Commands:
    """Returns the commands of a picture.

    Args:
      objective: name of the objective in the catalog, or the user's own MODULE.BUILDER.
      values: settings that differ from those of the objective's gin file, by name in gin.
      options: options of `pretrax show`, which `pretrax.show` has as well.
      hidden: tokens to hide, as in `pretrax show --hide_tokens`; "" for random ones.
    """
    bindings = [f"{name} = {value!r}" for name, value in values.items()]
    changes = [as_option(binding) for binding in bindings]
    named = {**options, "hide_tokens": hidden} if hidden else options
    given = [f"--{name}={shlex.quote(str(value))}" for name, value in named.items()]
    shell = ["pretrax show", f"--objective={objective}", *changes, f"--text={shlex.quote(text)}"]
    return Commands(
        " ".join([*shell, *given]),
        " ".join(["pretrax train", run, f"--objective={objective}", *changes]),
        _gin_lines(objective, bindings),
        _call(objective, build, bool(values), text, options, hidden),
    )


def _gin_lines(objective: str, bindings: Sequence[str]) -> str:
    part = part_named("objective", objective)
    imports = ["from pretrax import objectives", "from pretrax import training"]
    imports += [line for line in part.bindings if line.startswith("import ")]
    settings = [line for line in part.bindings if not line.startswith(("import ", "from "))]
    lines = ["from __gin__ import dynamic_registration", *imports, ""]
    lines += [f'include "{file}"' for file in part.files]
    return "\n".join([*lines, *settings, *bindings])


def _call(
    objective: str,
    build: Callable,
    is_changed: bool,
    text: str,
    options: Mapping[str, Any],
    hidden: str,
) -> str:
    imports = {"import pretrax"}
    shown = repr(objective)
    if is_changed or "." in objective:
        shown = _expression(as_partial(build), imports)
    arguments = [shown, repr(text), *(f"{name}={value!r}" for name, value in options.items())]
    arguments += [f"hide={ranges_of(hidden)!r}"] if hidden else []
    return "\n".join([*sorted(imports), "", f"pretrax.show({', '.join(arguments)})"])


def _expression(value: Any, imports: set[str]) -> str:
    """Returns a Python expression of a setting's value, and adds the imports that it needs."""
    if isinstance(value, Partial):
        name = _imported(value.function, imports)
        settings = [f"{key}={_expression(x, imports)}" for key, x in value.settings.items()]
        if isinstance(value, Call):
            return f"{name}({', '.join(settings)})"
        if not settings:
            return name
        imports.add("import functools")
        return f"functools.partial({', '.join([name, *settings])})"
    if isinstance(value, Mapping):
        pairs = (f"{key!r}: {_expression(x, imports)}" for key, x in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return f"[{', '.join(_expression(x, imports) for x in value)}]"
    if isinstance(value, tuple):
        inner = "".join(f"{_expression(x, imports)}, " for x in value)
        return f"({inner.removesuffix(' ') if len(value) == 1 else inner.removesuffix(', ')})"
    return _imported(value, imports) if callable(value) else repr(value)


def _imported(function: Callable, imports: set[str]) -> str:
    """Returns the name of a function after its module is imported, and adds the import."""
    source = import_name(function)
    if source is None:
        raise ValueError(f"{function!r} cannot be imported: give its module a name.")
    module, name = source
    package, _, last = module.rpartition(".")
    imports.add(f"from {package} import {last}" if package else f"import {module}")
    return f"{last}.{name}"
