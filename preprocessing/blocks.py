"""Parts of a pipeline: sources, steps and passes, and the documents between them.

A *step* of a preparation is, for example, a filter or a deduplication. If its result depends on
other documents, it first has *passes* over all documents. Then its *block*, a datatrove
`PipelineStep`, runs over the documents of each task.
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

EXAMPLES_PER_RULE = 3  # number of reported dropped documents per rule and task
EXAMPLE_CHARACTERS = 2_000
RULE = "filter_reason"  # datatrove's metadata key for why a document was dropped


class Pass(NamedTuple):
    """Work over all documents before a step filters single documents."""

    name: str
    blocks: Sequence[PipelineStep]
    tasks: int | None = None  # number of tasks; None: the tasks of the documents


class Step(NamedTuple):
    """A step of a pipeline, as a user lists it."""

    name: str
    # (folder that the passes wrote to, writer of dropped documents) -> block of the step
    block: Callable[[str, "DroppedExamples"], PipelineStep]
    passes: Callable[[str], Sequence[Pass]] | None = None  # (folder to write to) -> passes in order
    rule: str = ""  # name of the only rule; "" if the block names its rules
    version: Sequence[Any] = ()  # plain values that change if the step's other data changes


class Source(NamedTuple):
    """Raw text, divided into tasks independently of the number of workers."""

    name: str
    tasks: int
    version: Sequence[Any]  # plain values that change if the text or its reading changes
    # (writer of dropped documents) -> block that yields the documents of a task
    block: Callable[["DroppedExamples"], PipelineStep]
    about: str  # description for the user
    alphabet: str = ""  # the alphabet of biological sequences; "" for other text


class DroppedExamples(contextlib.AbstractContextManager):
    """Saves the first dropped documents of each rule, as an exclusion writer of datatrove."""

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
        examples = self._kept.setdefault(rule, [])
        if len(examples) < EXAMPLES_PER_RULE:
            examples.append({"id": name, "text": text[:EXAMPLE_CHARACTERS]})

    def __exit__(self, *_: object) -> None:
        if self._kept:
            os.makedirs(self._folder, exist_ok=True)
            with open(os.path.join(self._folder, f"{self._rank:05d}.json"), "w") as file:
                json.dump(self._kept, file)


def examples_in(folder: str) -> dict[str, list[dict[str, str]]]:
    """Returns the documents of `DroppedExamples` by rule, over all tasks."""
    merged: dict[str, list[dict[str, str]]] = {}
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        with open(os.path.join(folder, name)) as file:
            for rule, examples in json.load(file).items():
                known = merged.setdefault(rule, [])
                known += examples[: EXAMPLES_PER_RULE - len(known)]
    return merged


class WriteDocuments(PipelineStep):
    """Writes the documents of each task to a separate file, atomically."""

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
    r"""Returns a value for orjson.

    Parts that orjson does not support become text, and parts below `levels` levels "…".

    >>> _plain({"a": 10**30, 1: ["\ud800"]})
    {'a': '1000000000000000000000000000000', '1': ['\\ud800']}
    """
    if isinstance(value, dict | list | tuple) and not levels:
        return "…"
    if isinstance(value, dict):
        return {_plain(str(key)): _plain(item, levels - 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, levels - 1) for item in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return str(value)
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


class ReadDocuments(PipelineStep):
    """Reads the documents that `WriteDocuments` wrote for a task."""

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
