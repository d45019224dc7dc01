"""SeqIO tasks whose examples are in memory."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import seqio
import tensorflow as tf

from pretrax.tasks.seqio.seqio_tasks import SeqioTasks

BOTH = ("train", "validation")


def memory_source(columns: Mapping | Callable[[str], Mapping], splits: Sequence[str] = BOTH):
    """Returns a source of these columns. `columns` may be a function of the split."""

    def read(split, shuffle_files=False, seed=None):
        found = columns(split) if callable(columns) else columns
        return tf.data.Dataset.from_tensor_slices(dict(found))

    return seqio.FunctionDataSource(read, splits=list(splits))


def pair_columns(pairs: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    inputs, targets = zip(*pairs)
    return {"inputs": list(inputs), "targets": list(targets)}


def with_tasks(name: str, settings: Mapping) -> dict:
    """Returns settings of a corpus in which the fields of `SeqioTasks` are one setting."""
    fields = settings.keys() & {field.name for field in dataclasses.fields(SeqioTasks)}
    others = {key: value for key, value in settings.items() if key not in fields}
    return others | {"tasks": SeqioTasks(name, **{key: settings[key] for key in fields})}


def renew(name: str, add: Callable = seqio.TaskRegistry.add, *arguments, **settings):
    """Registers a task, and replaces any task of the same name."""
    if name in seqio.TaskRegistry.names():
        seqio.TaskRegistry.remove(name)
    return add(name, *arguments, **settings)


def renew_pairs(name: str, pairs, vocabulary: seqio.Vocabulary, *, add_eos=True, **more):
    """Registers a task with these (inputs, targets) in both splits, as `renew` does."""
    feature = seqio.Feature(vocabulary, add_eos=add_eos)
    return renew(
        name,
        source=memory_source(pair_columns(pairs)),
        preprocessors=[seqio.preprocessors.tokenize, seqio.preprocessors.append_eos],
        output_features={"inputs": feature, "targets": feature},
        **more,
    )
