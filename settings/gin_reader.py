"""Reads gin files into the settings of a class, such as `Run`. No other module imports gin.

    from __gin__ import dynamic_registration
    from pretrax import training
    include "models/decoder_tiny.gin"
    STEPS = 700
    training.Run.steps = %STEPS

Gin's own parser reads the files, with dynamic registration: a file names a function by its import.
The statements become values, not entries of gin's global registry. A `@function` becomes a
`Partial` with the settings that the files give it. Therefore one process can read and compare
several runs, and unused bindings are found. Scopes, macros and includes work as in gin: the lines
below an include override it.

One rule differs from gin. A file that gives a function to a field, as in
`training.Run.model = @models.decoder`, chooses that function and starts from its defaults. Bindings
of that function that were read before the file no longer count. All bindings of the file itself and
of its includes count, in any order. So do later files and the command line.

Source: https://github.com/google/gin-config/blob/master/docs/index.md
"""

import ast
import contextlib
import importlib
import itertools
import tokenize
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from gin import config_parser

from ..constraints import import_name, listed, name_of, near, selector_of
from . import run_directory, t5x_names, trust
from .atomic_writes import check_sealed_text
from .partial import Call, Partial, parameters
from .user_modules import import_module

ROOT = Path(__file__).resolve().parents[1]
GIN_CONFIGS = ROOT / "gin_configs"

# Files of untrusted directories. Their modules and functions are checked.
_DIRECTORY_FILES = {run_directory.CONFIG, run_directory.COMPARISON}

# Largest number of values after all macros are replaced. Reading 100,000 values takes a second. A
# chain of macros that each use the next one twice gives more values than any machine can hold.
_MAX_VALUES = 100_000
# Class that gin files configure -> the command that reads these files.
_COMMANDS = {
    "training.run.Run": "train",
    "comparison.comparison.Comparison": "compare",
    "preprocessing.preparation.Preparation": "prepare",
}
# Errors that Python's parsers raise for values that are nested too deeply.
_TOO_DEEP = (RecursionError, MemoryError)


def read_settings(
    function: Callable,
    files: Sequence[str],
    bindings: Sequence[str] = (),
    search_paths: Sequence[str] = (),
    trusted: Collection[str] = (),
) -> dict[str, Any]:
    """Returns the settings that gin files and additional bindings give a function or class.

        read_settings(Comparison, ["comparisons/masking_rate.gin"], ["SEEDS = [0, 1]"])

    Args:
      files: paths, or names in the project's `gin_configs`; later files override earlier files.
      bindings: lines of gin, which override the files.
      search_paths: more folders in which to look for the files and their includes.
      trusted: modules that a run directory's config.gin may name in addition to this package's own
        functions, see `settings.trust`. Other files may name any module.

    Raises ValueError for a file that cannot be read, and for a binding that nothing uses.
    """
    reader = GinReader(function, search_paths, trusted)
    return reader.read(files, bindings).settings()


def imported_modules(text: str) -> list[str]:
    """Returns the modules that lines of gin import before the first line that cannot be read.

    >>> imported_modules("from mine import losses\\nimport yours.heads as heads")
    ['mine.losses', 'yours.heads']
    """
    parser = _Parser(text, _Delegate(lambda scoped, called: None, lambda name: None))
    modules = []
    with contextlib.suppress(SyntaxError, tokenize.TokenError, *_TOO_DEEP):
        for statement in parser:
            if isinstance(statement, config_parser.ImportStatement):
                modules.append(statement.module)
    return modules


def plain_fields(run_dir: str) -> dict[str, Any]:
    """Returns the literals that a run directory's config.gin gives fields of `Run`.

    The value of a function or macro is None.

    No module is imported, so an untrusted directory is safe to read.

    Raises ValueError if the file is not valid gin.
    """
    path = Path(run_dir) / run_directory.CONFIG
    literals = _Delegate(lambda *_: None, lambda _: None)  # functions and macros are read as None
    fields = {}
    with _syntax_errors(path):
        for statement in config_parser.ConfigParser(_text_of(path), literals):
            match statement:
                case config_parser.BindingStatement("", "training.Run", parameter, value):
                    fields[parameter] = value
    return fields


@contextlib.contextmanager
def _syntax_errors(path: Path) -> Iterator[None]:
    """Turns an error of gin's parser into a ValueError that shows the line."""
    try:
        yield
    except tokenize.TokenError as error:
        raise ValueError(f"{path} cannot be read: {error.args[0]}.") from None
    except SyntaxError as error:
        line = f", line {error.lineno}: {(error.text or '').strip()!r}" if error.lineno else ""
        raise ValueError(f"{path} cannot be read: {error.msg.rstrip('.')}{line}.") from None
    except _TOO_DEEP:
        raise ValueError(f"{path} cannot be read: its values are nested too deeply.") from None


def _text_of(path: Path) -> str:
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} cannot be read: it is not UTF-8 ({error}).") from error
    check_sealed_text(path, text)
    return text


class Macro(NamedTuple):
    """A name in gin files that stands for a value, such as STEPS."""

    value: Any  # a literal, or a text such as "@function"; None if the files give no value
    is_given: bool  # whether the files give it a value
    settings: tuple[tuple[Callable, str], ...]  # (function, parameter) pairs that the macro sets


def value_in_gin(text: str, current: Any = None) -> str:
    """Returns a value of a command line in gin's syntax: strings are quoted, and 1,2 is a tuple.

        >>> value_in_gin("runs/mine"), value_in_gin("1e-3"), value_in_gin("'1e-3'")
        ("'runs/mine'", '1e-3', "'1e-3'")
        >>> value_in_gin("2026", current="2025")
        "'2026'"
        >>> value_in_gin("0.02,0.05")
        '(0.02,0.05)'

    Args:
      current: the value that it replaces. If this is a string, a number becomes a string too.
    """
    if text.startswith(("@", "%", "[", "(", "{", "'", '"')):
        return text  # the parser reports any mistake in it
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, *_TOO_DEEP):
        return repr(text)
    if isinstance(current, str) and value is not None:
        return repr(text)
    return f"({text})" if isinstance(value, tuple) else text


def named_gin_files() -> list[str]:
    """Returns the names of pretrax's own gin files, such as 'runs/decoder.gin'."""
    return sorted(str(path.relative_to(GIN_CONFIGS)) for path in GIN_CONFIGS.glob("*/*.gin"))


def find_gin_file(
    name: str, search_paths: Sequence[str] = (), including_folder: Path | None = None
) -> Path:
    """Returns the path of a gin file.

        find_gin_file("runs/decoder.gin")    # …/gin_configs/runs/decoder.gin

    The name is looked up in the working folder, in `search_paths` and in `gin_configs`.

    Args:
      including_folder: for an include, the folder of the file that includes it. It is searched
        first, and the working folder last.

    Raises ValueError if there is no such file.
    """
    folders = [*map(Path, search_paths), GIN_CONFIGS, ROOT]
    for folder in [including_folder, *folders, Path()] if including_folder else [Path(), *folders]:
        if (folder / name).is_file():
            return (folder / name).resolve()
    neighbors = [str(path) for path in Path(name).parent.glob("*.gin")]
    hint = near(name, [*neighbors, *named_gin_files()], count=3)
    raise ValueError(
        f"There is no gin file {name!r}{hint} The files of pretrax are in {GIN_CONFIGS}."
    )


# --- statements -----------------------------------------------------------------------------------


class _Reference(NamedTuple):
    """`@scope/function`, or the result of calling it, `@scope/function()`."""

    function: Callable
    scope: str
    called: bool


class _Macro(NamedTuple):
    """`%NAME`."""

    name: str


class _Binding(NamedTuple):
    value: Any
    at: str  # file and line of the binding, or its text on the command line
    path: Path | None  # path of the file; None for the command line
    number: int  # position in the order of reading
    is_foreign: bool  # whether the file is in an untrusted directory


_Key = tuple[str, Any, str]  # scope, function, parameter; a macro has no function


class GinReader:
    """Collects the bindings of gin files, and resolves the settings of a function like `Run`."""

    def __init__(
        self,
        target: Callable,
        search_paths: Sequence[str] = (),
        trusted: Collection[str] = (),
    ):
        self._target = target
        self._search_paths = list(search_paths)
        self._trusted = trusted
        self._bindings: dict[_Key, _Binding] = {}
        # The functions and macros in values that a later binding replaced, and this binding.
        self._replaced: dict[Any, _Binding] = {}
        self._number = 0  # number of bindings read so far
        self._imported: dict[str, Any] = _modules_of(target)  # names for the command line
        # Import statement -> the name that it binds. Several may bind the same name, as
        # `import a.b` and `import a.c` do.
        self.imports: dict[str, str] = {}
        self._used: set[_Key] = set()
        self._count = 0  # number of values that `_value` has returned for these settings

    def read(self, files: Sequence[str], bindings: Sequence[str] = ()) -> "GinReader":
        """Reads files, then bindings, which override what was read before. Returns itself."""
        for name in files:
            self._read_path(name, ())
            self._check_command(name)
        for line in bindings:
            try:
                self._read_text(line, self._imported)
            except (SyntaxError, tokenize.TokenError, *_TOO_DEEP):
                raise ValueError(
                    f"{line} cannot be read: expected a Python literal, such as 3, [1, 2] or "
                    "'text', or @FUNCTION."
                ) from None
        return self

    def _check_command(self, name: str) -> None:
        """Raises ValueError if the file that was just read is for another command."""
        configured = {function for _, function, _ in self._bindings if function is not None}
        for function in configured - {self._target}:
            if command := _COMMANDS.get(name_of(function)):
                raise ValueError(
                    f"{name} configures a {function.__name__.lower()}, expected a {self._kind}: "
                    f"give the file to `pretrax {command}`."
                )

    def _read_path(self, name: str, within: tuple[Path, ...]) -> None:
        path = find_gin_file(name, self._search_paths, within[-1].parent if within else None)
        # Both names are checked, so that a link cannot hide a file of a run directory.
        checked = not _DIRECTORY_FILES.isdisjoint((Path(name).name, path.name))
        if path in within:
            raise ValueError(f"{path} includes itself, by way of {within[-1]}.")
        with _syntax_errors(path):
            self._read_text(_text_of(path), {}, (*within, path), checked)

    def _read_text(
        self,
        text: str,
        names: dict[str, Any],
        within: tuple[Path, ...] = (),
        checked: bool = False,
    ) -> None:
        """Reads the statements of a text in order.

        Args:
          names: imported name -> module, for the imports of this text so far.
          within: the files that include this file, then the file. () for the command line.
          checked: whether `settings.trust` checks the modules and functions that the text names.
        """
        path = within[-1] if within else None
        start = self._number

        def place(line: int) -> str:
            return text if path is None else f"{path}, line {line}"

        def function_of(selector: str, at: str) -> Callable:
            function = _function(selector, names, at)
            if checked:
                trust.check_function(function, self._trusted, at)
            return function

        def reference(scoped: str, called: bool) -> _Reference:
            scope, _, selector = scoped.rpartition("/")
            function = function_of(selector, place(parser.current_token.start[0]))
            return _Reference(function, scope, called)

        parser = _Parser(text, _Delegate(reference, _Macro))
        for statement in parser:
            at = place(statement.location.line_num)
            match statement:
                case config_parser.ImportStatement(module) if module.startswith("__gin__."):
                    pass  # dynamic registration is the only dialect here
                case config_parser.ImportStatement(module):
                    if checked:
                        trust.check_import(module, self._trusted, at)
                    name = statement.bound_name()
                    names[name] = _imported_module(statement, module, at)
                    self.imports[statement.format()] = name
                case config_parser.IncludeStatement(filename):
                    if checked:
                        trust.check_include(filename, at)
                    self._read_path(filename, within)
                case config_parser.BindingStatement(scope, selector, parameter, value):
                    function = None
                    if not parameter:  # a macro
                        scope, parameter = "", f"{scope}/{selector}" if scope else selector
                    elif (name := f"{selector}.{parameter}") in t5x_names.NAMES:
                        raise ValueError(f"{at}: {_t5x_hint(name)}")
                    else:
                        function = function_of(selector, at)
                        _check_parameter(function, selector, parameter, at)
                        if checked and parameter == trust.MODULE:
                            trust.check_module(value, self._trusted, at)
                    binding = _Binding(value, at, path, self._number, is_foreign=checked)
                    self._bind((scope, function, parameter), binding, start)
        self._imported |= names

    def _bind(self, key: _Key, binding: _Binding, start: int) -> None:
        """Adds a binding and removes the bindings that it replaces.

        If the binding gives a function to a field of the target, as in
        `training.Run.model = @models.decoder`, the file chooses that function. Bindings of the
        function that were read before `start`, the first binding of the file, are removed.
        """
        _, function, _ = key
        void = [key] if key in self._bindings else []
        if function is self._target and binding.path and isinstance(binding.value, _Reference):
            chosen = binding.value.function
            void += [k for k, b in self._bindings.items() if k[1] is chosen and b.number < start]
        for old in void:
            for part, _ in self._parts(self._bindings[old].value):
                name = part.name if isinstance(part, _Macro) else part.function
                self._replaced[name] = binding
        for old in void:
            del self._bindings[old]
        self._bindings[key] = binding
        self._number += 1

    def settings(self) -> dict[str, Any]:
        """Returns the settings of the target. Raises ValueError for a binding that nothing uses."""
        self._count = 0
        try:
            values = self._settings(self._target, "")
            # Functions that are defaults of the target may have settings too.
            for name, parameter in (parameters(self._target) or {}).items():
                function = parameter.default
                if name not in values and callable(function) and function is not parameter.empty:
                    if settings := self._settings(function, ""):
                        values[name] = Partial(function, **settings)
            self._check_all_used()
        except RecursionError:
            raise ValueError(
                "A value in the gin files refers to itself through macros or functions, or is "
                "nested too deeply."
            ) from None
        return values

    def _settings(self, function: Callable, scope: str) -> dict[str, Any]:
        """Returns the settings of a function in a scope. Narrower scopes override wider scopes."""
        keys = self._keys(function, scope)
        self._used |= set(keys.values())
        return {name: self._value(self._bindings[key].value, scope) for name, key in keys.items()}

    def _keys(self, function: Callable, scope: str) -> dict[str, _Key]:
        keys: dict[str, _Key] = {}
        for outer in ["", *itertools.accumulate(scope.split("/"), "{}/{}".format)]:
            keys |= {k[2]: k for k in self._bindings if k[0] == outer and k[1] is function}
        return keys

    def _value(self, value: Any, scope: str) -> Any:
        self._count += 1
        if self._count > _MAX_VALUES:
            raise ValueError(
                f"The gin files give more than {_MAX_VALUES:,} values when macros and functions "
                "are replaced by their values. Look for macros that each use another macro several "
                "times."
            )
        match value:
            case _Macro(name):
                key: _Key = ("", None, name)
                if key not in self._bindings:
                    raise ValueError(f"{name} has no value: give --{name.lower()}=VALUE.")
                self._used.add(key)
                return self._value(self._bindings[key].value, scope)
            case _Reference(function, own_scope, called):
                settings = self._settings(function, own_scope or scope)
                if isinstance(function, type) and not settings and not called:
                    return function  # a class is a value itself, such as @numpy.bfloat16
                return (Call if called else Partial)(function, **settings)
            case dict():
                return {self._value(k, scope): self._value(v, scope) for k, v in value.items()}
            case list() | tuple():
                return type(value)(self._value(v, scope) for v in value)
        return value

    def _parts(
        self, value: Any, setting: Any = None, scope: str = "", seen: set | None = None
    ) -> Iterator[tuple["_Macro | _Reference", Any]]:
        """Yields (part, setting) once for each macro and function in a value and in their settings.

        Args:
          setting: the (function, parameter) that has the value. Parts of the value itself are
            yielded with it; parts of the settings of a function, with that setting.
        """
        seen = set() if seen is None else seen
        inner: list[tuple[Any, Any]] = []  # (value, setting) pairs to visit next
        mark: tuple[Any, Any] | None = None  # identifies a macro or function in `seen`
        match value:
            case _Macro(name):
                mark = name, setting
                if binding := self._bindings.get(("", None, name)):
                    inner = [(binding.value, setting)]
            case _Reference(function, own_scope, _):
                scope = own_scope or scope
                mark = function, scope
                for name, key in self._keys(function, scope).items():
                    inner.append((self._bindings[key].value, (function, name)))
            case dict():
                inner = [(one, setting) for one in (*value, *value.values())]
            case list() | tuple():
                inner = [(one, setting) for one in value]
        if mark in seen:
            return
        if mark is not None:
            seen.add(mark)
            yield value, setting
        for inner_value, inner_setting in inner:
            yield from self._parts(inner_value, inner_setting, scope, seen)

    def macros(self) -> dict[str, Macro]:
        """Returns the macros of the target's settings, including macros without a value."""
        settings_of_macro: dict[str, list[tuple[Callable, str]]] = {}
        for part, setting in self._parts(_Reference(self._target, "", False)):
            if isinstance(part, _Macro):
                settings_of_macro.setdefault(part.name, []).append(setting)
        given = {name for _, function, name in self._bindings if function is None}

        def literal(name: str) -> Any:
            followed: set[str] = set()
            while name in given - followed:  # a macro may refer to another macro, or to itself
                followed.add(name)
                match self._bindings["", None, name].value:
                    case _Macro(other):
                        name = other
                    case _Reference(function, _, _):
                        return f"@{selector_of(function)}"
                    case value:
                        return value
            return f"%{name}"

        return {
            name: Macro(literal(name) if name in given else None, name in given, tuple(settings))
            for name, settings in sorted(settings_of_macro.items())
        }

    def _check_all_used(self) -> None:
        """Raises ValueError for a binding that nothing uses.

        Two kinds of unused bindings are accepted: a binding in a file for a function or macro that
        a later binding replaced, and bindings of functions in a config.gin, which sets the
        vocabulary of every corpus that a run may have.
        """
        for key, binding in self._bindings.items():
            scope, function, name = key
            later = self._replaced.get(function or name)
            file = binding.path
            if key in self._used or (file and later and later.number > binding.number):
                continue
            if file and file.name == run_directory.CONFIG and function is not None:
                continue
            setting = name if function is None else f"{name_of(function)}.{name}"
            setting = f"{scope}/{setting}" if scope else setting
            sets = f"{setting}, set in {binding.at}" if file else binding.at
            remedy = self._remedy(key, later)
            raise ValueError(f"Nothing in this {self._kind} uses {sets}. {remedy}")

    def origin(self, name: str) -> tuple[Path | None, Any]:
        """Returns the file that sets a setting of the target, and its value in that file.

        A macro is followed to the file that gives it a value. The file is None if the value is
        from the command line.
        """
        binding = self._bindings["", self._target, name]
        while isinstance(binding.value, _Macro):
            binding = self._bindings["", None, binding.value.name]
        return binding.path, binding.value

    def foreign_file(self, name: str) -> Path | None:
        """Returns an untrusted file that gives a setting its value.

        A file that gives a part of the value counts. Returns None if there is no such file.
        """
        binding = self._bindings.get(("", self._target, name))
        if binding is None:
            return None
        parts = [part for part, _ in self._parts(binding.value) if isinstance(part, _Macro)]
        macros = [self._bindings["", None, part.name] for part in parts]
        return next((one.path for one in (binding, *macros) if one.is_foreign), None)

    @property
    def _kind(self) -> str:
        return self._target.__name__.lower()  # "run" for the class `Run`

    def _remedy(self, key: _Key, later: _Binding | None) -> str:
        """Returns advice about an unused binding.

        Args:
          later: the binding that replaced its function or macro; None if none did.
        """
        _, function, name = key
        if function is None and name in t5x_names.NAMES:
            return _t5x_hint(name)
        if function is None and name in (parameters(self._target) or {}):
            selector = selector_of(self._target)
            return f"It is a field of the {self._kind}: --gin.{selector}.{name}=VALUE."
        for scope, *setting in self._used:
            if setting == [function, name]:
                scoped = f"{scope}/{selector_of(function)}" if scope else selector_of(function)
                return f"The value in use is set by --gin.{scoped}.{name}=VALUE."
        if later is not None:
            return (
                f"Its function or macro is replaced by {later.at}: remove the binding, or set it "
                "for the replacement."
            )
        if function is None:
            macros = sorted(k[2] for k in self._used if k[1] is None)
            return (
                f"Its macros are {', '.join(macros) or 'none'}{near(name, macros)} Other values "
                "are set as MODULE.FUNCTION.PARAMETER."
            )
        chosen = sorted({name_of(k[1]) for k in self._used if k[1] not in (None, self._target)})
        parts = ", ".join(chosen) or "none"
        return f"{name_of(function)} is not part of the {self._kind}. Its functions are: {parts}."


class _Parser(config_parser.ConfigParser):
    """Gin's parser, which also rejects a repeated key of a dict. Python would keep the last one.

    A key that cannot be hashed, such as a list, is a syntax error.
    """

    def __init__(self, *arguments: Any):
        self._keys: list[Any] = []  # keys of the innermost dict that is being read
        super().__init__(*arguments)

    def _maybe_parse_container(self) -> tuple[bool, Any]:
        outer = self._keys
        self._keys = []
        try:
            return super()._maybe_parse_container()
        finally:
            self._keys = outer

    def _parse_dict_item(self) -> tuple[Any, Any]:
        key, value = super()._parse_dict_item()
        try:
            hash(key)
        except TypeError:
            self._raise_syntax_error(f"a dict has the key {key!r}, expected a text or a number")
        if key in self._keys:
            self._raise_syntax_error(f"a dict has the key {key!r} twice, expected each once")
        self._keys.append(key)
        return key, value


class _Delegate(config_parser.ParserDelegate):
    """Gives gin's parser the values of `@scope/function`, `@scope/function()` and `%NAME`."""

    def __init__(self, reference: Callable[[str, bool], Any], macro: Callable[[str], Any]):
        self._reference = reference
        self._macro = macro

    def configurable_reference(self, scoped_configurable_name: str, evaluate: bool) -> Any:
        return self._reference(scoped_configurable_name, evaluate)

    def macro(self, macro_name: str) -> Any:
        return self._macro(macro_name)


def _modules_of(target: Callable) -> dict[str, ModuleType]:
    """Returns the modules of a class and of its default functions, by their last names.

    _modules_of(Run)      # {"training": pretrax.training, "mesh": pretrax.training.devices.mesh}
    """
    defaults = [parameter.default for parameter in (parameters(target) or {}).values()]
    functions = [target, *(one for one in defaults if callable(one) and not isinstance(one, type))]
    modules = [found[0] for one in functions if (found := import_name(one))]
    return {module.rpartition(".")[2]: importlib.import_module(module) for module in modules}


def _imported_module(statement: config_parser.ImportStatement, name: str, at: str) -> Any:
    """Returns the module that an import statement binds, after importing the module `name`."""
    try:
        module = import_module(name)
    except ValueError as error:
        raise ValueError(f"{at}: {error}") from error
    if statement.is_from or statement.alias:
        return module
    return importlib.import_module(name.partition(".")[0])


def _function(selector: str, names: Mapping[str, Any], at: str) -> Callable:
    """Returns the function that a selector such as `models.decoder` names."""
    first, *rest = selector.split(".")
    full = [f"{name}.{selector}" for name, x in names.items() if callable(getattr(x, selector, 0))]
    if first not in names and full:
        raise ValueError(f"{at}: {selector!r} is not imported; did you mean {listed(full, 'or')}?")
    if first not in names:
        raise ValueError(
            f"{at}: {selector!r} begins with {first!r}, which is not imported{near(first, names)} "
            f"Add its import to the gin file, such as `import {first}` for a module of your own. "
            f"Imported so far: {', '.join(sorted(names)) or 'nothing'}."
        )
    value = names[first]
    path = f"{first}."
    for name in rest:
        if not hasattr(value, name):
            hint = near(name, dir(value), prefix=path)
            raise ValueError(f"{at}: there is no {selector!r}{hint}")
        value = getattr(value, name)
        path += f"{name}."
    if not callable(value):
        raise ValueError(f"{at}: {selector!r} is not a function.")
    return value


def _check_parameter(function: Callable, selector: str, parameter: str, at: str) -> None:
    known = parameters(function)
    if known is not None and parameter not in known:
        raise ValueError(
            f"{at}: {selector} has no parameter {parameter!r}{near(parameter, known)} "
            f"Its parameters: {', '.join(known)}."
        )


def _t5x_hint(name: str) -> str:
    return f"{name} is a name of T5X. In pretrax: {t5x_names.NAMES[name]}."
