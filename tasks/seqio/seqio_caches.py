"""SeqIO's caches of preprocessed tasks, as `seqio_cache_tasks` writes them: found, and checked.

    CACHE_DIR/TASK/COMPLETED                      written last
    CACHE_DIR/TASK/info.SPLIT.json                features with their types, and the number of files
    CACHE_DIR/TASK/stats.SPLIT.json               the number of examples and tokens
    CACHE_DIR/TASK/SPLIT.tfrecord-00000-of-00064  examples as `tf.train.Example`

A cache holds what a task gives before its `seqio.CacheDatasetPlaceholder`. It does not say in which
vocabulary its ids are: that is checked here.
"""

import itertools
from collections.abc import Sequence

import numpy as np

from ...corpora.vocabularies import Vocabulary
from ...corpora.vocabularies.tokenization import Tokenizer
from ...settings.atomic_writes import checksum, parse_json
from .quiet_tensorflow import seqio, tf
from .seqio_vocabularies import described, tokenizer_of

_COMPARED = 8  # examples whose text is tokenized again


def add_cache_dirs(cache_dirs: Sequence[str]) -> None:
    """Has SeqIO look for caches in these folders as well, which must exist."""
    if isinstance(cache_dirs, str):
        raise ValueError(f"Got cache_dirs={cache_dirs!r}, expected a list: [{cache_dirs!r}].")
    for folder in cache_dirs:
        if not tf.io.gfile.isdir(folder):
            raise FileNotFoundError(
                f"cache_dirs names {folder}, which is no folder: expected one that "
                "`seqio_cache_tasks --output_cache_dir` has written."
            )
    seqio.add_global_cache_dirs(cache_dirs)


def is_read_from_cache(task: seqio.Task, use_cached: bool) -> bool:
    """Whether SeqIO reads a task's cache: of one that cannot be cached it reads the source."""
    return use_cached and task.supports_caching


def cached_source(task: seqio.Task, split: str) -> seqio.DataSource:
    return task._get_cached_source(split)  # SeqIO has no public name for it


def check_cache(task: seqio.Task, splits: Sequence[str]) -> None:
    """Raises FileNotFoundError or ValueError for a task without a whole cache of these splits."""
    if task.cache_dir is None:
        folder = seqio.get_task_dir_from_name(task.name)
        searched = ", ".join(seqio.get_global_cache_dirs()) or "no folder, for cache_dirs is empty"
        raise FileNotFoundError(
            f"Task {task.name!r} is not cached: searched for {folder}/COMPLETED in {searched}. "
            f"Write the cache with `seqio_cache_tasks --tasks={task.name} --output_cache_dir=DIR`, "
            "name the folder where it is in cache_dirs, or set use_cached=False."
        )
    known = cached_splits(task)
    for split in splits:
        if split not in known:
            raise ValueError(
                f"The cache {task.cache_dir} has no split {split!r}, expected one of {known}."
            )
        _check_files(task, split)


def cached_splits(task: seqio.Task) -> list[str]:
    """The splits that a task's cache has."""
    there = tf.io.gfile.glob(seqio.get_cached_info_path(task.cache_dir, "*"))
    return sorted(path.rpartition("info.")[2].removesuffix(".json") for path in there)


def _check_files(task: seqio.Task, split: str) -> None:
    try:
        files = len(cached_source(task, split).list_shards(split))
        written = _info(task, split)["num_shards"]
    except (KeyError, ValueError, tf.errors.NotFoundError) as error:
        raise ValueError(
            f"The cache {task.cache_dir} has no readable info and stats of split {split!r} "
            f"({type(error).__name__}: {error}): write it again, with "
            "`seqio_cache_tasks --overwrite`."
        ) from error
    if files != written:
        raise ValueError(
            f"The cache {task.cache_dir} holds {files} files of split {split!r}, expected the "
            f"{written} that were written: copy the others, or write it again."
        )


def _info(task: seqio.Task, split: str) -> dict:
    with tf.io.gfile.GFile(seqio.get_cached_info_path(task.cache_dir, split)) as file:
        return parse_json(file.read())


def check_cached_ids(
    task: seqio.Task, split: str, features: Sequence[str], vocabulary: Vocabulary
) -> None:
    """Raises ValueError for a cache whose ids are none of the run's vocabulary.

    Where the cache holds text, that is tokenized as it is read, any vocabulary will do. Ids must be
    of the vocabulary that the task is registered with, which shows in the first examples of the
    split where the cache holds their text too, as `targets_pretokenized`; and that must be the
    run's.
    """
    kept = _info(task, split)["features"]
    for name in features:
        if name not in kept or not kept[name]["dtype"].startswith("int"):
            continue
        own = task.output_features[name].vocabulary
        if not _are_of_one_file(tokenizer_of(own), vocabulary.tokenizer):
            raise ValueError(
                f"The cache {task.cache_dir} holds ids of {described(own)} in {name!r}, expected "
                f"the run's vocabulary, {vocabulary.about}: give the corpus "
                "seqio_vocabularies.from_task, or set use_cached=False to tokenize the text anew."
            )
        _check_against_text(task, split, name)


def _are_of_one_file(one: Tokenizer, other: Tokenizer) -> bool:
    if one.kind != other.kind or None in (one.path, other.path):
        return one.kind == other.kind
    return checksum(str(one.path)) == checksum(str(other.path))


def _check_against_text(task: seqio.Task, split: str, name: str) -> None:
    """Raises ValueError where the first examples have ids that their text has not; as steps before
    the cache may have cut them, their number and order is not compared."""
    vocabulary = task.output_features[name].vocabulary
    special = {vocabulary.pad_id, vocabulary.eos_id, vocabulary.bos_id, vocabulary.unk_id}
    special |= set(range(vocabulary.vocab_size - vocabulary.extra_ids, vocabulary.vocab_size))
    examples = cached_source(task, split).get_dataset(split, shuffle=False).as_numpy_iterator()
    for example in itertools.islice(examples, _COMPARED):
        text = example.get(f"{name}_pretokenized")
        if not isinstance(text, bytes):
            return
        expected = vocabulary.encode(text.decode("utf-8"))
        if others := set(np.ravel(example[name]).tolist()) - special - set(expected):
            raise ValueError(
                f"The cache {task.cache_dir} was written with another vocabulary than task "
                f"{task.name!r} has: {name!r} holds the ids {sorted(others)[:5]}, expected those "
                f"of its text in {described(vocabulary)}, {expected[:5]}…: write it again, with "
                "`seqio_cache_tasks --overwrite`, or register the task with the vocabulary it was "
                "cached with."
            )
