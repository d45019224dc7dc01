"""Finds and checks SeqIO's caches of preprocessed tasks, which `seqio_cache_tasks` writes.

    CACHE_DIR/TASK/COMPLETED                      written last
    CACHE_DIR/TASK/info.SPLIT.json                features with their types, and the number of files
    CACHE_DIR/TASK/stats.SPLIT.json               the number of examples and tokens
    CACHE_DIR/TASK/SPLIT.tfrecord-00000-of-00064  examples as `tf.train.Example`

A cache holds the examples of a task before its `seqio.CacheDatasetPlaceholder`. It does not record
the vocabulary of its ids, so this module checks it.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...corpora.vocabularies import Vocabulary
from ...corpora.vocabularies.tokenization import Tokenizer
from ...settings.atomic_writes import checksum, parse_json
from .quiet_tensorflow import seqio, tf
from .seqio_vocabularies import describe, tokenizer_of

_COMPARED = 8  # number of examples whose text is tokenized again


def add_cache_dirs(cache_dirs: Sequence[str]) -> None:
    """Adds folders to the folders in which SeqIO looks for caches. They must exist."""
    if isinstance(cache_dirs, str):
        raise ValueError(f"Got cache_dirs={cache_dirs!r}, expected a list: [{cache_dirs!r}].")
    for folder in cache_dirs:
        if not tf.io.gfile.isdir(folder):
            raise FileNotFoundError(
                f"cache_dirs has {folder}, which is not a folder: expected a folder that "
                "`seqio_cache_tasks --output_cache_dir` has written."
            )
    seqio.add_global_cache_dirs(cache_dirs)


class ReadTask(NamedTuple):
    """A task, and whether its examples are read from SeqIO's cache instead of its source."""

    task: seqio.Task
    cached: bool = False

    @property
    def name(self) -> str:
        return self.task.name

    def source(self, split: str) -> seqio.DataSource:
        # SeqIO has no public function for the source of a cache.
        return self.task._get_cached_source(split) if self.cached else self.task.source


def read_tasks(tasks: Sequence[seqio.Task], use_cached: bool) -> list[ReadTask]:
    """Returns tasks that are read from their caches, except those that cannot be cached."""
    return [ReadTask(task, use_cached and task.supports_caching) for task in tasks]


def check_cache(task: seqio.Task, splits: Sequence[str]) -> None:
    """Raises FileNotFoundError or ValueError if the cache of these splits is incomplete."""
    if task.cache_dir is None:
        folder = seqio.get_task_dir_from_name(task.name)
        searched = (
            ", ".join(seqio.get_global_cache_dirs()) or "no folder, since cache_dirs is empty"
        )
        raise FileNotFoundError(
            f"Task {task.name!r} is not cached: searched for {folder}/COMPLETED in {searched}. "
            f"Write the cache with `seqio_cache_tasks --tasks={task.name} --output_cache_dir=DIR`, "
            "add its folder to cache_dirs, or set use_cached=False."
        )
    splits_of_cache = cached_splits(task)
    for split in splits:
        if split not in splits_of_cache:
            raise ValueError(
                f"The cache {task.cache_dir} has no split {split!r}: choose one of "
                f"{splits_of_cache}."
            )
        _check_files(task, split)


def cached_splits(task: seqio.Task) -> list[str]:
    """Returns the splits in the cache of a task."""
    infos = tf.io.gfile.glob(seqio.get_cached_info_path(task.cache_dir, "*"))
    return sorted(path.rpartition("info.")[2].removesuffix(".json") for path in infos)


def _check_files(task: seqio.Task, split: str) -> None:
    try:
        files = len(ReadTask(task, cached=True).source(split).list_shards(split))
        written = _info(task, split)["num_shards"]
    except (KeyError, ValueError, tf.errors.NotFoundError) as error:
        raise ValueError(
            f"The cache {task.cache_dir} has no readable info and stats of split {split!r} "
            f"({type(error).__name__}: {error}): write it again, with "
            "`seqio_cache_tasks --overwrite`."
        ) from error
    if files != written:
        raise ValueError(
            f"The cache {task.cache_dir} has {files} files of split {split!r}, but {written} were "
            "written: copy the missing files, or write the cache again."
        )


def _info(task: seqio.Task, split: str) -> dict:
    with tf.io.gfile.GFile(seqio.get_cached_info_path(task.cache_dir, split)) as file:
        return parse_json(file.read())


def check_cached_ids(
    task: seqio.Task, split: str, features: Sequence[str], vocabulary: Vocabulary
) -> None:
    """Raises ValueError if the ids of a cache are not from the run's vocabulary.

    A cached text is tokenized when it is read, so it fits any vocabulary. Cached ids must be from
    the vocabulary that the task is registered with, and this must be the run's vocabulary. If the
    cache also holds the text, as `targets_pretokenized`, the first examples are compared with it.
    """
    cached_features = _info(task, split)["features"]
    for name in features:
        if name not in cached_features or not cached_features[name]["dtype"].startswith("int"):
            continue
        task_vocabulary = task.output_features[name].vocabulary
        if not _have_equal_files(tokenizer_of(task_vocabulary), vocabulary.tokenizer):
            raise ValueError(
                f"The cache {task.cache_dir} has ids of {describe(task_vocabulary)} in "
                f"{name!r}, expected the run's vocabulary, {vocabulary.about}: give the corpus "
                "seqio_vocabularies.from_task, or set use_cached=False to tokenize the text again."
            )
        _check_against_text(task, split, name)


def _have_equal_files(first: Tokenizer, second: Tokenizer) -> bool:
    if first.kind != second.kind or None in (first.path, second.path):
        return first.kind == second.kind
    return checksum(str(first.path)) == checksum(str(second.path))


def _check_against_text(task: seqio.Task, split: str, name: str) -> None:
    """Raises ValueError if the first examples have ids that their text does not have.

    Numbers and order of ids are not compared, since steps before the cache may have cut the text.
    """
    vocabulary = task.output_features[name].vocabulary
    special = {vocabulary.pad_id, vocabulary.eos_id, vocabulary.bos_id, vocabulary.unk_id}
    special |= set(range(vocabulary.vocab_size - vocabulary.extra_ids, vocabulary.vocab_size))
    dataset = ReadTask(task, cached=True).source(split).get_dataset(split, shuffle=False)
    for example in itertools.islice(dataset.as_numpy_iterator(), _COMPARED):
        text = example.get(f"{name}_pretokenized")
        if not isinstance(text, bytes):
            return
        expected = vocabulary.encode(text.decode("utf-8"))
        if unexpected := set(np.ravel(example[name]).tolist()) - special - set(expected):
            raise ValueError(
                f"The cache {task.cache_dir} was not written with the vocabulary of task "
                f"{task.name!r}: {name!r} has the ids {sorted(unexpected)[:5]}, expected the "
                f"ids of its text in {describe(vocabulary)}, {expected[:5]}…: write it again with "
                "`seqio_cache_tasks --overwrite`, or register the task with the vocabulary of the "
                "cache."
            )
