"""Skips examples of a SeqIO task without applying the task's steps to them.

SeqIO shuffles examples after all steps of a task. To skip n examples, it would apply all steps to n
examples and to the shuffle buffer. If each step makes one example from one example and depends on
nothing else, shuffling before the steps gives the same order. Skipped examples are then only read.
Steps that drop, cut, join or number examples, or are random, are applied to skipped examples too.
"""

from collections.abc import Iterator
from typing import Any

from .quiet_tensorflow import seqio, tf
from .seqio_caches import ReadTask

# Datasets whose elements depend only on the same element of their input.
_ELEMENTWISE = {"_MapDataset", "_ParallelMapDataset", "_PrefetchDataset", "_OptionsDataset"}
# Operations that TensorFlow calls stateful only because they hold tables, which never change.
# The functions that the last three call are checked separately.
_CONSTANT = """
    SentencepieceOp SentencepieceTokenizeOp SentencepieceTokenizeWithOffsetsOp
    LookupTableFindV2 LookupTableSizeV2 WordpieceTokenizeWithOffsets Assert
    If While StatefulPartitionedCall
""".split()


def examples_after(skip: int, task: seqio.Task, **how: Any) -> tf.data.Dataset:
    """Returns exactly `task.get_dataset(**how).skip(skip)`, with as few steps as possible.

    `how` has `split`, `use_cached`, `shuffle`, `seed`, `shard_info` and `sequence_length`.
    """
    if skip and (skipped := _skipped_before_steps(skip, task, **how)) is not None:
        return skipped
    dataset = task.get_dataset(trim_output_features=False, try_in_mem_cache=False, **how)
    return dataset.skip(skip)


def _skipped_before_steps(
    skip: int,
    task: seqio.Task,
    *,
    split: str,
    use_cached: bool,
    shuffle: bool,
    seed: int | None = None,
    shard_info: seqio.ShardInfo | None = None,
    sequence_length: dict[str, int] | None = None,
) -> tf.data.Dataset | None:
    """Returns the examples, or None if steps must be applied to skipped examples too."""
    if shuffle and task.shuffle_buffer_size is None:
        return None
    source = ReadTask(task, use_cached).source(split)
    raw = _shard(source, split, shuffle, seed, shard_info)
    if shuffle:
        raw = raw.shuffle(task.shuffle_buffer_size, seed=seed)
    raw = raw.skip(skip)
    steps = raw if use_cached else task.preprocess_precache(raw, seed=seed)
    steps = task.preprocess_postcache(steps, sequence_length=sequence_length, seed=seed)
    if not _is_elementwise(steps, raw):
        return None
    return task._validate_preprocessing(steps).prefetch(tf.data.AUTOTUNE)


def _shard(
    source: seqio.DataSource,
    split: str,
    shuffle: bool,
    seed: int | None,
    shard_info: seqio.ShardInfo | None,
) -> tf.data.Dataset:
    """Returns what `seqio.Task.get_dataset` reads: files of the source, or every n-th example."""
    if (
        shard_info is None
        or source.supports_arbitrary_sharding
        or len(source.list_shards(split=split)) >= shard_info.num_shards
    ):
        return source.get_dataset(split=split, shuffle=shuffle, seed=seed, shard_info=shard_info)
    whole = source.get_dataset(split=split, shuffle=shuffle, seed=seed)
    return whole.shard(shard_info.num_shards, shard_info.index)


def _is_elementwise(dataset: tf.data.Dataset, source: tf.data.Dataset) -> bool:
    """Returns whether each element of `dataset` depends only on the same element of `source`."""
    while dataset is not source:
        if type(dataset).__name__ not in _ELEMENTWISE:
            return False
        if any(_is_stateful(name) for function in dataset._functions() for name in _ops(function)):
            return False
        (dataset,) = dataset._inputs()
    return True


def _ops(function: Any) -> Iterator[str]:
    """Yields the operations of a dataset's function and of the functions that it calls."""
    graph = function.function.graph.as_graph_def()
    for nodes in (graph.node, *(called.node_def for called in graph.library.function)):
        yield from (node.op for node in nodes)


def _is_stateful(name: str) -> bool:
    # Imported only now, after TensorFlow was imported quietly.
    from tensorflow.python.framework import op_def_registry

    registered = op_def_registry.get(name)
    return name not in _CONSTANT and (registered is None or registered.is_stateful)
