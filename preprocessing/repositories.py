"""Reads source code by repository: all files of a folder form one document.

To use the other files of a project, a model must see them together in training. This follows
DeepSeek-Coder (Guo et al. 2024, arXiv:2401.14196, section 2.2) and StarCoder2 (Lozhkov et al. 2024,
arXiv:2402.19173).
"""

import ast
import glob
import os
from collections.abc import Iterator, Mapping, Sequence

from datatrove.data import Document

from ..corpora.python_library.python_sources import parsed
from ..data.finding import listed, matching_files
from ..data.reading import MAX_TEXT_BYTES, Bad, MalformedLine, plain_text


def repositories_in(
    folders: str | Sequence[str], files: str | Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """Returns {folder: relative paths of its files} of the folders that match, in order.

    Args:
      folders: paths or glob patterns of folders.
      files: patterns of files below each folder.

    Raises FileNotFoundError for a pattern that no folder matches, and if no folder has such a file.
    """
    paths_of: dict[str, tuple[str, ...]] = {}
    for pattern in listed(folders):
        matching = sorted(filter(os.path.isdir, glob.glob(os.path.expanduser(pattern))))
        if not matching:
            raise FileNotFoundError(
                f"No folder matches {pattern!r} in {os.getcwd()}: correct the pattern."
            )
        for folder in matching:
            patterns = [os.path.join(glob.escape(folder), inner) for inner in listed(files)]
            paths = filter(os.path.isfile, matching_files(patterns))
            if inside := tuple(os.path.relpath(path, folder) for path in paths):
                paths_of[folder] = inside
    if not paths_of:
        raise FileNotFoundError(
            f"No folder of {folders!r} has files that match {files!r}: change a pattern."
        )
    return paths_of


def documents(folder: str, paths: Sequence[str], header: str) -> Iterator[Document | Bad]:
    """Yields files of a repository that are not text, and then a document of all its other files.

    Each file follows `header`, a text with "{path}" and "{repository}".
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
    if sum(map(len, texts.values())) > MAX_TEXT_BYTES:
        reason = f"longer than {MAX_TEXT_BYTES >> 20} MiB in total: give fewer of its files"
        yield Bad(folder, "malformed", reason)
        return
    parts = (header.format(path=path, repository=name) + texts[path] for path in ordered(texts))
    metadata = {"file": folder, "repository": name, "files": len(texts)}
    yield Document("\n".join(parts), folder, metadata=metadata)


def ordered(texts: Mapping[str, str]) -> list[str]:
    """Returns the paths of files by name, but with each Python file after the files it imports.

    >>> ordered({"a.py": "import b", "b.py": "from . import c", "c.py": "", "README.md": "Hello"})
    ['README.md', 'c.py', 'b.py', 'a.py']

    If files import each other, the first file by name comes last.
    """
    modules = {_module(path): path for path in texts if path.endswith(".py")}
    # A project may be in a subfolder of its repository, such as src/.
    roots = sorted({"", *(name.partition(".")[0] + "." for name in modules if "." in name)})
    by_any_name = {
        name.removeprefix(root): path for root in roots for name, path in modules.items()
    }
    order: list[str] = []
    entered = set[str]()
    for first in sorted(texts):
        pending = [(first, iter([first]))]
        while pending:  # depth first without recursion, since chains of imports may be long
            path, following = pending[-1]
            next_path = next((name for name in following if name not in entered), None)
            if next_path is None:
                pending.pop()
                if pending:
                    order.append(path)
            else:
                entered.add(next_path)
                pending.append(
                    (next_path, iter(_imported(next_path, texts[next_path], by_any_name)))
                )
    return order


def _module(path: str) -> str:
    parts = path.removesuffix(".py").split("/")
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(path: str, text: str, modules: Mapping[str, str]) -> list[str]:
    """Returns the files of a repository that a Python file imports, in its order."""
    tree = parsed(text) if path.endswith(".py") else None
    if tree is None:
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
