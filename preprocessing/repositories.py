"""Source code by repository: the files of a folder as one document.

A model that is to use a project's other files must see them together in training: DeepSeek-Coder
(Guo et al. 2024, arXiv:2401.14196, 2.2), StarCoder2 (Lozhkov et al. 2024, arXiv:2402.19173).
"""

import ast
import glob
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence

from datatrove.data import Document

from ..data.finding import listed, matching_files
from ..data.reading import LONGEST, Bad, MalformedLine, plain_text


def repositories_in(
    folders: str | Sequence[str], files: str | Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """Returns the folders that match, in order, with the paths below them of files that do.

    Arguments are as of `sources.repositories`. Raises FileNotFoundError for a pattern that no
    folder matches, and where no folder has such a file.
    """
    paths_of: dict[str, tuple[str, ...]] = {}
    for pattern in listed(folders):
        matching = sorted(filter(os.path.isdir, glob.glob(os.path.expanduser(pattern))))
        if not matching:
            raise FileNotFoundError(
                f"No folder matches {pattern!r}, looked for from {os.getcwd()}."
            )
        for folder in matching:
            patterns = [os.path.join(glob.escape(folder), inner) for inner in listed(files)]
            paths = filter(os.path.isfile, matching_files(patterns))
            if inside := tuple(os.path.relpath(path, folder) for path in paths):
                paths_of[folder] = inside
    if not paths_of:
        raise FileNotFoundError(f"No folder of {folders!r} has files that match {files!r}.")
    return paths_of


def documents(folder: str, paths: Sequence[str], header: str) -> Iterator[Document | Bad]:
    """Yields the document of these files of a repository, after those that are no text.

    Before each file stands `header`, a text with "{path}" and "{repository}".
    """
    name = os.path.basename(os.path.abspath(folder))
    texts: dict[str, str] = {}
    for path in paths:
        try:
            text = plain_text(os.path.join(folder, path))
        except MalformedLine as error:
            yield error.bad
            continue
        if text.strip():
            texts[path] = text.rstrip() + "\n"
    if sum(map(len, texts.values())) > LONGEST:
        reason = f"longer than {LONGEST >> 20} MiB in all: give fewer of its files"
        yield Bad(folder, "malformed", reason)
        return
    parts = (header.format(path=path, repository=name) + texts[path] for path in ordered(texts))
    metadata = {"file": folder, "repository": name, "files": len(texts)}
    yield Document("\n".join(parts), folder, metadata=metadata)


def ordered(texts: Mapping[str, str]) -> list[str]:
    """Returns the paths of files so that a Python file follows those it imports; else by name.

    >>> ordered({"a.py": "import b", "b.py": "from . import c", "c.py": "", "README.md": "Hello"})
    ['README.md', 'c.py', 'b.py', 'a.py']

    Of files that import each other, the first by name comes last.
    """
    modules = {_module(path): path for path in texts if path.endswith(".py")}
    # A project may lie in a folder of its repository, such as src/.
    roots = sorted({"", *(name.partition(".")[0] + "." for name in modules if "." in name)})
    by_any_name = {
        name.removeprefix(root): path for root in roots for name, path in modules.items()
    }
    order: list[str] = []
    entered = set[str]()
    for first in sorted(texts):
        pending = [(first, iter([first]))]
        while pending:  # depth first; no recursion, since chains of imports may be long
            path, following = pending[-1]
            other = next((one for one in following if one not in entered), None)
            if other is None:
                pending.pop()
                if pending:
                    order.append(path)
            else:
                entered.add(other)
                pending.append((other, iter(_imported(other, texts[other], by_any_name))))
    return order


def _module(path: str) -> str:
    """Returns the dotted name of a Python file, from the folder of its repository."""
    parts = path.removesuffix(".py").split("/")
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(path: str, text: str, modules: Mapping[str, str]) -> list[str]:
    """Returns the files of a repository that a Python file imports, in its order."""
    if not path.endswith(".py"):
        return []
    try:
        with warnings.catch_warnings(action="ignore"):  # of what the code itself gets wrong
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    names: list[str] = []
    package = _module(path).split(".")
    if not path.endswith("__init__.py"):
        package = package[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            names += [f"{base}.{alias.name}".strip(".") for alias in node.names] + [base]
    return [modules[name] for name in dict.fromkeys(names) if name in modules]
