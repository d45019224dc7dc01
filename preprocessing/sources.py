"""Where raw text comes from.

    preprocessing.Preparation.source = @sources.files
    sources.files.files = "raw/*.jsonl.zst, s3://bucket/more/*.parquet"

A source divides its text into tasks, by its sizes alone.
"""

import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from datatrove.data import Document
from datatrove.pipeline.base import PipelineStep

from ..constraints import Count, checked
from ..data.finding import find_files, versions_of
from ..data.reading import JSONL_SUFFIXES, LEFT_OUT, Bad, RawDocument, malformed, raw_documents
from ..settings.user_modules import import_module
from ..settings.atomic_writes import checksum
from .blocks import Dropped, Source
from .repositories import documents, repositories_in

MOST_TASKS = 512  # near duplicates are found with a file of each task open


class FileRange(NamedTuple):
    """A file, or the lines of one that start within a range of its bytes."""

    path: str
    start: int = 0
    end: int | None = None  # None: to its end


@checked
def files(
    *,
    files: str | Sequence[str],
    text_field: str = "text",
    on_malformed: Literal["error", "skip"] = "error",
    task_bytes: Count = 8 << 20,
) -> Source:
    """Plain text, source code, JSONL, Parquet, Arrow, WARC and WET, each also as .gz or .zst.

    Args:
      files: paths or glob patterns (`**` for any depth), a list or separated by commas; with a
        protocol, such as s3://, in a bucket; a folder that Hugging Face's `datasets` saved.
      text_field: the field or column that holds the text; the others are the document's metadata.
      on_malformed: "error" ends at the first record that cannot be read, "skip" counts them.
      task_bytes: of files that one task reads; more where there would be more than 512 tasks.

    Raises ValueError and FileNotFoundError for patterns by which no file can be read.
    """
    versions = versions_of(find_files(files))
    sizes = {path: size for path, size, _ in versions}
    read = functools.partial(documents_of_file, text_field, on_malformed)
    return _source(read, versions, sizes, task_bytes, "file" if len(sizes) == 1 else "files")


@checked
def repositories(
    *,
    folders: str | Sequence[str],
    files: str | Sequence[str] = "**/*.py",
    header: str = "# {repository}/{path}\n",
    on_malformed: Literal["error", "skip"] = "error",
    task_bytes: Count = 8 << 20,
) -> Source:
    """Source code by repository: a folder is a document, of its files one after another.

    A Python file follows those it imports, other files are in the order of their names; see
    `preprocessing.repositories` for the sources followed. A document's metadata are `repository`,
    the name of the folder, and the number of its `files`.

    Args:
      folders: paths or glob patterns of folders, such as "repos/*", a list or separated by commas.
      files: patterns below each folder, likewise; compressed files are unpacked.
      header: what stands before each file: a text with "{path}" and "{repository}".
      on_malformed: "error" ends at the first file that is no text, "skip" counts them.
      task_bytes: of files that one task reads; more where there would be more than 512 tasks.

    Raises ValueError for a header with other names, and FileNotFoundError for a pattern that
    matches nothing; a folder without such files is left out.
    """
    try:
        header.format(path="", repository="")
    except (KeyError, IndexError, ValueError) as error:
        raise ValueError(
            f"sources.repositories.header is {header!r} ({error!r}), expected a text with "
            '"{path}" and "{repository}" alone in braces.'
        ) from error
    paths_of = repositories_in(folders, files)
    version: list[Any] = [header]
    sizes = dict.fromkeys(paths_of, 0)
    for folder, paths in paths_of.items():
        versions = versions_of(os.path.join(folder, path) for path in paths)
        for path, (_, size, changed) in zip(paths, versions):
            sizes[folder] += size
            version.append((folder, path, size, changed))
    read = functools.partial(_documents_of_repository, paths_of, header, on_malformed)
    noun = "repository" if len(sizes) == 1 else "repositories"
    return _source(read, version, sizes, task_bytes, noun)


def _source(
    read: Callable[[FileRange], Iterator[Document | Bad]],
    version: Sequence[Any],
    sizes: Mapping[str, int],
    task_bytes: int,
    noun: str,
) -> Source:
    """Returns the source of files or folders of these sizes, which `read` reads one by one."""
    shares = shares_of(sizes, task_bytes)
    block = functools.partial(_Read, functools.partial(_documents_of_share, shares, read))
    about = f"{len(sizes):,} {noun}, {sum(sizes.values()) / 1e6:,.1f} MB"
    return Source("read", len(shares), version, block, about)


def _documents_of_share(
    shares: Sequence[Sequence[FileRange]],
    read: Callable[[FileRange], Iterator[Document | Bad]],
    rank: int,
) -> Iterator[Document | Bad]:
    return itertools.chain.from_iterable(map(read, shares[rank]))


def documents_of_file(
    text_field: str, on_malformed: str, file_range: FileRange
) -> Iterator[Document | Bad]:
    """Yields the documents of a file and its bad records, in order; raises as `_judged`."""
    lines = (file_range.start, file_range.end)
    found = (
        _document(one, text_field) if isinstance(one, RawDocument) else one
        for one in raw_documents(file_range.path, text_field, byte_range=lines)
        if isinstance(one, RawDocument) or one.rule != "blank"
    )
    return _judged(found, on_malformed, "files")


def _document(record: RawDocument, text_field: str) -> Document:
    fields = record.fields
    name = fields.get("id")
    if not isinstance(name, str | int):
        name = f"{record.path}@{record.at}" if fields else record.path
    others = {key: value for key, value in fields.items() if key not in (text_field, "id")}
    if isinstance(within := others.get("metadata"), dict):  # as datatrove and Dolma write them
        others = within | {key: value for key, value in others.items() if key != "metadata"}
    return Document(record.text, str(name), metadata={"file": record.path, **others})


def _documents_of_repository(
    paths_of: Mapping[str, Sequence[str]], header: str, on_malformed: str, folder: FileRange
) -> Iterator[Document | Bad]:
    found = documents(folder.path, paths_of[folder.path], header)
    return _judged(found, on_malformed, "repositories")


def _judged(
    found: Iterable[Document | Bad], on_malformed: str = "skip", source: str = ""
) -> Iterator[Document | Bad]:
    """Yields documents and bad records, a document without text as a bad one.

    Raises MalformedLine at the first bad one where `on_malformed`, a setting of `source`, says so.
    """
    for one in found:
        if isinstance(one, Bad) and one.rule not in LEFT_OUT and on_malformed == "error":
            skip = f"--gin.sources.{source}.on_malformed=\"'skip'\""
            raise malformed(one, f"Mend it, or skip such records: {skip}")
        if isinstance(one, Document) and not one.text.strip():
            one = Bad(one.id, "empty", "no text")
        yield one


def seqio_task(
    *,
    name: str,
    split: str = "train",
    feature: str = "targets",
    module: str | None = None,
    data_dir: str | None = None,
) -> Source:
    """The text of a SeqIO task, as it is before it is tokenized.

    Args:
      name: of the task, one of yours or of `tasks.seqio.tfds_tasks`.
      module: a module, or a file, that registers the task. A change of it is a change of the
        text; changes of modules that it imports, and of the task's data, are not noticed.
      data_dir: where TensorFlow Datasets lie; None: ~/tensorflow_datasets.

    Raises ValueError for a mixture, and what the task does not have.
    """
    from ..tasks.seqio.seqio_texts import TaskTexts

    source = _of_tensorflow(TaskTexts(name, split, feature, module, data_dir))
    file = import_module(module).__file__ if module else None
    return source._replace(version=[*source.version, checksum(file)]) if file else source


def tensorflow_dataset(
    *, name: str, split: str = "train", feature: str = "text", data_dir: str | None = None
) -> Source:
    """The text of a data set of TensorFlow Datasets that `tfds build` has prepared.

    Args:
      name: such as "wikipedia/20230601.en:1.0.0".
      data_dir: where it lies; None: ~/tensorflow_datasets.

    Raises FileNotFoundError where it is not there, ValueError for what it does not have.
    """
    from ..tasks.seqio.seqio_texts import DatasetTexts

    return _of_tensorflow(DatasetTexts(name, split, feature, data_dir))


def _of_tensorflow(texts: Any) -> Source:
    tasks = min(texts.shards(), MOST_TASKS)
    about = f"{texts.name}, {texts.split}, of {texts.shards():,} files"
    read = functools.partial(_documents_of_tensorflow, texts, tasks)
    return Source("read", tasks, list(texts), functools.partial(_Read, read), about)


def _documents_of_tensorflow(texts: Any, tasks: int, rank: int) -> Iterator[Document | Bad]:
    numbered = enumerate(texts.read(rank, tasks))
    return _judged(Document(text, f"{texts.name}/{rank}/{number}") for number, text in numbered)


def shares_of(sizes: Mapping[str, int], share_bytes: int) -> list[list[FileRange]]:
    """Returns what each task reads: consecutive files, and ranges of long ones of JSONL.

    >>> shares_of({"a.txt": 3, "b.txt": 3, "c.jsonl": 12}, 6)
    [[FileRange(path='a.txt', start=0, end=None), FileRange(path='b.txt', start=0, end=None)],
     [FileRange(path='c.jsonl', start=0, end=6)], [FileRange(path='c.jsonl', start=6, end=12)]]
    """
    share_bytes = max(share_bytes, -(-sum(sizes.values()) // (MOST_TASKS - 1)))
    shares: list[list[FileRange]] = [[]]
    left = share_bytes
    for path, size in sizes.items():
        is_jsonl = path.lower().endswith(JSONL_SUFFIXES)  # compressed files have other endings
        if is_jsonl and size > share_bytes:
            starts = range(0, size, share_bytes)
            ranges = [FileRange(path, at, min(at + share_bytes, size)) for at in starts]
        else:
            ranges = [FileRange(path)]
        for one in ranges:
            if left <= 0:  # so that all but the last have their bytes
                shares.append([])
                left = share_bytes
            shares[-1].append(one)
            left -= size if one.end is None else one.end - one.start
    return shares


class _Read(PipelineStep):
    """Gives the documents of a task, which `read` yields by its rank, and counts the bad ones."""

    type = "Reader"
    name = "read"

    def __init__(self, read: Callable[[int], Iterator[Document | Bad]], dropped: Dropped):
        super().__init__()
        self.read = read
        self.dropped = dropped

    def run(self, data=None, rank: int = 0, world_size: int = 1):
        with self.dropped:
            for one in self.read(rank):
                self.stat_update("total")
                if isinstance(one, Bad):
                    self.stat_update("dropped", f"dropped_{one.rule}")
                    self.dropped.note(one.rule, one.place, one.reason, rank)
                    continue
                self.stat_update("forwarded")
                yield one
