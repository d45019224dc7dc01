"""Sources of raw text.

    preprocessing.Preparation.source = @sources.files
    sources.files.files = "raw/*.jsonl.zst, s3://bucket/more/*.parquet"

A source divides its text into tasks by the sizes of its files.
"""

import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from datatrove.data import Document
from datatrove.pipeline.base import PipelineStep

from ..constraints import Count, checked
from ..corpora.alphabets import Alphabet, alphabet_named
from ..corpora.sequence_pieces import pieces
from ..corpora.text_readers import LeftOut
from ..data.finding import find_files, versions_of
from ..data.reading import (
    JSONL_SUFFIXES,
    LEFT_OUT,
    Bad,
    RawDocument,
    malformed,
    raw_documents,
    valid_documents,
)
from ..settings.atomic_writes import checksum
from ..settings.user_modules import import_module
from .blocks import DroppedExamples, Source
from .repositories import documents, repositories_in

MAX_TASKS = 512  # the search for near duplicates opens a file per task


class FileRange(NamedTuple):
    """A file, or the lines of a file that start within a range of bytes."""

    path: str
    start: int = 0
    end: int | None = None  # None means the end of the file


@checked
def files(
    *,
    files: str | Sequence[str],
    text_field: str = "text",
    on_malformed: Literal["error", "skip"] = "error",
    task_bytes: Count = 8 << 20,
) -> Source:
    """Reads plain text, source code, JSONL, Parquet, Arrow, WARC and WET, also as .gz or .zst.

    Args:
      files: paths or glob patterns (`**` for any depth), as a list or separated by commas. They may
        be in a bucket, such as s3://. A path may also be a folder that Hugging Face's `datasets`
        saved.
      text_field: field or column with the text; other fields are the metadata of the document.
      on_malformed: "error" stops at the first record that cannot be read; "skip" counts them.
      task_bytes: number of bytes that a task reads. It is raised if there would be more than 512
        tasks.

    Raises ValueError or FileNotFoundError if the patterns match no file that can be read.
    """
    versions = versions_of(find_files(files))
    sizes = {path: size for path, size, _ in versions}
    read = functools.partial(documents_of_file, text_field, on_malformed)
    return _source(read, versions, sizes, task_bytes, "file" if len(sizes) == 1 else "files")


@checked
def sequences(
    *,
    files: str | Sequence[str],
    alphabet: str,
    window: Count | None = None,
    task_bytes: Count = 8 << 20,
) -> Source:
    """Reads DNA, RNA or proteins from FASTA and FASTQ, also as .gz, .bgz or .zst.

    A document is a record's letters between runs of N, or a window of them, with the id of the
    record.

    Args:
      files: paths or glob patterns, as in `sources.files`.
      alphabet: "dna", "rna" or "protein" (`corpora.alphabets`), or your own uppercase letters.
      window: largest number of letters of a document.
      task_bytes: number of bytes that a task reads. It is raised if there would be more than 512
        tasks.

    Raises ValueError or FileNotFoundError if the patterns match no file that can be read, and
    ValueError for an unknown alphabet. Reading raises MalformedLine for a bad record.
    """
    versions = versions_of(find_files(files))
    sizes = {path: size for path, size, _ in versions}
    read = functools.partial(_documents_of_sequences, alphabet_named(alphabet), window)
    noun = "file" if len(sizes) == 1 else "files"
    source = _source(read, [alphabet, window, *versions], sizes, task_bytes, noun)
    return source._replace(alphabet=alphabet)


def _documents_of_sequences(
    alphabet: Alphabet, window: int | None, file: FileRange
) -> Iterator[Document]:
    records = valid_documents(raw_documents(file.path, "text", text_in_parts=True))
    for piece in pieces(records, alphabet, LeftOut(), window=window):
        yield _document(piece, "text")


@checked
def repositories(
    *,
    folders: str | Sequence[str],
    files: str | Sequence[str] = "**/*.py",
    header: str = "# {repository}/{path}\n",
    on_malformed: Literal["error", "skip"] = "error",
    task_bytes: Count = 8 << 20,
) -> Source:
    """Reads source code by repository: all files of a folder form one document.

    Files are in the order of their names, but a Python file follows the files that it imports
    (`preprocessing.repositories`). The metadata are `repository`, the name of the folder, and the
    number of `files`.

    Args:
      folders: paths or glob patterns of folders, such as "repos/*", as a list or separated by
        commas.
      files: patterns of files below each folder, as a list or separated by commas. Compressed
        files are unpacked.
      header: text before each file, with "{path}" and "{repository}".
      on_malformed: "error" stops at the first file that is not text; "skip" counts them.
      task_bytes: number of bytes that a task reads. It is raised if there would be more than 512
        tasks.

    Folders without such files are left out.

    Raises:
      ValueError: for a header with other names in braces.
      FileNotFoundError: for a pattern that matches nothing.
    """
    try:
        header.format(path="", repository="")
    except (KeyError, IndexError, ValueError) as error:
        raise ValueError(
            f"sources.repositories.header is {header!r} ({error!r}), expected a text with no "
            'fields in braces other than "{path}" and "{repository}".'
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
    """Returns the source of files or folders with these sizes, which `read` reads one by one."""
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
    """Yields the documents and the bad records of a file in order. Raises what `_judged` raises."""
    lines = (file_range.start, file_range.end)
    records = (
        _document(record, text_field) if isinstance(record, RawDocument) else record
        for record in raw_documents(file_range.path, text_field, byte_range=lines)
        if isinstance(record, RawDocument) or record.rule != "blank"
    )
    return _judged(records, on_malformed, "files")


def _document(record: RawDocument, text_field: str) -> Document:
    fields = record.fields
    name = fields.get("id")
    if not isinstance(name, str | int):
        name = f"{record.path}@{record.at}" if fields else record.path
    metadata = {key: value for key, value in fields.items() if key not in (text_field, "id")}
    if isinstance(nested := metadata.get("metadata"), dict):  # as datatrove and Dolma write it
        metadata = nested | {key: value for key, value in metadata.items() if key != "metadata"}
    return Document(record.text, str(name), metadata={"file": record.path, **metadata})


def _documents_of_repository(
    paths_of: Mapping[str, Sequence[str]], header: str, on_malformed: str, folder: FileRange
) -> Iterator[Document | Bad]:
    records = documents(folder.path, paths_of[folder.path], header)
    return _judged(records, on_malformed, "repositories")


def _judged(
    records: Iterable[Document | Bad], on_malformed: str = "skip", source: str = ""
) -> Iterator[Document | Bad]:
    """Yields documents and bad records. A document without text is yielded as a bad record.

    Raises MalformedLine at the first bad record if `on_malformed`, a setting of `source`, is
    "error".
    """
    for record in records:
        if isinstance(record, Bad) and record.rule not in LEFT_OUT and on_malformed == "error":
            skip = f"--gin.sources.{source}.on_malformed=\"'skip'\""
            raise malformed(record, f"Fix it, or skip such records: {skip}")
        if isinstance(record, Document) and not record.text.strip():
            record = Bad(record.id, "empty", "no text")
        yield record


def seqio_task(
    *,
    name: str,
    split: str = "train",
    feature: str = "targets",
    module: str | None = None,
    data_dir: str | None = None,
) -> Source:
    """Reads the text of a SeqIO task before it is tokenized.

    Args:
      name: name of the task, your own or from `tasks.seqio.tfds_tasks`.
      split: split to read.
      feature: feature with the text.
      module: module or file that registers the task. If it changes, the text is read again. Other
        changes are not noticed.
      data_dir: folder of TensorFlow Datasets; None means ~/tensorflow_datasets.

    Raises ValueError for a mixture, and for a split or feature that the task does not have.
    """
    from ..tasks.seqio.seqio_texts import TaskTexts

    source = _tensorflow_source(TaskTexts(name, split, feature, module, data_dir))
    file = import_module(module).__file__ if module else None
    return source._replace(version=[*source.version, checksum(file)]) if file else source


def tensorflow_dataset(
    *, name: str, split: str = "train", feature: str = "text", data_dir: str | None = None
) -> Source:
    """Reads the text of a dataset of TensorFlow Datasets that `tfds build` has prepared.

    Args:
      name: name and version, such as "wikipedia/20230601.en:1.0.0".
      split: split to read.
      feature: feature with the text.
      data_dir: folder of TensorFlow Datasets; None means ~/tensorflow_datasets.

    Raises:
      FileNotFoundError: if the dataset is not prepared.
      ValueError: for a split or feature that it does not have.
    """
    from ..tasks.seqio.seqio_texts import DatasetTexts

    return _tensorflow_source(DatasetTexts(name, split, feature, data_dir))


def _tensorflow_source(texts: Any) -> Source:
    tasks = min(texts.shards(), MAX_TASKS)
    about = f"{texts.name}, {texts.split}, of {texts.shards():,} files"
    read = functools.partial(_documents_of_tensorflow, texts, tasks)
    return Source("read", tasks, list(texts), functools.partial(_Read, read), about)


def _documents_of_tensorflow(texts: Any, tasks: int, rank: int) -> Iterator[Document | Bad]:
    numbered = enumerate(texts.read(rank, tasks))
    return _judged(Document(text, f"{texts.name}/{rank}/{number}") for number, text in numbered)


def shares_of(sizes: Mapping[str, int], share_bytes: int) -> list[list[FileRange]]:
    """Returns what each task reads: consecutive files, and byte ranges of long JSONL files.

    >>> shares_of({"a.txt": 3, "b.txt": 3, "c.jsonl": 12}, 6)
    [[FileRange(path='a.txt', start=0, end=None), FileRange(path='b.txt', start=0, end=None)],
     [FileRange(path='c.jsonl', start=0, end=6)], [FileRange(path='c.jsonl', start=6, end=12)]]
    """
    share_bytes = max(share_bytes, -(-sum(sizes.values()) // (MAX_TASKS - 1)))
    shares: list[list[FileRange]] = [[]]
    remaining = share_bytes
    for path, size in sizes.items():
        is_jsonl = path.lower().endswith(JSONL_SUFFIXES)  # compressed files have other endings
        if is_jsonl and size > share_bytes:
            starts = range(0, size, share_bytes)
            ranges = [FileRange(path, at, min(at + share_bytes, size)) for at in starts]
        else:
            ranges = [FileRange(path)]
        for file_range in ranges:
            if remaining <= 0:  # all shares but the last are full
                shares.append([])
                remaining = share_bytes
            shares[-1].append(file_range)
            remaining -= size if file_range.end is None else file_range.end - file_range.start
    return shares


class _Read(PipelineStep):
    """Yields the documents of a task, and counts its bad records."""

    type = "Reader"
    name = "read"

    def __init__(self, read: Callable[[int], Iterator[Document | Bad]], dropped: DroppedExamples):
        super().__init__()
        self.read = read
        self.dropped = dropped

    def run(self, data=None, rank: int = 0, world_size: int = 1):
        with self.dropped:
            for record in self.read(rank):
                self.stat_update("total")
                if isinstance(record, Bad):
                    self.stat_update("dropped", f"dropped_{record.rule}")
                    self.dropped.note(record.rule, record.place, record.reason, rank)
                    continue
                self.stat_update("forwarded")
                yield record
