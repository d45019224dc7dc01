"""Where raw text comes from.

    preparing.Preparation.source = @sources.files
    sources.files.files = "raw/*.jsonl.zst, s3://bucket/more/*.parquet"

A source divides its text into tasks, by its sizes alone.
"""

from collections.abc import Sequence
from typing import Any

from datatrove.data import Document
from datatrove.pipeline.base import PipelineStep

from pretrax.preparing.blocks import Source
from pretrax.preparing.reading import (
    Bad,
    Piece,
    Reading,
    found_files,
    is_splittable,
    records,
    size_and_version,
)

MOST_TASKS = 512  # near duplicates are found with a file of each task open


def files(
    *,
    files: str | Sequence[str],
    text_field: str = "text",
    on_malformed: str = "error",
    task_bytes: int = 8 << 20,
) -> Source:
    """Plain text, source code, JSONL, Parquet, Arrow, WARC and WET, each also as .gz or .zst.

    Args:
      files: paths or glob patterns (`**` for any depth), a list or separated by commas; with a
        protocol, such as s3://, in a bucket; a folder that Hugging Face's `datasets` saved.
      text_field: the field or column that holds the text; the others are the document's metadata.
      on_malformed: "error" ends at the first record that cannot be read, "skip" counts and shows them.
      task_bytes: of files that one task reads; more where there would be more than 512 tasks.

    Raises ValueError and FileNotFoundError for settings that no file follows.
    """
    if on_malformed not in ("error", "skip"):
        raise ValueError(
            f"sources.files.on_malformed must be 'error' or 'skip', got {on_malformed!r}."
        )
    if task_bytes < 1:
        raise ValueError(f"sources.files.task_bytes must be at least 1, got {task_bytes}.")
    paths = found_files(files)
    known = {path: size_and_version(path) for path in paths}
    sizes = {path: size for path, (size, _) in known.items()}
    shares = shares_of(sizes, max(task_bytes, -(-sum(sizes.values()) // (MOST_TASKS - 1))))
    total = sum(sizes.values()) / 1e6
    return Source(
        "read",
        len(shares),
        [(path, *version) for path, version in known.items()],
        lambda dropped: _Read(shares, Reading(text_field, on_malformed), dropped),
        f"{len(paths):,} file{'s' * (len(paths) != 1)}, {total:,.1f} MB",
    )


def seqio_task(
    *,
    name: str,
    split: str = "train",
    feature: str = "targets",
    module: str | None = None,
    data_dir: str | None = None,
) -> Source:
    """The text of a SeqIO task, as it is before it is tokenised.

    Args:
      name: of the task, one of yours or of `tasks.tfds_tasks`.
      split, feature: which text.
      module: a module, or a file, that registers the task.
      data_dir: where TensorFlow Datasets lie; None: ~/tensorflow_datasets.

    Raises ValueError for a mixture, and what the task does not have.
    """
    from pretrax.tasks.seqio_texts import TaskTexts

    return _of_tensorflow(TaskTexts(name, split, feature, module, data_dir))


def tensorflow_dataset(
    *, name: str, split: str = "train", feature: str = "text", data_dir: str | None = None
) -> Source:
    """The text of a data set of TensorFlow Datasets that `tfds build` has prepared.

    Args:
      name: such as "wikipedia/20230601.en:1.0.0".
      split, feature: which text.
      data_dir: where it lies; None: ~/tensorflow_datasets.

    Raises FileNotFoundError where it is not there, ValueError for what it does not have.
    """
    from pretrax.tasks.seqio_texts import DatasetTexts

    return _of_tensorflow(DatasetTexts(name, split, feature, data_dir))


def _of_tensorflow(texts: Any) -> Source:
    tasks = min(texts.shards(), MOST_TASKS)
    about = f"{texts.name}, {texts.split}, of {texts.shards():,} files"
    return Source(
        "read", tasks, list(texts), lambda dropped: _ReadTexts(texts, tasks, dropped), about
    )


def shares_of(sizes: dict[str, int], share_bytes: int) -> list[list[Piece]]:
    """Returns what each task reads: consecutive files, and ranges of long ones that can be split.

    >>> shares_of({"a.txt": 3, "b.txt": 3, "c.jsonl": 12, "d.txt": 9}, 6)
    [[Piece('a.txt'), Piece('b.txt')], [Piece('c.jsonl', 0, 6)], [Piece('c.jsonl', 6, 12)], [Piece('d.txt')]]
    """
    shares: list[list[Piece]] = [[]]
    left = share_bytes
    for path, size in sizes.items():
        cuts = range(0, size, share_bytes) if is_splittable(path) and size > share_bytes else [0]
        for start in cuts:
            end = min(start + share_bytes, size)
            whole = len(cuts) == 1
            taken = size if whole else end - start
            if left <= 0:  # so that all but the last have their bytes
                shares.append([])
                left = share_bytes
            shares[-1].append(Piece(path) if whole else Piece(path, start, end))
            left -= taken
    return shares


class _Read(PipelineStep):
    """Gives the documents of the pieces of a task."""

    type, name = "Reader", "files"

    def __init__(self, shares: Sequence[Sequence[Piece]], reading: Reading, dropped):
        super().__init__()
        self.shares, self.reading, self.dropped = shares, reading, dropped

    def run(self, data=None, rank: int = 0, world_size: int = 1):
        with self.dropped:
            for piece in self.shares[rank]:
                for one in records(piece, self.reading):
                    self.stat_update("total")
                    if isinstance(one, Bad):
                        self.stat_update("dropped", f"dropped_{one.rule}")
                        self.dropped.note(one.rule, one.name, one.reason, rank)
                        continue
                    self.stat_update("forwarded")
                    yield Document(one.text, one.name, metadata=one.metadata)


class _ReadTexts(PipelineStep):
    """Gives the documents of a task's share of `tasks.seqio_texts`."""

    type, name = "Reader", "TensorFlow"

    def __init__(self, texts: Any, tasks: int, dropped):
        super().__init__()
        self.texts, self.tasks, self.dropped = texts, tasks, dropped

    def run(self, data=None, rank: int = 0, world_size: int = 1):
        with self.dropped:
            for number, text in enumerate(self.texts.read(rank, self.tasks)):
                self.stat_update("total")
                name = f"{self.texts.name}/{rank}/{number}"
                if not text.strip():
                    self.stat_update("dropped", "dropped_empty")
                    self.dropped.note("empty", name, "no text", rank)
                    continue
                self.stat_update("forwarded")
                yield Document(text, name)
