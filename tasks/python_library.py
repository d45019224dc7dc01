"""The text of Python's own standard library: prose and code that every machine has."""

import os
import sysconfig
from collections.abc import Callable
from typing import NamedTuple

# Tests, generated tables and other people's packages teach little or are not there everywhere.
SKIPPED_FOLDERS = frozenset(
    [
        *("site-packages", "dist-packages", "__pycache__", "test", "tests", "idlelib", "lib2to3"),
        *("turtledemo", "encodings", "pydoc_data", "ensurepip", "_bundled"),
    ]
)


class Document(NamedTuple):
    """A document that is read when asked for."""

    name: str  # relative to the library, with "/"; topics are "pydoc_data/topics/…"
    fingerprint: str  # changes when the text does
    read: Callable[[], str]


def library_documents() -> list[Document]:
    """The library's sources and pydoc's topics, sorted by name.

    Raises:
        FileNotFoundError: this Python has no library sources on disk.
    """
    root = sysconfig.get_path("stdlib")
    documents = []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in SKIPPED_FOLDERS]
        for file in files:
            path = os.path.join(folder, file)
            if not file.endswith(".py") or file.startswith("_sysconfigdata"):
                continue
            stat = os.stat(path)
            if stat.st_size:
                name = os.path.relpath(path, root).replace(os.sep, "/")
                documents.append(Document(name, str(stat.st_size), _reader(path)))
    if not documents:
        raise FileNotFoundError(
            f"No Python sources in {root}: this Python comes without its library's sources. "
            "Use a Python from python.org, your distribution, conda or uv, or train on "
            "your own text with corpora.text_files."
        )
    documents += _topics()
    return sorted(documents)


def _topics() -> list[Document]:
    try:
        from pydoc_data.topics import topics
    except ImportError:  # some distributions leave it out
        return []
    return [
        Document(f"pydoc_data/topics/{name}", str(len(text)), lambda text=text: text)
        for name, text in topics.items()
    ]


def _reader(path: str) -> Callable[[], str]:
    def read() -> str:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()

    return read
