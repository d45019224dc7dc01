"""What yardsticks measured of a run, kept with what it was measured by.

    RUN/evaluation/yardsticks.jsonl    a line for each measurement, of which the latest counts

A line has the yardstick's settings with defaults, the checkpoint's step, and a checksum of the
code, so that a yardstick that has changed is measured again; of a run whose corpus is a world also
one of the world's code, which asks the questions.
"""

import ast
import contextlib
import functools
import hashlib
import importlib.util
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...inference.prompting.windows import BeyondTraining
from ...settings import run_directory
from ...settings.bound import bound
from ..figures import HIGHER, LOWER, NEITHER, Figure, figure_of, settings_of_yardstick
from ..results import read_lines, write_lines
from .subject import Subject

# Modules whose code is a yardstick's, beside its own: what is measured, and of which examples.
CODE = (
    "pretrax.comparison.",
    "pretrax.corpora.python_library.",
    "pretrax.corpora.worlds.",
)


class Measured(NamedTuple):
    """What a yardstick measured of a run."""

    figures: tuple[Figure, ...]
    refusal: str  # why this run cannot be measured so; "": it was


Line = Mapping[str, Any]


def measure(yardstick: Callable, subject: Subject) -> tuple[Figure, ...]:
    """Returns a yardstick's figures; the first one's note has by how much texts were too long.

    Raises ValueError where it cannot measure the run, or does not return figures of its name.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        first, *parts = _checked(bound(yardstick).function.__name__, yardstick(subject))
    beyond = []
    for one in caught:
        if isinstance(one.message, BeyondTraining):
            beyond.append(one.message)
        else:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
    if beyond:
        longest = max(beyond, key=lambda message: message.slots)
        lengths = (
            f"texts of up to {longest.slots} slots of the {longest.stack}, where the rows of "
            f"training had {longest.trained}"
        )
        first = first._replace(note="; ".join(filter(None, (first.note.rstrip("."), lengths))))
    return (first, *parts)


def _checked(name: str, figures: Any) -> list[Figure]:
    """Returns what a yardstick returned, or raises ValueError for what reports would mistake."""
    if not isinstance(figures, list | tuple) or not figures:
        raise ValueError(f"{name} returned {figures!r}, expected a list of figures, at least one.")
    for figure in figures:
        if not isinstance(figure, Figure) or figure.better not in (LOWER, HIGHER, NEITHER):
            raise ValueError(
                f"{name} returned {figure!r}, expected a comparison.figures.Figure whose `better` "
                f"is {LOWER!r}, {HIGHER!r} or {NEITHER!r}."
            )
    names = [figure.name for figure in figures]
    below = all(part.startswith(f"{name}/") for part in names[1:])
    if names[0] != name or not below or len(set(names)) < len(names):
        raise ValueError(
            f"{name} returned figures named {', '.join(names)}, expected {name} first, and parts "
            f"such as {name}/first, each once."
        )
    baselines = [math.nan if f.baseline is None else float(f.baseline) for f in figures]
    return [
        f._replace(value=float(f.value), baseline=baseline if math.isfinite(baseline) else None)
        for f, baseline in zip(figures, baselines)
    ]


def read_measured(
    run_dir: str,
    steps: Iterable[int],
    yardsticks: Sequence[Callable],
    corpus: Callable | None = None,
) -> dict[int, list[Measured | None]]:
    """Returns, for each checkpoint, what each yardstick measured of it last.

    A measurement is None if the yardstick, with its present code and settings, has not measured the
    checkpoint. The file is read once.

    Args:
      steps: of the checkpoints.
      corpus: the factory of the run's corpus, whose world may have changed.

    Raises ValueError, naming the file and the line, where it is damaged.
    """
    kept = _kept(run_dir)[::-1]

    def latest(step: int, yardstick: Callable) -> Measured | None:
        wanted = _line(step, yardstick, corpus).items()
        return next((one for line, one in kept if wanted <= line.items()), None)

    return {step: [latest(step, yardstick) for yardstick in yardsticks] for step in steps}


def write_measured(
    run_dir: str,
    step: int | None,
    yardstick: Callable,
    measured: Measured,
    corpus: Callable | None = None,
) -> None:
    """Adds what a yardstick measured of a checkpoint of a run of this corpus."""
    figures = [figure.record for figure in measured.figures]
    line = _line(step, yardstick, corpus) | {"figures": figures, "refusal": measured.refusal}
    write_lines(_path(run_dir), [*(kept for kept, _ in _kept(run_dir)), line])


def forget_refusals(run_dir: str) -> None:
    """Drops refusals, whose cause may be gone, such as missing files."""
    kept = _kept(run_dir)
    if any(measured.refusal for _, measured in kept):
        write_lines(_path(run_dir), [line for line, measured in kept if not measured.refusal])


def _line(step: int | None, yardstick: Callable, corpus: Callable | None) -> dict[str, Any]:
    line = {
        "yardstick": bound(yardstick).function.__name__,
        "step": step,
        "settings": settings_of_yardstick(yardstick),
    }
    modules = _modules(yardstick, corpus).items()
    return line | {whose: checksum_of_code(module) for whose, module in modules}


def _modules(yardstick: Callable, corpus: Callable | None) -> dict[str, str]:
    """Returns the modules whose code is kept with a figure: "code" is that of the yardstick,
    "world" that of the corpus's world, where it has one."""
    modules = {"code": bound(yardstick).function.__module__}
    world = None if corpus is None else bound(corpus).settings.get("world")
    return modules if world is None else {**modules, "world": bound(world).function.__module__}


def _path(run_dir: str) -> Path:
    return Path(run_dir) / run_directory.EVALUATION / run_directory.FIGURES


def _kept(run_dir: str) -> list[tuple[Line, Measured]]:
    def measured(line: Line) -> tuple[Line, Measured]:
        return line, Measured(tuple(map(figure_of, line["figures"])), line["refusal"])

    return read_lines(_path(run_dir), measured) if _path(run_dir).exists() else []


def read_code(yardsticks: Iterable[Callable], corpus: Callable | None = None) -> None:
    """Reads the checksums of code that `write_measured` will keep: call it before hours of
    training, in which files may change whose code this process has imported."""
    for yardstick in yardsticks:
        for module in _modules(yardstick, corpus).values():
            checksum_of_code(module)


def changed_code(yardsticks: Iterable[Callable], corpus: Callable | None = None) -> list[str]:
    """Returns the modules whose code has changed on disk since this process first read it, each
    with both checksums; those of yardsticks, and of the world of this corpus."""
    modules = [m for one in yardsticks for m in _modules(one, corpus).values()]
    found = []
    for module in dict.fromkeys(modules):
        was = checksum_of_code(module)
        try:
            now = _checksum_on_disk(module)
        except (SyntaxError, ValueError, OSError) as error:  # half of an update
            now = f"none, for it cannot be read: {error}"
        if now != was:
            found.append(f"{module} (its checksum was {was}, is {now})")
    return found


@functools.lru_cache(maxsize=64)
def checksum_of_code(module: str) -> str:
    """Returns a checksum of the code of a yardstick's module, or a world's, without comments and
    docstrings, as it was when this process first asked for it."""
    return _checksum_on_disk(module)


def _checksum_on_disk(module: str) -> str:
    trees = sorted((name, ast.dump(tree)) for name, tree in code_of(module).items())
    return hashlib.sha256(repr(trees).encode()).hexdigest()[:16]


def code_of(module: str) -> dict[str, ast.Module]:
    """Returns the code of a module and of those of `CODE` that it, or one of them, imports."""
    trees: dict[str, ast.Module] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        path = None if name in trees else _path_of(name)
        if path is None:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        waiting += [one for one in _imported(tree, package) if one.startswith(CODE)]
        trees[name] = _without_docstrings(tree)
    return trees


def _path_of(module: str) -> Path | None:
    """Returns a module's file; None of what is none, such as a function's name."""
    with contextlib.suppress(ImportError, ValueError, AttributeError):
        spec = importlib.util.find_spec(module)
        if spec is not None and spec.origin is not None and spec.origin.endswith(".py"):
            return Path(spec.origin)
    return None


def _imported(tree: ast.Module, package: str) -> list[str]:
    """Returns the names of what a module of a package imports, and of the modules it is from."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            relative = "." * node.level + (node.module or "")
            source = importlib.util.resolve_name(relative, package)
            names += [source, *(f"{source}.{alias.name}" for alias in node.names)]
    return names


def _without_docstrings(tree: ast.Module) -> ast.Module:
    documented = ast.Module | ast.ClassDef | ast.FunctionDef
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node):
            node.body = node.body[1:]
    return tree
