"""What pipelines are made of: a source, steps, passes, and the documents between them.

A *step* is what a user names: a filter, a deduplication. Where a document's fate depends on the
others, as a duplicate's does, it has *passes* over all documents first. Then its *block*, a
datatrove `PipelineStep`, runs over the documents of each task.
"""

import contextlib
import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import orjson
import zstandard
from datatrove.data import Document
from datatrove.pipeline.base import PipelineStep

EXAMPLES = 3  # dropped documents that are kept for the report, of each rule and task
EXAMPLE_CHARACTERS = 2_000
RULE = "filter_reason"  # the key of metadata at which datatrove says why it dropped a document


class Pass(NamedTuple):
    """Work before the documents of a step can be judged."""

    name: str
    blocks: Sequence[PipelineStep]
    tasks: int | None = None  # None: one for each task of the documents, which the blocks read


class Step(NamedTuple):
    """What a user names in a pipeline."""

    name: str
    # (folder of what the passes wrote, where dropped documents are shown) -> its block
    block: Callable[[str, "Dropped"], PipelineStep]
    passes: Callable[[str], Sequence[Pass]] | None = None  # (folder to write to) -> in order
    rule: str = ""  # of the only rule; "": the block names those it drops by
    version: Sequence[Any] = ()  # as a source's, of what it reads beside the documents


class Source(NamedTuple):
    """Raw text in tasks: a fixed division, so that results do not depend on the workers."""

    name: str
    tasks: int
    version: Sequence[Any]  # plain values, of which one changes when the text or its reading does
    block: Callable[["Dropped"], PipelineStep]  # gives the documents of a task
    about: str  # in words


class Dropped(contextlib.AbstractContextManager):
    """Keeps the first dropped documents of each rule, as an exclusion writer of datatrove."""

    def __init__(self, folder: str, rule: str):
        self._folder = folder
        self._rule = rule
        self._kept: dict[str, list[dict[str, str]]] = {}
        self._rank = 0

    def write(self, document: Document, rank: int = 0) -> None:
        rule = self._rule or str(document.metadata.get(RULE, "dropped"))
        self.note(rule, document.id, document.text, rank)

    def note(self, rule: str, name: str, text: str, rank: int) -> None:
        self._rank = rank
        some = self._kept.setdefault(rule, [])
        if len(some) < EXAMPLES:
            some.append({"id": name, "text": text[:EXAMPLE_CHARACTERS]})

    def __exit__(self, *_: object) -> None:
        if self._kept:
            os.makedirs(self._folder, exist_ok=True)
            with open(os.path.join(self._folder, f"{self._rank:05d}.json"), "w") as file:
                json.dump(self._kept, file)


def examples_in(folder: str) -> dict[str, list[dict[str, str]]]:
    """Returns the first dropped documents of each rule that `Dropped` kept, over all tasks."""
    found: dict[str, list[dict[str, str]]] = {}
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        with open(os.path.join(folder, name)) as file:
            for rule, some in json.load(file).items():
                known = found.setdefault(rule, [])
                known += some[: EXAMPLES - len(known)]
    return found


class WriteDocuments(PipelineStep):
    """Writes the documents of each task to a file of its own, whole or not at all."""

    type = "Writer"
    name = "documents"

    def __init__(self, folder: str):
        super().__init__()
        self.folder = folder

    def run(self, data, rank: int = 0, world_size: int = 1):
        os.makedirs(self.folder, exist_ok=True)
        path = document_file(self.folder, rank)
        with open(path + ".tmp", "wb") as raw, zstandard.open(raw, "wb") as file:
            for document in data:
                file.write(_as_line(document))
                self.stat_update("total", "forwarded")
                yield document
        os.replace(path + ".tmp", path)


def _as_line(document: Document) -> bytes:
    record = {"text": document.text, "id": document.id, "metadata": document.metadata}
    try:
        return orjson.dumps(record, default=str, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:
        record |= {"id": _plain(document.id), "metadata": _plain(document.metadata)}
        return orjson.dumps(record, default=str, option=orjson.OPT_APPEND_NEWLINE)


def _plain(value: Any, levels: int = 100) -> Any:
    r"""Returns a value in which what orjson does not take is text, and what is deeper is "…".

    >>> _plain({"a": 10**30, 1: ["\ud800"]})
    {'a': '1000000000000000000000000000000', '1': ['\\ud800']}
    """
    if isinstance(value, dict | list | tuple) and not levels:
        return "…"
    if isinstance(value, dict):
        return {_plain(str(key)): _plain(one, levels - 1) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one, levels - 1) for one in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return str(value)
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


class ReadDocuments(PipelineStep):
    """Gives the documents that `WriteDocuments` wrote for a task."""

    type = "Reader"
    name = "documents"

    def __init__(self, folder: str):
        super().__init__()
        self.folder = folder

    def run(self, data=None, rank: int = 0, world_size: int = 1):
        yield from documents_of(self.folder, rank)


def documents_of(folder: str, rank: int) -> Iterator[Document]:
    """Yields the documents of a task."""
    with zstandard.open(document_file(folder, rank), "rb") as raw:
        for line in io.BufferedReader(raw):
            yield Document(**orjson.loads(line))


def document_file(folder: str, rank: int) -> str:
    return os.path.join(folder, f"{rank:05d}.jsonl.zst")
