"""The import graph of the project, and the test files that a change reaches through it."""

import ast
import functools
import re
import subprocess
from collections.abc import Iterable, Iterator
from importlib.util import resolve_name
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# These files affect every test.
SETTINGS = ("pyproject.toml", "setup.py")
# A string such as "objectives/ul2.gin" names a file. In a test, "*.gin" names all such files.
FILE_NAME = re.compile(r"[\w*/-]*[\w*-]\.\w+")


@functools.lru_cache(1000)
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def statements(tree: ast.Module) -> list[ast.AST]:
    """Returns the module and its statements at any depth; `ast.walk` also visits expressions.

    >>> [type(node).__name__ for node in statements(ast.parse("if a:\\n  b = 1\\nelse:\\n  c()"))]
    ['Module', 'If', 'Assign', 'Expr']
    """
    found: list[ast.AST] = [tree]
    for node in found:
        for field in ("body", "handlers", "orelse", "finalbody", "cases"):
            inner = getattr(node, field, ())
            found += inner if isinstance(inner, list) else ()
    return found


def module_of(file: Path, root: Path = ROOT) -> str:
    """Returns the name under which a file is imported: `pretrax.…`, or `tests.…` for a test.

    >>> module_of(ROOT / "models" / "layers.py")
    'pretrax.models.layers'
    """
    parts = file.relative_to(root).with_suffix("").parts
    if parts[0] not in ("tests", "benchmarks", "examples"):
        parts = ("pretrax", *parts)
    return ".".join(parts).removesuffix(".__init__")


# The files of the packages, and `constraints.py`, by module name.
MODULES = {
    module_of(file): file
    for folder in sorted(file.parent for file in ROOT.glob("*/__init__.py"))
    for file in sorted(folder.rglob("*.py"))
} | {"pretrax.constraints": ROOT / "constraints.py"}


def modules_without_tasks() -> list[str]:
    """Returns the modules that do not load TensorFlow."""
    packages = "tasks", "comparison", "preprocessing", "explorer", "cli"
    above = {f"pretrax.{package}" for package in packages}
    names = [name for name in MODULES if not {".".join(name.split(".")[:2])} & above]
    return [*names, "pretrax.cli.train"]


@functools.lru_cache(1000)
def imported(file: Path, root: Path = ROOT) -> frozenset[str]:
    """Returns the absolute names that a file imports, including imports inside functions."""
    module = module_of(file, root)
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    names = []
    for node in statements(parsed(file)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            source = resolve_name("." * node.level + (node.module or ""), package)
            names += [f"{source}.{alias.name}" for alias in node.names]
    return frozenset(names)


@functools.lru_cache(1000)
def file_names(file: Path) -> frozenset[str]:
    """Returns the names of files, and patterns of such names, in the strings of a Python file."""
    strings = [
        node.value
        for node in ast.walk(parsed(file))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return frozenset(FILE_NAME.findall("\n".join(strings)))


def files_imported(file: Path, modules: dict[str, Path], root: Path = ROOT) -> set[Path]:
    """Returns the files that a file imports, chosen from these modules."""
    names = imported(file, root)
    found = {modules.get(name) or modules.get(name.rpartition(".")[0]) for name in names}
    return {other for other in found if other is not None and other != file}


def changed_files(revision: str, root: Path = ROOT) -> set[str]:
    """Returns the files that differ from a commit, including files that git does not track yet.

    Raises:
        ValueError: the commit does not exist, or the folder is not a checkout.
    """
    found: set[str] = set()
    for command in (
        ["diff", "--name-only", "--no-renames", "--relative", revision, "--"],
        ["ls-files", "--others", "--exclude-standard"],
    ):
        try:
            end = subprocess.run(["git", *command], cwd=root, capture_output=True, text=True)
        except FileNotFoundError as error:
            raise ValueError("--changed needs the command git, which was not found") from error
        if end.returncode:
            raise ValueError(f"--changed={revision}: {end.stderr.strip()}")
        found |= set(end.stdout.splitlines())
    return found


def tests_reached(changed: Iterable[str], root: Path = ROOT) -> set[Path] | None:
    """Returns the test files that depend on any of these files, or None if every test may.

    A file depends on the files that it imports. A test also depends on files that its strings name
    or match, and on every `conftest.py` above it. A helper of tests depends on files that its
    strings name, and a gin file on the files that it includes. If nothing depends on a changed
    file, it may affect every test, unless it is a Python file.
    """
    changed = set(changed)
    if changed & set(SETTINGS):
        return None
    users = _users(root, changed)
    reached = {root / name for name in changed}
    if any(file not in users and file.suffix != ".py" for file in reached):
        return None
    waiting = list(reached)
    while waiting:
        new = users.get(waiting.pop(), set()) - reached
        reached |= new
        waiting += new
    return {file for file in reached if _is_test(file) and file.exists()}


def _is_test(file: Path) -> bool:
    return file.name.startswith("test_") and file.suffix == ".py"


def _users(root: Path, changed: set[str]) -> dict[Path, set[Path]]:
    """Returns the files that directly depend on each file."""
    sources = _sources(root)
    # Other files may still import a deleted file.
    deleted = [root / name for name in changed if name.endswith(".py")]
    modules = {module_of(file, root): file for file in {*sources, *deleted}}
    others = _by_name(_other_files(root) | {root / name for name in changed})
    users: dict[Path, set[Path]] = {}
    for file in sources:
        for other in _dependencies(file, modules, others, root):
            users.setdefault(other, set()).add(file)
    for file in others.get(".gin", ()):
        for other in _gin_dependencies(file, modules, others):
            users.setdefault(other, set()).add(file)
    for conftest in (file for file in sources if file.name == "conftest.py"):
        below = {file for file in sources if _is_test(file) and conftest.parent in file.parents}
        users.setdefault(conftest, set()).update(below)
    return users


def _sources(root: Path) -> list[Path]:
    """Returns the Python files of the project: its packages, tests, benchmarks and scripts."""
    folders = [folder for folder in root.iterdir() if folder.is_dir() and folder.name[0] != "."]
    return [*root.glob("*.py"), *(file for folder in folders for file in folder.rglob("*.py"))]


def _other_files(root: Path) -> set[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True).stdout
    return {root / name for name in listed.splitlines() if not name.endswith(".py")}


def _by_name(files: Iterable[Path]) -> dict[str, set[Path]]:
    """Returns files by name, and by suffix for patterns such as `*.gin`."""
    found: dict[str, set[Path]] = {}
    for file in files:
        found.setdefault(file.name, set()).add(file)
        found.setdefault(file.suffix, set()).add(file)
    return found


def _dependencies(file, modules, others, root) -> Iterator[Path]:
    yield from files_imported(file, modules, root)
    if file.is_relative_to(root / "tests"):
        yield from _named(file_names(file), others, patterns=_is_test(file))


def _gin_dependencies(file, modules, others) -> Iterator[Path]:
    text = file.read_text(encoding="utf-8")
    yield from _named(FILE_NAME.findall(text), others)
    for source, name in re.findall(r"^from (\S+) import (\w+)", text, re.MULTILINE):
        module = modules.get(f"{source}.{name}") or modules.get(source)
        if module:
            yield module


def _named(
    names: Iterable[str], files: dict[str, set[Path]], patterns: bool = False
) -> Iterator[Path]:
    for name in names:
        last = name.rpartition("/")[2]
        if "*" in last:
            yield from files.get(Path(last).suffix, ()) if patterns else ()
        else:
            wanted = f"/{name}"
            yield from (file for file in files.get(last, ()) if f"/{file}".endswith(wanted))
